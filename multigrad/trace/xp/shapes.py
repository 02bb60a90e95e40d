"""Functions of `xg.xp` on shapes that are more than one op; see `all.py`.

Shapes, static indices and widths: a symbolic length among them fixes the shape of this capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as integer
from typing import Any

from ...graph import ops
from ..axes import Axis, axes_of, one_axis
from ..trace import Value, apply
from .ops import swapaxes

Tensor = Any
Pairs = Any  # an int, or a sequence of ints and of pairs of ints

__all__ = [
    "concat", "concatenate", "getitem", "matrix_transpose", "pad", "permute_dims", "repeat",
    "reshape", "roll", "stack", "tile", "tril", "triu",
]  # fmt: skip


def integers(given: Any) -> tuple[int, ...]:
    """Return a number, or several, as a tuple of ints; TypeError for floats."""
    return tuple(map(integer, given)) if isinstance(given, tuple | list) else (integer(given),)


def reshape(x: Tensor, shape: int | Sequence[int]) -> Tensor:
    """The same elements in another shape, of which one length may be -1.

    Examples:
        >>> xp.reshape(np.array([1.0, 2.0, 3.0, 4.0]), (2, -1))
        array([[1., 2.],
               [3., 4.]])
    """
    lengths = integers(shape)
    if lengths.count(-1) > 1 or any(n < -1 for n in lengths):
        raise TypeError(f"a shape has lengths from 0 and at most one -1, not {lengths}")
    return apply(ops.RESHAPE, x, shape=lengths)


def permute_dims(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order; None reverses them.

    Examples:
        >>> xp.permute_dims(np.zeros((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    order = None if axes is None else integers(axes)
    if order is not None and sorted(i % len(order) for i in order) != list(range(len(order))):
        raise TypeError(f"permute_dims names each axis once, not {order}")
    return apply(ops.PERMUTE_DIMS, x, axes=order)


def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged.

    Examples:
        >>> xp.matrix_transpose(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[1., 3.],
               [2., 4.]])
    """
    return swapaxes(x, -2, -1)


def roll(x: Tensor, shift: int | Sequence[int], axis: Axis = None) -> Tensor:
    """x shifted along axes, what leaves the end entering at the front; None: as if it were flat.

    Examples:
        >>> xp.roll(np.array([1.0, 2.0, 3.0]), 1)
        array([3., 1., 2.])
    """
    by = integers(shift)
    over = axes_of(x, axis)
    if isinstance(over, tuple):
        by = by * len(over) if len(by) == 1 else by
        if len(by) != len(over):
            raise TypeError(f"roll got {len(by)} shifts for {len(over)} axes")
        return apply(ops.ROLL, x, shift=by, axis=over)
    return apply(ops.ROLL, x, shift=sum(by), axis=over)


def tril(x: Tensor, k: int = 0) -> Tensor:
    """x with zeros above the k-th diagonal of the last two axes.

    Examples:
        >>> xp.tril(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[1., 0.],
               [3., 4.]])
    """
    return apply(ops.TRIL, x, offset=integer(k))


def triu(x: Tensor, k: int = 0) -> Tensor:
    """x with zeros below the k-th diagonal of the last two axes.

    Examples:
        >>> xp.triu(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[1., 2.],
               [0., 4.]])
    """
    return apply(ops.TRIU, x, offset=integer(k))


def getitem(x: Tensor, index: Any) -> Tensor:
    """`x[index]` of ints, slices, None and `...`; several elements of an axis are `take`'s.

    Examples:
        >>> xp.getitem(np.array([1.0, 2.0, 3.0]), slice(1, None))
        array([2., 3.])

    Raises:
        TypeError: the index holds anything else.
    """
    items = index if isinstance(index, tuple) else (index,)
    return apply(ops.GETITEM, x, index=tuple(map(_static_item, items)))


def _static_item(item: Any) -> Any:
    if item is None:
        return None
    if item is Ellipsis or (isinstance(item, str) and item == "..."):
        return "..."
    if isinstance(item, slice):
        return tuple(None if n is None else integer(n) for n in (item.start, item.stop, item.step))
    if isinstance(item, bool) or (isinstance(item, Value) and item.node.type.kind != "scalar"):
        raise TypeError("it indexes by a mask or a tensor; use xp.where(condition, tensor, 0.0)")
    # A tensor of one element would pass for its number and lose its axis.
    if isinstance(item, tuple | list) or getattr(item, "ndim", 0):
        raise TypeError("it indexes by several numbers at once; use xp.take(x, indices, axis)")
    return integer(item)  # type: ignore[arg-type]


def tile(x: Tensor, repetitions: int | Sequence[int]) -> Tensor:
    """All of x repeated along its last axes.

    Examples:
        >>> xp.tile(np.array([1.0, 2.0]), 2)
        array([1., 2., 1., 2.])
    """
    return apply(ops.TILE, x, repetitions=integers(repetitions))


def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Each element repeated along an axis (None: of x made flat).

    Examples:
        >>> xp.repeat(np.array([1.0, 2.0]), 2)
        array([1., 1., 2., 2.])
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    return apply(ops.REPEAT, x, repeats=integer(repeats), axis=one_axis(x, axis))


def pad(x: Tensor, widths: Pairs, value: float = 0.0) -> Tensor:
    """A border of one value: an int for all sides, or (before, after) pairs for the last axes.

    Examples:
        >>> xp.pad(np.array([1.0, 2.0]), ((1, 2),))
        array([0., 1., 2., 0., 0.])
    """
    given = widths if isinstance(widths, tuple | list) else (widths,) * x.ndim
    pairs = tuple(_pair(width) for width in given)
    if any(n < 0 for pair in pairs for n in pair):
        raise TypeError(f"pad adds elements, so its widths are not negative: {pairs}")
    return apply(ops.PAD, x, widths=pairs, fill=float(value))


def _pair(width: Any) -> tuple[int, int]:
    before, after = integers(width) if isinstance(width, tuple | list) else integers(width) * 2
    return before, after


def concatenate(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """Arrays one after the other along an axis (None: each made flat).

    Examples:
        >>> xp.concatenate([np.array([1.0]), np.array([2.0, 3.0])])
        array([1., 2., 3.])
    """
    if axis is None:
        arrays, axis = [reshape(array, -1) for array in arrays], 0
    return apply(ops.CONCATENATE, *arrays, axis=integer(axis))


def concat(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """The Array API's name of `concatenate`.

    Examples:
        >>> xp.concat([np.array([1.0]), np.array([2.0, 3.0])])
        array([1., 2., 3.])
    """
    return concatenate(arrays, axis)


def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Arrays of one shape along a new axis.

    Examples:
        >>> xp.stack([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
        array([[1., 2.],
               [3., 4.]])
    """
    return apply(ops.STACK, *arrays, axis=integer(axis))
