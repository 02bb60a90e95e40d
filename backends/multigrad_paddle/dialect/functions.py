"""Paddle's dialect: functions with arguments, defaults or behavior of their own; see `table.py`.

Each takes what Paddle's function takes, by position, without labels; what only has other names is
a row.
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


def sum_(x: Tensor, axis: Any = None, dtype: Any = None, keepdim: bool = False) -> Tensor:
    return xp.sum(in_dtype(x, dtype), axis, keepdim)


def mean(x: Tensor, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return xp.mean(in_dtype(x, dtype), axis, keepdim)


def prod(x: Tensor, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return xp.prod(in_dtype(x, dtype), axis, keepdim)


def std(x: Tensor, axis: Any = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return xp.std(x, axis, int(unbiased), keepdim)


def var(x: Tensor, axis: Any = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return xp.var(x, axis, int(unbiased), keepdim)


def norm(x: Tensor, p: Any = None, axis: Any = None, keepdim: bool = False, *more: Any) -> Tensor:
    """Of vectors; of a matrix that of Frobenius."""
    if any(each is not None for each in more):
        raise TypeError("norm with a dtype")
    if isinstance(p, str) and p != "fro":
        raise TypeError(f"norm with p={p!r}")
    if isinstance(axis, list | tuple) and p not in (None, "fro", 2):
        raise TypeError(f"norm of a matrix with p={p!r}")
    return xp.norm(x, axis, keepdim, 2 if p in (None, "fro") else p)


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


def selu(x: Tensor, scale: float = SELU_SCALE, alpha: float = SELU_ALPHA) -> Tensor:
    if (scale, alpha) == (SELU_SCALE, SELU_ALPHA):
        return xp.selu(x)
    return xp.multiply(xp.elu(x, alpha), scale)


def hardsigmoid(x: Tensor, slope: float = 0.1666667, offset: float = 0.5) -> Tensor:
    return xp.clip(x * slope + offset, 0.0, 1.0)


def thresholded_relu(x: Tensor, threshold: float = 1.0, value: float = 0.0) -> Tensor:
    return xp.where(x > threshold, x, value)


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


def reshape(x: Tensor, shape: Any) -> Tensor:
    """A 0 stands for the length that the axis has."""
    if isinstance(shape, SymbolicShape):
        return methods.METHODS["reshape"](x, shape)
    if isinstance(shape, list | tuple):
        shape = tuple(x.shape[i] if type(n) is int and n == 0 else n for i, n in enumerate(shape))
    return xp.reshape(x, shape)


def unsqueeze(x: Tensor, axis: Any) -> Tensor:
    for each in sorted(axis) if isinstance(axis, list | tuple) else (axis,):
        x = xp.expand_dims(x, each)
    return x


def flatten(x: Tensor, start_axis: int = 0, stop_axis: int = -1) -> Tensor:
    if (start_axis, stop_axis) != (0, -1):
        raise TypeError("flatten of some axes")
    return xp.reshape(x, (-1,))


def expand(x: Tensor, shape: Any) -> Tensor:
    return xp.broadcast_to(x, shape.value if isinstance(shape, SymbolicShape) else shape)


def cumsum(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    x = in_dtype(x, dtype)
    return xp.cumsum(xp.reshape(x, (-1,)), 0) if axis is None else xp.cumsum(x, axis)


def sort(x: Tensor, axis: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return xp.sort(x, axis, descending)


def rand_like(x: Tensor, dtype: Any = None) -> Tensor:
    return in_dtype(xp.rand_like(x), dtype)


def randn_like(x: Tensor, dtype: Any = None) -> Tensor:
    return in_dtype(xp.randn_like(x), dtype)


def bernoulli(x: Tensor, p: Any = None) -> Tensor:
    return cast(xp.rand_like(x) < (x if p is None else p), x.dtype)


def normalize(x: Tensor, p: float = 2, axis: int = 1, epsilon: float = 1e-12) -> Tensor:
    return x / xp.maximum(xp.norm(x, axis, True, p), epsilon)


PADDLE = dialects.Library(
    paddle, {"F": F}, values={"axis": listed, "perm": listed, "shifts": listed}
)
NAMED: dict[Any, Handler] = PADDLE.called(
    {
        methods: "clamp: clip; is_floating_point",
        xp: """
            all; any; broadcast_to: expand_as; celu: F.celu; clip: F.hardtanh; concatenate: concat;
            elu: F.elu; flip; full_like; glu: F.glu; hard_shrink: F.hardshrink(threshold=lambd);
            hard_silu: F.hardswish; leaky_relu: F.leaky_relu(negative_slope=slope); logsumexp;
            max: max amax; min: min amin; mish: F.mish; ones_like;
            permute_dims: transpose(perm=axes); roll; silu: F.silu F.swish;
            size: numel; soft_shrink: F.softshrink(threshold=lambd);
            squeeze; stack; tril(diagonal=k); triu(diagonal=k);
            where: masked_fill(mask=condition, value=a, x=b); zeros_like
        """,
    }
)
OWN: dict[str, Handler] = {
    "sum": sum_, "mean": mean, "prod": prod, "std": std, "var": var, "norm": norm,
    "linalg.norm": norm, "where": where, "round": round_, "scale": scale, "stanh": stanh,
    "heaviside": heaviside, "logit": logit, "matmul": matmul, "mm": matmul, "bmm": matmul,
    "dot": matmul, "reshape": reshape, "unsqueeze": unsqueeze, "flatten": flatten,
    "expand": expand, "broadcast_to": expand, "cumsum": cumsum, "sort": sort,
    "rand_like": rand_like, "randn_like": randn_like, "bernoulli": bernoulli, "cast": cast,
    "clone": identity, "F.softmax": softmax, "F.log_softmax": log_softmax, "F.gelu": gelu,
    "F.softplus": softplus, "F.selu": selu, "F.hardsigmoid": hardsigmoid,
    "F.thresholded_relu": thresholded_relu, "F.normalize": normalize,
}  # fmt: skip
# A version may lack some.
HANDLERS: dict[Any, Handler] = {
    function: handler
    for name, handler in OWN.items()
    if (function := PADDLE.find(name)) is not None
}
