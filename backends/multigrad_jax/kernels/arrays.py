"""JAX's kernels of the ops on arrays, of convolutions and of linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg as jsp

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.engine.ops.linalg import PADE_REACHES
from multigrad.engine.ops.products import as_matrix

from ..core.kernels.elementwise import accumulated, is_staged_out
from ..core.kernels.ops import sum_to
from . import shapes

Tensor: TypeAlias = jax.Array
Ints = tuple[int, ...]


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.ndim - len(sizes)
    for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        count = (x.shape[first + i] - dilation * (size - 1) - 1) // stride + 1
        # windows overlap, so that each element is gathered as often as it is seen
        places = stride * jnp.arange(count)[:, None] + dilation * jnp.arange(size)
        x = jnp.moveaxis(jnp.take(x, places, first + i), first + i + 1, -1)
    return x


def transposed(linear: Callable[[Tensor], Tensor], cotangent: Tensor, like: Tensor) -> Tensor:
    """Return the transpose of a linear function, with sums in float32 for 16 bits."""
    values = accumulated(cotangent)
    shape = jax.ShapeDtypeStruct(like.shape, values.dtype)
    (result,) = jax.linear_transpose(linear, shape)(values)
    return result.astype(cotangent.dtype)


def unwindows(x: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    return transposed(lambda values: windows(values, **attrs), x, like)


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    return lax.conv_general_dilated(
        x, w, strides, "VALID", rhs_dilation=dilations, feature_group_count=groups
    )


def conv_left(cotangent: Tensor, w: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    kernels = accumulated(w)
    return transposed(lambda x: conv(x, kernels, **attrs), cotangent, like)


def conv_right(x: Tensor, cotangent: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    inputs = accumulated(x)
    return transposed(lambda w: conv(inputs, w, **attrs), cotangent, like)


def wide_dtype(x: Tensor) -> Any:
    return jnp.float32 if x.dtype.itemsize == 2 else x.dtype


def matmul(a: Tensor, b: Tensor) -> Tensor:
    if are_staged_matrices(a, b):
        return contracted(a, 1, b, 0)
    return narrowed(jnp.matmul(a, b, preferred_element_type=wide_dtype(a)), a.dtype)


def are_staged_matrices(a: Tensor, b: Tensor) -> bool:
    # one equation is enough for two strong matrices, and jnp.matmul takes many steps of Python to
    # find that out
    if not (is_staged_out(a) and is_staged_out(b)):
        return False
    left, right = a.aval, b.aval
    is_plain = left.dtype == right.dtype and left.dtype.itemsize > 2
    return (
        is_plain
        and len(left.shape) == len(right.shape) == 2
        and not (left.weak_type or right.weak_type)
    )


def contracted(a: Tensor, i: int, b: Tensor, j: int) -> Tensor:
    return jax.lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=a.dtype)


def narrowed(x: Tensor, dtype: Any) -> Tensor:
    # a look costs less than jax's cast to the same dtype
    return x if x.dtype == dtype else x.astype(dtype)


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    if like.ndim == 2 and are_staged_matrices(cotangent, b):
        return contracted(cotangent, 1, b, 1)
    product = as_matrix(cotangent, like, b)
    columns = jnp.swapaxes(b if b.ndim > 1 else b[:, None], -1, -2)
    result = jnp.matmul(product, columns, preferred_element_type=wide_dtype(b))
    result = result if like.ndim > 1 else result[..., 0, :]
    return narrowed(sum_to(result, like), cotangent.dtype)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    if like.ndim == 2 and are_staged_matrices(a, cotangent):
        return contracted(a, 0, cotangent, 0)
    product = as_matrix(cotangent, a, like)
    rows = jnp.swapaxes(a if a.ndim > 1 else a[None], -1, -2)
    result = jnp.matmul(rows, product, preferred_element_type=wide_dtype(a))
    result = result if like.ndim > 1 else result[..., 0]
    return narrowed(sum_to(result, like), cotangent.dtype)


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    return jnp.einsum(subscripts, *arrays)


def cholesky(x: Tensor) -> Tensor:
    return lax.linalg.cholesky(x, symmetrize_input=False)


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=transposed, unit_diagonal=unit
    )


def solve(a: Tensor, b: Tensor) -> Tensor:
    # Right sides of one axis less count as vectors.
    b = b.reshape((1,) * (a.ndim - b.ndim) + b.shape)
    return jnp.linalg.solve(a, b)


def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * float(jnp.finfo(x.dtype).eps))
    # infinities as NaN: LAPACK may not end for one
    return jnp.linalg.pinv(x + 0 * x, rtol=cutoff)


def expm(x: Tensor) -> Tensor:
    # jax's own (0.10) squares once too few: 4e6 eps at a norm of 9; and it is NaN above 3e5.
    norm = jnp.max(jnp.sum(jnp.abs(x), -2), -1, initial=0.0)[..., None, None]
    _, squarings = jnp.frexp(jnp.where(jnp.isfinite(norm), norm, 0.0) / PADE_REACHES)
    squarings = jnp.maximum(squarings, 0)

    def square(i: Tensor, y: Tensor) -> Tensor:
        return jnp.where(squarings > i, jnp.matmul(y, y, precision="highest"), y)

    y = jsp.expm(jnp.ldexp(x, -squarings), max_squarings=0)
    return lax.fori_loop(0, jnp.max(squarings, initial=0), square, y)


def lu(x: Tensor) -> Tensor:
    return lax.linalg.lu(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    # in float32 for 16 bits, as the factors are computed, so that both agree
    return lax.linalg.lu(accumulated(x))[1]


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    return lax.linalg.lu_pivots_to_permutation(indices.astype(jnp.int32), like.shape[-2])


def svd(x: Tensor) -> Tensor:
    # infinities as NaN: LAPACK may not end for one
    u, s, vh = jnp.linalg.svd(x + 0 * x, full_matrices=False)
    # an op has one result: the values are the first row above the vectors
    return jnp.concatenate((s[..., None, :], u, jnp.swapaxes(vh, -1, -2)), -2)


def _mirrored(x: Tensor, lower: bool) -> Tensor:
    # JAX reads one half, but the mean of both where it differentiates; the gradient is that of x.
    half, rest = (jnp.tril(x), jnp.tril(x, -1)) if lower else (jnp.triu(x), jnp.triu(x, 1))
    return lax.stop_gradient(half + jnp.swapaxes(rest, -1, -2)) + (x - lax.stop_gradient(x))


def eigh(x: Tensor, *, lower: bool) -> Tensor:
    v, w = lax.linalg.eigh(_mirrored(x, lower), lower=lower, symmetrize_input=False)
    # the values above the vectors, as in svd
    return jnp.concatenate((w[..., None, :], v), -2)


def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return lax.linalg.eigh(_mirrored(x, lower), lower=lower, symmetrize_input=False)[1]


def svdvals(x: Tensor) -> Tensor:
    # as in svd
    return jnp.linalg.svd(x + 0 * x, compute_uv=False)


def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    numbers = lax.complex(x[..., 0], x[..., 1])
    transform = jnp.fft.ifft if inverse else jnp.fft.fft
    for axis in axes:
        numbers = transform(numbers, axis=axis + 1, norm="forward" if inverse else None)
    return jnp.stack((numbers.real, numbers.imag), -1)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.INV: jnp.linalg.inv,
    ops.DET: jnp.linalg.det,
    **shapes.OPS,
}
