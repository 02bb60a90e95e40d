"""Linear algebra of matrices in the last two axes, with batches in the axes before.

16-bit values are computed in float32 and rounded once; most libraries' own functions refuse them. A
matrix without a factor or an inverse is the user's error: NumPy and PyTorch raise; TensorFlow
raises, except for a factor, which is NaN; JAX and code compiled by XLA give NaN or an infinity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.ir.op import Op, Type, flag, kept, need_tensors, number, reduce_shape, reshaped
from ...core.ops.numerics import Array, widened
from ...core.ops.properties import in_last
from ...core.ops.shapes import Shape
from ...core.ops.table import Cotangents, op, zero
from .result_shapes import multiplied


def of_matrices(name: str, args: str, numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    return op(name, args, numpy=numpy, vjp=vjp, doc=doc, **{"result": reshaped, **fields})


def square(x: Shape, **attrs: Any) -> Shape:
    """Return the shape of x, or raise ValueError if it holds no square matrices."""
    if len(x) < 2 or x[-1] != x[-2]:
        raise ValueError(f"a square matrix in the last two axes is needed, not shape {x}")
    return x


def of_matrix(x: Type) -> Type:
    return kept(x)


def of_right_side(a: Shape, b: Shape, **attrs: Any) -> Shape:
    """Return the shape of the right sides, with both batches broadcast."""
    if len(b) < 2 or square(a)[-1] != b[-2]:
        raise ValueError(f"a system of the shapes {a} and {b}")
    return (*np.broadcast_shapes(a[:-2], b[:-2]), *b[-2:])


def transposed(x: Shape, **attrs: Any) -> Shape:
    """Return the shape of matrices with rows and columns exchanged."""
    return (*x[:-2], x[-1], x[-2])


def cholesky_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Murray, Differentiation of the Cholesky decomposition, 2016, equation 10; Smith 1995. x is
    # symmetric, and so is its gradient.
    product = xp.matmul(xp.matrix_transpose(y), ct)
    inner = 0.5 * (xp.tril(product) + xp.tril(product, -1))
    left = xp.triangular_solve(y, inner, lower=True, transposed=True, unit=False)
    right = xp.matrix_transpose(left)
    solution = xp.triangular_solve(y, right, lower=True, transposed=True, unit=False)
    return (0.5 * (solution + xp.matrix_transpose(solution)),)


CHOLESKY = of_matrices(
    "cholesky",
    "x",
    # Of the lower triangle; LinAlgError where a matrix is not positive definite.
    widened(np.linalg.cholesky),
    cholesky_vjp,
    "The lower triangular factor of symmetric positive definite matrices; it reads that half.",
    result=of_matrix,
    shape_of=square,
)
TRIANGLE = {"lower": flag(True), "transposed": flag(False), "unit": flag(False)}


@widened
def triangular_solve(a: Array, b: Array, *, lower: bool, transposed: bool, unit: bool) -> Array:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if transposed:
        a, lower = np.swapaxes(a, -1, -2), not lower
    if not lower:  # turned by half a circle, it is a lower triangle
        a, b = a[..., ::-1, ::-1], b[..., ::-1, :]
    x = np.array(np.broadcast_to(b, (*batch, *b.shape[-2:])))
    with np.errstate(all="ignore"):
        substitute(a, x, unit)
    return x if lower else np.ascontiguousarray(x[..., ::-1, :])


def substitute(a: Array, x: Array, unit: bool) -> None:
    """Solve a system of a lower triangle; x holds the right sides, and then the solution."""
    size = x.shape[-2]
    if size == 1 and not unit:
        x /= a  # a zero on the diagonal divides, as in BLAS; TensorFlow raises
    if size > 1:
        half = size // 2
        substitute(a[..., :half, :half], x[..., :half, :], unit)
        x[..., half:, :] -= a[..., half:, :half] @ x[..., :half, :]
        substitute(a[..., half:, half:], x[..., half:, :], unit)


def triangular_solve_vjp(
    xp: Any, ct: Any, y: Any, a: Any, b: Any, *, lower: bool, transposed: bool, unit: bool
) -> Cotangents:
    # Giles, An extended collection of matrix derivative results, 2008, section 2.2.3.
    of_b = xp.triangular_solve(a, ct, lower=lower, transposed=not transposed, unit=unit)
    left, right = (y, of_b) if transposed else (of_b, y)
    of_a = -xp.matmul(left, xp.matrix_transpose(right))
    # Only elements that are read have a gradient: one triangle, without a diagonal of ones.
    return (xp.tril(of_a, -unit) if lower else xp.triu(of_a, int(unit))), of_b


TRIANGULAR_SOLVE = of_matrices(
    "triangular_solve",
    "a b",
    triangular_solve,
    triangular_solve_vjp,
    "The x of a x = b, or of its transpose; of a one triangle is read, ones for its diagonal.",
    degree=in_last,
    copies=multiplied,
    shape_of=of_right_side,
    in_vjps=True,
    **TRIANGLE,
)


@widened
def solve(a: Array, b: Array) -> Array:
    # By LU; LinAlgError where a matrix is singular. NumPy 1 takes right sides with fewer axes than
    # the matrices for vectors.
    axes = max(a.ndim, b.ndim)
    return np.linalg.solve(*(m.reshape((1,) * (axes - m.ndim) + m.shape) for m in (a, b)))


def solve_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    # Giles 2008, section 2.2.3.
    of_b = xp.solve_matrices(xp.matrix_transpose(a), ct)
    return -xp.matmul(of_b, xp.matrix_transpose(y)), of_b


SOLVE = of_matrices(
    "solve",
    "a b",
    solve,
    solve_vjp,
    "The x of a x = b, both matrices.",
    degree=in_last,
    copies=multiplied,
    shape_of=of_right_side,
    in_vjps=True,
    xp="solve_matrices",
)


def inv_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Giles 2008, section 2.2.3.
    y_t = xp.matrix_transpose(y)
    return (-xp.matmul(xp.matmul(y_t, ct), y_t),)


INV = of_matrices(
    "inv",
    "x",
    widened(np.linalg.inv),  # LinAlgError where a matrix is singular
    inv_vjp,
    "The inverses of matrices.",
    result=of_matrix,
    shape_of=square,
)


def mark_infinities(x: Array) -> Array:
    """Return x with NaN for infinities, for which LAPACK may never end; for NaN it raises."""
    return np.where(np.isfinite(x), x, np.nan)


@widened
def pinv(x: Array, *, rtol: float, epsilons: float) -> Array:
    if not x.size:
        return np.swapaxes(x, -1, -2)
    u, s, v = np.linalg.svd(mark_infinities(x), full_matrices=False)
    # Singular values up to the cutoff times the largest one count as zero.
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * float(np.finfo(x.dtype).eps))
    is_large = s > np.asarray(cutoff, x.dtype) * np.max(s, axis=-1, keepdims=True)
    inverse = np.divide(1, s, out=np.zeros_like(s), where=is_large)
    return np.matmul(np.swapaxes(v, -1, -2), inverse[..., None] * np.swapaxes(u, -1, -2))


def pinv_vjp(xp: Any, ct: Any, y: Any, x: Any, *, rtol: float, epsilons: float) -> Cotangents:
    # Golub and Pereyra 1973, equation 4.12, where the rank stays the same.
    y_t, ct_t = xp.matrix_transpose(y), xp.matrix_transpose(ct)
    inner = -xp.matmul(xp.matmul(y_t, ct), y_t)
    right = xp.matmul(xp.matmul(ct_t, y), y_t)
    left = xp.matmul(y_t, xp.matmul(y, ct_t))
    outer = right - xp.matmul(x, xp.matmul(y, right))
    return (inner + outer + (left - xp.matmul(xp.matmul(left, y), x)),)


PINV = of_matrices(
    "pinv",
    "x",
    pinv,
    pinv_vjp,
    "Pseudo-inverses; singular values up to rtol, or that many eps a row, are left out.",
    shape_of=transposed,
    rtol=number(0.0, 1e-3),
    epsilons=number(1.0, 10.0),
)


# --- functions of matrices ------------------------------------------------------------------------
# Coefficients of the approximant of degree 13, from the constant on.
PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
PADE_REACHES = 5.371920351148152  # norms for which the approximant is exact to eps


@widened
def expm(x: Array) -> Array:
    # Higham, The scaling and squaring method, 2005, algorithm 2.3. SciPy's own (1.17) is off by up
    # to 24 eps a row times the condition.
    norm = np.max(np.sum(np.abs(x), -2), -1, initial=0.0)
    _, squarings = np.frexp(np.where(np.isfinite(norm), norm, 0.0) / PADE_REACHES)
    squarings = np.maximum(squarings, 0)[..., None, None]
    y = pade(np.ldexp(x, -squarings).astype(x.dtype))
    for i in range(np.max(squarings, initial=0)):
        # Matrices of one batch take different numbers of squarings.
        y = np.where(squarings > i, y @ y, y)
    return y


def pade(x: Array) -> Array:
    eye, x2 = np.eye(x.shape[-1], dtype=x.dtype), x @ x
    x4, b = x2 @ x2, [x.dtype.type(each) for each in PADE]
    x6 = x4 @ x2
    odd = x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2)
    odd = x @ (odd + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * eye)
    even = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2)
    even = even + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * eye
    return np.linalg.solve(even - odd, even + odd)


def expm_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # The Fréchet derivative at the transpose is the upper right block of the exponential of a
    # matrix of blocks: Higham, Functions of Matrices, 2008, equation 3.16. It is linear in the
    # cotangent, which is scaled to 1: a large one would take more squarings.
    size = xp.sum(xp.abs(ct), axis=(-2, -1), keepdims=True)
    is_usual = xp.logical_and(xp.isfinite(size), xp.greater(size, 0))
    size = xp.stop_gradient(xp.where(is_usual, size, 1.0))
    x_t = xp.matrix_transpose(x)
    upper_blocks = xp.concatenate((x_t, ct / size), axis=-1)
    lower_blocks = xp.concatenate((xp.zeros_like(x_t), x_t), axis=-1)
    blocks = xp.expm(xp.concatenate((upper_blocks, lower_blocks), axis=-2))
    right_blocks = xp.part(blocks, x_t, xp.dim(x, -1), axis=-1)
    return (xp.part(right_blocks, x, 0, axis=-2) * size,)


EXPM = of_matrices(
    "expm",
    "x",
    expm,
    expm_vjp,
    "The exponentials of matrices, not of their elements.",
    result=of_matrix,
    shape_of=square,
)

# --- determinants --------------------------------------------------------------------------------


def spread(xp: Any, x: Any) -> Any:
    """Return a number for each matrix with two axes of length 1 appended."""
    return xp.expand_dims(xp.expand_dims(x, -1), -1)


def over_matrices(x: Type) -> Type:
    need_tensors(x)
    return Type("tensor", x.dtype, reduce_shape(x.shape, (-2, -1), False))


def of_each_matrix(x: Shape) -> Shape:
    return square(x)[:-2]


@widened
def det(x: Array) -> Array:
    return np.asarray(np.linalg.det(x))


def det_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Giles 2008, section 2.2.4; not known for a singular matrix.
    return (spread(xp, ct * y) * xp.matrix_transpose(xp.inv(x)),)


@widened
def logabsdet(x: Array) -> Array:
    return np.asarray(np.linalg.slogdet(x)[1])


def logabsdet_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Giles 2008, section 2.2.4.
    return (spread(xp, ct) * xp.matrix_transpose(xp.inv(x)),)


@widened
def signdet(x: Array) -> Array:
    return np.asarray(np.linalg.slogdet(x)[0])


OF_EACH = {"result": over_matrices, "shape_of": of_each_matrix}
DET = of_matrices("det", "x", det, det_vjp, "Determinants.", **OF_EACH)
LOGABSDET = of_matrices(
    "logabsdet",
    "x",
    logabsdet,
    logabsdet_vjp,
    "The logarithms of the absolute values of determinants.",
    **OF_EACH,
)
SIGNDET = of_matrices("signdet", "x", signdet, zero, "Signs of determinants.", **OF_EACH)
