"""NumPy: the reference backend, and the meaning of a rule.

Scalars are cast to the input's dtype before they meet it (`weak`), since NumPy would promote bfloat16. Floating-point
warnings are silent: inf and NaN are results here as in every framework.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import random
from ..ir import ops
from ..ir.meaning import as_numpy_dtype
from .backend import Backend

if TYPE_CHECKING:
    from .lower import Lowering

Array = Any

OPS = {op: op.numpy for op in ops.CALLABLE_OPS if op.symbol is None}


def tensor_types() -> tuple[type, ...]:
    return (np.ndarray, np.generic)


def weak(value: Any, dtype: Any) -> Any:
    """Return a Python number as a scalar of the tensor's dtype."""
    return dtype.type(value)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Silence floating-point warnings and return an array of the input's dtype."""

    @functools.wraps(function)
    def call(x: Array, *args: Any) -> Array:
        x = np.asarray(x)
        args = tuple(np.asarray(a) if isinstance(a, np.generic) else a for a in args)
        with np.errstate(all="ignore"):
            return np.asarray(function(x, *args), dtype=x.dtype)

    return call


class ReferenceFunction:
    """A Function on NumPy: `f(x)` is the forward, `f.vjp(x)` gives the output and the pullback.

    Example:
        >>> f = xg.lower("triangular", "numpy", forward="Heaviside")
        >>> y, pullback = f.vjp(x)
        >>> grad_in = pullback(np.ones_like(y))
    """

    def __init__(
        self,
        forward: Callable[..., Array],
        backward: Callable[..., Array],
        defaults: tuple[Any, ...] = (),
        name: str = "",
    ) -> None:
        self.forward = forward
        self.backward = backward
        self.defaults = defaults
        self.name = name

    def __repr__(self) -> str:
        return f"<NumPy function {self.name}>"

    def __call__(self, x: Array, *params: Any) -> Array:
        """Return the output for x."""
        return self.forward(x)

    def vjp(self, x: Array, *params: Any) -> tuple[Array, Callable[[Array], Array]]:
        """Return the output for x, and the map from its cotangent to the gradient of x."""
        values = (*params, *self.defaults[len(params) :])
        x = np.asarray(x)

        def pullback(grad_out: Array) -> Array:
            return self.backward(np.asarray(grad_out, dtype=x.dtype), x, *values)

        return self.forward(x), pullback


def render(lowering: Lowering) -> str:
    """Return the source of forward and backward."""
    f, b = lowering.forward, lowering.backward
    params = "".join(f", {name}" for name in lowering.params)
    return (
        f"def forward(tin):\n{f.indented(4)}    return {f.result}\n\n\n"
        f"def backward(grad_out, tin{params}):\n{b.indented(4)}    return {lowering.grad_in}\n"
    )


def finish(namespace: dict[str, Any], lowering: Lowering) -> ReferenceFunction:
    defaults = [lowering.defaults.get(name) for name in lowering.params]
    backward = quiet(namespace["backward"])
    if "key" in lowering.params and lowering.defaults:
        backward = _drawing(backward)
    return ReferenceFunction(quiet(namespace["forward"]), backward, tuple(defaults), lowering.name)


def _drawing(backward: Callable[..., Array]) -> Callable[..., Array]:
    """Draw a key where none is given."""

    def call(*args: Any) -> Array:
        return backward(*args[:-1], random.draw_key() if args[-1] is None else args[-1])

    return call


def attach_native(
    forward: Callable[..., Array], backward: Callable[..., Array], name: str
) -> Callable[..., Array]:
    return lambda tin, values: quiet(forward)(tin)


def call(native: ReferenceFunction, lowering: Lowering) -> Callable[..., Array]:
    forward = native.forward
    return lambda tin, *values: forward(tin)


def is_traced(value: Any) -> bool:
    return False


backend = Backend(
    name="numpy",
    module="numpy",
    distribution="numpy",
    tensor_types=tensor_types,
    ops=OPS,
    unsupported={},
    dtype=as_numpy_dtype,
    render=render,
    finish=finish,
    attach_native=attach_native,
    call=call,
    draw_key=random.draw_key,
    key_pair=random.key_pair,
    fold_in=random.fold_in,
    is_traced=is_traced,
    to_numpy=np.asarray,
    weak=weak,
    weak_literals=True,
    wrap=quiet,
)
