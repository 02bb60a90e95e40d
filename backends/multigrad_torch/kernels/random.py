"""Random draws on torch: Threefry in int32 (torch has no uint32 arithmetic), block by block.

The compiler must not see the generator's rounds: inductor (torch 2.13) does not finish on 20
rounds, as its time grows exponentially with their number. So compiled code calls the same functions
as opaque operators, `torch.ops.multigrad.*`, and draws the same numbers.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from multigrad.core.backend.contract import Draws
from multigrad.core.ir.op import Op
from multigrad.engine import random as core
from multigrad.engine.ops import draws as ops
from multigrad.errors import GradientError, RuleError, RuleValueError

from ..core.dynamo import at_import
from ..core.state import is_distributed, untraced
from ..core.versions import DTENSORS
from ..releases import custom_op, register_vmap

Tensor: TypeAlias = torch.Tensor


class Drawn(threading.local):
    """How many keys this thread has drawn from torch's own generator."""

    number = 0


DRAWN = Drawn()


def fold_in(key: Tensor, n: int) -> Tensor:
    """Return the n-th derived key: a pair of ints from a pair, two int64 words from a tensor."""
    words = core.words_of(key)
    if not isinstance(words, tuple):
        is_compiling = torch.compiler.is_compiling()
        fold = torch.ops.multigrad.fold_in.default if is_compiling else fold_in_words
        new_key = fold(words, n)
    else:
        new_key = core.fold_in(words, n)
        new_key = OwnKey(*new_key) if isinstance(words, OwnKey) else new_key
    return core.with_words(key, new_key)


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Return uniforms in [0, 1) like x, bit-equal to those of other backends."""
    return draw_like(draw_uniform, "uniform", key, x)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    return draw_like(draw_normal, "normal", key, x)


def draw_like(draw: Callable[..., Tensor], operator: str, key: Tensor, x: Tensor) -> Tensor:
    """Draw like x; compiled code does so by the operator of that name."""
    core.check_dtype(dtype_name(x.dtype))
    if torch.compiler.is_compiling():
        return draw_compiled(getattr(torch.ops.multigrad, operator).default, key, x)
    if type(x) is not torch.Tensor:
        return draw_for_class(draw, key, x)
    if torch._C._get_tracing_state() is not None:
        words = core.words_of(key)
        if isinstance(words, tuple) or is_readable(words):
            # A constant: the in-place ops of a draw would change it again at each run of the trace.
            with untraced():
                return draw(key, x.shape, x.dtype, x.device)
    return draw(key, x.shape, x.dtype, x.device)


def draw_for_class(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw for a tensor subclass: a jagged one's values, or this process's part of a DTensor."""
    if is_distributed(x):
        return draw_part(draw, key, x)
    if x.layout is not torch.jagged:
        return draw(key, x.shape, x.dtype, x.device)
    values = x.values()
    if isinstance(key, core.PlacedKey):
        raise RuleValueError(
            "a jagged tensor has no place in a whole array: a random rule over several shards "
            'draws for it by over="shard"'
        )
    numbers = draw(key, values.shape, values.dtype, values.device)
    return torch.nested.nested_tensor_from_jagged(numbers, x.offsets(), x.lengths(), x._ragged_idx)


def draw_key() -> Tensor:
    """Draw a key from torch's global generator, which `torch.manual_seed` seeds.

    It is a pair of ints, or two int64 words where values may not become constants: in compiled or
    traced code, and under `torch.func` transforms, where vmap's `randomness` decides whether
    examples share a key.
    """
    if torch._C._are_functorch_transforms_active():
        try:
            return draw_words()
        except RuntimeError as error:
            raise RuleError(
                "a random rule without a key cannot draw inside torch.func.vmap: pass key=..., "
                "e.g. xg.use(rule, key=0), or call vmap(..., randomness='different')"
            ) from error
    if torch.compiler.is_compiling():
        return torch.ops.multigrad.draw_key.default()
    words = draw_words()
    if not is_readable(words):
        return words
    if torch._C._get_tracing_state() is None:
        return OwnKey(*words.tolist())
    # What a trace fixes is warned of where the rule is applied.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return OwnKey(*words.tolist())


def key_pair(key: Tensor) -> Tensor:
    """Return an integer tensor of two words as two int64 words from 0 to 2**32 - 1."""
    if key.is_floating_point() or key.is_complex() or key.dtype == torch.bool or key.shape != (2,):
        raise RuleValueError(
            f"key is {key.dtype} of shape {tuple(key.shape)}; expected an integer tensor of two "
            "words: torch.tensor([0, 7])"
        )
    return key.to(torch.int64) & core.WORD_MASK


def draw_words() -> Tensor:
    DRAWN.number += 1
    return torch.randint(0, 1 << 32, (2,), dtype=torch.int64, device="cpu")


def key_words(key: Tensor) -> Tensor:
    return torch.tensor(key, dtype=torch.int64) if isinstance(key, tuple) else key


def for_each_key(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function of an operator, which draws for each key along leading dimensions."""

    def draw_each(
        key: torch.Tensor,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        start: int = 0,
        whole: Sequence[int] | None = None,
    ) -> torch.Tensor:
        place = start, whole
        if key.dim() > 1:
            return torch.stack([draw_each(k, shape, dtype, device, *place) for k in key])
        placed_key = key if whole is None else core.PlacedKey(key, start, tuple(whole))
        return draw(placed_key, shape, dtype, device)

    return draw_each


def draw_compiled(operator: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    def draw(key: Tensor, *description: Any) -> Tensor:
        words = key_words(core.words_of(key))
        if isinstance(key, core.PlacedKey):
            return operator(words, *description, key.start, key.whole)
        return operator(words, *description)

    return draw_part(draw, key, x) if is_distributed(x) else draw(key, x.shape, x.dtype, x.device)


def describe_draw(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *place: Any
) -> Tensor:
    return torch.empty((*key.shape[:-1], *shape), dtype=dtype, device=device)


def describe_folded_key(key: Tensor, n: int) -> Tensor:
    return torch.empty(key.shape, dtype=torch.int64, device=key.device)


def describe_drawn_key() -> Tensor:
    return torch.empty((2,), dtype=torch.int64, device="cpu")


def map_keys(operator: Any, info: Any, in_dims: Any, key: Tensor, *args: Any) -> tuple[Tensor, int]:
    return operator(key.movedim(in_dims[0], 0), *args), 0


DRAWING = (
    "(Tensor key, SymInt[] shape, ScalarType dtype, Device device, SymInt start=0, "
    "SymInt[]? whole=None) -> Tensor"
)


# --- the part of a DTensor's draw for this process -----------------------------------------------
class OwnKey(NamedTuple):
    """A key drawn from this process's generator; other processes have other keys."""

    first: int
    second: int


def draw_part(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    module = sys.modules[DTENSORS]
    DTensor, Replicate, Shard = module.DTensor, module.Replicate, module.Shard

    mesh = x.device_mesh
    if mesh.size() > 1 and (isinstance(key, OwnKey) or not isinstance(key, tuple)):
        # All processes use one key, as keys from torch's own generator differ.
        words, everywhere = key_words(key).to(x.device), [Replicate()] * mesh.ndim
        key = DTensor.from_local(words, mesh, everywhere, run_check=True).to_local()
    placements = [Replicate() if each.is_partial() else each for each in x.placements]
    if any(type(each) not in (Replicate, Shard) for each in placements):  # strided
        full_draw = draw(key, x.shape, x.dtype, x.device)
        everywhere = DTensor.from_local(full_draw, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return everywhere.redistribute(mesh, placements)
    local = x.to_local()
    if mesh.get_coordinate() is not None and any(each.is_shard() for each in placements):
        starts, lengths = find_part(x, placements)
        if tuple(local.shape) != lengths:
            raise GradientError(
                f"a random rule cannot draw for a tensor of shape {tuple(x.shape)} placed as "
                f"{x.placements} over {tuple(mesh.shape)} processes, of which this one has "
                f"{tuple(local.shape)}, not {lengths} as by torch.chunk: distribute it by "
                "torch.distributed.tensor.distribute_tensor first"
            )
        key = core.place(key, starts, x.shape)
    part = draw(key, local.shape, x.dtype, x.device)
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=x.shape, stride=tuple(core.strides(x.shape))
    )


def find_part(x: Tensor, placements: list[Any]) -> tuple[list[int], tuple[int, ...]]:
    """Return where the local tensor starts along each dimension, and its shape."""
    # From left to right, each placement splits what those before it have left.
    starts, lengths = [0] * x.ndim, [*x.shape]
    mesh = x.device_mesh
    for coordinate, size, placement in zip(
        mesh.get_coordinate(), mesh.shape, placements, strict=True
    ):
        if placement.is_shard():
            dim, length = placement.dim, lengths[placement.dim]
            chunk = -(-length // size)
            start = min(coordinate * chunk, length)
            starts[dim] += start
            lengths[dim] = min(chunk, length - start)
    return starts, tuple(lengths)


# Elements per pass: on a CPU three buffers fit in a cache; on a device it bounds memory.
CPU_BLOCK = 1 << 18
DEVICE_BLOCK = 1 << 26


# The draws. With a key of ints, arithmetic is in place. A key that must not be read (on a device,
# or traced) is a tensor operand, out of place, because vmap may have batched it.


def draw_uniform(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return join(uniform_blocks(key, shape, dtype_name(dtype), device), shape, dtype, device)


def draw_normal(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    is_double = dtype == torch.float64
    blocks = uniform_blocks(key, shape, "float64" if is_double else "float32", device)
    normals = (core.normal_from_uniform(block, torch, is_double) for block in blocks)
    return join(normals, shape, dtype, device)


def join(
    blocks: Iterable[Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    parts = [block.to(dtype) for block in blocks]
    if not parts:
        return torch.empty(shape, dtype=dtype, device=device)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(shape)


def uniform_blocks(
    key: Tensor, shape: Sequence[int], dtype: str, device: torch.device
) -> Iterator[Tensor]:
    """Yield uniforms of a dtype, block by block: float64, or exact float32."""
    words, size = core.words_of(key), math.prod(shape)
    if not isinstance(words, tuple):
        words = tuple(words.tolist()) if is_readable(words) else int32_words(words.to(device))
    if isinstance(words, tuple) and device.type == "cpu" and is_faster_in_numpy(size):
        numbers = np.empty(shape, "float64" if dtype == "float64" else "float32")
        core.fill_uniform(numbers, core.with_words(key, words), dtype)
        yield torch.from_numpy(numbers)
        return
    for high, low in counter_blocks(key, shape, device):
        yield uniform_block(encrypt(words, high, low), dtype)


def uniform_block(words: tuple[Tensor, Tensor], dtype: str) -> Tensor:
    """Return the words of a block, which are consumed, as uniforms: float64, or exact float32."""
    x, y = words
    if dtype == "float64":
        high = (x.to(torch.int64) & core.WORD_MASK) << 20
        low = y.bitwise_right_shift_(12).bitwise_and_(0xFFFFF)
        return (high | low).to(torch.float64).mul_(2.0**-core.WIDE_BITS)
    dropped_bits, field_bits = core.UNIFORM_FIELDS[dtype]
    field = x.bitwise_xor_(y).bitwise_right_shift_(dropped_bits).bitwise_and_((1 << field_bits) - 1)
    return field.to(torch.float32).mul_(2.0**-field_bits)


def counter_blocks(
    key: Tensor, shape: Sequence[int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the two counter words of every element, block by block, in int32."""
    block = CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
    if not isinstance(key, core.PlacedKey):
        for start, stop in core.cut(math.prod(shape), block):
            yield count_from(start, stop - start, device)
        return
    axes = core.split_axes(key.whole, shape)
    number, length = math.prod(shape[:axes]), math.prod(shape[axes:])
    if number == 1:
        for start, stop in core.cut_run(key.start, length, block):
            yield count_from(key.start + start, stop - start, device)
        return
    firsts, steps = firsts_of_runs(key, shape[:axes], device), torch.arange(length, device=device)
    for start, stop in core.cut(number, max(1, block // max(length, 1))):
        counters = (firsts[start:stop, None] + steps).reshape(-1)
        yield (counters >> 32).to(torch.int32), counters.to(torch.int32)


def count_from(first: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    high = torch.full((size,), as_int32(first >> 32), dtype=torch.int32, device=device)
    low = torch.arange(size, dtype=torch.int32, device=device)
    return high, low.add_(as_int32(first))


def firsts_of_runs(key: Tensor, lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return the first counter of each contiguous run of a part in the whole array, in int64."""
    firsts = torch.full((1,), key.start, dtype=torch.int64, device=device)
    for length, stride in zip(lengths, core.strides(key.whole), strict=False):
        steps = torch.arange(length, device=device) * stride
        firsts = (firsts[:, None] + steps).reshape(-1)
    return firsts


def is_faster_in_numpy(size: int) -> bool:
    """Return whether NumPy draws faster.

    Its 110 operations on a few elements take 0.07 ms, torch's 0.23. On one thread NumPy takes 6 ms
    per 1e6, torch 11. Two threads of torch take 6 ms if both cores are free, otherwise several
    times that.
    """
    return size <= core.BLOCK or torch.get_num_threads() <= 2


def is_readable(key: Tensor) -> bool:
    """Return whether a key's values may be read: nothing traces them, no device must be awaited."""
    return (
        type(key) is torch.Tensor
        and key.device.type == "cpu"
        and not torch._C._are_functorch_transforms_active()
        and not is_in_torch_dispatch_mode()
    )


def fold_in_words(key: Tensor, n: int) -> Tensor:
    first, second = int32_words(key).unbind(-1)
    x = torch.zeros((), dtype=torch.int32, device=key.device)
    y = torch.full((), as_int32(n), dtype=torch.int32, device=key.device)
    words = core.threefry_rounds((first, second), (x, y), torch.add, rotate_xor)
    return torch.stack(words, -1).to(torch.int64) & core.WORD_MASK


def encrypt(key: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Run the Threefry rounds: in place for a key of ints, out of place for a tensor."""
    if not isinstance(key, tuple):
        return core.threefry_rounds((key[0], key[1]), (x, y), torch.add, rotate_xor)
    scratch = torch.empty_like(x)

    def rotate_xor_in_place(x: Tensor, bits: int, y: Tensor) -> Tensor:
        torch.bitwise_left_shift(x, bits, out=scratch)
        x.bitwise_right_shift_(32 - bits).bitwise_and_((1 << bits) - 1)
        return x.bitwise_or_(scratch).bitwise_xor_(y)

    return core.threefry_rounds(key, (x, y), torch.Tensor.add_, rotate_xor_in_place, as_int32)


def rotate_xor(x: Tensor, bits: int, y: Tensor) -> Tensor:
    # The right shift repeats the sign bit, which the mask removes.
    return ((x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))) ^ y


def as_int32(word: Tensor) -> Tensor:
    return ((word + (1 << 31)) & core.WORD_MASK) - (1 << 31)


def int32_words(key: Tensor) -> Tensor:
    return as_int32(key.to(torch.int64)).to(torch.int32)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# At the end, as it runs immediately if Dynamo is imported already.
@at_import
def register_operators() -> None:
    """Register the draws as operators for compiled code; vmap adds leading dimensions to keys."""
    for name, schema, run, describe in (
        ("uniform", DRAWING, for_each_key(draw_uniform), describe_draw),
        ("normal", DRAWING, for_each_key(draw_normal), describe_draw),
        ("fold_in", "(Tensor key, SymInt n) -> Tensor", fold_in_words, describe_folded_key),
    ):
        operator = custom_op(f"multigrad::{name}", schema)(run)
        operator.register_fake(describe)
        register_vmap(operator)(partial(map_keys, operator))
    # The tag stops the compiler from drawing once for two calls, or again in backward.
    tags = (torch.Tag.nondeterministic_seeded,)
    key_operator = custom_op("multigrad::draw_key", "() -> Tensor", tags)(draw_words)
    key_operator.register_fake(describe_drawn_key)


DRAWS = Draws(draw_key=draw_key, fold_in=fold_in, key_pair=key_pair, replays=True)
OPS: dict[Op, Callable[..., Any]] = {
    ops.FOLD_IN: fold_in,
    ops.UNIFORM_LIKE: uniform_like,
    ops.NORMAL_LIKE: normal_like,
}
