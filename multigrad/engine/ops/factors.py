"""Matrix factorizations: LU, singular values, eigenvalues of symmetric matrices, QR; and Fourier
transforms.

An op has one result, so factors that belong together, as vectors whose signs do, are packed into
one tensor, one below the other; `xg.xp` takes them apart. The backend's library decides the signs
of singular vectors, eigenvectors and columns of q, the order of vectors of equal values, and the
pivot among equal numbers. 16-bit values are computed in float32 and rounded once. If a matrix is
not finite, NumPy and PyTorch raise for singular values and eigenvalues; other results are NaN.

Values are also ops of their own, because they have a gradient where two are equal and vectors do
not. There the gradient of vectors is NaN or infinite, even for u f(w) u^T, which does not depend on
the choice of vectors: it needs the slope of f, and a cotangent holds only values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.ir.op import INT64, UNKNOWN, Attr, Type, are_integers, flag, kept, need_tensors
from ...core.ops.numerics import Array, widened, wider
from ...core.ops.properties import linear
from ...core.ops.shapes import Shape
from ...core.ops.table import Cotangents, op, zero
from .linalg import mark_infinities, of_matrices, of_matrix, square
from .orders import with_matrices
from .special_functions import from_scipy


def eye_like(xp: Any, x: Any) -> Any:
    """Return ones on the diagonal and zeros elsewhere, in the shape of x."""
    return xp.tril(xp.triu(xp.ones_like(x)))


def rows_below(xp: Any, packed: Any, start: Any, like: Any) -> Any:
    """Return as many rows of `packed` as `like` has, from row `start` on."""
    return xp.part(packed, xp.getitem(like, (..., slice(None, 1))), start, axis=-2)


# --- LU -------------------------------------------------------------------------------------------


def factored(x: Array) -> tuple[Array, Array]:
    """Return LAPACK's packed factors and pivots, which count from 0."""
    *batch, rows, columns = x.shape
    packed, pivots = np.array(x), np.zeros((*batch, min(rows, columns)), np.int64)
    (getrf,) = from_scipy("get_lapack_funcs", "linalg.lapack")(("getrf",), dtype=x.dtype)
    for index in np.ndindex(*batch) if x.size else ():
        # The third result, `info`, is ignored: a zero on the diagonal of u is no error.
        packed[index], pivots[index], _ = getrf(x[index])
    return packed, pivots


@widened
def lu(x: Array) -> Array:
    return factored(x)[0]


def lu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Seeger et al., Auto-differentiating linear algebra, 2017, for the square case: columns of an
    # identity make l square, rows of it make u square.
    eye = eye_like(xp, xp.matrix_transpose(x))
    lower = xp.tril(y, -1)
    left = xp.matmul(lower, eye)
    upper = xp.matmul(eye, xp.triu(y))
    missing_ones = xp.ones_like(upper) - xp.matmul(eye, xp.matrix_transpose(eye))
    right = upper + eye_like(xp, upper) * missing_ones
    of_lower, of_upper = xp.tril(ct, -1), xp.triu(ct)
    inner = xp.tril(xp.matmul(xp.matrix_transpose(left), of_lower) + of_lower, -1)
    inner = inner + xp.triu(xp.matmul(of_upper, xp.matrix_transpose(right)))
    half = xp.triangular_solve(left, inner, lower=True, transposed=True, unit=True)
    solution = xp.triangular_solve(
        right, xp.matrix_transpose(half), lower=False, transposed=False, unit=False
    )
    # Each row of the gradient goes back to where x had it before the exchanges.
    rows = xp.lu_permutation(xp.lu_pivots(x), x)
    places = xp.broadcast_to(xp.expand_dims(rows, -1), x)
    return (xp.untake_along(xp.matrix_transpose(solution), places, x, axis=-2),)


def lu_pivots(x: Array) -> Array:
    return factored(wider(x))[1]


def lu_permutation(indices: Array, like: Array) -> Array:
    rows = np.shape(like)[-2]
    places = np.broadcast_to(np.arange(rows), (*indices.shape[:-1], rows)).copy()
    for index in np.ndindex(*indices.shape[:-1]):
        # Pivots are exchanges of rows, applied in order.
        for i, pivot in enumerate(indices[index]):
            places[index][[i, pivot]] = places[index][[pivot, i]]
    return places


def rows_of(x: Type, *others: Type) -> Type:
    need_tensors(x, *others)
    return Type("tensor", INT64, UNKNOWN)


def values_shape(x: Shape) -> Shape:
    return (*with_matrices(x)[:-2], min(x[-2:]))


def permutation_shape(indices: Shape, like: Shape) -> Shape:
    if not indices:
        raise ValueError("pivots lie in the last axis, and there is none")
    return (*indices[:-1], with_matrices(like)[-2])


LU = of_matrices(
    "lu",
    "x",
    lu,
    lu_vjp,
    "l, whose diagonal is one, and u in one matrix: the factors of x in other rows.",
    result=of_matrix,
    shape_of=with_matrices,
    in_vjps=True,
    xp="packed_lu",
)
LU_PIVOTS = of_matrices(
    "lu_pivots",
    "x",
    lu_pivots,
    zero,
    "With which row each was exchanged in turn for the LU factors, from 0.",
    result=rows_of,
    shape_of=values_shape,
    in_vjps=True,
)
LU_PERMUTATION = of_matrices(
    "lu_permutation",
    "indices like",
    lu_permutation,
    zero,
    "For pivots, where each row of l u is in a matrix of as many rows as `like`.",
    result=rows_of,
    shape_of=permutation_shape,
    coerce="indices",
    shape_only=(1,),
    in_vjps=True,
)

# --- singular values ------------------------------------------------------------------------------


@widened
def svd(x: Array) -> Array:
    if not x.size:
        return np.zeros(svd_shape(x.shape), x.dtype)
    # Raises LinAlgError where LAPACK does not converge.
    u, s, vh = np.linalg.svd(mark_infinities(x), full_matrices=False)
    return np.concatenate((s[..., None, :], u, np.swapaxes(vh, -1, -2)), -2)


def svd_shape(x: Shape) -> Shape:
    return (*x[:-2], 1 + x[-2] + x[-1], min(x[-2:]))


def svd_parts(xp: Any, packed: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return the values as a row, and both sets of vectors as columns."""
    left = rows_below(xp, packed, 1, x)
    right = rows_below(xp, packed, xp.dim(x, -2) + 1, xp.matrix_transpose(x))
    return xp.getitem(packed, (..., slice(0, 1), slice(None))), left, right


def svd_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Townsend, Differentiating the singular value decomposition, 2016. The quotients by a
    # difference of squares are split in two; `eye` makes their diagonals 0 / 1.
    (s, u, v), (of_s, of_u, of_v) = svd_parts(xp, y, x), svd_parts(xp, ct, x)
    column = xp.matrix_transpose(s)
    left, right = (xp.matmul(xp.matrix_transpose(a), b) for a, b in ((u, of_u), (v, of_v)))
    skew_u, skew_v = (each - xp.matrix_transpose(each) for each in (left, right))
    eye = eye_like(xp, skew_u)
    quotients = (skew_u + skew_v) / (s - column + eye)
    inner = 0.5 * (quotients + (skew_u - skew_v) / (s + column + eye)) + eye * of_s
    rows, columns, count = xp.dim(x, -2), xp.dim(x, -1), xp.dim(y, -1)
    outside_u = outside(xp, of_u, u, left, s=s, exists=xp.greater(rows, count))
    outside_v = outside(xp, of_v, v, right, s=s, exists=xp.greater(columns, count))
    by_u = xp.matmul(xp.matmul(u, inner) + outside_u, xp.matrix_transpose(v))
    return (by_u + xp.matmul(u, xp.matrix_transpose(outside_v)),)


def outside(xp: Any, cotangent: Any, vectors: Any, inner: Any, *, s: Any, exists: Any) -> Any:
    """Return the part of a cotangent outside the span of the vectors, divided by the values."""
    # Without more rows (or columns) than values there is no such part, not even from rounding.
    remainder = (cotangent - xp.matmul(vectors, inner)) / xp.where(exists, s, 1.0)
    return xp.where(exists, remainder, xp.zeros_like(cotangent))


SVD = of_matrices(
    "svd",
    "x",
    svd,
    svd_vjp,
    "Singular values, descending, in the first row; below it columns u, then v.",
    shape_of=svd_shape,
    in_vjps=True,
    xp="packed_svd",
)


@widened
def svdvals(x: Array) -> Array:
    if not x.size:
        return np.zeros(values_shape(x.shape), x.dtype)
    return np.linalg.svd(mark_infinities(x), compute_uv=False)


def svdvals_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Giles 2008, section 3.2; a subgradient where a value is zero.
    _, u, v = svd_parts(xp, xp.packed_svd(x), x)
    return (xp.matmul(u * xp.expand_dims(ct, -2), xp.matrix_transpose(v)),)


SVDVALS = of_matrices(
    "svdvals",
    "x",
    svdvals,
    svdvals_vjp,
    "Singular values of matrices, descending.",
    shape_of=values_shape,
)

# --- eigenvalues ----------------------------------------------------------------------------------


@widened
def eigh(x: Array, *, lower: bool) -> Array:
    if not x.size:
        return np.zeros(eigh_shape(x.shape), x.dtype)
    # Raises LinAlgError where LAPACK does not converge.
    w, v = np.linalg.eigh(x, "L" if lower else "U")
    return np.concatenate((w[..., None, :], v), -2)


def eigh_shape(x: Shape, **attrs: Any) -> Shape:
    return (*square(x)[:-2], x[-1] + 1, x[-1])


def eigh_parts(xp: Any, packed: Any) -> tuple[Any, Any]:
    values = xp.getitem(packed, (..., slice(0, 1), slice(None)))
    return values, xp.getitem(packed, (..., slice(1, None), slice(None)))


def eigh_vjp(xp: Any, ct: Any, y: Any, x: Any, *, lower: bool) -> Cotangents:
    # Giles, An extended collection of matrix derivative results, 2008, section 3.1: x is symmetric,
    # and so is its gradient.
    (w, v), (of_w, of_v) = eigh_parts(xp, y), eigh_parts(xp, ct)
    v_t = xp.matrix_transpose(v)
    product = xp.matmul(v_t, of_v)
    off_diagonal = xp.tril(product, -1) + xp.triu(product, 1)
    eye = eye_like(xp, off_diagonal)
    inner = off_diagonal / (w - xp.matrix_transpose(w) + eye) + eye * of_w
    inner = 0.5 * (inner + xp.matrix_transpose(inner))
    return (xp.matmul(xp.matmul(v, inner), v_t),)


EIGH = of_matrices(
    "eigh",
    "x",
    eigh,
    eigh_vjp,
    "Eigenvalues, ascending, above columns of eigenvectors; one triangle is read.",
    shape_of=eigh_shape,
    lower=flag(True),
    in_vjps=True,
    xp="packed_eigh",
)


@widened
def eigvalsh(x: Array, *, lower: bool) -> Array:
    if not x.size:
        return np.zeros(x.shape[:-1], x.dtype)
    return np.linalg.eigvalsh(x, "L" if lower else "U")


def eigvalsh_vjp(xp: Any, ct: Any, y: Any, x: Any, *, lower: bool) -> Cotangents:
    # Giles 2008, section 3.1; symmetric, as the gradient of eigh.
    _, v = eigh_parts(xp, xp.packed_eigh(x, lower=lower))
    return (xp.matmul(v * xp.expand_dims(ct, -2), xp.matrix_transpose(v)),)


def rows_shape(x: Shape, **attrs: Any) -> Shape:
    return square(x)[:-1]


EIGVALSH = of_matrices(
    "eigvalsh",
    "x",
    eigvalsh,
    eigvalsh_vjp,
    "Eigenvalues of symmetric matrices, ascending; one triangle is read.",
    shape_of=rows_shape,
    lower=flag(True),
)

# --- QR -------------------------------------------------------------------------------------------


@widened
def qr(x: Array) -> Array:
    if not x.size:
        return np.zeros(qr_shape(x.shape), x.dtype)
    return np.linalg.qr(x)[0]


def qr_shape(x: Shape) -> Shape:
    return (*x[:-1], min(x[-2:]))


def qr_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Seeger et al. 2017, equation 7; of a wide matrix the first columns decide.
    y_t = xp.matrix_transpose(y)
    r = xp.triu(xp.matmul(y_t, x))
    square_r = xp.part(r, xp.matrix_transpose(r), 0, axis=-1)
    product = xp.matmul(xp.matrix_transpose(ct), y)
    symmetric = xp.tril(product) + xp.matrix_transpose(xp.tril(product, -1))
    inner = xp.matrix_transpose(ct - xp.matmul(y, symmetric))
    solution = xp.triangular_solve(square_r, inner, lower=False, transposed=False, unit=False)
    return (xp.unpart(xp.matrix_transpose(solution), x, 0, axis=-1),)


QR = of_matrices(
    "qr",
    "x",
    qr,
    qr_vjp,
    "The orthonormal columns q of the factors q r.",
    shape_of=qr_shape,
    in_vjps=True,
    xp="qr_columns",
)


# --- Fourier transforms --------------------------------------------------------------------------
# Graphs have real numbers only: a complex number is two of them, in a last axis of length two, and
# so is its cotangent. The transform is linear in both, and its transpose is the transform in the
# other direction. `xg.xp` has the parts as two tensors.


def are_spectral(value: object) -> bool:
    """Return whether a value holds axes, counted from the end, before the axis of parts."""
    if not are_integers(value) or not value:
        return False
    return max(value) < -1 and len(set(value)) == len(value)


@widened
def fft(x: Array, *, axes: tuple[int, ...], inverse: bool) -> Array:
    places = tuple(axis + 1 for axis in axes)  # of the complex numbers
    numbers = x[..., 0] + 1j * x[..., 1]
    # Assigned, because 1j times an infinity has a real part of NaN.
    numbers.real, numbers.imag = x[..., 0], x[..., 1]
    if inverse:
        spectrum = np.fft.ifftn(numbers, axes=places, norm="forward")
    else:
        spectrum = np.fft.fftn(numbers, axes=places)
    return np.stack((spectrum.real, spectrum.imag), -1).astype(x.dtype, copy=False)


def of_parts(x: Shape, axes: tuple[int, ...] = (-2,), **attrs: Any) -> Shape:
    """Return the operand's shape, or raise ValueError if it has no such transform."""
    if not x or x[-1] != 2 or -min(axes) > len(x) or not all(x[axis] for axis in axes):
        raise ValueError(f"no Fourier transform of shape {x}, with the parts last, over {axes}")
    return x


# The transpose of the real matrix is the conjugate transform.
FFT = op(
    "fft",
    "x",
    numpy=fft,
    vjp="xp.packed_fft(ct, axes=axes, inverse=not inverse)",
    doc="Fourier transforms of numbers whose parts lie in the last axis, without a divisor.",
    result=kept,
    degree=linear,
    shape_of=of_parts,
    axes=Attr(are_spectral, ((-2,), (-3, -2))),
    inverse=flag(False),
    in_vjps=True,
    xp="packed_fft",
)
