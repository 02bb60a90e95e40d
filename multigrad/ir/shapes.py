"""The op table, shape family: rearranging, joining, cutting, repeating; all attributes are static.

A row and the rows of its VJP are closed: differentiating never needs the rank, so one capture serves all ranks.
"""

from __future__ import annotations

from typing import Any

from . import shape_meaning as meaning
from . import shape_pullbacks as pullbacks
from .op import Op, ResultRule, kept, op, reshaped, shaped_like_second, sliced


def rearrangement(
    name: str, numpy: Any, vjp: Any, doc: str, *attrs: str, result: ResultRule = reshaped
) -> Op:
    """Declare an op of one operand that moves elements."""
    return op(
        name, "x", attrs=attrs, coerce="raw", numpy=numpy, vjp=vjp, doc=doc, result=result
    )  # fmt: skip


def transposed(name: str, operands: str, numpy: Any, vjp: Any, doc: str, *attrs: str) -> Op:
    """Declare the VJP of a rearrangement: its second operand gives the shape."""
    return op(
        name, operands, attrs=attrs, coerce="raw", numpy=numpy, vjp=vjp, doc=doc,
        result=shaped_like_second,
    )  # fmt: skip


RESHAPE = rearrangement("reshape", meaning.reshape, pullbacks.reshape, "The same elements in another shape; one length may be -1.", "shape")  # fmt: skip
RESHAPE_LIKE = transposed("reshape_like", "x like", meaning.reshape_like, pullbacks.reshape_like, "The same elements in the shape of `like`.")  # fmt: skip
SQUEEZE = rearrangement("squeeze", meaning.squeeze, pullbacks.reshape, "Without axes of length 1.", "axis")  # fmt: skip
PERMUTE_DIMS = rearrangement("permute_dims", meaning.permute_dims, pullbacks.permute_dims, "Axes in another order; None reverses them.", "axes")  # fmt: skip
SWAPAXES = rearrangement("swapaxes", meaning.swapaxes, pullbacks.swapaxes, "Two axes exchanged.", "axis1", "axis2")  # fmt: skip
MOVEAXIS = rearrangement("moveaxis", meaning.moveaxis, pullbacks.moveaxis, "Axes moved to other places.", "source", "destination")  # fmt: skip
FLIP = rearrangement("flip", meaning.flip, pullbacks.flip, "Reversed along axes (None: all).", "axis", result=kept)  # fmt: skip
ROLL = rearrangement("roll", meaning.roll, pullbacks.roll, "Shifted along axes, the end going to the front.", "shift", "axis", result=kept)  # fmt: skip
TRIL = rearrangement("tril", meaning.tril, pullbacks.tril, "Zero above a diagonal of the last two axes.", "offset", result=kept)  # fmt: skip
TRIU = rearrangement("triu", meaning.triu, pullbacks.triu, "Zero below a diagonal of the last two axes.", "offset", result=kept)  # fmt: skip
BROADCAST_TO_SHAPE = rearrangement("broadcast_to_shape", meaning.broadcast_to_shape, pullbacks.broadcast_to_shape, "x repeated to a static shape.", "shape")  # fmt: skip

GETITEM = rearrangement("getitem", meaning.getitem, pullbacks.getitem, "Basic indexing: ints, slices as (start, stop, step), None, '...'.", "index")  # fmt: skip
SETITEM = transposed("setitem", "x like", meaning.setitem, pullbacks.setitem, "Zeros in the shape of `like`, x where the index points.", "index")  # fmt: skip
TAKE = rearrangement("take", meaning.take, pullbacks.take, "The elements at static indices along an axis.", "indices", "axis")  # fmt: skip
UNTAKE = transposed("untake", "x like", meaning.untake, pullbacks.untake, "Zeros in the shape of `like`, x added at indices along an axis.", "indices", "axis")  # fmt: skip
HALF = rearrangement("half", meaning.half, pullbacks.half, "The first or second half along an axis of even length.", "axis", "position")  # fmt: skip
TILE = rearrangement("tile", meaning.tile, pullbacks.tile, "x as a whole repeated along its last axes.", "repetitions")  # fmt: skip
UNTILE = transposed("untile", "x like", meaning.untile, pullbacks.untile, "The sum over the copies that tile makes.", "repetitions")  # fmt: skip
REPEAT = rearrangement("repeat", meaning.repeat, pullbacks.repeat, "Each element repeated along an axis.", "repeats", "axis")  # fmt: skip
UNREPEAT = transposed("unrepeat", "x like", meaning.unrepeat, pullbacks.unrepeat, "The sum over the copies that repeat makes.", "repeats", "axis")  # fmt: skip
PAD = rearrangement("pad", meaning.pad, pullbacks.pad, "A border of one value along the last axes, as (before, after) pairs.", "widths", "fill")  # fmt: skip

CONCATENATE = op(
    "concatenate", "*arrays", attrs=("axis",), numpy=meaning.concatenate,
    vjp=pullbacks.concatenate, result=reshaped, doc="Arrays one after the other along an axis.",
)  # fmt: skip
STACK = op(
    "stack", "*arrays", attrs=("axis",), numpy=meaning.stack, vjp=pullbacks.stack,
    result=reshaped, doc="Arrays of one shape along a new axis.",
)  # fmt: skip
PART = op(
    "part", "x like start", attrs=("axis",), coerce="raw", numpy=meaning.part, vjp=pullbacks.part,
    result=sliced, doc="As much of x along an axis as `like` is long, from start.",
)  # fmt: skip
UNPART = op(
    "unpart", "x like start", attrs=("axis",), coerce="raw", numpy=meaning.unpart,
    vjp=pullbacks.unpart, result=sliced, doc="Zeros in the shape of `like`, x from start on.",
)  # fmt: skip

TRANSPOSED: dict[Op, tuple[int, ...]] = dict.fromkeys(
    (RESHAPE_LIKE, SETITEM, UNTAKE, UNTILE, UNREPEAT, PART, UNPART), (1,)
)
