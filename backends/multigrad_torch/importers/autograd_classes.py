"""A `torch.autograd.Function` class: what it defines, and one call of it with a `ctx` of ours.

`record_call` runs forward and returns a `Recorded`, whose `pull` and `push` run backward and jvp
with the same ctx. In a capture the values are symbols, else (`trace` is None) tensors.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from multigrad.core.backend.values import is_float_tensor
from multigrad.core.functions.recipe import Recorded
from multigrad.core.ir import questions
from multigrad.core.ir.op import UNKNOWN, is_float
from multigrad.core.trace.source import AUTOCAST, FORWARD_MODE, STATE, TWICE
from multigrad.core.trace.trace import Value, cast_node, mark_view, setting
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings.places import Extremes
from multigrad.engine.capture.user_code.inspection import nested_codes
from multigrad.engine.capture.user_code.snapshot import noting_state
from multigrad.engine.functions.calls.imported_gradients import Pushed, make_tangent
from multigrad.engine.functions.calls.parameters import bind_call, signature_of
from multigrad.engine.trace.code_trace import CodeTrace
from multigrad.engine.trace.tensor_questions import needs_gradient
from multigrad.errors import GradientError, explaining

Tensor: TypeAlias = torch.Tensor
BASE = torch.autograd.Function
FunctionClass: TypeAlias = type[torch.autograd.Function]


@dataclass(frozen=True, slots=True, eq=False)
class ClassCode:
    """A class, and what is known of its code.

    Attributes:
        signature: of `apply`; None: it is not known.
        copies: whether it may write into its arguments, which are copies.
    """

    function_class: FunctionClass
    signature: inspect.Signature | None
    copies: bool

    @property
    def name(self) -> str:
        return self.function_class.__name__

    @property
    def has_setup(self) -> bool:
        """Whether forward gets no ctx, because `setup_context` does."""
        return self.function_class.setup_context is not BASE.setup_context

    @property
    def gives_tangents(self) -> bool:
        return self.function_class.jvp is not BASE.jvp

    @property
    def backward(self) -> Callable[..., Any]:
        # torch knows it by two names.
        cls = self.function_class
        return cls.vjp if cls.backward is BASE.backward else cls.backward

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        cls = self.function_class
        setup = (cls.setup_context,) if self.has_setup else ()
        return (cls.forward, *setup, unwrap_once(self.backward)[0])

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, which takes no keywords."""
        return self.function_class.apply(*self.bind(args, kwargs))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return a call's arguments by position; with `setup_context` torch adds defaults, too."""
        # The common case first: each call of a class that runs unchanged comes here.
        if not (kwargs or self.has_setup):
            return args
        signature = self.signature
        if signature is None:
            return args
        bound_args = bind_call(f"function {self.name!r}", signature, args, kwargs)
        if self.has_setup:
            bound_args.apply_defaults()
        if bound_args.kwargs:
            raise TypeError(
                f"{self.name}: forward's arguments {sorted(bound_args.kwargs)} are keyword-only"
            )
        return bound_args.args


def signature_of_apply(cls: FunctionClass) -> inspect.Signature | None:
    """Return the signature of forward without ctx; None if it is not known."""
    signature = signature_of(cls.forward)
    if signature is None or cls.setup_context is not BASE.setup_context:
        return signature
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def find_problem(cls: FunctionClass) -> str:
    if cls.forward is BASE.forward:
        return "has no forward; define it as a static method"
    has_backward, has_vjp = cls.backward is not BASE.backward, cls.vjp is not BASE.vjp
    if not (has_backward or has_vjp):
        return "has no backward; define it as a static method"
    return "has both a backward and a vjp; keep one of them" if has_backward and has_vjp else ""


# --- torch's wrappers of forward and backward -----------------------------------------------------
# Wrappers of torch are recognized by their code objects, as they leave no other mark.
ONCE = frozenset(nested_codes(once_differentiable.__code__))
AMP_BACKWARD = frozenset(nested_codes(torch.amp.custom_bwd.__code__))
AMP = AMP_BACKWARD.union(nested_codes(torch.amp.custom_fwd.__code__))


def unwrap_once(backward: Any) -> tuple[Any, bool]:
    """Return a backward without `once_differentiable`, and whether it had that."""
    if getattr(backward, "__code__", None) in ONCE:
        return backward.__wrapped__, True
    return backward, False


def unwrap_amp(function: Any, trace: CodeTrace | None) -> Any:
    """Return a forward or backward without `custom_fwd` or `custom_bwd`, in a capture."""
    is_plain = inspect.isfunction(function) and function.__code__ in AMP
    if trace is None or not is_plain:
        return function
    # Without autocast these do nothing; under it backward uses the autocast of forward.
    casts = inspect.getclosurevars(function).nonlocals.get("cast_inputs")
    if casts or function.__code__ in AMP_BACKWARD:
        trace.omit(AUTOCAST)
    return function.__wrapped__


# --- one call -------------------------------------------------------------------------------------
def record_call(
    code: ClassCode,
    call: Callable[..., Any],
    trace: CodeTrace | None,
    positional: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    """Run a class's forward; return its outputs, and what runs its backward and its jvp.

    `call(function, *values)` runs one of the class's functions.
    """
    args = code.bind(positional, kwargs)
    ctx = Context(trace, args)
    # `custom_bwd` stands outside or inside `once_differentiable`.
    backward, is_once = unwrap_once(unwrap_amp(code.backward, trace))
    backward = unwrap_amp(backward, trace)
    cls = code.function_class
    forward = unwrap_amp(cls.forward, trace)
    if code.has_setup:
        outputs = call(forward, *args)
        call(cls.setup_context, ctx, args, outputs)
    else:
        outputs = call(forward, ctx, *args)
    # `Value` first: asked for another class, a symbol answers by the code that asks.
    if not isinstance(outputs, Value) and isinstance(outputs, Extremes):
        outputs = tuple(outputs)
    is_tuple, results = False, (outputs,)
    if not isinstance(outputs, Value) and isinstance(outputs, tuple):
        is_tuple, results = True, tuple(outputs)
    if trace is not None and len(set(map(id, results))) < len(results):
        trace.omit(TWICE)

    def nodes() -> list[Any]:
        return [each.node for each in (*args, *results) if isinstance(each, Value)]

    def pull(cotangents: Any) -> Any:
        """Run backward; return gradients nested like the caller's arguments."""
        nodes_before, kept = nodes(), dict(vars(ctx))
        own = [value for name, value in kept.items() if name not in OF_CALL]
        with noting_state(trace, own):
            raw_gradients = call(backward, ctx, *(cotangents if is_tuple else (cotangents,)))
        after = vars(ctx)
        if trace is not None and not (
            after.keys() == kept.keys() and all(after[name] is kept[name] for name in kept)
        ):
            trace.omit(STATE)
            after.clear()
            after.update(kept)  # a capture runs it several times, each as the first
        # A symbol that is updated in place has another node.
        if trace is not None and nodes() != nodes_before and not code.copies:
            advice = trace.words.advise("work on a copy: x.clone()")
            raise trace.error(
                "updates an input or an output in place in backward, which the caller would "
                f"see in one framework only{advice}. xg.convert({code.name}, "
                "capture=xg.Capture(copies=True)) has it do so"
            )
        gradients = check_gradients(code.name, raw_gradients, len(args))
        gradients = tuple(map(fit_to_argument, gradients, args))
        by_position = gradients[: len(positional)]  # defaults get none
        if not kwargs:
            return by_position
        assert code.signature is not None  # `bind` has used it for the keywords
        gradient_by_name = dict(zip(code.signature.parameters, gradients, strict=False))
        return (*by_position, {name: gradient_by_name[name] for name in kwargs})

    return Recorded(
        outputs,
        pull,
        push=partial(run_jvp, code, call, ctx, results) if code.gives_tangents else None,
        first_order=is_once,
        second_order=not is_once,
        keeps_output=True,  # backward reads only outputs that ctx keeps
        undifferentiable=ctx._undifferentiable,
        dirty=ctx._dirty,
        missing=ctx._missing,
    )


def run_jvp(
    code: ClassCode,
    call: Callable[..., Any],
    ctx: Context,
    results: Sequence[Any],
) -> Pushed | None:
    """Run jvp on symbolic tangents; None if it is a stub, or no graph can hold it."""
    trace = ctx._trace
    assert trace is not None
    tangents = [make_tangent(trace, i, x) for i, x in enumerate(ctx._args)]
    pairs = zip(ctx._args, tangents, strict=True)
    node_pairs = [(x.node, tangent.node) for x, tangent in pairs if tangent is not None]
    asked_before = questions.count()
    ctx._in_jvp = True
    try:
        with setting(trace, draws=trace.draws):
            raw_tangents = call(code.function_class.jvp, ctx, *tangents)
    except Exception as error:  # noqa: BLE001 (a jvp that is no graph works on torch only)
        questions.forget(asked_before)
        if not (isinstance(error, NotImplementedError) or never_returns(code.function_class.jvp)):
            trace.omit(FORWARD_MODE)
        return None
    finally:
        ctx._in_jvp = False
    output_tangents = raw_tangents if isinstance(raw_tangents, tuple) else (raw_tangents,)
    # torch accepts None for a tangent, but a jvp of nothing else is a stub.
    if raw_tangents is None or all(each is None for each in output_tangents):
        return None
    # torch refuses another count, and of a view of an argument a tangent that is no view.
    is_odd = len(output_tangents) != len(results)
    if is_odd or any(owner_of_memory(y) is x for y in results for x in ctx._args):
        trace.omit(FORWARD_MODE)
    return Pushed(node_pairs, output_tangents)


def never_returns(function: Callable[..., Any]) -> bool:
    """Return whether a function only raises, so that its author means that there is none."""
    return all(not row.opname.startswith("RETURN") for row in dis.get_instructions(function))


def owner_of_memory(value: Any) -> Any:
    while isinstance(value, Value) and value.base is not None:
        value = value.base
    return value


def check_gradients(name: str, returned: Any, count: int) -> tuple[Any, ...]:
    """Return one gradient for each of `count` arguments, from what the class `name` returned."""
    gradients = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    # torch accepts more gradients than arguments if the rest are None.
    surplus = gradients[count:]
    if len(gradients) < count or any(each is not None for each in surplus):
        gradients_text = "1 gradient" if len(gradients) == 1 else f"{len(gradients)} gradients"
        arguments_text = "1 argument" if count == 1 else f"{count} arguments"
        counts = f"(expected {count}, got {len(gradients)})"
        theirs = RuntimeError(
            f"function {name}Backward returned an incorrect number of gradients {counts}"
        )
        ours = GradientError(
            f"{name}.backward returned {gradients_text} for {arguments_text} of {name}.apply; "
            "expected one for each, None where there is none"
        )
        raise explaining(theirs, ours)
    return gradients[:count]


def fit_to_argument(gradient: Any, argument: Any) -> Any:
    """Return a symbolic gradient cast to its argument's dtype and summed over broadcast axes."""
    if not (isinstance(gradient, Value) and may_have_gradient(argument)):
        return gradient
    actual, expected = gradient.node.type, argument.node.type
    if actual.kind != "tensor":
        return gradient
    result = gradient
    if actual.dtype != expected.dtype and is_float(actual):
        result = gradient.trace.value(cast_node(gradient.node, expected.dtype))
    if UNKNOWN in (actual.shape, expected.shape):
        result = xp.sum_to(result, argument)
    if result is not gradient and result.base is None:
        mark_view(result, gradient, False)  # the gradient itself, where it fits
    return result


# --- the `ctx` of a call --------------------------------------------------------------------------
UNSAVED = (bool, int, float, str, tuple, list, dict)


class Context:
    """The `ctx` of one call. It keeps symbolic values in a capture, tensors elsewhere.

    The class's code may set any attribute, so that ours begin with an underscore. `_missing` gives
    the cotangent of an unused output; None: zeros.
    """

    def __init__(self, trace: CodeTrace | None, args: Sequence[Any]) -> None:
        self._trace = trace
        self._args = args
        self._saved: tuple[Any, ...] = ()
        self._saved_for_forward: tuple[Any, ...] = ()
        self._undifferentiable: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._missing: Callable[[Any], Any] | None = None
        self._in_jvp = False

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Which arguments need a gradient; a capture that reads it holds for this answer alone."""
        floats = [isinstance(x, Value) and may_have_gradient(x) for x in self._args]
        if self._trace is None or not any(floats):
            return tuple(map(may_have_gradient, self._args))
        # With one float argument backward runs only if that needs a gradient: nothing to ask.
        if self._trace.backward.is_running and sum(floats) == 1:
            return tuple(floats)
        symbols = [x for x, may_have in zip(self._args, floats, strict=True) if may_have]
        names = [x.node.attr("name") for x in symbols]
        answers = iter(needs_gradient(self._trace, tuple(names)))
        return tuple(may_have and next(answers) for may_have in floats)

    def save_for_backward(self, *tensors: Tensor) -> None:
        for i, each in enumerate(tensors):
            if not isinstance(each, Value) and isinstance(each, UNSAVED):
                kind = type(each).__name__
                raise TypeError(  # as torch does
                    f"save_for_backward can only save variables, but argument {i} is of type {kind}"
                )
        self._saved = tensors

    def save_for_forward(self, *tensors: Tensor) -> None:
        self._saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return self._saved_for_forward if self._in_jvp else self._saved

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        self._undifferentiable = outputs

    def mark_dirty(self, *inputs: Tensor) -> None:
        self._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether a missing cotangent is zeros; otherwise it is None."""
        self._missing = None if value else lambda output: None

    def __getattr__(self, name: str) -> Any:
        if name == "saved_variables":  # `saved_tensors` before torch 0.4
            return self._saved
        if self._trace is not None and hasattr(torch.autograd.function.BackwardCFunction, name):
            raise self._trace.error(f"uses ctx.{name}, which is not captured")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


OF_CALL = frozenset(vars(Context(None, ())))  # what is no attribute of the user's


def may_have_gradient(value: Any) -> bool:
    if isinstance(value, Value):
        return value.node.type.kind == "tensor" and is_float(value.node.type)
    return is_float_tensor(value)
