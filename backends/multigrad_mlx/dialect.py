"""MLX's functions by op: those of mlx.core and mlx.nn that a capture understands.

MLX has no protocol for foreign arrays, so a rule is captured by a copy of its code that stand-ins
reach. Most functions take the same arguments as NumPy's of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from multigrad.backend import dialects

from .attach import dtype
from .importers import INTERCEPTIONS, is_custom_gradient
from .kernels import random

Tensor = Any
xp = dialects.xp

# By op, MLX's functions for it, where these have other names or are in mlx.nn, too.
OPS = """
    add; sub: subtract; mul: multiply; div: divide; neg: negative; pow: power; square; sqrt; rsqrt;
    reciprocal; maximum; minimum; abs; sign; floor; ceil; floor_divide; remainder; exp; expm1; log;
    log1p; log2; log10; logaddexp; sin; cos; tan; asin: arcsin; acos: arccos; atan: arctan;
    atan2: arctan2; sinh; cosh; tanh: tanh nn.tanh; asinh: arcsinh; acosh: arccosh; atanh: arctanh;
    deg2rad: radians; rad2deg: degrees; erf; erfinv; sigmoid: sigmoid nn.sigmoid; lt: less;
    le: less_equal; gt: greater; ge: greater_equal; eq: equal; ne: not_equal; and: logical_and;
    or: logical_or; not: logical_not; isnan; isinf; isfinite; bitwise_and; bitwise_or; bitwise_xor;
    bitwise_invert; bitwise_left_shift: left_shift; bitwise_right_shift: right_shift;
    stop_gradient; silu: nn.silu; softplus: nn.softplus; relu: nn.relu; relu6: nn.relu6;
    selu: nn.selu; mish: nn.mish; log_sigmoid: nn.log_sigmoid; soft_sign: nn.softsign;
    swapaxes; moveaxis; matmul
"""
LIKE_NUMPY = """
    sum; mean; max; min; any; all; prod; cumsum; cumprod; squeeze; expand_dims; transpose;
    broadcast_to; concatenate; stack; where; zeros_like; ones_like; tril; triu; roll
"""


def clip(a: Tensor, a_min: Any, a_max: Any) -> Tensor:
    low = -float("inf") if a_min is None else a_min
    return xp.clip(a, low, float("inf") if a_max is None else a_max)


def std(a: Tensor, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    return xp.std(a, axis=axis, correction=ddof, keepdims=keepdims)


def var(a: Tensor, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    return xp.var(a, axis=axis, correction=ddof, keepdims=keepdims)


def softmax(a: Tensor, axis: Any = None, precise: bool = False) -> Tensor:
    return xp.softmax(a, axis=axis)


def logsumexp(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.logsumexp(a, axis=axis, keepdims=keepdims)


def reshape(a: Tensor, shape: Any) -> Tensor:
    return xp.reshape(a, tuple(shape))


def norm(a: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    if ord not in (None, 2, "fro") or isinstance(axis, tuple | list):
        raise TypeError("mx.linalg.norm with an order other than 2, or over several axes")
    return xp.sqrt(xp.sum(xp.square(a), axis=axis, keepdims=keepdims))


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return xp.leaky_relu(x, slope=negative_slope)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return xp.elu(x, alpha=alpha)


def gelu(x: Tensor) -> Tensor:
    return xp.gelu(x, approximate=False)


def nan_to_num(a: Tensor, nan: float = 0, posinf: Any = None, neginf: Any = None) -> Tensor:
    return xp.nan_to_num(a, nan=float(nan), posinf=posinf, neginf=neginf)


ALIASES: dict[Any, Any] = {
    **dialects.named(OPS, mx, nn=nn),
    **dialects.like_numpy(LIKE_NUMPY, mx),
    mx.clip: clip,
    mx.std: std,
    mx.var: var,
    mx.softmax: softmax,
    mx.logsumexp: logsumexp,
    mx.reshape: reshape,
    mx.linalg.norm: norm,
    mx.nan_to_num: nan_to_num,
    nn.elu: elu,
    nn.leaky_relu: leaky_relu,
    nn.gelu: gelu,
}
METHODS = {"std": std, "var": var, "logsumexp": logsumexp}
# Functions that a rule may not call.
DERIVATIVES = (mx.grad, mx.value_and_grad, mx.vjp, mx.jvp)
DERIVES = "but a rule is the backward pass. Write the derivative out"


def generators() -> tuple[random.GlobalGenerator]:
    return (random.GENERATOR,)


def stand_in_tensor(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return mx.full(shape, number, dtype=getattr(mx, "bool_" if dtype == "bool" else dtype))


def run(calls: Sequence[dialects.StandInCall], mode: Any) -> list[Any]:
    return dialects.run_each(calls, stand_in_tensor)


def dtype_of_leaf(x: Any) -> tuple[str, bool] | None:
    if not isinstance(x, mx.array):
        return None
    return str(x.dtype).removeprefix("mlx.core.").rstrip("_"), False


def nothing() -> None:
    """Nothing that MLX is set to changes a dtype."""


# The dtype of a call's result is that of the array it returns. MLX is lazy: no numbers are
# computed.
TYPES = dialects.TypeOracle(stand_in_tensor, run, dtype_of_leaf, nothing)

dialects.register_dialect(
    "mlx",
    dialects.Dialect(
        names=dialects.Names(
            aliases=ALIASES,
            methods=METHODS,
            refused=dict.fromkeys(DERIVATIVES, DERIVES),
            shown="mlx.core",
        ),
        tensors=dialects.Tensors(
            tensor=mx.array,
            dtype=dtype,
            device="cpu",
            mutable=True,
        ),
        classes=dialects.Classes(
            one_class=True,
        ),
        calls=dialects.Calls(
            protocol=False,
            keeps=is_custom_gradient,
        ),
        gradients=dialects.Gradients(
            interceptions=INTERCEPTIONS,
        ),
        state=dialects.State(
            generators=generators,
        ),
        types=TYPES,
    ),
)
