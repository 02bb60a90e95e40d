"""Random draws that are the same on every backend: generator, normal transform, NumPy's draws.

The generator is Threefry-2x32 (Salmon et al., SC 2011). Element i of an array depends on the key
and on i alone, in the layout of jax's partitionable mode, so that uniforms equal those of
`jax.random.uniform` bit for bit, and each shard can draw its part of a whole array. Normals are
sqrt(2) erfinv(u) by one polynomial, because the frameworks' own erfinv differ widely. Backends
bring their arithmetic to `threefry_rounds` and `normal_from_uniform`.

May import the rooms up to `errors`.
"""

from __future__ import annotations

from .chosen import normal, normal_like, uniform, uniform_like
from .draws import (
    BLOCK,
    UNIFORM_FIELDS,
    WIDE_BITS,
    blocks,
    blocks_of_run,
    check_dtype,
    fill_uniform,
    threefry2x32,
)
from .keys import (
    PARITY,
    REPLAYED,
    ROTATIONS,
    WORD_MASK,
    PlacedKey,
    check_axes,
    draw_key,
    fold_in,
    key_from_int,
    key_pair,
    place,
    split_axes,
    strides,
    threefry_rounds,
)
from .native import Kernels, Layout, find_kernels, lay_out
from .normals import erfinv, normal_from_uniform

__all__ = [
    "BLOCK",
    "PARITY",
    "REPLAYED",
    "ROTATIONS",
    "UNIFORM_FIELDS",
    "WIDE_BITS",
    "WORD_MASK",
    "Kernels",
    "Layout",
    "PlacedKey",
    "blocks",
    "blocks_of_run",
    "check_axes",
    "check_dtype",
    "draw_key",
    "erfinv",
    "fill_uniform",
    "find_kernels",
    "fold_in",
    "key_from_int",
    "key_pair",
    "lay_out",
    "normal",
    "normal_from_uniform",
    "normal_like",
    "place",
    "split_axes",
    "strides",
    "threefry2x32",
    "threefry_rounds",
    "uniform",
    "uniform_like",
]
