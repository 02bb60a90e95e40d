"""Threefry in torch: in int32, because torch has no uint32 arithmetic; in place, in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from multigrad.graph import random as core

Tensor: TypeAlias = Any

# Elements per pass. On a CPU three buffers of this size stay in a cache and still occupy eight
# threads; on a device only memory is bounded.
CPU_BLOCK = 1 << 18
DEVICE_BLOCK = 1 << 26
# Elements between two logarithms of compiled code: torch takes these on its threads, for which it
# waits each time (1e6 normals: 2.4 ms, by blocks of 1 << 14 3.4).
NATIVE_BLOCK = 1 << 18


# Draws. A key of ints takes part in arithmetic in place. A key that must not be read (it is on a
# device, or being traced) takes part as a tensor, out of place, because vmap may have batched it.


def draw_uniform(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    native = find_native(key, shape, device)
    if native is not None:
        return draw_uniform_natively(*native, shape, dtype)
    drawn = [block.to(dtype) for block in uniform_blocks(key, shape, dtype_name(dtype), device)]
    return join(drawn, shape, dtype, device)


def draw_normal(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    native = find_native(key, shape, device)
    if native is not None:
        return draw_normal_natively(*native, shape, dtype)
    double = dtype == torch.float64
    name = "float64" if double else "float32"
    drawn = [
        core.normal_from_uniform(block, torch, double).to(dtype)
        for block in uniform_blocks(key, shape, name, device)
    ]
    return join(drawn, shape, dtype, device)


def join(
    drawn: list[Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Make one tensor of the blocks."""
    if not drawn:
        return torch.empty(shape, dtype=dtype, device=device)
    return (drawn[0] if len(drawn) == 1 else torch.cat(drawn)).reshape(shape)


def uniform_blocks(
    key: Tensor, shape: Sequence[int], dtype: str, device: torch.device
) -> Iterator[Tensor]:
    """Give the uniforms of a dtype, block by block: float64, or exact float32."""
    words, size = words_of(key), math.prod(shape)
    if not isinstance(words, tuple):
        words = tuple(words.tolist()) if is_readable(words) else int32_words(words.to(device))
    if isinstance(words, tuple) and device.type == "cpu" and is_faster_in_numpy(size):
        drawn = np.empty(shape, "float64" if dtype == "float64" else "float32")
        core.fill_uniform(drawn, with_words(key, words), dtype)
        yield torch.from_numpy(drawn)
        return
    for high, low in counter_blocks(key, shape, device):
        yield uniform_block(encrypt(words, high, low), dtype)


# Draws by compiled code, which writes to addresses: not where torch traces, maps or fakes tensors.


def find_native(
    key: Tensor, shape: Sequence[int], device: torch.device
) -> tuple[core.Kernels, core.Layout] | None:
    """Return the compiled functions and the layout of a draw; None where torch's code draws."""
    if device.type != "cpu" or not is_plain():
        return None
    words = words_of(key)
    if not isinstance(words, tuple):
        if not is_readable(words):
            return None
        key = with_words(key, tuple(words.tolist()))
    kernels = core.find_kernels(math.prod(shape))
    return None if kernels is None else (kernels, core.lay_out(key, shape))


def is_plain() -> bool:
    """Whether tensors that are made here are what they seem."""
    return not (
        torch._C._are_functorch_transforms_active()
        or is_in_torch_dispatch_mode()
        or torch._C._get_tracing_state() is not None
    )


def draw_uniform_natively(
    kernels: core.Kernels, layout: core.Layout, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    drawn = torch.empty(
        shape, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device="cpu"
    )
    kernels.uniform(drawn.data_ptr(), layout, 0, drawn.numel(), dtype_name(dtype))
    return drawn if drawn.dtype is dtype else drawn.to(dtype)


def draw_normal_natively(
    kernels: core.Kernels, layout: core.Layout, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    double = dtype == torch.float64
    drawn = torch.empty(shape, dtype=torch.float64 if double else torch.float32, device="cpu")
    size = drawn.numel()
    scratch = take_scratch(min(size, NATIVE_BLOCK), drawn.dtype)
    kernels.normal(
        drawn.data_ptr(),
        layout,
        0,
        size,
        double=double,
        block=NATIVE_BLOCK,
        scratch=scratch.addresses,
        take_roots=scratch.take_roots,
    )
    give_back(scratch)
    return drawn if drawn.dtype is dtype else drawn.to(dtype)


class Scratch:
    """Where the logarithms of a draw are taken, and their roots."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        with torch.inference_mode(False):  # for draws outside of it, too
            self.w, self.root = torch.empty((2, size), dtype=dtype, device="cpu").unbind()
        self.size = size
        self.log = torch.log if dtype == torch.float64 else torch.log1p
        self.addresses = self.w.data_ptr(), self.root.data_ptr()

    def take_roots(self, number: int) -> None:
        """Put the roots of minus the logarithms in their place, and keep the latter."""
        w, root = self.w, self.root
        if number < self.size:
            w, root = w[:number], root[:number]
        torch.neg(self.log(w, out=w), out=w)
        torch.sqrt(w, out=root)


# What no draw uses now, by size: two allocations and two views take as long as what they are for.
SPARE: dict[tuple[int, torch.dtype], list[Scratch]] = {}
MOST_SIZES, LARGEST_SPARE = 8, 1 << 14


def take_scratch(size: int, dtype: torch.dtype) -> Scratch:
    try:
        return SPARE[size, dtype].pop()  # no other thread gets it
    except (KeyError, IndexError):
        return Scratch(size, dtype)


def give_back(scratch: Scratch) -> None:
    if scratch.size > LARGEST_SPARE:
        return
    if len(SPARE) > MOST_SIZES:
        SPARE.clear()
    SPARE.setdefault((scratch.size, scratch.w.dtype), []).append(scratch)


def words_of(key: Tensor) -> Tensor:
    """Return the words of a key, which may be placed."""
    return key.key if isinstance(key, core.PlacedKey) else key


def with_words(key: Tensor, words: Tensor) -> Tensor:
    """Return a key of these words in the place of another key."""
    if isinstance(key, core.PlacedKey):
        return core.PlacedKey(words, key.start, key.whole)
    return words


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


def counter_blocks(
    key: Tensor, shape: Sequence[int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the two counter words of every element, block by block, in int32."""
    block = CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
    if not isinstance(key, core.PlacedKey):
        for start, stop in core.blocks(math.prod(shape), block):
            yield count_from(start, stop - start, device)
        return
    axes = core.split_axes(key.whole, shape)
    number, length = math.prod(shape[:axes]), math.prod(shape[axes:])
    if number == 1:
        for start, stop in core.blocks_of_run(key.start, length, block):
            yield count_from(key.start + start, stop - start, device)
        return
    firsts, along = firsts_of_runs(key, shape[:axes], device), torch.arange(length, device=device)
    for start, stop in core.blocks(number, max(1, block // max(length, 1))):
        counters = (firsts[start:stop, None] + along).reshape(-1)
        yield (counters >> 32).to(torch.int32), counters.to(torch.int32)


def count_from(first: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Give the words of counters that follow one another and share their high word."""
    high = torch.full((size,), as_int32(first >> 32), dtype=torch.int32, device=device)
    low = torch.arange(size, dtype=torch.int32, device=device)
    return high, low.add_(as_int32(first))


def firsts_of_runs(key: Tensor, lengths: Sequence[int], device: torch.device) -> Tensor:
    """Give the first counter of each run in which a part lies in the whole array, in int64."""
    firsts = torch.full((1,), key.start, dtype=torch.int64, device=device)
    for length, stride in zip(lengths, core.strides(key.whole), strict=False):
        steps = torch.arange(length, device=device) * stride
        firsts = (firsts[:, None] + steps).reshape(-1)
    return firsts


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
