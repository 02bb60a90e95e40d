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
from .patterns import enabled
from .reference_kernels import FAST, by_blocks

if TYPE_CHECKING:
    from .code import Lowering

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


def silent(function: Callable[..., Any]) -> Callable[..., Any]:
    """Silence floating-point warnings."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

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
        keep: Callable[..., tuple[Array, ...]],
        backward: Callable[..., Array],
        defaults: tuple[Any, ...] = (),
        name: str = "",
    ) -> None:
        self.forward = forward
        self.keep = keep
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
        output = self.forward(x)
        return output, self._pull(x.dtype, self.keep(x, output, *values), values)

    def _pull(
        self, dtype: Any, residuals: tuple[Array, ...], values: tuple[Any, ...]
    ) -> Callable[[Array], Array]:
        """Return the pullback; it holds the residuals and nothing else."""

        def pullback(grad_out: Array) -> Array:
            return self.backward(np.asarray(grad_out, dtype=dtype), *residuals, *values)

        return pullback


def render(lowering: Lowering) -> str:
    """Return the source of forward, of what it keeps, and of backward."""
    f, k, b = lowering.fast.forward, lowering.fast.keep, lowering.fast.backward
    computed = iter(k.results)
    kept = "".join(
        f"{next(computed) if name in lowering.computed else name}, " for name in lowering.residuals
    )
    residuals = "".join(f", {name}" for name in lowering.residuals)
    return f"""\
def forward(tin):
{f.indented(4)}    return {f.result}


def keep(tin, output{lowering.arguments}):
{k.indented(4)}    return ({kept.strip()})


def backward(grad_out{residuals}{lowering.arguments}):
{b.indented(4)}    return {lowering.checked(b)}
"""


def finish(namespace: dict[str, Any], lowering: Lowering) -> ReferenceFunction:
    defaults = [lowering.defaults.get(name) for name in lowering.params]
    forward, backward = namespace["forward"], namespace["backward"]
    if enabled("numpy.blocks"):
        forward = by_blocks(forward) if lowering.forward.elementwise else forward
        backward = by_blocks(backward) if lowering.backward.elementwise else backward
    # What computes nothing cannot warn: at 1e6 elements of clip_norm two guards are 2 of 135 us.
    code = lowering.fast.forward
    forward = np.asarray if code.result == "tin" and not code.lines else quiet(forward)
    keep = silent(namespace["keep"]) if lowering.computed else namespace["keep"]
    backward = quiet(backward)
    if "key" in lowering.params and lowering.defaults:
        backward = _drawing(backward)
    return ReferenceFunction(forward, keep, backward, tuple(defaults), lowering.name)


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
    fast=FAST,
    differentiates_residuals=True,  # nobody differentiates NumPy code
    weak=weak,
    weak_literals=True,
    wrap=quiet,
)
