"""`xg.function`: a Function from a plain forward and a plain backward; without one, the true
derivative.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..capture.code.options import Capture, settled
from ..capture.code.signature import name_of
from ..capture.code.state import OWN
from ..capture.copies.capture import run_written_in
from ..errors import RuleTypeError
from ..graph.support.params import Fused, read_fused
from ..graph.support.typed import P, R, Residuals
from ..lowering.function_graph import read_way
from ..trace.trace import Trace
from .calls.arguments import BoundFunction, signature_of
from .calls.gradients import Modes, note_uses, read_modes, refuse_second_call, tensors_with_modes
from .calls.recipe import Recorded, Variant
from .custom_gradient import library_of, named_library, refuse_class, refuse_rule
from .function import Function
from .held import OfObject, holds_state
from .recipes.record import CodeRecipe

Tensor = Any
TENSOR = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, eq=False)
class PairRecipe(CodeRecipe):
    """A forward and a backward, written as two plain functions."""

    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    residuals: Callable[..., Any] | None
    name: str
    native: bool | None = None
    library: str = ""
    copies: bool = False
    rolls: bool = False
    modes: Modes = ()

    @property
    def signature(self) -> inspect.Signature | None:
        """The forward's own signature."""
        return signature_of(self.forward)

    def dialect(self) -> str:
        """Return the library that the forward is written in, "" where it is written for all."""
        if self.library:
            return named_library(self.library)
        return library_of(self.forward) or (
            "" if self.backward is None else library_of(self.backward)
        )

    def functions(self) -> tuple[Any, ...]:
        given = (self.forward, self.backward, self.residuals)
        return tuple(function for function in given if function is not None)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        def run(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
            return run_written_in(self.library, function, trace, *given, **named)

        outputs = run(self.forward, *args, **kwargs)

        def pull_kept(upstream: Any) -> Any:  # what is kept is of the outputs as backward has them
            return self._pull(run, outputs, args, kwargs)(upstream)

        if self.residuals is None or self.backward is None:
            pull = self._pull(run, outputs, args, kwargs)
            return Recorded(outputs, pull, rolls=self.rolls and pull is None)
        return Recorded(outputs, pull_kept, keeps_output=True)

    def prove(self, variant: Variant, leaves: Sequence[Any], *, is_call: bool = False) -> str:
        """Compare graphs with what they were captured from: of sums, as autodiff makes them."""
        if not self.modes:
            return CodeRecipe.prove(self, variant, leaves, is_call=is_call)
        adding = replace(self, modes=())
        captured = adding.capture(variant.layout, variant.facts, leaves)
        return adding.prove(captured, leaves, is_call=is_call)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        def run(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
            return function(*given, **named)

        outputs = self.forward(*args, **kwargs)
        return Recorded(outputs, self._pull(run, outputs, args, kwargs))

    def _pull(
        self,
        run: Callable[..., Any],
        outputs: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return what maps cotangents to gradients; None: the true derivative."""
        backward = self.backward
        if backward is None:
            return None
        if self.residuals is None:
            return lambda upstream: run(backward, upstream, *args, **kwargs)
        kept = run(self.residuals, outputs, *args, **kwargs)
        return lambda upstream: run(backward, upstream, kept)


def function(
    forward: Callable[P, R],
    backward: Callable[..., Any] | None = None,
    residuals: Callable[..., Any] | Residuals | None = None,
    *,
    accumulate: str | Mapping[str, str] = "sum",
    capture: Capture | None = None,
    native: bool | None = None,
    dialect: str | None = None,
    prove: bool = True,
    fused: Fused = "auto",
) -> Function[P, R]:
    """Return a Function made from a forward and a backward, for every framework.

    Examples:
        >>> clipped = xg.function(
        ...     lambda x, limit: xp.clip(x, 0.0, limit),
        ...     lambda grad_out, x, limit: (grad_out * ((x > 0) & (x < limit)), None),
        ... )
        >>> y, pull = xg.vjp(clipped, np.array([-1.0, 0.5, 3.0]), 2.0)
        >>> y
        array([0. , 0.5, 2. ])
        >>> pull(np.ones(3))[0]
        array([0., 1., 0.])

    Args:
        forward: `forward(*args) -> outputs`, written with any library. Of an object, or a method of
            one (a torch or Equinox module, a Keras layer, anything with `__call__`), or of a
            function that calls one, what it holds is read at each call. On its tensors' own
            framework it runs as it is, and gradients reach them; elsewhere they are constants.
        backward: `backward(grad_out, *args)` returns one gradient per argument (a bare one for one
            argument, None where there is none); `grad_out` is nested like the outputs. Without it
            the Function has its true derivative.
        residuals: `residuals(outputs, *args)` says what is kept for backward, which is then called
            as `backward(grad_out, kept)`. Or a word, with the same numbers: "auto", "input",
            "mask", "packed", "recompute" or "time"; see `Function.keeping`.
        accumulate: how the cotangents of an argument become one where the forward gives it to
            several functions with gradients of their own: "sum"; "max", element by element, NaN
            passed on; or "overwrite", where that of the call made last in the forward is taken and
            the others are dropped, NaN too. For all arguments, or by name: `{"scale": "max"}`, for
            what a backward passes on that is no derivative, as the scales and histories of largest
            values of fp8. For a forward without a `backward`, which gives one cotangent anyway. It
            is part of the captured graph, so the same on every framework. Of several calls of the
            Function the cotangents become one so where a capture holds the calls: another
            `xg.function`, `xg.vjp` on NumPy. Elsewhere frameworks add up what calls give, so a
            second call with the same tensor, through which the same derivative may pass, is
            refused. What cannot be seen (calls in torch.compile, one compiled function called
            twice, a loop of the framework's own) is added up: make the calls in one function.
        capture: how they become graphs; None: the defaults of `xg.Capture()`.
        native: this option of `Capture`, given directly.
        dialect: likewise.
        prove: likewise.
        fused: whether forward, what it keeps, and backward run as one compiled kernel each; see
            `xg.activation`.

    Raises:
        TypeError: it is a class, a rule, or not callable; `accumulate` names no argument,
            stands beside a backward or native=True, or is none of the three words.
        GradientError, TraceError: at a call; see `custom_gradient`. With `accumulate`, also what
            cannot be captured; an argument that ops or loops read beside such calls, whose shares
            are parts of a sum; a second call, as said.
    """
    refuse_class(forward)
    refuse_rule(forward)
    way = None
    if isinstance(residuals, str):
        way, residuals = read_way(residuals, f"function {name_of(forward)!r}"), None
    for role in (backward, residuals):
        if role is not None and not callable(role):
            raise TypeError(f"expected a function, got {type(role).__name__} {role!r:.40}")
    options = settled(capture, native, dialect, prove, may_roll=backward is None)
    native, library = options.native, options.library
    modes = read_modes(name_of(forward), signature_of(forward), accumulate)
    if modes:
        refuse_modes(forward, backward, native)
        native = False  # as it is, its framework would add up
    if backward is None and residuals is None and holds_state(forward):
        if way is not None:
            raise RuleTypeError(
                f"{name_of(forward)!r} reads the tensors of an object, which runs itself on its "
                "own framework: residuals= is for functions and classes"
            )
        if options.copies or options.rolls:
            raise RuleTypeError(
                f"{name_of(forward)!r} reads the tensors of an object, which runs itself on its "
                f"own framework: {'copies' if options.copies else 'rolls'}=True is for functions"
                f"{' and classes' if options.copies else ''}"
            )
        return OfObject(forward, native, library, options.prove)
    forward = as_code(forward)
    recipe = PairRecipe(
        forward,
        backward,
        residuals,
        name=name_of(forward),
        native=native,
        library=library,
        copies=options.copies,
        rolls=options.rolls,
        modes=modes,
    )
    made: Function[P, R] = (Accumulating if modes else Function)(recipe, forward, options.prove)
    made.fused, made.residuals = read_fused(fused), way or "auto"
    return made


def refuse_modes(forward: Any, backward: Any, native: bool | None) -> None:
    """Refuse `accumulate` where a graph of ours does not make the cotangents one.

    Raises:
        RuleTypeError: it does not.
    """
    name = name_of(forward)
    if backward is not None:
        raise RuleTypeError(
            f"function {name!r} has a backward, which gives one cotangent for each argument, and "
            "accumulate=, which makes several one: give it to the function around several calls of "
            f"{name!r}, one without a backward"
        )
    if native or holds_state(forward):
        why = "native=True" if native else "tensors of an object, which runs itself"
        raise RuleTypeError(
            f"function {name!r} has accumulate= and {why}: its framework would add up. It is for a "
            "plain function that is captured"
        )


class Accumulating(Function[P, R]):
    """A Function that has `accumulate`."""

    def _apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self.parameters is not None  # `accumulate` names them
        given = tensors_with_modes(self.recipe.modes, self.parameters, args, kwargs)
        refuse_second_call(self.name, given)
        outputs = super()._apply(args, kwargs)
        note_uses(given, outputs)
        return outputs


def as_code(forward: Any) -> Any:
    """Return what is captured of a forward: of an activation, and of a Function with values for
    some of its arguments, a plain function that calls it, as these know symbols themselves.
    """
    if not type(forward).__module__.startswith(OWN) or isinstance(forward, Function):
        return forward
    return calling(forward)


def calling(forward: Any) -> Callable[..., Any]:
    """Return a plain function that calls an object of ours: of one tensor, and of what a Function
    with values has no value for.
    """

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(x, *args, **kwargs)

    call.__name__ = call.__qualname__ = getattr(
        getattr(forward, "forward", forward), "name", name_of(forward)
    )
    given: dict[str, Any] = {"__signature__": inspect.signature(call).replace(parameters=[TENSOR])}
    if isinstance(forward, BoundFunction) and forward.function.parameters is not None:
        known = forward.function.parameters
        rest = [p for p in known.parameters.values() if p.name not in forward.params]
        given["__signature__"] = known.replace(parameters=rest)
    call.__dict__.update(given)
    return call
