"""Torch's dialect, operators of ATen that no function of torch has under its name: torch's own
traces are made of them, and code may call them as `torch.ops.aten.NAME`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.meanings import places
from multigrad.capture.values import indexing, methods
from multigrad.trace.trace import Value, cast, copy_of
from multigrad.trace.xp import all as xp

from . import convolutions, linalg, losses

Tensor = Any
LIBRARIES = (torch, torch._C._nn, F, torch.Tensor, torch.linalg, torch.special)
LOSSES = frozenset(losses.ALIASES.values())  # of an operator, the reduction is a number
PREFIXES = ("_", "linalg_", "special_")


def names_of(name: str) -> list[str]:
    """Return the names under which torch may have an operator as a function."""
    found = [name, plain := name.removesuffix("_copy")]
    for prefix in PREFIXES:
        found.append(plain := plain.removeprefix(prefix))
    return found


def sliced(start: Any, end: Any, step: int) -> slice:
    return slice(start, None if end is None or end > MOST else end, step)


MOST = 2**62  # an end beyond it is none


def along(dim: int, index: Any, x: Tensor) -> tuple[Any, ...]:
    """Return an index into one axis."""
    axis = operator.index(dim) % x.ndim
    return (*(slice(None),) * axis, index)


def slice_(
    input: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    return input[along(dim, sliced(start, end, step), input)]


def slice_scatter(
    input: Tensor, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    index = along(dim, sliced(start, end, step), like(input, src))
    return indexing.assigned(like(input, src), index, src)


def select_scatter(input: Tensor, src: Any, dim: int, index: int) -> Tensor:
    return indexing.assigned(like(input, src), along(dim, index, like(input, src)), src)


def like(x: Any, other: Any) -> Tensor:
    """Return x as a symbol beside another one."""
    return x if isinstance(x, Value) else places.as_tensor(x, other)


def index(input: Tensor, indices: Sequence[Any]) -> Tensor:
    symbol = next(x for x in (input, *indices) if isinstance(x, Value))
    return like(input, symbol)[tuple(slice(None) if each is None else each for each in indices)]


def index_put(
    input: Tensor, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Tensor:
    if accumulate:
        raise TypeError("index_put that accumulates")
    symbol = next(x for x in (input, values, *indices) if isinstance(x, Value))
    whole = tuple(slice(None) if each is None else each for each in indices)
    return indexing.assigned(like(input, symbol), whole, values)


def to_copy(input: Tensor, *, dtype: Any = None) -> Tensor:
    return copy_of(methods.to(input, dtype))


def copy(input: Tensor, src: Any) -> Tensor:
    given = like(src, input)
    x = like(input, given)
    return xp.broadcast_to(cast(given, x.dtype), x)


def diagonal_scatter(
    input: Tensor, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    result = copy_of(like(input, src))
    result.diagonal(offset, dim1, dim2)[...] = src
    return result


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0.0) -> Tensor:
    return F.pad(input, list(pad), value=value)


def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(-len(normalized_shape), 0))
    return (
        F.layer_norm(input, list(normalized_shape), weight, bias, eps),
        xp.mean(input, axes, True),
        xp.rsqrt(xp.var(input, axes, keepdims=True) + eps),
    )


def svd(A: Tensor, full_matrices: bool = False, compute_uv: bool = True, **how: Any) -> Any:
    return linalg.linalg_svd(A, full_matrices)


OWN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("alias", "lift_fresh", "lift_fresh_copy", "detach_copy"), copy_of),
    "_unsafe_view": lambda input, size: input.reshape(size),
    "view": lambda input, size: input.reshape(size),
    "expand": lambda input, size, implicit=False: input.expand(*size),
    "slice": slice_,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "index": index,
    "index_put": index_put,
    "_to_copy": to_copy,
    "copy": copy,
    "diagonal_scatter": diagonal_scatter,
    "_linalg_svd": svd,
    "convolution": convolutions.convolution,
    "convolution_backward": convolutions.backward,
    "constant_pad_nd": constant_pad_nd,
    "native_layer_norm": native_layer_norm,
}


def find_aten(function: Any, aliases: dict[Any, Callable[..., Any]]) -> Callable[..., Any] | None:
    """Return what records an operator of ATen."""
    packet = getattr(function, "overloadpacket", function)
    space, _, name = getattr(packet, "_qualified_op_name", "").partition("::")
    if space != "aten" or name.endswith("_") or getattr(function, "_overloadname", "") == "out":
        return None
    for each in names_of(name):
        if each in OWN:
            return OWN[each]
        for library in LIBRARIES:
            known = aliases.get(getattr(library, each, None))
            if known is not None and known not in LOSSES:
                return known
    return None
