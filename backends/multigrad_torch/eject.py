"""Torch code in a file without multigrad: one class, which works under torch.func too, and a
function.

The functions below are copied, with what they use, into ejected files: they stand for the backend's
functions that import multigrad (`forms`). An ejected file has one class for eager and transformed
calls. A fast kernel is kept only where plain ops would round differently. Draws are plain ops
around one operator, which the compiler must not look into (see `kernels/random.py`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from multigrad.backend import Ejection, Made
from multigrad.engine.random import (
    PARITY,
    ROTATIONS,
    UNIFORM_FIELDS,
    WORD_MASK,
    normal_from_uniform,
)

from . import export
from .attach import standalone
from .core.attach import attach
from .core.kernels import elementwise
from .core.kernels import ops as kernels
from .kernels import random

Tensor: TypeAlias = torch.Tensor


def array(like: Tensor, *, dtype: torch.dtype, value: Any) -> Tensor:
    """Return a constant array in a dtype, on the device of a tensor."""
    # Through float64: NumPy has no bfloat16 of its own.
    stored = value.copy() if value.dtype == bool else value.astype(np.float64)
    return torch.from_numpy(stored).to(dtype).to(like.device)


def heaviside(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


# --- keys and draws -------------------------------------------------------------------------------
def draw_key() -> Tensor:
    """Return two words from torch's own generator, which `torch.manual_seed` seeds."""
    return torch.randint(0, 1 << 32, (2,), dtype=torch.int64, device="cpu")


def read_key(key: Any) -> Tensor:
    """Return the two words of a key: those of `jax.random.key(n)` for an int n."""
    if isinstance(key, int):
        key = (0, key & WORD_MASK)
    words = torch.as_tensor(key, dtype=torch.int64) & WORD_MASK
    if words.shape != (2,):
        raise ValueError(f"a key is an int, or two words of 32 bits, not {key!r}")
    return words


def threefry(key: Tensor, counter: Tensor) -> Tensor:
    """Return two words of 32 bits for each counter: Threefry-2x32 (Salmon et al., 2011)."""
    first, second = key.to(counter.device).unbind(-1)
    schedule = (first, second, first ^ second ^ PARITY)
    x, y = ((counter >> 32) + first) & WORD_MASK, (counter + second) & WORD_MASK
    for group, rotations in enumerate(ROTATIONS):
        for bits in rotations:
            x = (x + y) & WORD_MASK
            y = (((y << bits) | (y >> (32 - bits))) & WORD_MASK) ^ x
        x = (x + schedule[(group + 1) % 3]) & WORD_MASK
        y = (y + schedule[(group + 2) % 3] + (group + 1)) & WORD_MASK
    return torch.stack((x, y))


def describe_words(key: Tensor, counter: Tensor) -> Tensor:
    return counter.new_empty((2, *counter.shape))


def map_words(info: Any, in_dims: Any, key: Tensor, counter: Tensor) -> tuple[Tensor, int]:
    keys = [key] * info.batch_size if in_dims[0] is None else key.unbind(in_dims[0])
    counters = [counter] * info.batch_size if in_dims[1] is None else counter.unbind(in_dims[1])
    return torch.stack([*map(random_words, keys, counters)]), 0


# One opaque operator: torch 2.13's compiler does not finish on the unrolled rounds. A copy of
# `random_words` takes along the module's statements that call methods of it, here the two
# registrations (`attached` in multigrad/engine/functions/eject/statements.py): see
# tests/functions/documents/test_eject.py.
random_words = torch.library.custom_op(
    "ejected::threefry",
    threefry,
    mutates_args=(),
    schema="(Tensor key, Tensor counter) -> Tensor",
)
random_words.register_fake(describe_words)
if hasattr(random_words, "register_vmap"):  # from torch 2.5 on
    random_words.register_vmap(map_words)


def fold_in(key: Tensor, n: int) -> Tensor:
    return random_words(key, torch.tensor(n, device=key.device))


def uniform(key: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uniforms in [0, 1) of x's shape, bit-equal to those of `jax.random.uniform`."""
    first, second = random_words(key, torch.arange(x.numel(), device=x.device)).reshape(2, *x.shape)
    if dtype == torch.float64:
        return ((first << 20) | (second >> 12)).to(dtype) * 2.0**-52
    dropped, kept = UNIFORM_FIELDS[str(dtype).removeprefix("torch.")]
    field = ((first ^ second) >> dropped) & ((1 << kept) - 1)
    return (field.to(torch.float32) * 2.0**-kept).to(dtype)


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    return uniform(key, x, x.dtype)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    """Return standard normals of x's shape and dtype; 16-bit ones are computed in float32."""
    double = x.dtype == torch.float64
    drawn = uniform(key, x, x.dtype if double else torch.float32)
    return normal_from_uniform(drawn, torch, double).to(x.dtype)


EJECTION = Ejection(
    render=standalone.render_file,
    modules={
        "torch": torch,
        "F": F,
        "torch.linalg": torch.linalg,
        "torch.special": torch.special,
        "torch.autograd": torch.autograd,
        "torch.compiler": torch.compiler,
        "torch.library": torch.library,
        "torch._C": torch._C,
        "np": np,
    },
    operator=export.operator_render,
    namespace={
        "allow_in_graph": torch.compiler.allow_in_graph,
        "register_operator": export.register_operator,
        "read_key": read_key,
    },
    # The backend's function: its copy without multigrad.
    forms={
        elementwise.heaviside: heaviside,
        kernels.array: array,
        # A dispatch key cannot be written out, so the file parses its name again.
        attach.BATCHED: Made(torch._C._parse_dispatch_key, ("VmapMode",)),
        random.draw_key: draw_key,
        random.fold_in: fold_in,
        random.normal_like: normal_like,
        random.uniform_like: uniform_like,
    },
)
