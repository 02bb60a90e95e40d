"""Paddle's dialect: functions with arguments, defaults or behavior of their own; see `capture.py`.

Each takes what Paddle's function takes, by position, without what `capture.LABELS` names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F

from multigrad.backend import SELU_ALPHA, SELU_SCALE, dialects

xp, methods, cast = dialects.xp, dialects.methods, dialects.cast
SymbolicShape = dialects.SymbolicShape
Tensor = Any
Handler = Callable[..., Any]


def identity(x: Tensor, *ignored: Any) -> Tensor:
    return x


def in_dtype(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else cast(x, dtype)


def listed(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def reduction(record: Handler) -> Handler:
    """Return what records f(x, axis, keepdim)."""

    def call(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
        return record(x, listed(axis), keepdim)

    call.__name__ = record.__name__
    return call


def sum_(x: Tensor, axis: Any = None, dtype: Any = None, keepdim: bool = False) -> Tensor:
    return xp.sum(in_dtype(x, dtype), listed(axis), keepdim)


def mean(x: Tensor, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return xp.mean(in_dtype(x, dtype), listed(axis), keepdim)


def prod(x: Tensor, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return xp.prod(in_dtype(x, dtype), listed(axis), keepdim)


def std(x: Tensor, axis: Any = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return xp.std(x, listed(axis), int(unbiased), keepdim)


def var(x: Tensor, axis: Any = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return xp.var(x, listed(axis), int(unbiased), keepdim)


def norm(x: Tensor, p: Any = None, axis: Any = None, keepdim: bool = False, *more: Any) -> Tensor:
    """Of vectors; of a matrix that of Frobenius."""
    if any(each is not None for each in more):
        raise TypeError("norm with a dtype")
    if isinstance(p, str) and p != "fro":
        raise TypeError(f"norm with p={p!r}")
    if isinstance(axis, list | tuple) and p not in (None, "fro", 2):
        raise TypeError(f"norm of a matrix with p={p!r}")
    return xp.norm(x, listed(axis), keepdim, 2 if p in (None, "fro") else p)


def softmax(x: Tensor, axis: int = -1, dtype: Any = None) -> Tensor:
    return xp.softmax(in_dtype(x, dtype), axis)


def log_softmax(x: Tensor, axis: int = -1, dtype: Any = None) -> Tensor:
    given = in_dtype(x, dtype)
    below = given - xp.max(given, axis, keepdims=True)
    # Paddle's kernel lets no logit lie more than 64 below the largest; its gradient is the usual.
    floor = xp.where(xp.isinf(below), 0.0, below - xp.stop_gradient(below)) - 64.0
    above = xp.where(below < -64.0, floor, below)
    return above - xp.log(xp.sum(xp.exp(above), axis, keepdims=True))


def gelu(x: Tensor, approximate: Any = False) -> Tensor:
    return xp.gelu(x, approximate in (True, "tanh"))


def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Linear above the threshold, which makes a difference below the default alone."""
    smooth = xp.softplus(x) if beta == 1 else xp.softplus(x * beta) / beta
    return smooth if threshold >= 20 else xp.where(x * beta > threshold, x, smooth)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return xp.leaky_relu(x, negative_slope)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return xp.elu(x, alpha)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return xp.celu(x, alpha)


def selu(x: Tensor, scale: float = SELU_SCALE, alpha: float = SELU_ALPHA) -> Tensor:
    if (scale, alpha) == (SELU_SCALE, SELU_ALPHA):
        return xp.selu(x)
    return xp.multiply(xp.elu(x, alpha), scale)


def silu(x: Tensor) -> Tensor:
    return xp.silu(x)


def mish(x: Tensor) -> Tensor:
    return xp.mish(x)


def hardtanh(x: Tensor, min: float = -1.0, max: float = 1.0) -> Tensor:
    return xp.clip(x, min, max)


def hardsigmoid(x: Tensor, slope: float = 0.1666667, offset: float = 0.5) -> Tensor:
    return xp.clip(x * slope + offset, 0.0, 1.0)


def hardswish(x: Tensor) -> Tensor:
    return xp.hard_silu(x)


def softshrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    return xp.soft_shrink(x, threshold)


def hardshrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    return xp.hard_shrink(x, threshold)


def thresholded_relu(x: Tensor, threshold: float = 1.0, value: float = 0.0) -> Tensor:
    return xp.where(x > threshold, x, value)


def glu(x: Tensor, axis: int = -1) -> Tensor:
    return xp.glu(x, axis)


def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return methods.clamp(x, min, max)


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    return xp.where(condition, x, y)


def round_(x: Tensor, decimals: int = 0) -> Tensor:
    if decimals:
        raise TypeError("round with decimals")
    return xp.round(x)


def scale(x: Tensor, scale: Any = 1.0, bias: Any = 0.0, after: bool = True, act: Any = None) -> Any:
    if act is not None:
        raise TypeError("scale with act")
    return x * scale + bias if after else (x + bias) * scale


def stanh(x: Tensor, scale_a: float = 0.67, scale_b: float = 1.7159) -> Tensor:
    return scale_b * xp.tanh(scale_a * x)


def heaviside(x: Tensor, y: Any) -> Tensor:
    """y at zero, else 0 or 1; NaN gives NaN."""
    return xp.where(xp.isnan(x), x, xp.where(xp.equal(x, 0), y, xp.heaviside(x)))


def logit(x: Tensor, eps: Any = None) -> Tensor:
    return xp.logit(x if not eps else xp.clip(x, eps, 1 - eps))


def matmul(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    x, y = (xp.swapaxes(m, -1, -2) if t else m for m, t in ((x, transpose_x), (y, transpose_y)))
    return xp.matmul(x, y)


def transpose(x: Tensor, perm: Any) -> Tensor:
    return xp.permute_dims(x, tuple(perm))


def reshape(x: Tensor, shape: Any) -> Tensor:
    """A 0 stands for the length that the axis has."""
    if isinstance(shape, SymbolicShape):
        return methods.METHODS["reshape"](x, shape)
    if isinstance(shape, list | tuple):
        shape = tuple(x.shape[i] if type(n) is int and n == 0 else n for i, n in enumerate(shape))
    return xp.reshape(x, shape)


def squeeze(x: Tensor, axis: Any = None) -> Tensor:
    return xp.squeeze(x, listed(axis))


def unsqueeze(x: Tensor, axis: Any) -> Tensor:
    for each in sorted(axis) if isinstance(axis, list | tuple) else (axis,):
        x = xp.expand_dims(x, each)
    return x


def flatten(x: Tensor, start_axis: int = 0, stop_axis: int = -1) -> Tensor:
    if (start_axis, stop_axis) != (0, -1):
        raise TypeError("flatten of some axes")
    return xp.reshape(x, (-1,))


def concat(x: Any, axis: int = 0) -> Tensor:
    return xp.concatenate(list(x), axis)


def stack(x: Any, axis: int = 0) -> Tensor:
    return xp.stack(list(x), axis)


def flip(x: Tensor, axis: Any) -> Tensor:
    return xp.flip(x, listed(axis))


def roll(x: Tensor, shifts: Any, axis: Any = None) -> Tensor:
    return xp.roll(x, listed(shifts), listed(axis))


def expand(x: Tensor, shape: Any) -> Tensor:
    return xp.broadcast_to(x, shape.value if isinstance(shape, SymbolicShape) else shape)


def expand_as(x: Tensor, y: Tensor) -> Tensor:
    return xp.broadcast_to(x, y)


def cumsum(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    x = in_dtype(x, dtype)
    return xp.cumsum(xp.reshape(x, (-1,)), 0) if axis is None else xp.cumsum(x, axis)


def sort(x: Tensor, axis: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return xp.sort(x, axis, descending)


def einsum(equation: str, operands: Any) -> Tensor:
    return xp.einsum(equation, *operands)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return xp.tril(x, diagonal)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return xp.triu(x, diagonal)


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    return xp.zeros_like(x, dtype)


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    return xp.ones_like(x, dtype)


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    return xp.full_like(x, fill_value, dtype)


def rand_like(x: Tensor, dtype: Any = None) -> Tensor:
    return in_dtype(xp.rand_like(x), dtype)


def randn_like(x: Tensor, dtype: Any = None) -> Tensor:
    return in_dtype(xp.randn_like(x), dtype)


def bernoulli(x: Tensor, p: Any = None) -> Tensor:
    return cast(xp.rand_like(x) < (x if p is None else p), x.dtype)


def normalize(x: Tensor, p: float = 2, axis: int = 1, epsilon: float = 1e-12) -> Tensor:
    return x / xp.maximum(xp.norm(x, axis, True, p), epsilon)


def numel(x: Tensor) -> Any:
    return xp.size(x)


def is_floating_point(x: Tensor) -> bool:
    return methods.is_floating_point(x)


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return xp.where(mask, value, x)


OWN: dict[str, Handler] = {
    "sum": sum_, "mean": mean, "max": reduction(xp.max), "min": reduction(xp.min),
    "amax": reduction(xp.max), "amin": reduction(xp.min), "any": reduction(xp.any),
    "all": reduction(xp.all), "prod": prod, "std": std, "var": var, "norm": norm,
    "linalg.norm": norm, "logsumexp": reduction(xp.logsumexp), "clip": clip, "where": where,
    "round": round_, "scale": scale, "stanh": stanh, "heaviside": heaviside, "logit": logit,
    "matmul": matmul, "mm": matmul, "bmm": matmul, "dot": matmul, "transpose": transpose,
    "reshape": reshape, "squeeze": squeeze, "unsqueeze": unsqueeze, "flatten": flatten,
    "concat": concat, "stack": stack, "flip": flip, "roll": roll, "expand": expand,
    "broadcast_to": expand, "expand_as": expand_as, "cumsum": cumsum, "sort": sort,
    "tril": tril, "triu": triu, "zeros_like": zeros_like, "ones_like": ones_like,
    "full_like": full_like, "rand_like": rand_like, "randn_like": randn_like,
    "bernoulli": bernoulli, "cast": cast, "numel": numel, "clone": identity,
    "is_floating_point": is_floating_point, "masked_fill": masked_fill,
}  # fmt: skip
OWN_FUNCTIONAL: dict[str, Handler] = {
    "softmax": softmax, "log_softmax": log_softmax, "gelu": gelu, "softplus": softplus,
    "leaky_relu": leaky_relu, "elu": elu, "celu": celu, "selu": selu, "silu": silu, "swish": silu,
    "mish": mish, "hardtanh": hardtanh, "hardsigmoid": hardsigmoid, "hardswish": hardswish,
    "softshrink": softshrink, "hardshrink": hardshrink, "thresholded_relu": thresholded_relu,
    "glu": glu, "normalize": normalize,
}  # fmt: skip


def found(table: dict[str, Handler], room: Any) -> dict[Any, Handler]:
    """Return handlers by the functions of a module; a version may lack some."""
    functions = {}
    for name, handler in table.items():
        function = room
        for word in name.split("."):
            function = getattr(function, word, None)
        if function is not None:
            functions[function] = handler
    return functions


HANDLERS: dict[Any, Handler] = {**found(OWN, paddle), **found(OWN_FUNCTIONAL, F)}


METHODS: dict[str, Handler] = {
    "cast": cast, "max": reduction(xp.max), "min": reduction(xp.min), "norm": norm,
    "transpose": transpose, "reshape": reshape, "unsqueeze": unsqueeze, "scale": scale,
    "clip": clip, "sum": sum_, "mean": mean, "std": std, "var": var, "add": xp.add,
    "subtract": xp.subtract, "matmul": matmul, "mm": matmul, "cumsum": cumsum, "numel": numel,
}  # fmt: skip
