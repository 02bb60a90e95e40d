"""Linear algebra of `xg.xp` that is more than one op: products, factors; see `all.py`."""

from __future__ import annotations

from typing import Any

from ....core import ops
from ....core.ir.op import BOOL
from ....core.trace.trace import Value, apply
from ....core.trace.xp.arrays import dim
from ....core.trace.xp.ops import (
    eigvalsh,
    expand_dims,
    logabsdet,
    matmul,
    signdet,
    squeeze,
    sum,
    svdvals,
)
from .shapes import getitem, matrix_transpose, triu
from .transposes import (
    lu_pivots,
    packed_eigh,
    packed_lu,
    packed_svd,
    part,
    qr_columns,
    solve_matrices,
    triangular_solve,
)

Tensor = Any

__all__ = [
    "eigh", "einsum", "lu", "outer", "qr", "slogdet", "solve", "solve_triangular", "svd",
    "tensordot", "vecdot",
]  # fmt: skip


def einsum(subscripts: str, *arrays: Tensor) -> Tensor:
    """A sum of products over named axes: `einsum("ij,jk->ik", a, b)`; letters once in a term.

    Examples:
        >>> xp.einsum("ij,j->i", np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0]))
        array([-1., -1.])
    """
    return apply(ops.EINSUM, *arrays, subscripts=_with_result(subscripts.replace(" ", "")))


def _with_result(subscripts: str) -> str:
    # If the result is not named, it has the letters that occur once, in order, as in NumPy.
    if "->" in subscripts:
        return subscripts
    letters = subscripts.replace(",", "").replace("...", "")
    result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return f"{subscripts}->{'...' if '...' in subscripts else ''}{result}"


def vecdot(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """The sum of products along an axis.

    Examples:
        >>> float(xp.vecdot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
        11.0
    """
    products = apply(ops.MUL, a, b)
    total = sum(products, axis=axis)
    of_bools = isinstance(products, Value) and products.node.type.dtype == BOOL
    return apply(ops.NE, total, 0) if of_bools else total


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Every product of an element of one vector and one of another.

    Examples:
        >>> xp.outer(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
        array([[3., 4.],
               [6., 8.]])
    """
    return einsum("i,j->ij", a, b)


def tensordot(a: Tensor, b: Tensor, axes: int = 2) -> Tensor:
    """The product summed over the last `axes` axes of a and first of b; asks for ranks.

    Examples:
        >>> xp.tensordot(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), axes=1)
        array([[11.]])
    """
    if not isinstance(axes, int):
        raise TypeError("tensordot takes a number of axes; write xp.einsum for others")
    names = "abcdefghijklmnopqrstuvwxyz"
    names_a, names_b = names[: a.ndim], names[a.ndim - axes : a.ndim - axes + b.ndim]
    return einsum(f"{names_a},{names_b}->{names_a[: a.ndim - axes]}{names_b[axes:]}", a, b)


# --- factors of matrices --------------------------------------------------------------------------
def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """The signs of determinants, and the logarithms of their absolute values.

    Examples:
        >>> sign, log = xp.slogdet(np.array([[0.0, 2.0], [1.0, 0.0]]))
        >>> float(sign), round(float(log), 4)
        (-1.0, 0.6931)
    """
    return signdet(x), logabsdet(x)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """The x of a x = b: of one vector, or of matrices in the last two axes.

    Examples:
        >>> xp.solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 2.0]))
        array([1. , 0.5])
    """
    if b.ndim == 1:
        return squeeze(solve_matrices(a, expand_dims(b, -1)), -1)
    return solve_matrices(a, b)


def solve_triangular(
    a: Tensor,
    b: Tensor,
    *,
    lower: bool = False,
    transposed: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    """The x of a x = b (`transposed`: of the transpose of a), of a one triangle being read.

    Examples:
        >>> a, b = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[2.0], [3.0]])
        >>> xp.solve_triangular(a, b, lower=True)
        array([[1.],
               [2.]])
    """
    is_vector = b.ndim == 1
    columns = expand_dims(b, -1) if is_vector else b
    result = triangular_solve(
        a, columns, lower=bool(lower), transposed=bool(transposed), unit=bool(unit_diagonal)
    )
    return squeeze(result, -1) if is_vector else result


def lu(x: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of matrices in other rows, l below the diagonal and u from it on, and pivots: the
    row with which each was exchanged in turn, from 0.

    Examples:
        >>> factors, pivots = xp.lu(np.array([[0.0, 2.0], [1.0, 0.0]]))
        >>> pivots
        array([1, 1])
    """
    return packed_lu(x), lu_pivots(x)


def svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u, the singular values in descending order, and v transposed, of as many vectors as there are
    values; the signs of vectors are the backend's.

    Examples:
        >>> u, values, v = xp.svd(np.array([[3.0, 0.0], [0.0, 4.0]]))
        >>> values
        array([4., 3.])
    """
    pack = packed_svd(x)
    # The pack has a row of values, the rows of u and those of v.
    column, row = getitem(x, (..., slice(0, 1))), getitem(x, (..., slice(0, 1), slice(None)))
    u = part(pack, column, 1, axis=-2)
    v = part(pack, matrix_transpose(row), dim(x, -2) + 1, axis=-2)
    return u, svdvals(x), matrix_transpose(v)


def eigh(x: Tensor, *, lower: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues in ascending order, and vectors in columns, of symmetric matrices, of which one
    triangle is read; the signs of vectors are the backend's.

    Examples:
        >>> values, vectors = xp.eigh(np.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> np.round(values, 4)
        array([1., 3.])
    """
    pack = packed_eigh(x, lower=bool(lower))
    return eigvalsh(x, lower=bool(lower)), getitem(pack, (..., slice(1, None), slice(None)))


def qr(x: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns q, and the upper triangle r, of which x is the product; the signs of
    columns are the backend's.

    Examples:
        >>> q, r = xp.qr(np.array([[3.0], [4.0]]))
        >>> np.round(np.abs(r), 4)
        array([[5.]])
    """
    q = qr_columns(x)
    return q, triu(matmul(matrix_transpose(q), x))
