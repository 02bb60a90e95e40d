"""`xg.from_custom_vjp` for an unchanged `mx.custom_function`.

MLX passes its vjp the arguments, the cotangents and the outputs, and takes one gradient for each
array, in any nesting. It has no names for these functions: they are found among the objects that it
refers to, in the order in which it holds them (0.32: forward, vjp, jvp, vmap).
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from multigrad.backend import GradientError, importers

Tensor = Any
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class MlxRecipe(importers.CodeRecipe):
    function: Any
    forward: Function
    backward: Function
    native: bool | None = None

    @property
    def name(self) -> str:
        return getattr(self.forward, "__name__", type(self.forward).__name__)

    @property
    def signature(self) -> inspect.Signature | None:
        return importers.signature_of(self.forward)

    def dialect(self) -> str:
        return "mlx"

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        # The function itself, when it runs unchanged on its own framework.
        return self.function(*args, **kwargs)

    def functions(self) -> tuple[Any, ...]:
        return self.forward, self.backward

    def record(
        self, trace: importers.Trace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> importers.Recorded:
        return self._record(functools.partial(run_symbolic, trace), args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> importers.Recorded:
        return self._record(run_plain, args, kwargs)

    def _record(
        self, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> importers.Recorded:
        outputs = run(self.forward, *args, **kwargs)
        # MLX passes a single argument without a tuple.
        primals = args[0] if len(args) == 1 else args

        def pull(upstream: Any) -> Any:
            gradients = run(self.backward, primals, upstream, outputs, **kwargs)
            return self._spread(gradients, args, kwargs)

        return importers.Recorded(outputs, pull, keeps_output=reads_outputs(self.backward))

    def _spread(self, returned: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # MLX takes gradients in order, whatever their nesting; a Function needs that of its
        # arguments.
        flat: Any = tree_flatten(returned)
        gradients = [leaf for _, leaf in flat if importers.is_tensor(leaf)]
        pairs: Any = tree_flatten((args, kwargs))
        count = sum(importers.is_tensor(leaf) for _, leaf in pairs)
        if len(gradients) != count:
            raise GradientError(
                f"the vjp of mx.custom_function {self.name!r} returned {len(gradients)} arrays for "
                f"{count} given to it; expected one for each, mx.zeros_like(x) where there is none"
            )
        rest = iter(gradients)

        def take(leaf: Any) -> Any:
            return next(rest) if importers.is_tensor(leaf) else None

        of_args, of_kwargs = tree_map(take, (args, kwargs))
        return (*of_args, of_kwargs) if kwargs else tuple(of_args)


def run_symbolic(trace: importers.Trace, function: Function, *args: Any, **kwargs: Any) -> Any:
    bound = functools.partial(function, **kwargs) if kwargs else function
    return importers.run_written_in("mlx", bound, trace, *args)


def run_plain(function: Function, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def reads_outputs(backward: Function) -> bool:
    """Return whether a vjp reads its third argument; True if its code is not known."""
    code = getattr(backward, "__code__", None)
    if code is None or code.co_argcount < 3:
        return True
    name = code.co_varnames[2]
    words = (each.argval for each in dis.get_instructions(code))
    return any(name in word if isinstance(word, tuple) else name == word for word in words)


def import_function(function: Any) -> MlxRecipe:
    """Return the recipe of an `mx.custom_function`."""
    if not isinstance(function, mx.custom_function):
        raise TypeError(
            f"expected an mx.custom_function, got a {type(function).__name__}: {function!r:.60}. "
            "Decorate a plain function that returns its outputs and a function of their "
            "cotangents with xg.custom_gradient"
        )
    # The first object is the class.
    _, forward, *rules = gc.get_referents(function)
    name = getattr(forward, "__name__", type(forward).__name__)
    rows = list(parameters_of(rules[0])) if rules else []
    if len(rows) < 3:
        raise TypeError(
            f"mx.custom_function {name!r} has no vjp: define one with @{name}.vjp, of (primals, "
            "cotangents, outputs)"
        )
    # A jvp or vmap takes two arguments, so only three required ones tell a vjp.
    if any(row.default is not row.empty for row in rows[:3]):
        raise TypeError(
            f"the vjp of mx.custom_function {name!r} can be called with other arguments than MLX "
            "gives it: name the three of them, (primals, cotangents, outputs)"
        )
    return MlxRecipe(function, forward, rules[0])


def parameters_of(function: Function) -> Iterator[inspect.Parameter]:
    """Yield the positional parameters; if they are not known, three optional ones."""
    signature = importers.signature_of(function)
    several = inspect.Parameter("args", inspect.Parameter.POSITIONAL_ONLY, default=None)
    rows = [] if signature is None else list(signature.parameters.values())
    yield from (row for row in rows if row.kind in (row.POSITIONAL_ONLY, row.POSITIONAL_OR_KEYWORD))
    if signature is None or any(row.kind is row.VAR_POSITIONAL for row in rows):
        yield from (several, several, several)


def call_custom(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a custom function; on symbolic values and other frameworks' tensors, as a Function."""
    if importers.comes_to_us(args, kwargs, "mlx", "numpy"):
        return importers.import_once(import_function, self)(*args, **kwargs)
    return CALL(self, *args, **kwargs)


CALL: Any = vars(mx.custom_function)["__call__"]
INTERCEPTIONS = (importers.Interception(mx.custom_function, "__call__", call_custom),)


def is_custom_gradient(value: Any) -> bool:
    return isinstance(value, mx.custom_function)
