"""Torch's dialect, pictures at other places; see `table.py`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.meanings import arrays, convolutions
from multigrad.capture.meanings.convolutions import lengths
from multigrad.capture.meanings.parts import rank

Tensor = Any


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Along one axis after another, by the weights that torch's own function has."""
    axes = rank(input) - 2
    sizes = each_axis(size, axes, operator.index)
    scales = each_axis(scale_factor, axes, float)
    result = input
    for i, length in enumerate(lengths(input, axes)):

        def resize(unit: Any, i: int = i) -> Any:
            """Along that axis, the others of length 2: of 1, antialiasing is wrong (2.13)."""
            before, after = (2,) * i, (2,) * (axes - 1 - i)
            lines = torch.from_numpy(unit).reshape(1, -1, *(1,) * i, len(unit), *(1,) * len(after))
            found = F.interpolate(
                lines.expand(1, -1, *before, -1, *after).contiguous(),
                sizes and [*before, sizes[i], *after],
                scales and [*(1.0,) * i, scales[i], *(1.0,) * len(after)],
                mode=mode,
                align_corners=align_corners,
                recompute_scale_factor=recompute_scale_factor,
                antialias=antialias,
            )
            return found[(0, slice(None), *(0,) * i, slice(None), *(0,) * len(after))].numpy()

        result = convolutions.resized(result, i - axes, length, resize)
    return result


def each_axis(given: Any, axes: int, of: Callable[[Any], Any]) -> list[Any] | None:
    if given is None:
        return None
    numbers = arrays.numbers((given,))
    numbers = list(numbers) if isinstance(numbers, tuple | list) else [numbers]
    return [of(n) for n in (numbers * axes if len(numbers) == 1 else numbers)]


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    return convolutions.grid_sample(input, grid, mode, padding_mode, bool(align_corners))


ALIASES: dict[Any, Callable[..., Any]] = {
    F.interpolate: interpolate,
    **dict.fromkeys((F.upsample, F.upsample_nearest), interpolate),
    F.upsample_bilinear: upsample_bilinear,
    F.grid_sample: grid_sample,
}
