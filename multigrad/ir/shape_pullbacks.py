"""The VJP of each op of the shape family; see `pullbacks.py` for the form."""

from __future__ import annotations

from typing import Any

from .pullbacks import Cotangents


def reshape(xp: Any, ct: Any, y: Any, x: Any, **attrs: Any) -> Cotangents:
    return (xp.reshape_like(ct, x),)


def reshape_like(xp: Any, ct: Any, y: Any, x: Any, like: Any) -> Cotangents:
    return xp.reshape_like(ct, x), None


def permute_dims(xp: Any, ct: Any, y: Any, x: Any, *, axes: Any) -> Cotangents:
    if axes is None:
        return (xp.permute_dims(ct, None),)
    places = [axis % len(axes) for axis in axes]
    return (xp.permute_dims(ct, tuple(places.index(i) for i in range(len(axes)))),)


def swapaxes(xp: Any, ct: Any, y: Any, x: Any, *, axis1: int, axis2: int) -> Cotangents:
    return (xp.swapaxes(ct, axis1, axis2),)


def moveaxis(xp: Any, ct: Any, y: Any, x: Any, *, source: Any, destination: Any) -> Cotangents:
    return (xp.moveaxis(ct, destination, source),)


def flip(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any) -> Cotangents:
    return (xp.flip(ct, axis=axis),)


def roll(xp: Any, ct: Any, y: Any, x: Any, *, shift: Any, axis: Any) -> Cotangents:
    back = tuple(-n for n in shift) if isinstance(shift, tuple) else -shift
    return (xp.roll(ct, back, axis=axis),)


def tril(xp: Any, ct: Any, y: Any, x: Any, *, offset: int) -> Cotangents:
    return (xp.tril(ct, offset),)


def triu(xp: Any, ct: Any, y: Any, x: Any, *, offset: int) -> Cotangents:
    return (xp.triu(ct, offset),)


def broadcast_to_shape(xp: Any, ct: Any, y: Any, x: Any, *, shape: Any) -> Cotangents:
    return (xp.sum_to(ct, x),)


def getitem(xp: Any, ct: Any, y: Any, x: Any, *, index: Any) -> Cotangents:
    return (xp.setitem(ct, x, index),)


def setitem(xp: Any, ct: Any, y: Any, x: Any, like: Any, *, index: Any) -> Cotangents:
    return xp.item(ct, index), None


def take(xp: Any, ct: Any, y: Any, x: Any, *, indices: Any, axis: int) -> Cotangents:
    return (xp.untake(ct, x, indices, axis=axis),)


def untake(xp: Any, ct: Any, y: Any, x: Any, like: Any, *, indices: Any, axis: int) -> Cotangents:
    return xp.take(ct, indices, axis=axis), None


def half(xp: Any, ct: Any, y: Any, x: Any, *, axis: int, position: int) -> Cotangents:
    zeros = xp.zeros_like(ct)
    return (xp.concatenate((zeros, ct) if position else (ct, zeros), axis=axis),)


def tile(xp: Any, ct: Any, y: Any, x: Any, *, repetitions: Any) -> Cotangents:
    return (xp.untile(ct, x, repetitions),)


def untile(xp: Any, ct: Any, y: Any, x: Any, like: Any, *, repetitions: Any) -> Cotangents:
    return xp.tile(ct, repetitions), None


def repeat(xp: Any, ct: Any, y: Any, x: Any, *, repeats: int, axis: int) -> Cotangents:
    return (xp.unrepeat(ct, x, repeats, axis=axis),)


def unrepeat(xp: Any, ct: Any, y: Any, x: Any, like: Any, *, repeats: int, axis: int) -> Cotangents:
    return xp.repeat(ct, repeats, axis=axis), None


def pad(xp: Any, ct: Any, y: Any, x: Any, *, widths: Any, fill: float) -> Cotangents:
    inside = tuple((before, -after if after else None, None) for before, after in widths)
    return (xp.item(ct, ("...", *inside)),)


def concatenate(xp: Any, ct: Any, y: Any, *arrays: Any, axis: int) -> Cotangents:
    shares, start = [], 0
    for array in arrays:
        shares.append(xp.part(ct, array, start, axis=axis))
        start = xp.dim(array, axis) + start
    return tuple(shares)


def stack(xp: Any, ct: Any, y: Any, *arrays: Any, axis: int) -> Cotangents:
    return tuple(
        xp.squeeze(xp.take(ct, (i,), axis=axis), axis=axis) for i in range(len(arrays))
    )  # fmt: skip


def part(xp: Any, ct: Any, y: Any, x: Any, like: Any, start: Any, *, axis: int) -> Cotangents:
    return xp.unpart(ct, x, start, axis=axis), None, None


def unpart(xp: Any, ct: Any, y: Any, x: Any, like: Any, start: Any, *, axis: int) -> Cotangents:
    return xp.part(ct, x, start, axis=axis), None, None
