"""`xg.custom_gradient` and `xg.function`: Functions of the user's own code, in any library.

The first takes `f(*args, **kwargs) -> (outputs, grad)`, the second a forward and a backward. Both
check what they are given and read the options; `code_recipes.py` has how the code then runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, overload

from ...core.functions.recipe import Options
from ...core.rules.capture import Capture, capture_options
from ...core.rules.signature import name_of, refuse_class
from ...core.support.params import Fused, P, R, Residuals, read_fused, read_way
from ...core.support.trees import Tensor
from ...errors import RuleTypeError, RuleValueError
from ..capture.user_code.libraries import OWN
from .calls.parameters import BoundFunction
from .code_recipes import recipe_of_gradient, recipe_of_pair
from .function import Function
from .object_function import ObjectFunction, holds_state

# The argument of an activation.
TENSOR = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)


class CustomGradientDecorator(Protocol):
    """What `custom_gradient` returns if it is given options alone."""

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
) -> CustomGradientDecorator: ...
def custom_gradient(
    function: Callable[P, tuple[R, Any]] | None = None,
    *,
    capture: Capture | None = None,
    native: bool | None = None,
    dialect: str | None = None,
    prove: bool = True,
    fused: Fused = "auto",
) -> Function[P, R] | CustomGradientDecorator:
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
    options = capture_options(capture, native, dialect, prove)
    if function is None:
        return lambda inner: custom_gradient(inner, capture=options, fused=fused)
    refuse_class(function)
    refuse_rule(function)
    recipe = recipe_of_gradient(
        function,
        name_of(function),
        library=options.library,
        options=Options(native=options.native, copies=options.copies, fused=read_fused(fused)),
    )
    return Function(recipe, function, options.prove)


def function(
    forward: Callable[P, R],
    backward: Callable[..., Any] | None = None,
    residuals: Callable[..., Any] | Residuals | None = None,
    *,
    accumulate: Literal["sum"] = "sum",
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
        >>> y, pull(np.ones(3))[0]
        (array([0. , 0.5, 2. ]), array([0., 1., 0.]))

    Args:
        forward: `forward(*args) -> outputs`, written with any library. Of an object, or a method of
            one (a torch or Equinox module, a Keras layer, anything with `__call__`), or of a
            function that calls one, what it holds is read at each call. On its tensors' own
            framework it runs as it is, and gradients reach them; elsewhere they are constants.
        backward: `backward(grad_out, *args)` returns one gradient per argument (a bare one for one
            argument, None for none); `grad_out` is nested like the outputs. None: its derivative.
        residuals: `residuals(outputs, *args)` says what is kept for backward, which is then called
            as `backward(grad_out, kept)`. Or a word, with the same numbers: "auto", "input",
            "mask", "packed", "recompute" or "time"; see `Function.keeping`.
        accumulate: how the cotangents of an argument become one that the forward uses several
            times: "sum", as in every framework's autodiff. There is no other way since 1.1.
        capture: how they become graphs; None: the defaults of `xg.Capture()`.
        native: this option of `Capture`, given directly.
        dialect: likewise.
        prove: likewise.
        fused: whether forward, what it keeps, and backward run as one compiled kernel each; see
            `xg.activation`.

    Raises:
        TypeError: it is a class, a rule, or not callable.
        RuleValueError: `accumulate` is not "sum".
        GradientError, TraceError: at a call; see `custom_gradient`.
    """
    refuse_class(forward)
    refuse_rule(forward)
    if accumulate != "sum":
        raise RuleValueError(
            f"accumulate={accumulate!r} of {name_of(forward)!r}: the cotangents of an argument are "
            'added up, as autodiff does. For "max" or "overwrite", which multigrad 1.0 had, give '
            "each call within an argument of its own, and combine the gradients of these"
        )
    keeping = None  # the word that says what is kept for backward
    if isinstance(residuals, str):
        keeping, residuals = read_way(residuals, f"function {name_of(forward)!r}"), None
    for each in (backward, residuals):
        if each is not None and not callable(each):
            raise TypeError(f"expected a function, got {type(each).__name__} {each!r:.40}")
    options = capture_options(capture, native, dialect, prove)
    if backward is None and residuals is None and holds_state(forward):
        return _of_object(forward, options, keeping)
    # An activation, and a Function with values for some of its arguments, know symbols themselves.
    if type(forward).__module__.startswith(OWN) and not isinstance(forward, Function):
        forward = as_plain_function(forward)
    recipe = recipe_of_pair(
        forward,
        backward,
        residuals,
        library=options.library,
        options=Options(
            native=options.native,
            copies=options.copies,
            fused=read_fused(fused),
            residuals=keeping or "auto",
        ),
    )
    return Function(recipe, forward, options.prove)


def _of_object(forward: Any, options: Capture, keeping: str | None) -> ObjectFunction:
    # Its tensors are read at each call, so that it has no options for captured graphs.
    if keeping is not None or options.copies:
        option = "copies=True" if keeping is None else "residuals="
        raise RuleTypeError(
            f"{name_of(forward)!r} reads the tensors of an object, which runs itself on its own "
            f"framework: {option} is for functions and classes"
        )
    return ObjectFunction(forward, options.native, options.library, options.prove)


def refuse_rule(function: Any) -> None:
    """Raise if this is a rule, which has no forward."""
    if type(function).__module__.startswith(OWN) and hasattr(function, "under"):
        raise RuleTypeError(
            f"rule {function.name!r} says a gradient, not a forward: put it under an activation, "
            f'xg.get({function.name!r}).under("ReLU")'
        )


def as_plain_function(forward: Any) -> Callable[..., Any]:
    """Return a plain function that calls an activation or a bound Function.

    Its signature has the arguments that are still open, and its name is that of `forward`.
    """

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(x, *args, **kwargs)

    # Messages name the activation, not this wrapper.
    subject = getattr(forward, "forward", forward)
    call.__name__ = call.__qualname__ = getattr(subject, "name", name_of(forward))
    signature = inspect.Signature([TENSOR])
    if isinstance(forward, BoundFunction) and forward.function.parameters is not None:
        declared = forward.function.parameters
        open_params = [p for p in declared.parameters.values() if p.name not in forward.params]
        signature = declared.replace(parameters=open_params)
    call.__dict__["__signature__"] = signature
    return call
