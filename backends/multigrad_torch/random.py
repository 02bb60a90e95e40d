"""Random draws on torch: threefry in int32, because torch has no uint32 arithmetic.

Eagerly the rounds work in place, in blocks. The compiler must not see them: inductor (torch 2.13)
does not finish on 20 rounds, its time grows exponentially with their number. So compiled code calls
the same functions as opaque operators, `torch.ops.multigrad.*`, and draws the same numbers.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from multigrad import random as core
from multigrad.errors import RuleError, RuleValueError

Tensor: TypeAlias = Any

# Elements per pass. On a CPU three buffers of this size stay in a cache and still occupy eight
# threads; on a device only memory is bounded.
CPU_BLOCK = 1 << 18
DEVICE_BLOCK = 1 << 26


def fold_in(key: Tensor, n: int) -> Tensor:
    """Derive the n-th key: a pair of ints from a pair, two int64 words from a tensor."""
    if isinstance(key, tuple):
        return core.fold_in(key, n)
    return fold_in_op(key, n) if torch.compiler.is_compiling() else fold_in_words(key, n)


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Draw uniforms in [0, 1) of x's shape, dtype and device, bit-equal to the other backends'."""
    core.check_dtype(dtype_name(x.dtype))
    if torch.compiler.is_compiling():
        return uniform_op(key_words(key), x.shape, x.dtype, x.device)
    if type(x) is not torch.Tensor:
        return draw_for_class(draw_uniform, key, x)
    return draw_uniform(key, x.shape, x.dtype, x.device)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    """Draw standard normals of x's shape, dtype and device."""
    core.check_dtype(dtype_name(x.dtype))
    if torch.compiler.is_compiling():
        return normal_op(key_words(key), x.shape, x.dtype, x.device)
    if type(x) is not torch.Tensor:
        return draw_for_class(draw_normal, key, x)
    return draw_normal(key, x.shape, x.dtype, x.device)


def draw_for_class(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw for a tensor of another class: a jagged one draws for its values, a distributed one its
    part of the whole.
    """
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and isinstance(x, tensors.DTensor):
        return draw_part(draw, key, x)
    if x.layout is not torch.jagged:
        return draw(key, x.shape, x.dtype, x.device)
    values = x.values()
    drawn = draw(key, values.shape, values.dtype, values.device)
    return torch.nested.nested_tensor_from_jagged(drawn, x.offsets(), x.lengths(), x._ragged_idx)


def draw_part(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw for a DTensor what one process would: each draws the whole, and keeps its part."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = x.device_mesh
    everywhere = [Replicate()] * mesh.ndim
    if mesh.size() > 1:  # a key from torch's own generator differs between processes
        words = DTensor.from_local(key_words(key).to(x.device), mesh, everywhere, run_check=True)
        key = words.to_local()
    whole = draw(key, x.shape, x.dtype, x.device)
    drawn = DTensor.from_local(whole, mesh, everywhere, run_check=False)
    placements = [Replicate() if each.is_partial() else each for each in x.placements]
    return drawn.redistribute(mesh, placements)


def draw_key() -> Tensor:
    """Draw a key from torch's global generator, so that `torch.manual_seed` makes it repeat.

    A pair of ints; two int64 words where the values must not become constants (compiled or traced
    code, and `torch.func` transforms, where vmap's `randomness` says whether examples share a key).
    """
    if torch._C._are_functorch_transforms_active():
        return draw_words_in_transform()
    if torch.compiler.is_compiling():
        return draw_key_op()
    words = draw_words()
    if not is_readable(words):
        return words
    if torch._C._get_tracing_state() is None:
        return tuple(words.tolist())
    with warnings.catch_warnings():  # what a trace keeps is said where it is applied
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return tuple(words.tolist())


def key_pair(key: Tensor) -> Tensor:
    """Turn an integer tensor of two words into two int64 words from 0 to 2**32 - 1."""
    if key.is_floating_point() or key.is_complex() or key.dtype == torch.bool or key.shape != (2,):
        raise RuleValueError(
            f"key is {key.dtype} of shape {tuple(key.shape)}; expected an integer tensor of two "
            "words: torch.tensor([0, 7])"
        )
    return key.to(torch.int64) & core.WORD_MASK


class Drawn(threading.local):
    """How many keys this thread has drawn from torch's own generator."""

    number = 0


DRAWN = Drawn()


def draw_words() -> Tensor:
    DRAWN.number += 1
    return torch.randint(0, 1 << 32, (2,), dtype=torch.int64, device="cpu")


def draw_words_in_transform() -> Tensor:
    try:
        return draw_words()
    except RuntimeError as error:
        raise RuleError(
            "a random rule without a key cannot draw inside torch.func.vmap: pass key=..., e.g. "
            "xg.use(rule, key=0), or call vmap(..., randomness='different')"
        ) from error


def key_words(key: Tensor) -> Tensor:
    """Make a pair of ints a tensor."""
    return torch.tensor(key, dtype=torch.int64) if isinstance(key, tuple) else key


# Draws. A key of ints takes part in arithmetic in place. A key that must not be read (it is on a
# device, or being traced) takes part as a tensor, out of place, because vmap may have batched it.


def draw_uniform(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    size = torch.Size(shape).numel()
    drawn = [block.to(dtype) for block in uniform_blocks(key, size, dtype_name(dtype), device)]
    return join(drawn, shape, dtype, device)


def draw_normal(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    double = dtype == torch.float64
    name = "float64" if double else "float32"
    size = torch.Size(shape).numel()
    drawn = [
        core.normal_from_uniform(block, torch, double).to(dtype)
        for block in uniform_blocks(key, size, name, device)
    ]
    return join(drawn, shape, dtype, device)


def join(
    drawn: list[Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Make one tensor of the blocks."""
    if not drawn:
        return torch.empty(shape, dtype=dtype, device=device)
    return (drawn[0] if len(drawn) == 1 else torch.cat(drawn)).reshape(shape)


def uniform_blocks(key: Tensor, size: int, dtype: str, device: torch.device) -> Iterator[Tensor]:
    """Give the uniforms of a dtype, block by block: float64, or exact float32."""
    if not isinstance(key, tuple):
        key = tuple(key.tolist()) if is_readable(key) else int32_words(key.to(device))
    if isinstance(key, tuple) and device.type == "cpu" and is_faster_in_numpy(size):
        drawn = np.empty(size, "float64" if dtype == "float64" else "float32")
        core.fill_uniform(drawn, key, dtype)
        yield torch.from_numpy(drawn)
        return
    for words in random_words(key, size, device):
        yield uniform_block(words, dtype)


def uniform_block(words: tuple[Tensor, Tensor], dtype: str) -> Tensor:
    """Turn the words of a block, which are consumed, into uniforms: float64, or exact float32."""
    x, y = words
    if dtype == "float64":
        high = (x.to(torch.int64) & core.WORD_MASK) << 20
        low = y.bitwise_right_shift_(12).bitwise_and_(0xFFFFF)
        return (high | low).to(torch.float64).mul_(2.0**-core.WIDE_BITS)
    dropped, kept = core.UNIFORM_FIELDS[dtype]
    field = x.bitwise_xor_(y).bitwise_right_shift_(dropped).bitwise_and_((1 << kept) - 1)
    return field.to(torch.float32).mul_(2.0**-kept)


def random_words(key: Tensor, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the two words of every element, block by block, in int32."""
    for start, stop in core.blocks(size, CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK):
        x = torch.full((stop - start,), start >> 32, dtype=torch.int32, device=device)
        y = torch.arange(stop - start, dtype=torch.int32, device=device)
        yield encrypt(key, x, y.add_(as_int32(start)))


def is_faster_in_numpy(size: int) -> bool:
    """Whether NumPy's 110 operations on a few elements (0.07 ms, in torch 0.23), or on one thread
    (6 ms per 1e6, in torch 11), take less: two threads of torch take 6 ms where both cores are
    free, and several times that where they wait for each other.
    """
    return size <= core.BLOCK or torch.get_num_threads() <= 2


def is_readable(key: Tensor) -> bool:
    """Whether the key's values may become ints: nothing traces them, no device is waited for."""
    return (
        type(key) is torch.Tensor
        and key.device.type == "cpu"
        and not torch._C._are_functorch_transforms_active()
        and not is_in_torch_dispatch_mode()
    )


def fold_in_words(key: Tensor, n: int) -> Tensor:
    """Derive the n-th key of a key tensor, where the key is."""
    first, second = int32_words(key).unbind(-1)
    x = torch.zeros((), dtype=torch.int32, device=key.device)
    y = torch.full((), as_int32(n), dtype=torch.int32, device=key.device)
    words = core.threefry_rounds((first, second), (x, y), torch.add, rotate_xor, as_given)
    return torch.stack(words, -1).to(torch.int64) & core.WORD_MASK


def encrypt(key: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Run the threefry rounds: in place under a key of ints, out of place under a tensor."""
    if not isinstance(key, tuple):
        return core.threefry_rounds((key[0], key[1]), (x, y), torch.add, rotate_xor, as_given)
    scratch = torch.empty_like(x)

    def rotate_xor_in_place(x: Tensor, bits: int, y: Tensor) -> Tensor:
        torch.bitwise_left_shift(x, bits, out=scratch)
        x.bitwise_right_shift_(32 - bits).bitwise_and_((1 << bits) - 1)
        return x.bitwise_or_(scratch).bitwise_xor_(y)

    return core.threefry_rounds(key, (x, y), add_in_place, rotate_xor_in_place, as_int32)


def add_in_place(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y)


def rotate_xor(x: Tensor, bits: int, y: Tensor) -> Tensor:
    # The right shift repeats the sign; the mask takes it off.
    return ((x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))) ^ y


def as_given(word: Tensor) -> Tensor:
    return word


def as_int32(word: Tensor) -> Tensor:
    """Give a word, an int or int64, the value that it has as a signed 32-bit number."""
    return ((word + (1 << 31)) & core.WORD_MASK) - (1 << 31)


def int32_words(key: Tensor) -> Tensor:
    return as_int32(key.to(torch.int64)).to(torch.int32)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# The same functions as operators, for compiled code. Their key may have leading dimensions, which
# vmap adds; the draw has them too.


@torch.library.custom_op("multigrad::uniform", mutates_args=())
def uniform_op(
    key: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return draw_for_each(draw_uniform, key, shape, dtype, device)


@torch.library.custom_op("multigrad::normal", mutates_args=())
def normal_op(
    key: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return draw_for_each(draw_normal, key, shape, dtype, device)


@torch.library.custom_op("multigrad::fold_in", mutates_args=())
def fold_in_op(key: torch.Tensor, n: int) -> torch.Tensor:
    return fold_in_words(key, n)


# The tag keeps the compiler from drawing once for two calls, or again in backward.
@torch.library.custom_op(
    "multigrad::draw_key", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def draw_key_op() -> torch.Tensor:
    return draw_words()


def draw_for_each(draw: Callable[..., Tensor], keys: Tensor, *description: Any) -> Tensor:
    """Draw once per key, along the leading dimensions."""
    if keys.dim() == 1:
        return draw(keys, *description)
    return torch.stack([draw_for_each(draw, key, *description) for key in keys])


@uniform_op.register_fake
@normal_op.register_fake
def describe_draw(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.empty((*key.shape[:-1], *shape), dtype=dtype, device=device)


@fold_in_op.register_fake
def describe_folded_key(key: Tensor, n: int) -> Tensor:
    return torch.empty(key.shape, dtype=torch.int64, device=key.device)


@draw_key_op.register_fake
def describe_drawn_key() -> Tensor:
    return torch.empty((2,), dtype=torch.int64, device="cpu")


@uniform_op.register_vmap
def map_uniform(info: Any, in_dims: Any, key: Tensor, *description: Any) -> tuple[Tensor, int]:
    return uniform_op(key.movedim(in_dims[0], 0), *description), 0


@normal_op.register_vmap
def map_normal(info: Any, in_dims: Any, key: Tensor, *description: Any) -> tuple[Tensor, int]:
    return normal_op(key.movedim(in_dims[0], 0), *description), 0


@fold_in_op.register_vmap
def map_fold_in(info: Any, in_dims: Any, key: Tensor, n: int) -> tuple[Tensor, int]:
    return fold_in_op(key.movedim(in_dims[0], 0), n), 0
