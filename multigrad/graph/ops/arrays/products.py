"""Matrix products and einsum; 16-bit values accumulate in float32 and round once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attributes import SUBSCRIPTS
from ..numerics import Array, wider
from ..properties import in_one, multiplied
from ..result_shapes import Shape, product, summed_to
from ..results import (
    contracted,
    cotangent_of_left,
    cotangent_of_right,
    reshaped,
)
from ..table import Cotangents, op
from .shapes import sum_to


def matmul(a: Array, b: Array) -> Array:
    # A vector is a row on the left, a column on the right.
    return np.matmul(wider(a), wider(b)).astype(a.dtype)


def matmul_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return xp.matmul_left(ct, b, a), xp.matmul_right(a, ct, b)


def left_shape(cotangent: Shape, b: Shape, like: Shape) -> Shape:
    rows, columns = matrix_shape(cotangent, like, b), b if len(b) > 1 else (*b, 1)
    result = product(rows, (*columns[:-2], columns[-1], columns[-2]))
    return summed_to(result if len(like) > 1 else (*result[:-2], result[-1]), like)


def matmul_left(cotangent: Array, b: Array, like: Array) -> Array:
    rows = as_matrix(wider(cotangent), like, b)
    columns = wider(b) if b.ndim > 1 else wider(b)[:, None]
    # Batch axes that broadcast are summed at the end, in float32 for 16-bit values.
    result = rows @ np.swapaxes(columns, -1, -2)
    result = result if like.ndim > 1 else result[..., 0, :]
    return sum_to(result, like).astype(cotangent.dtype)


# The sum of ct * (a @ b) is linear in each of the three: the VJPs close among three ops.
def matmul_left_vjp(xp: Any, ct: Any, y: Any, cotangent: Any, b: Any, like: Any) -> Cotangents:
    return xp.matmul(ct, b), xp.matmul_right(ct, cotangent, b), None


def right_shape(a: Shape, cotangent: Shape, like: Shape) -> Shape:
    columns, rows = matrix_shape(cotangent, a, like), a if len(a) > 1 else (1, *a)
    result = product((*rows[:-2], rows[-1], rows[-2]), columns)
    return summed_to(result if len(like) > 1 else result[:-1], like)


def matmul_right(a: Array, cotangent: Array, like: Array) -> Array:
    columns = as_matrix(wider(cotangent), a, like)
    rows = wider(a) if a.ndim > 1 else wider(a)[None]
    result = np.swapaxes(rows, -1, -2) @ columns
    result = result if like.ndim > 1 else result[..., 0]
    return sum_to(result, like).astype(cotangent.dtype)


def matmul_right_vjp(xp: Any, ct: Any, y: Any, a: Any, cotangent: Any, like: Any) -> Cotangents:
    return xp.matmul_left(cotangent, ct, a), xp.matmul(a, ct), None


def matrix_shape(product: Shape, a: Shape, b: Shape) -> Shape:
    product = (*product, 1) if len(b) == 1 else product
    return (*product[:-1], 1, product[-1]) if len(a) == 1 else product


def as_matrix(product: Array, a: Array, b: Array) -> Array:
    """Return the product of a and b with an axis for each vector among them."""
    product = product[..., None] if b.ndim == 1 else product
    return product[..., None, :] if a.ndim == 1 else product


MATMUL = op(
    "matmul",
    "a b",
    numpy=matmul,
    vjp=matmul_vjp,
    result=reshaped,
    doc="The product of matrices in the last two axes; a vector counts as a row or a column.",
    degree=in_one,
    on_bools="numbers",
    copies=multiplied,
    integer=True,
    shape_of=product,
)
MATMUL_LEFT = op(
    "matmul_left",
    "cotangent b like",
    numpy=matmul_left,
    vjp=matmul_left_vjp,
    result=cotangent_of_left,
    doc="The cotangent of the left operand of matmul, in its shape.",
    in_vjps=True,
    degree=in_one,
    shape_only=(2,),
    shape_of=left_shape,
)
MATMUL_RIGHT = op(
    "matmul_right",
    "a cotangent like",
    numpy=matmul_right,
    vjp=matmul_right_vjp,
    result=cotangent_of_right,
    doc="The cotangent of the right operand of matmul, in its shape.",
    in_vjps=True,
    degree=in_one,
    shape_only=(2,),
    shape_of=right_shape,
)


def einsum(*arrays: Array, subscripts: str) -> Array:
    return np.einsum(subscripts, *map(wider, arrays), optimize=True).astype(arrays[0].dtype)


def einsum_vjp(xp: Any, ct: Any, y: Any, *arrays: Any, subscripts: str) -> Cotangents:
    terms, _, result = subscripts.partition("->")
    names = terms.split(",")
    # One einsum for each operand; ones supply the letters that no other operand has.
    shares = []
    for i, name in enumerate(names):
        others = [*arrays[:i], *arrays[i + 1 :]]
        given = [result, *names[:i], *names[i + 1 :]]
        values = [ct, *others]
        letters = name.replace("...", ".")
        is_lost = "..." in name and "..." not in result  # others may have fewer or shorter axes
        if is_lost or not set(letters) <= set("".join(given)):
            given, values = [*given, name], [*values, xp.ones_like(arrays[i])]
        shares.append(xp.einsum(f"{','.join(given)}->{name}", *values))
    return tuple(shares)


EINSUM = op(
    "einsum",
    "*arrays",
    subscripts=SUBSCRIPTS,
    numpy=einsum,
    vjp=einsum_vjp,
    result=contracted,
    doc="A sum of products over named axes, such as 'ij,jk->ik'.",
    composed=True,
    degree=in_one,
    on_bools="numbers",
    copies=multiplied,
    integer=True,
)
