"""`xg.custom_gradient`: one signature for every framework, `f(*args, **kwargs) -> (outputs,
grad)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, overload

from ..capture.code.options import Capture, settled
from ..capture.code.readings import dialect_of, plain_function
from ..capture.code.signature import name_of
from ..capture.code.state import OWN
from ..capture.copies.capture import run_written_in
from ..errors import GradientError, RuleTypeError
from ..graph.support.params import Fused, read_fused
from ..graph.support.typed import P, R
from ..trace.trace import Trace
from .calls.arguments import read_parameters, signature_of
from .calls.gradients import asked_variables, deliver
from .calls.recipe import Recorded, kind_name
from .function import Function
from .recipes.record import CodeRecipe

Tensor = Any
UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True, eq=False)
class GradientRecipe(CodeRecipe):
    """A function that returns its outputs and a function of their cotangents."""

    function: Callable[..., Any]
    name: str
    native: bool | None = None
    library: str = ""
    copies: bool = False

    @property
    def signature(self) -> inspect.Signature | None:
        """The function's own signature."""
        return signature_of(self.function)

    def dialect(self) -> str:
        """Return the library that the function is written in, "" where it is written for all."""
        return named_library(self.library) if self.library else library_of(self.function)

    def functions(self) -> tuple[Any, ...]:
        return (self.function,)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        result = run_written_in(self.library, self.function, trace, *args, **kwargs)
        return split_result(self.name, result, args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return split_result(self.name, self.function(*args, **kwargs), args, kwargs)


def library_of(function: Any) -> str:
    """Return the library that a function is written in, "" where it is written for all."""
    plain = plain_function(function)
    return named_library(dialect_of(plain)) if plain is not None else ""


def named_library(name: str) -> str:
    """Return a library's name, "" for our own: what is written with it is written for all."""
    return "" if name == __name__.partition(".")[0] else name


def refuse_class(function: Any) -> None:
    """Refuse what is not called, and a class, whose call makes an object and computes nothing.

    Raises:
        TypeError: it is one of these.
    """
    if not callable(function):
        is_name = isinstance(function, str)
        advice = "; xg.activation(name) gives an activation as a function" if is_name else ""
        raise RuleTypeError(
            f"expected a function, got {type(function).__name__} {function!r:.40}{advice}"
        )
    if isinstance(function, type):
        raise TypeError(
            f"expected a function, got the class {function.__name__!r}: give an object of it, or "
            "an autograd.Function class to xg.convert"
        )


def refuse_rule(function: Any) -> None:
    """Refuse a rule where a forward is to be: it has none.

    Raises:
        RuleTypeError: it is one.
    """
    if type(function).__module__.startswith(OWN) and hasattr(function, "under"):
        raise RuleTypeError(
            f"rule {function.name!r} says a gradient, not a forward: put it under an activation, "
            f'xg.get({function.name!r}).under("ReLU")'
        )


def split_result(name: str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    """Return what a decorated function gave, checked.

    Raises:
        GradientError: it is not a pair of outputs and a function.
    """
    is_pair = isinstance(result, tuple | list) and len(result) == 2 and callable(result[1])
    if not is_pair:
        given = f"a {kind_name(result)}" if result is not None else "None"
        raise GradientError(
            f"function {name!r} returned {given}; expected (outputs, grad), where grad(upstream) "
            "returns the gradients of the arguments"
        )
    outputs, grad = result

    def pull(upstream: Any) -> Any:
        return call_gradient(grad, upstream, outputs, args, kwargs)

    return Recorded(outputs, pull)


def call_gradient(
    grad: Callable[..., Any],
    upstream: Any,
    outputs: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a gradient function in the form that its parameters ask for.

    `grad(upstream)`; `grad(*args, upstream=upstream)`, where `upstream` follows other parameters;
    `grad(a, b)` with one parameter for each of several outputs. One that takes `variables`
    (TensorFlow's form) returns a pair.
    """
    parameters = read_parameters(grad)
    if parameters is None:
        return grad(upstream)
    rows = list(parameters.values())
    positional = [p for p in rows if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    spread = any(p.kind is p.VAR_POSITIONAL for p in rows)
    several = isinstance(outputs, tuple | list)
    if "variables" in parameters:
        positional = [p for p in positional if p.name != "variables"]
        cotangents = tuple(upstream) if several and (spread or len(positional) > 1) else (upstream,)
        variables = asked_variables()
        returned = grad(*cotangents, variables=variables)
        is_pair = isinstance(returned, tuple | list) and len(returned) == 2
        if not (is_pair and (variables or isinstance(returned[1], list))):
            return returned
        deliver(returned[1])
        return returned[0]
    named = parameters.get(UPSTREAM)
    if named is not None and (
        named.kind is named.KEYWORD_ONLY or spread or len(positional) == len(args) + 1
    ):
        takes_any = any(p.kind is p.VAR_KEYWORD for p in rows)
        own = {name: value for name, value in kwargs.items() if takes_any or name in parameters}
        return grad(*args, **{**own, UPSTREAM: upstream})
    if several and (spread or len(positional) == len(outputs) > 1):
        return grad(*upstream)
    return grad(upstream)


class Decorator(Protocol):
    """What `custom_gradient` returns where it is given options alone."""

    def __call__(self, function: Callable[P, tuple[R, Any]], /) -> Function[P, R]: ...


@overload
def custom_gradient(
    function: Callable[P, tuple[R, Any]],
    *,
    capture: Capture | None = None,
    native: bool | None = None,
    dialect: str | None = None,
    prove: bool = True,
    fused: Fused = "auto",
) -> Function[P, R]: ...
@overload
def custom_gradient(
    function: None = None,
    *,
    capture: Capture | None = None,
    native: bool | None = None,
    dialect: str | None = None,
    prove: bool = True,
    fused: Fused = "auto",
) -> Decorator: ...
def custom_gradient(
    function: Callable[P, tuple[R, Any]] | None = None,
    *,
    capture: Capture | None = None,
    native: bool | None = None,
    dialect: str | None = None,
    prove: bool = True,
    fused: Fused = "auto",
) -> Function[P, R] | Decorator:
    """Give a function its own gradient, in every framework.

    Examples:
        >>> @xg.custom_gradient
        ... def log1pexp(x):
        ...     e = xp.exp(x)
        ...
        ...     def grad(upstream):
        ...         return upstream * (1 - 1 / (1 + e))
        ...
        ...     return xp.log(1 + e), grad
        >>> y, pull = xg.vjp(log1pexp, np.array([0.0, 100.0]))
        >>> pull(np.ones(2))[0]  # 1 at 100, where the derivative of log(1 + exp(x)) overflows
        array([0.5, 1. ])

    Args:
        function: `f(*args, **kwargs) -> (outputs, grad)`, written with any library. Arguments and
            outputs may be nested. `grad(upstream)` and `grad(*args, upstream=...)` both work;
            `upstream` is nested like the outputs. It returns a gradient for each argument, flat or
            nested like them, None where there is none. Floats among the arguments are run-time
            numbers; ints, bools, strings and None are fixed.
        capture: how it becomes a graph; None: the defaults of `xg.Capture()`.
        native: this option of `Capture`, given directly.
        dialect: likewise.
        prove: likewise.
        fused: whether forward, what it keeps, and backward run as one compiled kernel each; see
            `xg.activation`.

    Returns:
        A Function, called like `function`, which returns the outputs.

    Raises:
        GradientError: at a call; the gradients fit the arguments neither in number nor in shape or
            dtype.
        TraceError: at a call; it cannot be captured and is written for another framework.
        TypeError: it is a class.
        RuleTypeError: an option is not one of `Capture`'s.
    """
    options = settled(capture, native, dialect, prove)
    if function is None:
        return lambda inner: custom_gradient(inner, capture=options, fused=fused)
    refuse_class(function)
    refuse_rule(function)
    recipe = GradientRecipe(
        function, name_of(function), options.native, options.library, options.copies
    )
    made: Function[P, R] = Function(recipe, function, options.prove)
    made.fused = read_fused(fused)
    return made
