"""The rows of torch's kernel table that rules of the library and activations need not: other
elementary functions and reductions, special functions, indices, products, matrices, orders, and
what processes exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.engine.backend.array_rows import compositions
from multigrad.engine.ops.families import IN_FLOAT32
from multigrad.engine.ops.special_functions import digamma_by_reflection, polygamma_by_zeta

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels.elementwise import fitting
from ..core.kernels.ops import OWN, Axis, dims_of
from ..core.versions import RELEASE
from . import arrays, random

Tensor: TypeAlias = torch.Tensor


# --- elementary functions, reductions and shapes --------------------------------------------------
def nextafter(a: Any, b: Any) -> Tensor:
    """Return the next number in the operands' own dtype, also 16-bit ones."""
    like = a if isinstance(a, Tensor) else b
    pair = (torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in (a, b))
    return torch.nextafter(*pair)


def cbrt(x: Tensor) -> Tensor:
    # By torch's own functions: by our kernels, which also take numbers, it is a fifth slower.
    size = x.abs()
    root = size.pow(1 / 3)
    refined = root - (root - size / (root * root)) / 3  # Newton, as 1/3 is rounded
    return torch.copysign(torch.where((size > 0) & (size < math.inf), refined, size), x)


def nan_to_num(x: Tensor, *, nan: float, posinf: float | None, neginf: float | None) -> Tensor:
    numbers = {"nan": nan, "posinf": posinf, "neginf": neginf}
    in_range = {name: None if v is None else fitting(v, x.dtype) for name, v in numbers.items()}
    return torch.nan_to_num(x, **in_range)


def prod(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    if axis is None and not keepdims:
        return torch.prod(x)
    axes = [range(max(x.ndim, 1))[i] for i in dims_of(x, axis)]  # IndexError: a wrong axis
    # torch.prod takes one axis; from the last one back, the remaining positions stay valid.
    for position in sorted(axes, reverse=True):
        x = torch.prod(x, position, keepdims)
    return x


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.sum(x != 0, dims_of(x, axis), keepdims).to(x.dtype)


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.logsumexp(x, dims_of(x, axis), keepdims) if x.ndim else x.clone()


def over_axes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the kernel for a function of one axis; several axes are merged into one."""

    def apply(x: Tensor, *, axis: Axis) -> Tensor:
        if isinstance(axis, int):
            return function(x, axis)
        if axis is None or x.ndim == 0:
            return function(x.reshape(-1), 0).reshape(x.shape)
        last_axes = tuple(range(-len(axis), 0))
        moved = torch.movedim(x, axis, last_axes)
        rows = moved.reshape((*moved.shape[: x.ndim - len(axis)], -1))
        return torch.movedim(function(rows, -1).reshape(moved.shape), last_axes, axis)

    return apply


def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.var(x, dims_of(x, axis), correction=correction, keepdim=keepdims)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.std(x, dims_of(x, axis), correction=correction, keepdim=keepdims)


def squeeze(x: Tensor, *, axis: Axis) -> Tensor:
    if axis is None:
        return x.squeeze()
    axes = axis if isinstance(axis, tuple) else (axis,)
    if any(x.shape[i] != 1 for i in axes):  # torch silently keeps longer axes
        raise ValueError(f"axis {axis} of a tensor of shape {tuple(x.shape)} is not of length 1")
    return x.squeeze(axes)


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return torch.reshape(x, like.shape)


ELEMENTARY: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    **elementwise.named(
        torch,
        """
        acos acosh asin asinh atanh bitwise_left_shift bitwise_right_shift exp2 frac log10 log2
        reshape signbit tan
    """,
    ),
    ops.FMAX: elementwise.aligned(torch.fmax),
    ops.FMIN: elementwise.aligned(torch.fmin),
    ops.FMOD: elementwise.fmod,
    ops.COPYSIGN: elementwise.aligned(torch.copysign),
    ops.HYPOT: elementwise.aligned(torch.hypot),
    ops.ATAN2: elementwise.aligned(torch.atan2),
    ops.LOGADDEXP: elementwise.aligned(torch.logaddexp),
    ops.SOFT_SHRINK: F.softshrink,
    ops.HARD_SHRINK: F.hardshrink,  # 2.13 rounds lambd to 16 bits before it compares
    ops.LOG_SIGMOID: F.logsigmoid,
    ops.SOFTMAX: over_axes(torch.softmax),
    ops.LOG_SOFTMAX: over_axes(torch.log_softmax),
}
# Computed in float32 for 16-bit floats and rounded once, as torch's kernels either lack 16 bits or
# round more than once (torch 2.13, CPU: log_softmax up to 0.9 eps, a product of 1001 numbers 47).
IN_WIDE = (ops.CBRT, ops.HARD_SHRINK, ops.LOG_SOFTMAX, ops.LOGSUMEXP, ops.PROD)


# --- special functions ----------------------------------------------------------------------------


def digamma(x: Tensor) -> Tensor:
    return digamma_by_reflection(torch, torch.digamma, x)


def polygamma(x: Tensor, *, n: int) -> Tensor:
    return polygamma_by_zeta(torch, torch.special.zeta, x, n)


def squareplus(x: Tensor, *, b: float) -> Tensor:
    # By torch's own functions: by our kernels, which also take numbers, it is a tenth slower.
    root = torch.hypot(x, torch.full((), b**0.5, dtype=x.dtype, device=x.device))
    return torch.where(x >= 0, 0.5 * x + 0.5 * root, 0.5 * b / (x.abs() + root))


def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
    return F.threshold(x, threshold, default)


def glu(x: Tensor, *, axis: int) -> Tensor:
    return F.glu(x, axis)


# Kernels of torch before 2.9 that lose digits; see docs/versions.md.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@elementwise.widened
def former_celu(x: Tensor, *, alpha: float) -> Tensor:
    return torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0) / alpha), x)


@elementwise.widened
def former_selu(x: Tensor) -> Tensor:
    return SELU_SCALE * torch.where(x <= 0, SELU_ALPHA * torch.expm1(x.clamp(max=0)), x)


FORMER: dict[Op, Callable[..., Any]] = {ops.CELU: former_celu, ops.SELU: former_selu}
SPECIAL: dict[Op, Callable[..., Any]] = {
    ops.DIGAMMA: digamma,
    ops.POLYGAMMA: polygamma,
    ops.SQUAREPLUS: squareplus,
    ops.THRESHOLD: threshold,
    ops.GLU: glu,
    ops.LERP: elementwise.aligned(torch.lerp),
    ops.XLOGY: elementwise.aligned(torch.xlogy),
    ops.XLOG1PY: elementwise.aligned(torch.special.xlog1py),
    **elementwise.named(F, "celu mish selu"),
    **elementwise.named(torch, "deg2rad erfinv lgamma logit rad2deg sinc"),
    **elementwise.named(torch.special, "i0e i1e log_ndtr ndtri"),
    **(FORMER if RELEASE < (2, 9) else {}),
}
WIDE = (*IN_FLOAT32, *IN_WIDE, ops.LOG_NDTR, ops.SQUAREPLUS, ops.GLU)
OTHERS: dict[Op, Callable[..., Any]] = {
    **random.OPS,
    **ELEMENTARY,
    **SPECIAL,
    **arrays.OPS,
    **distributed.OPS,
}
OTHERS |= {op: elementwise.widened(OTHERS[op]) for op in WIDE}
OPS = {**OTHERS, **OWN}
OPS = {**compositions(OPS, elementwise.widened, arrays.positions), **OPS}
