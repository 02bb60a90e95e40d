"""Sliding windows over the last axes, and convolutions: sums of products with them.

Layouts are PyTorch's: x is (batch, channels, *lengths), the kernels are (out channels, channels of
a group, *sizes). The op `pad` adds borders. A kernel is not flipped, so this is what networks call
a convolution (a cross-correlation). 16-bit values accumulate in float32 and round once.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from ..attributes import DILATIONS, GROUPS, SIZES, STRIDES
from ..numerics import Array, wider
from ..properties import in_first, in_one
from ..result_shapes import put
from ..results import cotangent_of_left, cotangent_of_right, reshaped, shaped_like_second
from ..table import Cotangents, moved_by, op

Ints = tuple[int, ...]

# --- windows -----------------------------------------------------------------------------------


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


def unwindows_shape(x: Ints, like: Ints, **attrs: Any) -> Ints:
    return put(x, windows_shape(like, **attrs), like)


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


SLIDING: dict[str, Any] = {"sizes": SIZES, "strides": STRIDES, "dilations": DILATIONS}
WINDOWS = op(
    "windows",
    "x",
    numpy=windows,
    vjp=moved_by("unwindows", 0),
    result=reshaped,
    degree=in_first,
    composed=True,
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
    shape_of=unwindows_shape,
    **SLIDING,
    doc="For each element, the sum over the windows that contain it.",
)

# --- convolutions ------------------------------------------------------------------------------
# The sum of ct * conv(x, w) is linear in each of the three: the VJPs close among three ops.


def conv(x: Array, w: Array, *, strides: Ints, dilations: Ints, groups: int) -> Array:
    seen = grouped_windows(x, w.shape, strides, dilations, groups)
    n = len(strides)
    out, inner = letters(n)
    kernels = wider(w).reshape(groups, -1, *w.shape[1:])
    # N: batch, G: groups, C: channels of a group, O: kernels of a group.
    sums = np.einsum(f"NGC{out}{inner},GOC{inner}->NGO{out}", seen, kernels, optimize=True)
    return sums.reshape(len(x), len(w), *sums.shape[3:]).astype(x.dtype)


def conv_shape(x: Ints, w: Ints, *, strides: Ints, dilations: Ints, groups: int) -> Ints:
    check_groups(x, w, groups)
    return (x[0], w[0], *spans(x[2:], w[2:], strides, dilations))


def conv_left_shape(cotangent: Ints, w: Ints, like: Ints, **attrs: Any) -> Ints:
    return put(cotangent, conv_shape(like, w, **attrs), like)


def conv_right_shape(x: Ints, cotangent: Ints, like: Ints, **attrs: Any) -> Ints:
    return put(cotangent, conv_shape(x, like, **attrs), like)


def conv_vjp(xp: Any, ct: Any, y: Any, x: Any, w: Any, **attrs: Any) -> Cotangents:
    return xp.conv_left(ct, w, x, **attrs), xp.conv_right(x, ct, w, **attrs)


def conv_left(cotangent: Array, w: Array, like: Array, **attrs: Any) -> Array:
    groups, n = attrs["groups"], len(attrs["strides"])
    out, inner = letters(n)
    given = wider(cotangent).reshape(len(cotangent), groups, -1, *cotangent.shape[2:])
    kernels = wider(w).reshape(groups, -1, *w.shape[1:])
    parts = np.einsum(f"NGO{out},GOC{inner}->NGC{out}{inner}", given, kernels, optimize=True)
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
    seen = grouped_windows(x, like.shape, attrs["strides"], attrs["dilations"], groups)
    given = wider(cotangent).reshape(len(x), groups, -1, *cotangent.shape[2:])
    sums = np.einsum(f"NGC{out}{inner},NGO{out}->GOC{inner}", seen, given, optimize=True)
    return sums.reshape(like.shape).astype(cotangent.dtype)


def conv_right_vjp(
    xp: Any, ct: Any, y: Any, x: Any, cotangent: Any, like: Any, **attrs: Any
) -> Cotangents:
    return xp.conv_left(cotangent, ct, x, **attrs), xp.conv(x, ct, **attrs), None


def grouped_windows(x: Array, kernels: Ints, strides: Ints, dilations: Ints, groups: int) -> Array:
    """Return the windows of x with an axis of groups before its channels.

    Raises:
        ValueError: the channels of x are not those of the kernels.
    """
    check_groups(x.shape, kernels, groups)
    seen = windows(wider(x), sizes=kernels[2:], strides=strides, dilations=dilations)
    return seen.reshape(len(x), groups, kernels[1], *seen.shape[2:])


def check_groups(x: Ints, kernels: Ints, groups: int) -> None:
    if x[1] != groups * kernels[1]:
        raise ValueError(f"{x[1]} channels for kernels of {groups} x {kernels[1]}")
    if kernels[0] % groups:
        raise ValueError(f"{kernels[0]} kernels in {groups} groups")


def letters(n: int) -> tuple[str, str]:
    # Names of axes for einsum: positions in the output, then in the kernel.
    return string.ascii_lowercase[:n], string.ascii_lowercase[n : 2 * n]


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
    degree=in_one,
    in_vjps=True,
    shape_only=(2,),
    shape_of=conv_left_shape,
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
    degree=in_one,
    in_vjps=True,
    shape_only=(2,),
    **STEPS,
    doc="The cotangent of the kernels of conv, in their shape.",
)
