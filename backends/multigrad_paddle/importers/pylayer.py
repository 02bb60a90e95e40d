"""`xg.from_autograd_function` of a `paddle.autograd.PyLayer` class, unchanged.

Its code runs on symbolic values with a context of ours. On Paddle, what cannot be captured is the
class's own `apply`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paddle
from paddle.autograd import PyLayer

from multigrad.backend import GradientError, importers

Tensor = Any


class Context:
    """What a class's code knows as `ctx`: it keeps what it is given, symbolic values or tensors."""

    def __init__(self, trace: importers.Trace | None) -> None:
        self._trace = trace
        self._saved: tuple[Any, ...] = ()
        self._marked: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for backward."""
        self._saved = tensors

    def saved_tensor(self) -> tuple[Tensor, ...]:
        """Return what was kept."""
        return self._saved

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Say which outputs carry no gradient."""
        self._marked = outputs

    def mark_not_inplace(self, *inputs: Tensor) -> None:
        """Say which inputs are returned as they are, which is no matter here."""

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether a missing cotangent is zeros, which it always is here."""

    def __getattr__(self, name: str) -> Any:
        if self._trace is not None and name == "needs_input_grad":
            raise self._trace.error(f"uses ctx.{name}, which is not captured")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def kept(self) -> tuple[Any, ...]:
        """Return all that was kept, as attributes too."""
        own = ("_trace", "_saved", "_marked")
        return (*self._saved, *(value for name, value in vars(self).items() if name not in own))


@dataclass(frozen=True, slots=True, eq=False)
class ClassRecipe(importers.CodeRecipe):
    """A `paddle.autograd.PyLayer` class."""

    function_class: Any
    native: bool | None = None

    @property
    def name(self) -> str:
        """The class's name."""
        return self.function_class.__name__

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of `apply`: forward's, without ctx."""
        signature = importers.signature_of(self.function_class.forward)
        if signature is None:
            return None
        parameters = list(signature.parameters.values())
        if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            parameters = parameters[1:]
        return signature.replace(parameters=parameters)

    def dialect(self) -> str:
        """Return the library that it is written in."""
        return "paddle"

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the class itself, where it runs as it is on its own framework."""
        return self.function_class.apply(*args, **kwargs)

    def functions(self) -> tuple[Any, ...]:
        """Return forward and backward."""
        return self.function_class.forward, self.function_class.backward

    def record(
        self, trace: importers.Trace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> importers.Recorded:
        def run(function: Callable[..., Any], *given: Any, **more: Any) -> Any:
            with paddle.no_grad():  # as Paddle runs it
                bound = functools.partial(function, **more) if more else function
                return importers.run_written_in("paddle", bound, trace, *given)

        return self._record(run, trace, args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> importers.Recorded:
        def run(function: Callable[..., Any], *given: Any, **more: Any) -> Any:
            with paddle.no_grad():
                return function(*given, **more)

        return self._record(run, None, args, kwargs)

    def _record(
        self,
        run: Callable[..., Any],
        trace: importers.Trace | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> importers.Recorded:
        own, ctx = self.function_class, Context(trace)
        outputs = run(own.forward, ctx, *args, **kwargs)
        several = isinstance(outputs, tuple | list)
        results = tuple(outputs) if several else (outputs,)

        def pull(upstream: Any) -> Any:
            returned = run(own.backward, ctx, *(upstream if several else (upstream,)))
            gradients = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
            return self._spread(gradients, args, kwargs)

        kept = {value.node for value in ctx.kept() if isinstance(value, importers.Value)}
        given = (*args, *kwargs.values())
        inputs = {value.node for value in given if isinstance(value, importers.Value)}
        computed = {value.node for value in results if isinstance(value, importers.Value)} - inputs
        return importers.Recorded(
            results if several else outputs,
            pull,
            second_order=True,
            keeps_output=not kept.isdisjoint(computed),
            undifferentiable=ctx._marked,
        )

    def _spread(self, gradients: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        """Return one gradient per argument: Paddle's backward returns one for each tensor.

        Raises:
            GradientError: there is another number of them.
        """
        given = (*args, *kwargs.values())
        count = sum(map(importers.is_tensor, given))
        if len(gradients) != count:
            words = "1 gradient" if len(gradients) == 1 else f"{len(gradients)} gradients"
            called = "1 tensor" if count == 1 else f"{count} tensors"
            raise GradientError(
                f"{self.name}.backward returned {words} for {called} given to {self.name}.apply; "
                "expected one for each, None where there is none"
            )
        rest = iter(gradients)
        spread = [next(rest) if importers.is_tensor(value) else None for value in given]
        if not kwargs:
            return tuple(spread)
        named = dict(zip(kwargs, spread[len(args) :], strict=True))
        return (*spread[: len(args)], named)


def import_function(function_class: Any) -> ClassRecipe:
    """Return the recipe of a PyLayer class.

    Raises:
        TypeError: it is no such class.
    """
    if not isinstance(function_class, type) or not issubclass(function_class, PyLayer):
        owner = getattr(function_class, "__self__", None)
        hint = f"; give the class itself: {owner.__name__}" if isinstance(owner, type) else ""
        raise TypeError(
            f"expected a subclass of paddle.autograd.PyLayer, got {function_class!r:.80}{hint}"
        )
    for name in ("forward", "backward"):
        if getattr(function_class, name) is getattr(PyLayer, name):
            raise TypeError(
                f"class {function_class.__name__} has no {name}; define it as a static method"
            )
    return ClassRecipe(function_class)


@functools.lru_cache(maxsize=1024)
def find_imported(function_class: Any) -> importers.Function:
    """Return the Function of a class, made once."""
    return importers.Function(import_function(function_class))


def apply(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Apply a class; on symbolic values and other frameworks' tensors, with its own backward."""
    if importers.comes_to_us(args, kwargs, "paddle"):
        return find_imported(cls)(*args, **kwargs)
    return APPLY.__get__(None, cls)(*args, **kwargs)


def owner_of_apply() -> Any:
    """Return the class that defines `apply` for all PyLayers."""
    return next(c for c in PyLayer.__mro__ if "apply" in vars(c))


APPLY: Any = vars(owner_of_apply())["apply"]
INTERCEPTIONS = (importers.Interception(PyLayer, "apply", classmethod(apply)),)


def is_custom_gradient(value: Any) -> bool:
    """Return whether a value is a class with a gradient of its own, or the `apply` of one."""
    owner = value if isinstance(value, type) else getattr(value, "__self__", None)
    is_class = isinstance(owner, type) and issubclass(owner, PyLayer)
    return is_class and (owner is value or getattr(value, "__name__", "") == "apply")
