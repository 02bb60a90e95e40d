"""Matrix products, einsum, and convolutions: sums of products with windows over the last axes.

16-bit values accumulate in float32 and round once.
"""

from __future__ import annotations

import re
import string
from typing import Any

import numpy as np

from ...core.ir.op import (
    Attr,
    Type,
    are_integers,
    is_count,
    need_tensors,
    reshaped,
    shaped_like_second,
)
from ...core.ops.numerics import Array, wider
from ...core.ops.properties import in_first, in_one
from ...core.ops.shapes import Shape, sum_to, summed_to
from ...core.ops.table import Cotangents, moved_by, op
from .indexing import fitted, put_back
from .result_shapes import multiplied


def matmul(a: Array, b: Array) -> Array:
    # A vector is a row on the left, a column on the right.
    return np.matmul(wider(a), wider(b)).astype(a.dtype)


def product(a: Shape, b: Shape) -> Shape:
    # The last axis but one of b is contracted, or the only one of a vector.
    if not a or not b or a[-1] != b[max(len(b) - 2, 0)]:
        raise ValueError(f"matmul of the shapes {a} and {b}")
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


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


def matrix_shape(product: Shape, a: Shape, b: Shape) -> Shape:
    product = (*product, 1) if len(b) == 1 else product
    return (*product[:-1], 1, product[-1]) if len(a) == 1 else product


def as_matrix(product: Array, a: Array, b: Array) -> Array:
    """Return the product of a and b with an axis for each vector among them."""
    product = product[..., None] if b.ndim == 1 else product
    return product[..., None, :] if a.ndim == 1 else product


def cotangent_of_left(cotangent: Type, other: Type, like: Type, **attrs: Any) -> Type:
    need_tensors(cotangent, other, like)
    return Type("tensor", cotangent.dtype, like.shape)


def cotangent_of_right(a: Type, cotangent: Type, like: Type, **attrs: Any) -> Type:
    return cotangent_of_left(cotangent, a, like)


PRODUCT: dict[str, Any] = {
    "degree": in_one, "on_bools": "numbers", "copies": multiplied, "integer": True,
}  # fmt: skip
# Of ops for VJPs: cotangents in the shape of the last operand.
COTANGENT: dict[str, Any] = {"degree": in_one, "in_vjps": True, "shape_only": (2,)}
MATMUL = op(
    "matmul",
    "a b",
    numpy=matmul,
    vjp="xp.matmul_left(ct, b, a), xp.matmul_right(a, ct, b)",
    result=reshaped,
    doc="The product of matrices in the last two axes; a vector counts as a row or a column.",
    shape_of=product,
    **PRODUCT,
)
# The sum of ct * (a @ b) is linear in each of the three: the VJPs close among three ops.
MATMUL_LEFT = op(
    "matmul_left",
    "cotangent b like",
    numpy=matmul_left,
    vjp="xp.matmul(ct, b), xp.matmul_right(ct, cotangent, b), None",
    result=cotangent_of_left,
    doc="The cotangent of the left operand of matmul, in its shape.",
    shape_of=left_shape,
    **COTANGENT,
)
MATMUL_RIGHT = op(
    "matmul_right",
    "a cotangent like",
    numpy=matmul_right,
    vjp="xp.matmul_left(cotangent, ct, a), xp.matmul(a, ct), None",
    result=cotangent_of_right,
    doc="The cotangent of the right operand of matmul, in its shape.",
    shape_of=right_shape,
    **COTANGENT,
)


def is_subscripts(value: object) -> bool:
    return (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z.,]{0,100}->[A-Za-z.]{0,60}", value) is not None
    )


def contracted(*types: Type, subscripts: str) -> Type:
    terms, arrow, result = subscripts.partition("->")
    letters = [term.replace("...", "") for term in terms.split(",")]
    if not arrow or len(letters) != len(types):
        raise TypeError(f"{subscripts!r} does not name {len(types)} operands and a result")
    for term in (*letters, result.replace("...", "")):
        if not (term.isalpha() or term == "") or len(set(term)) < len(term):
            raise TypeError(f"{term!r} in {subscripts!r}: letters, each once in a term")
    if not set(result.replace("...", "")) <= set("".join(letters)):
        raise TypeError(f"the result of {subscripts!r} has a letter that no operand has")
    return reshaped(*types)


def contracted_shape(*shapes: Shape, subscripts: str) -> Shape:
    """Return the shape of an einsum: its result's letters, and the batch where `...` is."""
    terms, _, result = subscripts.partition("->")
    lengths: dict[str, int] = {}
    batches: list[Shape] = []
    for term, shape in zip(terms.split(","), shapes, strict=True):
        head, dots, tail = term.partition("...")
        count = len(head) + len(tail)
        if len(shape) < count or (len(shape) > count and not dots):
            raise ValueError(f"{term!r} in {subscripts!r} for the shape {shape}")
        end = len(shape) - len(tail)
        batches.append(shape[len(head) : end])
        for letter, n in zip(head + tail, (*shape[: len(head)], *shape[end:]), strict=True):
            length = lengths.setdefault(letter, n)
            # A length of 1 broadcasts.
            if length == 1:
                lengths[letter] = n
            elif n not in (1, length):
                raise ValueError(f"{letter!r} in {subscripts!r} is {length} and {n} long")
    head, dots, tail = result.partition("...")
    batch = np.broadcast_shapes(*batches)
    if batch and not dots:
        raise ValueError(f"the result of {subscripts!r} has no place for the axes of '...'")
    return (*(lengths[n] for n in head), *batch, *(lengths[n] for n in tail))


def einsum(*arrays: Array, subscripts: str) -> Array:
    return np.einsum(subscripts, *map(wider, arrays), optimize=True).astype(arrays[0].dtype)


def einsum_vjp(xp: Any, ct: Any, y: Any, *arrays: Any, subscripts: str) -> Cotangents:
    terms, _, result = subscripts.partition("->")
    names = terms.split(",")
    # One einsum for each operand; ones supply the letters that no other operand has.
    shares = []
    for i, name in enumerate(names):
        other_arrays = [*arrays[:i], *arrays[i + 1 :]]
        inputs = [result, *names[:i], *names[i + 1 :]]
        values = [ct, *other_arrays]
        own_letters = name.replace("...", ".")
        is_lost = "..." in name and "..." not in result  # others may have fewer or shorter axes
        if is_lost or not set(own_letters) <= set("".join(inputs)):
            inputs, values = [*inputs, name], [*values, xp.ones_like(arrays[i])]
        shares.append(xp.einsum(f"{','.join(inputs)}->{name}", *values))
    return tuple(shares)


SUBSCRIPTS = Attr(is_subscripts)
EINSUM = op(
    "einsum",
    "*arrays",
    subscripts=SUBSCRIPTS,
    numpy=einsum,
    vjp=einsum_vjp,
    result=contracted,
    shape_of=contracted_shape,
    doc="A sum of products over named axes, such as 'ij,jk->ik'.",
    composed=True,
    **PRODUCT,
)


# Layouts of convolutions are PyTorch's: x is (batch, channels, *lengths), the kernels are (out
# channels, channels of a group, *sizes). The op `pad` adds borders. A kernel is not flipped, so
# this is what networks call a convolution (a cross-correlation).


Ints = tuple[int, ...]


def spans(lengths: Ints, sizes: Ints, strides: Ints, dilations: Ints) -> list[int]:
    """Return the number of windows along each axis."""
    counts = []
    for length, size, stride, dilation in zip(lengths, sizes, strides, dilations, strict=True):
        room = length - dilation * (size - 1) - 1
        if room < 0:
            raise ValueError(f"a window of {length - room} elements in an axis of {length}")
        counts.append(room // stride + 1)
    return counts


def windows(x: Array, *, sizes: Ints, strides: Ints, dilations: Ints) -> Array:
    n = len(sizes)
    spans(x.shape[-n:], sizes, strides, dilations)
    # Dense windows of the dilated extent; the slices below apply strides and dilations to the view.
    reach = tuple(d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(-n, 0)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    return views[(..., *steps)]


def windows_shape(x: Ints, *, sizes: Ints, strides: Ints, dilations: Ints) -> Ints:
    n = len(sizes)
    return (*x[:-n], *spans(x[-n:], sizes, strides, dilations), *sizes)


def unwindows(x: Array, like: Array, *, sizes: Ints, strides: Ints, dilations: Ints) -> Array:
    n = len(sizes)
    counts = spans(like.shape[-n:], sizes, strides, dilations)
    # One kernel position at a time, because windows overlap; in float32 for 16-bit values.
    sums = np.zeros(like.shape, wider(x).dtype)
    for place in np.ndindex(*sizes):
        cuts = [
            slice(d * i, d * i + s * (count - 1) + 1, s)
            for i, d, s, count in zip(place, dilations, strides, counts, strict=True)
        ]
        sums[(..., *cuts)] += wider(x)[(..., *place)]
    return sums.astype(x.dtype)


def are_steps(value: object) -> bool:
    return are_integers(value) and len(value) > 0 and min(value) >= 1


STRIDES = DILATIONS = Attr(are_steps, ((1,), (2,)))
SIZES = Attr(are_steps, ((2,),))
SLIDING: dict[str, Any] = {"sizes": SIZES, "strides": STRIDES, "dilations": DILATIONS}
WINDOWS = op(
    "windows",
    "x",
    numpy=windows,
    vjp=moved_by("unwindows", 0),
    result=reshaped,
    degree=in_first,
    composed=True,
    view="sometimes",
    shape_of=windows_shape,
    **SLIDING,
    doc="Windows that slide over the last axes: (..., *counts, *sizes).",
)
UNWINDOWS = op(
    "unwindows",
    "x like",
    numpy=unwindows,
    vjp=moved_by("windows"),
    result=shaped_like_second,
    degree=in_first,
    in_vjps=True,
    shape_only=(1,),
    shape_of=put_back(windows_shape),
    **SLIDING,
    doc="For each element, the sum over the windows that contain it.",
)

# --- convolutions ------------------------------------------------------------------------------
# The sum of ct * conv(x, w) is linear in each of the three: the VJPs close among three ops.


def conv(x: Array, w: Array, *, strides: Ints, dilations: Ints, groups: int) -> Array:
    views = grouped_windows(x, w.shape, strides, dilations, groups)
    n = len(strides)
    out, inner = letters(n)
    kernels = wider(w).reshape(groups, -1, *w.shape[1:])
    # N: batch, G: groups, C: channels of a group, O: kernels of a group.
    sums = np.einsum(f"NGC{out}{inner},GOC{inner}->NGO{out}", views, kernels, optimize=True)
    return sums.reshape(len(x), len(w), *sums.shape[3:]).astype(x.dtype)


def conv_shape(x: Ints, w: Ints, *, strides: Ints, dilations: Ints, groups: int) -> Ints:
    check_groups(x, w, groups)
    return (x[0], w[0], *spans(x[2:], w[2:], strides, dilations))


def conv_right_shape(x: Ints, cotangent: Ints, like: Ints, **attrs: Any) -> Ints:
    return fitted(cotangent, conv_shape(x, like, **attrs), like)


def conv_vjp(xp: Any, ct: Any, y: Any, x: Any, w: Any, **attrs: Any) -> Cotangents:
    return xp.conv_left(ct, w, x, **attrs), xp.conv_right(x, ct, w, **attrs)


def conv_left(cotangent: Array, w: Array, like: Array, **attrs: Any) -> Array:
    groups, n = attrs["groups"], len(attrs["strides"])
    out, inner = letters(n)
    cotangents = wider(cotangent).reshape(len(cotangent), groups, -1, *cotangent.shape[2:])
    kernels = wider(w).reshape(groups, -1, *w.shape[1:])
    parts = np.einsum(f"NGO{out},GOC{inner}->NGC{out}{inner}", cotangents, kernels, optimize=True)
    parts = parts.reshape(len(cotangent), -1, *parts.shape[3:])
    steps = {key: attrs[key] for key in ("strides", "dilations")}
    return unwindows(parts, like, sizes=w.shape[2:], **steps).astype(cotangent.dtype)


def conv_left_vjp(
    xp: Any, ct: Any, y: Any, cotangent: Any, w: Any, like: Any, **attrs: Any
) -> Cotangents:
    return xp.conv(ct, w, **attrs), xp.conv_right(ct, cotangent, w, **attrs), None


def conv_right(x: Array, cotangent: Array, like: Array, **attrs: Any) -> Array:
    groups, n = attrs["groups"], len(attrs["strides"])
    out, inner = letters(n)
    views = grouped_windows(x, like.shape, attrs["strides"], attrs["dilations"], groups)
    cotangents = wider(cotangent).reshape(len(x), groups, -1, *cotangent.shape[2:])
    sums = np.einsum(f"NGC{out}{inner},NGO{out}->GOC{inner}", views, cotangents, optimize=True)
    return sums.reshape(like.shape).astype(cotangent.dtype)


def conv_right_vjp(
    xp: Any, ct: Any, y: Any, x: Any, cotangent: Any, like: Any, **attrs: Any
) -> Cotangents:
    return xp.conv_left(cotangent, ct, x, **attrs), xp.conv(x, ct, **attrs), None


def grouped_windows(x: Array, kernels: Ints, strides: Ints, dilations: Ints, groups: int) -> Array:
    """Return the windows of x with an axis of groups before its channels."""
    check_groups(x.shape, kernels, groups)
    views = windows(wider(x), sizes=kernels[2:], strides=strides, dilations=dilations)
    return views.reshape(len(x), groups, kernels[1], *views.shape[2:])


def check_groups(x: Ints, kernels: Ints, groups: int) -> None:
    if x[1] != groups * kernels[1]:
        raise ValueError(f"{x[1]} channels for kernels of {groups} x {kernels[1]}")
    if kernels[0] % groups:
        raise ValueError(f"{kernels[0]} kernels in {groups} groups")


def letters(n: int) -> tuple[str, str]:
    # Names of axes for einsum: positions in the output, then in the kernel.
    return string.ascii_lowercase[:n], string.ascii_lowercase[n : 2 * n]


def is_positive(value: object) -> bool:
    return is_count(value) and value != 0


GROUPS = Attr(is_positive, (1,))
STEPS: dict[str, Any] = {"strides": STRIDES, "dilations": DILATIONS, "groups": GROUPS}
CONV = op(
    "conv",
    "x w",
    composed=True,
    numpy=conv,
    vjp=conv_vjp,
    result=reshaped,
    shape_of=conv_shape,
    degree=in_one,
    **STEPS,
    doc="Sums of products of kernels with windows over all axes but the first two.",
)
CONV_LEFT = op(
    "conv_left",
    "cotangent w like",
    numpy=conv_left,
    vjp=conv_left_vjp,
    result=cotangent_of_left,
    shape_of=put_back(conv_shape),
    **COTANGENT,
    **STEPS,
    doc="The cotangent of the x of conv, in its shape; a transposed convolution.",
)
CONV_RIGHT = op(
    "conv_right",
    "x cotangent like",
    numpy=conv_right,
    vjp=conv_right_vjp,
    result=cotangent_of_right,
    shape_of=conv_right_shape,
    **COTANGENT,
    **STEPS,
    doc="The cotangent of the kernels of conv, in their shape.",
)
