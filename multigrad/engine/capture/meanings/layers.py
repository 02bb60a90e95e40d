"""Layers as functions of their inputs, under the names that libraries give them: convolutions,
pooling, resizing, grid sampling, linear maps, normalizations, distances, and losses.

Here x is (batch, channels, *lengths) and kernels are (out channels, channels of a group, *sizes),
as in PyTorch; dialects with channels last move them. Lengths are fixed in the capture. Resizing and
sampling are composed from the elements that are read and their weights, so derivatives need no rule
of their own, and a NaN reaches only the results that read it.

A loss has the gradient that the libraries give, also at the edges: where a formula is longer than
the textbook's, the short one would give an infinity or a NaN.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....core.ir.op import INT64
from ....core.trace.trace import Value, cast, lift
from ....core.trace.xp import all as xp
from .parts import cut, length, padded, rank, shape_of

Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def per_axis(sizes: Any, axes: int) -> Ints:
    if isinstance(sizes, list | tuple | np.ndarray):
        numbers = tuple(operator.index(n) for n in sizes)
        return numbers * axes if len(numbers) == 1 else numbers
    return (operator.index(sizes),) * axes


def lengths(x: Value, axes: int) -> Ints:
    return tuple(length(x, axis) for axis in range(-axes, 0))


def reach(sizes: Ints, dilations: Ints) -> Ints:
    return tuple(d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True))


def same_border(x: Value, sizes: Ints, strides: Ints, dilations: Ints) -> Pairs:
    """Return the border with which each axis of length n has ceil(n / stride) windows."""
    pairs = []
    spans = reach(sizes, dilations)
    for n, span, step in zip(lengths(x, len(sizes)), spans, strides, strict=True):
        total = max((math.ceil(n / step) - 1) * step + span - n, 0)
        pairs.append((total // 2, total - total // 2))
    return tuple(pairs)


def bordered(x: Value, pairs: Pairs, fill: float = 0.0) -> Value:
    """Return x with a border; a negative width cuts elements off."""
    return padded(x, pairs, fill=fill) if any(map(any, pairs)) else x


# --- convolutions ---------------------------------------------------------------------------------
def convolution(
    x: Value,
    kernels: Value,
    bias: Any = None,
    *,
    strides: Ints,
    border: Pairs | str,
    dilations: Ints,
    groups: int = 1,
) -> Value:
    """Return sums of products of kernels with windows, plus a bias per channel.

    Args:
        border: pairs, "same" (see `same_border`) or "valid" (none).
    """
    if border == "valid":
        border = ()
    elif border == "same":
        border = same_border(x, lengths(kernels, len(strides)), strides, dilations)
    elif isinstance(border, str):
        raise TypeError(f"a convolution with padding {border!r}; 'same' and 'valid' are known")
    result = xp.conv(bordered(x, border), kernels, strides, dilations, groups)
    return scaled_and_shifted(result, None, channels(bias, result))


def transposed(
    x: Value,
    kernels: Value,
    bias: Any = None,
    *,
    strides: Ints,
    border: Pairs,
    dilations: Ints,
    groups: int = 1,
    more: Ints | None = None,
) -> Value:
    """Return a transposed convolution: each element of x spreads the kernels.

    Args:
        kernels: (channels of x, out channels of a group, *sizes).
        border: what is cut off, as pairs; a negative width adds.
        more: the number of elements at the end that no kernel reaches.
    """
    axes = len(strides)
    more = more or (0,) * axes
    spans = reach(lengths(kernels, axes), dilations)
    lengths_of_result = tuple(
        (n - 1) * step + span + extra
        for n, step, span, extra in zip(lengths(x, axes), strides, spans, more, strict=True)
    )
    channel_count = length(kernels, 1) * groups
    # `conv_left`, the VJP of a convolution, takes the shape of its result from a tensor.
    corner = xp.getitem(x, (slice(None), *(slice(1),) * (1 + axes)))
    like = xp.tile(xp.zeros_like(corner), (1, channel_count, *lengths_of_result))
    steps = {"strides": strides, "dilations": dilations}
    result = xp.conv_left(x, kernels, like, **steps, groups=groups)
    result = bordered(result, tuple((-before, -after) for before, after in border))
    return scaled_and_shifted(result, None, channels(bias, result))


def spread(x: Value, steps: Ints) -> Value:
    """Return x with step - 1 zeros between its elements along each of the last axes."""
    for i, step in enumerate(steps):
        if step > 1:
            axis, shape = rank(x) - len(steps) + i, shape_of(x)
            borders = ((0, step - 1), *((0, 0),) * (rank(x) - 1 - axis))
            spaced = xp.pad(xp.expand_dims(x, axis + 1), borders)
            merged_shape = (*shape[:axis], shape[axis] * step, *shape[axis + 1 :])
            x = cut(xp.reshape(spaced, merged_shape), axis, 0, (shape[axis] - 1) * step + 1)
    return x


# --- pooling, layouts -----------------------------------------------------------------------------
def max_pool(x: Value, sizes: Ints, strides: Ints, border: Pairs, dilations: Ints) -> Value:
    # The gradient of each window goes to the first of equal elements, in row order, as in torch.
    elements = xp.windows(bordered(x, border, -math.inf), sizes, strides, dilations)
    for _ in sizes:
        (elements,) = first_largest(elements)
    return elements


def first_largest(x: Value, *others: Value) -> tuple[Value, ...]:
    """Return the largest along the last axis, and the elements of `others` at its place."""
    places = xp.argmax(x, -1, keepdims=True)
    return tuple(xp.squeeze(xp.take_along_axis(each, places, -1), -1) for each in (x, *others))


def mean_pool(
    x: Value, sizes: Ints, strides: Ints, border: Pairs, beyond: Pairs = (), counted: bool = True
) -> Value:
    """Return the mean of each window.

    Args:
        border: zeros around x.
        beyond: elements around these that never count.
        counted: whether the border counts.
    """
    axes, ones = tuple(range(-len(sizes), 0)), (1,) * len(sizes)
    elements = xp.windows(bordered(bordered(x, border), beyond), sizes, strides, ones)
    if not any(map(any, beyond)) and (counted or not any(map(any, border))):
        return xp.mean(elements, axes)
    unit = xp.ones_like(cut(cut(x, 0, 0, 1), 1, 0, 1))
    # Windows over ones count the elements that take part in each mean.
    marks = bordered(bordered(unit, border, float(counted)), beyond)
    return xp.sum(elements, axes) / xp.sum(xp.windows(marks, sizes, strides, ones), axes)


def ceiling(x: Value, sizes: Ints, strides: Ints, border: Pairs, dilations: Ints) -> Pairs:
    """Return the border at the end that a last window needs which begins within x or before it."""
    pairs = []
    spans = reach(sizes, dilations)
    for n, span, step, (before, after) in zip(
        lengths(x, len(sizes)), spans, strides, border, strict=True
    ):
        count = -((n + before + after - span) // -step) + 1  # rounded up
        # torch's ceil_mode: a window that would begin in the border at the end is left out.
        count -= (count - 1) * step >= n + before
        pairs.append((0, max((count - 1) * step + span - n - before - after, 0)))
    return tuple(pairs)


def adaptive(xs: tuple[Value, ...], counts: Sequence[Any], reduce: Any) -> tuple[Value, ...]:
    """Reduce each of the last axes to a number of parts, one element each.

    Args:
        counts: the number of parts by axis; None: the axis stays.
        reduce: `reduce(*xs)` removes the last axis.
    """
    for i in range(len(counts)):
        axis, count = rank(xs[0]) - 1 - i, counts[-1 - i]
        n = length(xs[0], axis)
        if count is None or count == n:
            continue
        # Neighboring parts overlap by one element where the length is no multiple of the count.
        ends = [(j * n // count, -((j + 1) * n // -count)) for j in range(count)]
        parts = [reduce(*(xp.moveaxis(cut(x, axis, *span), axis, -1) for x in xs)) for span in ends]
        xs = tuple(xp.stack(each, axis) for each in zip(*parts, strict=True))
    return xs


def channels_first(x: Value) -> Value:
    return xp.moveaxis(x, -1, 1)


def channels_last(x: Value) -> Value:
    return xp.moveaxis(x, 1, -1)


def out_channels_first(kernels: Value) -> Value:
    """Move axes from (*sizes, channels, out channels) to (out channels, channels, *sizes)."""
    last = rank(kernels) - 1
    return xp.permute_dims(kernels, (last, last - 1, *range(last - 1)))


def by_channel(kernels: Value) -> Value:
    """Turn depthwise kernels (*sizes, channels, multiplier) into those of a grouped convolution."""
    *sizes, channel_count, times = shape_of(kernels)
    return out_channels_first(xp.reshape(kernels, (*sizes, 1, channel_count * times)))


Numbers = np.ndarray[Any, Any]
Taps = list[tuple[Value, Any]]  # places along an axis, as floats, and their weights
MOST_TAKEN = 8  # an element made of more goes through a matrix product


# --- resizing -------------------------------------------------------------------------------------
def resized(x: Value, axis: int, length: int, resize: Callable[[Numbers], Any]) -> Value:
    """Return x with another length along an axis.

    Args:
        axis: counted from the end.
        resize: the library's own resizing, along the last axis of float64. Its result on an
            identity gives the weights; the elements that read one are those that a NaN in its place
            makes NaN.
    """
    unit = np.eye(length)
    weights = np.asarray(resize(unit), np.float64)
    with np.errstate(invalid="ignore"):
        reads = np.isnan(np.asarray(resize(np.where(unit, np.nan, 0.0)), np.float64))
    tap_count = int(reads.sum(0).max(initial=0))
    if tap_count > MOST_TAKEN:
        product = xp.matmul(xp.moveaxis(x, axis, -1), constant_like(weights, x))
        return xp.moveaxis(product, -1, axis)
    taps = []
    for places, shares in taps_of(weights, reads, tap_count):
        part = xp.take(x, places, axis)
        if not np.all(shares == 1):
            part = part * constant_like(shares.reshape(-1, *(1,) * (-axis - 1)), x)
        taps.append(part)
    return functools.reduce(operator.add, taps) if taps else x


def constant_like(numbers: Numbers, x: Value) -> Value:
    """Return numbers in the dtype of x, where NumPy's float64 would be a dtype of its own."""
    return xp.cast_like(x.trace.value(lift(x.trace, numbers)), x)


def taps_of(weights: Numbers, reads: Numbers, most: int) -> list[tuple[Numbers, Numbers]]:
    """Return pairs of a place that each element reads and its weight there, tap by tap."""
    places = np.zeros((most, reads.shape[1]), int)
    shares = np.zeros((most, reads.shape[1]))
    for i, column in enumerate(reads.T):
        nonzero = np.flatnonzero(column)
        places[:, i] = [*nonzero, *[nonzero[-1]] * (most - len(nonzero))]
        shares[: len(nonzero), i] = weights[nonzero, i]
        # An element that reads fewer places reads its last one in parts: a weight of 0 would turn
        # an infinity into NaN, as torch's own resizing does in places.
        for k in range(len(nonzero), most):
            shares[k - 1, i] /= 2
            shares[k, i] = shares[k - 1, i]
    return list(zip(places, shares, strict=True))


# --- sampling at a grid ---------------------------------------------------------------------------
def grid_sample(x: Value, grid: Value, mode: str, padding: str, align_corners: bool) -> Value:
    """Return x at the places of a grid from -1 to 1, whose first coordinate is the last axis."""
    axes = rank(x) - 2
    if mode not in TAPS or padding not in ("zeros", "border", "reflection"):
        raise TypeError(f"grid_sample with mode={mode!r} and padding_mode={padding!r}")
    if rank(grid) != rank(x) or (mode == "bicubic" and axes != 2):
        raise TypeError(f"grid_sample by {mode!r} of {rank(x)} axes at {rank(grid)}")
    sizes = lengths(x, axes)
    taps_by_axis: list[Taps] = []
    for i, size in enumerate(sizes):
        place = xp.getitem(grid, (..., axes - 1 - i)) + 1
        place = place / 2 * (size - 1) if align_corners else (place * size - 1) / 2
        taps_by_axis.append(TAPS[mode](place, size, padding, align_corners))
    lead, outer = shape_of(x)[:2], shape_of(grid)[1:-1]
    flat = xp.reshape(x, (*lead, math.prod(sizes)))
    corners = itertools.product(*taps_by_axis)
    parts = (at_corner(flat, corner, sizes, (*lead, *outer)) for corner in corners)
    return functools.reduce(operator.add, parts)


def at_corner(flat: Value, corner: Any, sizes: Sequence[int], shape: tuple[int, ...]) -> Value:
    """Return the elements at one place along each axis, zero outside, times their weights."""
    all_inside: Any = None
    weight: Any = None
    flat_place: Any = 0.0
    for (place, share), size in zip(corner, sizes, strict=True):
        is_inside = xp.logical_and(xp.greater_equal(place, 0), xp.less_equal(place, size - 1))
        all_inside = is_inside if all_inside is None else xp.logical_and(all_inside, is_inside)
        # The place is only an index; the gradient of the grid comes from the weights.
        flat_place = flat_place * size + xp.where(is_inside, xp.stop_gradient(place), 0.0)
        weight = share if weight is None or share is None else weight * share
    batch, channel_count, *outer = shape
    # One gather over flattened places, the same for every channel.
    index = xp.reshape(cast(flat_place, INT64), (batch, 1, math.prod(outer)))
    index = xp.broadcast_to(index, (batch, channel_count, math.prod(outer)))
    elements = xp.reshape(xp.take_along(flat, index, axis=-1), shape)
    elements = xp.where(xp.expand_dims(all_inside, 1), elements, 0.0)
    return elements if weight is None else elements * xp.expand_dims(weight, 1)


def bounded(place: Value, size: int, padding: str, align_corners: bool) -> Value:
    """Return a place moved inside as the padding says; "zeros" leaves it outside."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = reflected(place, low, high - low)
    # At an end, beyond it, and at NaN the slope is zero, as in torch.
    inside = xp.logical_and(xp.greater(place, 0), xp.less(place, size - 1))
    nearest_end = xp.where(xp.greater(place, 0), size - 1.0, 0.0)
    return xp.where(inside, place, nearest_end)


def reflected(place: Value, low: float, span: float) -> Value:
    if span == 0:
        return xp.zeros_like(place)
    distance = xp.abs(place - low)
    turns = xp.floor(distance / span)
    remainder = xp.fmod(distance, span)
    return low + xp.where(xp.equal(xp.fmod(turns, 2.0), 0), remainder, span - remainder)


def nearest_taps(place: Value, size: int, padding: str, align_corners: bool) -> Taps:
    return [(xp.round(bounded(place, size, padding, align_corners)), None)]


def linear_taps(place: Value, size: int, padding: str, align_corners: bool) -> Taps:
    place = bounded(place, size, padding, align_corners)
    first = xp.floor(place)
    fraction = place - first
    return [(first, 1 - fraction), (first + 1, fraction)]


def cubic_taps(place: Value, size: int, padding: str, align_corners: bool) -> Taps:
    """Return the four taps of cubic convolution (Keys, 1981) with a = -0.75."""
    first, a = xp.floor(place), -0.75
    t = place - first
    ahead, beyond, before = 1 - t, 2 - t, t + 1
    shares = (
        ((a * before - 5 * a) * before + 8 * a) * before - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * ahead - (a + 3)) * ahead * ahead + 1,
        ((a * beyond - 5 * a) * beyond + 8 * a) * beyond - 4 * a,
    )
    places = (bounded(first + i, size, padding, align_corners) for i in (-1, 0, 1, 2))
    return list(zip(places, shares, strict=True))


TAPS: dict[str, Callable[..., Taps]] = {
    "nearest": nearest_taps,
    "bilinear": linear_taps,
    "bicubic": cubic_taps,
}


# --- layers, distances and losses -----------------------------------------------------------------
def linear(x: Value, weight: Value, bias: Any = None) -> Value:
    """Return x times the transposed weight, plus the bias."""
    columns = xp.matrix_transpose(weight) if rank(weight) > 1 else weight
    product = xp.matmul(x, columns)
    return product if bias is None else xp.add(product, bias)


def bilinear(a: Value, b: Value, weight: Value, bias: Any = None) -> Value:
    product = xp.einsum("...i,oij,...j->...o", a, weight, b)
    return product if bias is None else xp.add(product, bias)


def scaled_and_shifted(x: Value, scale: Any, shift: Any) -> Value:
    scaled = x if scale is None else xp.multiply(x, scale)
    return scaled if shift is None else xp.add(scaled, shift)


def channels(values: Any, x: Value, axis: int = 1) -> Any:
    """Return one value per channel, in a shape that broadcasts with x."""
    if values is None or rank(values) == 0:
        return values
    axes_after = rank(x) - 1 - axis % rank(x)
    return xp.reshape(values, (-1, *(1,) * axes_after)) if axes_after else values


def layer_norm(x: Value, axes: Any, scale: Any, shift: Any, eps: float) -> Value:
    return scaled_and_shifted(xp.standardize(x, axes, eps), scale, shift)


def rms_norm(x: Value, axes: Any, scale: Any, eps: Any) -> Value:
    mean = xp.mean(xp.square(x), axes, keepdims=True)
    return scaled_and_shifted(xp.multiply(x, xp.rsqrt(xp.add(mean, eps))), scale, None)


def group_norm(x: Value, groups: int, scale: Any, shift: Any, eps: float) -> Value:
    """Standardize each group of channels, the second axis."""
    batch, count = length(x, 0), length(x, 1)
    if count % groups:
        raise TypeError(f"{count} channels in {groups} groups")
    members = math.prod(length(x, i) for i in range(1, rank(x))) // groups
    grouped = xp.standardize(xp.reshape(x, (batch, groups, members)), -1, eps)
    normalized = xp.reshape_like(grouped, x)
    return scaled_and_shifted(normalized, channels(scale, x), channels(shift, x))


def batch_norm(
    x: Value, mean: Any, variance: Any, scale: Any, shift: Any, *, eps: Any, axis: int = 1
) -> Value:
    """Normalize by the given statistics of each channel, or by those of x if there are none."""
    if mean is None:
        channel_axis = axis % rank(x)
        other_axes = tuple(i for i in range(rank(x)) if i != channel_axis)
        normalized = xp.standardize(x, other_axes, eps)
    else:
        inverse = xp.rsqrt(xp.add(channels(variance, x, axis), eps))
        normalized = xp.subtract(x, channels(mean, x, axis)) * inverse
    return scaled_and_shifted(normalized, channels(scale, x, axis), channels(shift, x, axis))


def distances(a: Value, b: Value, p: float = 2.0) -> Value:
    return xp.norm(xp.subtract(xp.expand_dims(a, -2), xp.expand_dims(b, -3)), -1, False, p)


def own_distances(x: Value, p: float = 2.0) -> Value:
    """Return the distance of each row from each later row."""
    n = length(x, 0)
    flat = xp.reshape(distances(x, x, p), (n * n,))
    return xp.take(flat, [i * n + j for i in range(n) for j in range(i + 1, n)], 0)


# The least p (1 - p) that torch divides by: 1e-12 rounded to float32.
LEAST_VARIANCE = 9.999999960041972e-13


def reduced(loss: Value, reduction: str) -> Value:
    """Return the loss unchanged ("none"), its mean or its sum."""
    reductions = {"none": None, "mean": xp.mean, "sum": xp.sum}
    if reduction not in reductions:
        raise TypeError(f"the reduction {reduction!r}; none, mean and sum are known")
    reduce = reductions[reduction]
    return loss if reduce is None else reduce(loss)


def raised(x: Value, least: float) -> Value:
    """Return max(x, least) with a gradient of 1 everywhere."""
    return xp.where(xp.less(x, least), least + (x - xp.stop_gradient(x)), x)


def squared_error(x: Value, target: Any) -> Value:
    return xp.square(xp.subtract(x, target))


def absolute_error(x: Value, target: Any) -> Value:
    return xp.abs(xp.subtract(x, target))


def huber(x: Value, target: Any, delta: Any = 1.0) -> Value:
    """Return half the square up to delta, then a line of slope delta."""
    distance = absolute_error(x, target)
    near = xp.minimum(distance, delta)  # the square of a large distance would overflow
    return near * near * 0.5 + (distance - near) * delta


def smooth_l1(x: Value, target: Any, beta: Any = 1.0) -> Value:
    """Return Huber's loss over beta; the distance itself if beta is 0."""
    if beta == 0:
        return absolute_error(x, target)
    return huber(x, target, beta) / beta


def binary_cross_entropy(p: Value, target: Any) -> Value:
    """Return -t log p - (1 - t) log(1 - p), the logarithms limited to at least -100.

    The gradient is (p - t) / max(p (1 - p), 1e-12), as in torch: finite where p is 0 or 1.
    """
    # Where p (1 - p) is tiny, the value is a constant and the gradient comes from a term that is 0.
    inside = xp.greater(p * (1.0 - p), LEAST_VARIANCE)
    safe = xp.where(inside, p, 0.5)
    complement = xp.subtract(1.0, target)
    smooth = -(xp.multiply(target, xp.log(safe)) + xp.multiply(complement, xp.log1p(-safe)))
    fixed = xp.stop_gradient(p)
    value = -(
        xp.multiply(target, xp.clip(xp.log(fixed), -100.0))
        + xp.multiply(complement, xp.clip(xp.log1p(-fixed), -100.0))
    )
    slope = (0.5 * p - target) * p - (0.5 * fixed - target) * fixed  # 0, with slope p - t
    return xp.where(inside, smooth, value + slope / LEAST_VARIANCE)


def of_class(logs: Value, index: Value, axis: int) -> Value:
    """Return minus the log-probability of one class each."""
    return -xp.squeeze(xp.take_along(logs, xp.expand_dims(index, axis), axis=axis), axis)


def softmax_cross_entropy(logits: Value, target: Any, axis: int = -1) -> Value:
    return -xp.sum(xp.multiply(target, xp.log_softmax(logits, axis)), axis)


def gaussian(x: Value, target: Any, variance: Any, eps: float) -> Value:
    # The variance is raised to eps, but its gradient is not cut there, as in torch.
    raised_variance = raised(variance, eps)
    return 0.5 * (xp.log(raised_variance) + squared_error(x, target) / raised_variance)
