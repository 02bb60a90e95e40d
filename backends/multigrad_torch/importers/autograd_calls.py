"""One call of a `torch.autograd.Function` class: its forward now, its backward and jvp later.

`record_call` runs forward with a ctx of ours and returns a `Recorded`, whose `pull` and `push` are
methods of the call: they run backward and jvp with the same ctx. The values are symbols in a
capture (`trace`), else tensors (`trace` is None).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.capture.meanings.places import Extremes
from multigrad.errors import GradientError
from multigrad.functions.calls.capture_errors import is_users_own
from multigrad.functions.calls.imported_gradients import Pushed, make_tangent
from multigrad.functions.calls.recipe import Recorded
from multigrad.graph.ir import questions
from multigrad.graph.ir.types import UNKNOWN, is_float
from multigrad.graph.support.class_bases import dataclass
from multigrad.trace.assertions import FORWARD_MODE, TWICE
from multigrad.trace.trace import Trace, Value, cast_node, setting
from multigrad.trace.xp import all as xp

from .autograd_classes import ClassCode, unwrap_amp, unwrap_once
from .ctx import Context, may_have_gradient


def record_call(
    code: ClassCode,
    call: Callable[..., Any],
    trace: Trace | None,
    positional: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    """Run a class's forward; return its outputs, and what runs its backward and its jvp.

    Args:
        call: `call(function, *values)` runs one of the class's functions.
    """
    args = code.bind(positional, kwargs)
    ctx = Context(trace, args)
    # `custom_bwd` stands outside or inside of `once_differentiable`.
    backward, is_once = unwrap_once(unwrap_amp(code.backward, trace))
    backward = unwrap_amp(backward, trace)
    outputs = run_forward(code, call, ctx, trace, args)
    # `Value` first: asked for another class, a symbol answers by the code that asks.
    is_one = isinstance(outputs, Value)
    outputs = tuple(outputs) if not is_one and isinstance(outputs, Extremes) else outputs
    is_tuple = not is_one and isinstance(outputs, tuple)
    results = tuple(outputs) if is_tuple else (outputs,)
    if trace is not None and len(set(map(id, results))) < len(results):
        trace.omit(TWICE)
    this = ClassCall(
        code=code,
        call=call,
        trace=trace,
        ctx=ctx,
        backward=backward,
        args=args,
        given=len(positional),
        keywords=tuple(kwargs),
        results=results,
        is_tuple=is_tuple,
    )
    return Recorded(
        outputs,
        this.pull,
        push=this.push if code.gives_tangents else None,
        first_order=is_once,
        second_order=not is_once,
        keeps_output=True,  # backward reads only outputs that ctx keeps
        undifferentiable=ctx._undifferentiable,
        dirty=ctx._dirty,
        missing=ctx._missing,
    )


def run_forward(
    code: ClassCode,
    call: Callable[..., Any],
    ctx: Context,
    trace: Trace | None,
    args: tuple[Any, ...],
) -> Any:
    """Return forward's outputs; ctx keeps what the class saves for backward."""
    cls = code.function_class
    forward = unwrap_amp(cls.forward, trace)
    if not code.has_setup:
        return call(forward, ctx, *args)
    outputs = call(forward, *args)
    call(cls.setup_context, ctx, args, outputs)
    return outputs


@dataclass(frozen=True, slots=True, eq=False)
class ClassCall:
    """A call of a class whose forward has run.

    Attributes:
        call: `call(function, *values)` runs one of the class's functions.
        trace: the capture that the call is part of; None: it runs on tensors.
        ctx: what forward has kept.
        backward: without torch's wrappers.
        args: forward's arguments by position, defaults among them.
        given: how many of them the caller gave by position.
        keywords: the names of those that the caller gave by name.
        results: forward's outputs.
        is_tuple: whether forward returned a tuple.
    """

    code: ClassCode
    call: Callable[..., Any]
    trace: Trace | None
    ctx: Context
    backward: Callable[..., Any]
    args: tuple[Any, ...]
    given: int
    keywords: tuple[str, ...]
    results: tuple[Any, ...]
    is_tuple: bool

    def pull(self, cotangents: Any) -> Any:
        """Run backward; return gradients nested like the caller's arguments."""
        before = self._nodes()
        returned = self.call(
            self.backward, self.ctx, *(cotangents if self.is_tuple else (cotangents,))
        )
        # A symbol that is updated in place has another node.
        if self.trace is not None and self._nodes() != before and not self.code.copies:
            advice = self.trace.words.advise("work on a copy: x.clone()")
            raise self.trace.error(
                "updates an input or an output in place in backward, which the caller would "
                f"see in one framework only{advice}. xg.convert({self.code.name}, "
                "capture=xg.Capture(copies=True)) has it do so"
            )
        gradients = check_gradients(self.code.name, returned, len(self.args))
        return self._nest(tuple(map(fit_to_argument, gradients, self.args)))

    def _nodes(self) -> list[Any]:
        return [each.node for each in (*self.args, *self.results) if isinstance(each, Value)]

    def _nest(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.keywords:
            return gradients[: self.given]  # defaults get none
        assert self.code.signature is not None  # `bind` has used it for the keywords
        named = dict(zip(self.code.signature.parameters, gradients, strict=False))
        return (*gradients[: self.given], {name: named[name] for name in self.keywords})

    def push(self) -> Pushed | None:
        """Run jvp on symbolic tangents; None if it is a stub, or no graph can hold it."""
        trace = self.trace
        assert trace is not None
        tangents = [make_tangent(trace, i, x) for i, x in enumerate(self.args)]
        pairs = zip(self.args, tangents, strict=True)
        moved = [(x.node, tangent.node) for x, tangent in pairs if tangent is not None]
        asked_before = questions.count()
        self.ctx._in_jvp = True
        try:
            with setting(trace, draws=trace.draws):
                returned = self.call(self.code.function_class.jvp, self.ctx, *tangents)
        except Exception as error:  # noqa: BLE001 (a jvp that is no graph works on torch only)
            questions.forget(asked_before)
            if not (isinstance(error, NotImplementedError) or is_users_own(trace, error)):
                trace.omit(FORWARD_MODE)
            return None
        finally:
            self.ctx._in_jvp = False
        changes = returned if self.is_tuple else (returned,)
        # torch accepts None for a tangent, but a jvp of nothing else is a stub.
        is_stub = returned is None or all(each is None for each in changes)
        return None if is_stub else Pushed(moved, changes)


# --- gradients as torch's engine takes them -------------------------------------------------------
def check_gradients(name: str, returned: Any, count: int) -> tuple[Any, ...]:
    """Return one gradient for each of `count` arguments, from what the class `name` returned."""
    gradients = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    # torch accepts more gradients than arguments if the rest are None.
    extra = gradients[count:]
    if len(gradients) < count or any(each is not None for each in extra):
        given = "1 gradient" if len(gradients) == 1 else f"{len(gradients)} gradients"
        called = "1 argument" if count == 1 else f"{count} arguments"
        raise GradientError(
            f"{name}.backward returned {given} for {called} of {name}.apply; "
            "expected one for each, None where there is none"
        )
    return gradients[:count]


def fit_to_argument(gradient: Any, argument: Any) -> Any:
    """Return a symbolic gradient cast to its argument's dtype and summed over broadcast axes."""
    if not (isinstance(gradient, Value) and may_have_gradient(argument)):
        return gradient
    actual, expected = gradient.node.type, argument.node.type
    if actual.kind != "tensor":
        return gradient
    if actual.dtype != expected.dtype and is_float(actual):
        gradient = gradient.trace.value(cast_node(gradient.node, expected.dtype))
    if UNKNOWN in (actual.shape, expected.shape):
        gradient = xp.sum_to(gradient, argument)
    return gradient
