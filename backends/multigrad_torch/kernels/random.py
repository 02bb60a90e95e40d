"""Random draws on torch, eagerly and in compiled code.

The compiler must not see the rounds of the generator: inductor (torch 2.13)
does not finish on 20 rounds, its time grows exponentially with their number. So compiled code calls
the same functions as opaque operators, `torch.ops.multigrad.*`, and draws the same numbers.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from multigrad.errors import GradientError, RuleError, RuleValueError
from multigrad.graph import random as core

from ..distributed.tensors import is_distributed
from ..dynamo import at_import
from ..versions import DTENSORS, custom_op, register_vmap
from .random_kernels import (
    draw_normal,
    draw_uniform,
    dtype_name,
    fold_in_words,
    is_readable,
    with_words,
    words_of,
)

Tensor: TypeAlias = Any


def fold_in(key: Tensor, n: int) -> Tensor:
    """Derive the n-th key: a pair of ints from a pair, two int64 words from a tensor."""
    words = words_of(key)
    if not isinstance(words, tuple):
        compiling = torch.compiler.is_compiling()
        fold = torch.ops.multigrad.fold_in.default if compiling else fold_in_words
        folded = fold(words, n)
    else:
        folded = core.fold_in(words, n)
        folded = OwnKey(*folded) if isinstance(words, OwnKey) else folded
    return with_words(key, folded)


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Draw uniforms in [0, 1) of x's shape, dtype and device, bit-equal to the other backends'."""
    core.check_dtype(dtype_name(x.dtype))
    if torch.compiler.is_compiling():
        return draw_compiled(torch.ops.multigrad.uniform.default, key, x)
    if type(x) is not torch.Tensor:
        return draw_for_class(draw_uniform, key, x)
    if torch._C._get_tracing_state() is not None:
        return draw_untraced(draw_uniform, key, x)
    return draw_uniform(key, x.shape, x.dtype, x.device)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    """Draw standard normals of x's shape, dtype and device."""
    core.check_dtype(dtype_name(x.dtype))
    if torch.compiler.is_compiling():
        return draw_compiled(torch.ops.multigrad.normal.default, key, x)
    if type(x) is not torch.Tensor:
        return draw_for_class(draw_normal, key, x)
    if torch._C._get_tracing_state() is not None:
        return draw_untraced(draw_normal, key, x)
    return draw_normal(key, x.shape, x.dtype, x.device)


def draw_untraced(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw a constant for a trace of torch.jit, in which what draws in place would act on the
    constant again at each run. A key on a device stays part of the trace.
    """
    words = words_of(key)
    if not isinstance(words, tuple) and not is_readable(words):
        return draw(key, x.shape, x.dtype, x.device)
    with untraced():
        return draw(key, x.shape, x.dtype, x.device)


def untraced() -> AbstractContextManager[Any]:
    """Leave a trace of torch.jit, in which all that runs would stand."""
    return nullcontext() if torch._C._get_tracing_state() is None else _leaving_trace()


@contextmanager
def _leaving_trace() -> Iterator[None]:
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def draw_for_class(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw for a tensor of another class: a jagged one draws for its values, a distributed one its
    part of the whole.
    """
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
    drawn = draw(key, values.shape, values.dtype, values.device)
    return torch.nested.nested_tensor_from_jagged(drawn, x.offsets(), x.lengths(), x._ragged_idx)


def draw_key() -> Tensor:
    """Draw a key from torch's global generator, so that `torch.manual_seed` makes it repeat.

    A pair of ints; two int64 words where the values must not become constants (compiled or traced
    code, and `torch.func` transforms, where vmap's `randomness` says whether examples share a key).
    """
    if torch._C._are_functorch_transforms_active():
        return draw_words_in_transform()
    if torch.compiler.is_compiling():
        return torch.ops.multigrad.draw_key.default()
    words = draw_words()
    if not is_readable(words):
        return words
    if torch._C._get_tracing_state() is None:
        return OwnKey(*words.tolist())
    with warnings.catch_warnings():  # what a trace keeps is said where it is applied
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return OwnKey(*words.tolist())


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


def draw_uniforms(
    key: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    start: int = 0,
    whole: Sequence[int] | None = None,
) -> torch.Tensor:
    return draw_for_each(draw_uniform, key, (start, whole), shape, dtype, device)


def draw_normals(
    key: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    start: int = 0,
    whole: Sequence[int] | None = None,
) -> torch.Tensor:
    return draw_for_each(draw_normal, key, (start, whole), shape, dtype, device)


def draw_compiled(operator: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw like x by an operator."""

    def draw(key: Tensor, *description: Any) -> Tensor:
        words = key_words(words_of(key))
        if isinstance(key, core.PlacedKey):
            return operator(words, *description, key.start, key.whole)
        return operator(words, *description)

    return draw_part(draw, key, x) if is_distributed(x) else draw(key, x.shape, x.dtype, x.device)


def draw_for_each(
    draw: Callable[..., Tensor], keys: Tensor, place: tuple[int, Any], *description: Any
) -> Tensor:
    """Draw once per key, along the leading dimensions."""
    if keys.dim() > 1:
        return torch.stack([draw_for_each(draw, key, place, *description) for key in keys])
    start, whole = place
    key = keys if whole is None else core.PlacedKey(keys, start, tuple(whole))
    return draw(key, *description)


def describe_draw(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *place: Any
) -> Tensor:
    return torch.empty((*key.shape[:-1], *shape), dtype=dtype, device=device)


def describe_folded_key(key: Tensor, n: int) -> Tensor:
    return torch.empty(key.shape, dtype=torch.int64, device=key.device)


def describe_drawn_key() -> Tensor:
    return torch.empty((2,), dtype=torch.int64, device="cpu")


def map_keys(operator: Any, info: Any, in_dims: Any, key: Tensor, *rest: Any) -> tuple[Tensor, int]:
    return operator(key.movedim(in_dims[0], 0), *rest), 0


DRAWING = (
    "(Tensor key, SymInt[] shape, ScalarType dtype, Device device, SymInt start=0, "
    "SymInt[]? whole=None) -> Tensor"
)


@at_import
def register_operators() -> None:
    """Make the same functions operators, for compiled code. Their key may have leading dimensions,
    which vmap adds; the draw has them too. `start` and `whole` are those of a placed key.
    """
    for name, schema, run, describe in (
        ("uniform", DRAWING, draw_uniforms, describe_draw),
        ("normal", DRAWING, draw_normals, describe_draw),
        ("fold_in", "(Tensor key, SymInt n) -> Tensor", fold_in_words, describe_folded_key),
    ):
        operator = custom_op(f"multigrad::{name}", schema)(run)
        operator.register_fake(describe)
        register_vmap(operator)(partial(map_keys, operator))
    # The tag keeps the compiler from drawing once for two calls, or again in backward.
    tags = (torch.Tag.nondeterministic_seeded,)
    drawn = custom_op("multigrad::draw_key", "() -> Tensor", tags)(draw_words)
    drawn.register_fake(describe_drawn_key)


# --- the part of a distributed tensor's draw that falls to this process ---------------------------
class OwnKey(NamedTuple):
    """A key drawn from the generator of this process: another process has another one."""

    first: int
    second: int


def draw_part(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw for a DTensor what one process would: each process its part.

    Raises:
        GradientError: x's local tensor has not the shape that its placements give it.
    """
    tensors = sys.modules[DTENSORS]
    DTensor, Replicate, Shard = tensors.DTensor, tensors.Replicate, tensors.Shard

    mesh = x.device_mesh
    if mesh.size() > 1 and (isinstance(key, OwnKey) or not isinstance(key, tuple)):
        key = agree(key, x)
    placements = [Replicate() if each.is_partial() else each for each in x.placements]
    if any(type(each) not in (Replicate, Shard) for each in placements):  # strided
        whole = draw(key, x.shape, x.dtype, x.device)
        everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
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
    drawn = draw(key, local.shape, x.dtype, x.device)
    return DTensor.from_local(
        drawn, mesh, placements, run_check=False, shape=x.shape, stride=contiguous(x.shape)
    )


def find_part(x: Tensor, placements: list[Any]) -> tuple[list[int], tuple[int, ...]]:
    """Return where the local tensor starts along each dimension, and its shape: from left to right,
    each placement chunks what those before it have left.
    """
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


def agree(key: Tensor, x: Tensor) -> Tensor:
    """Return one process's key everywhere: a key from torch's own generator differs."""
    tensors = sys.modules[DTENSORS]
    DTensor, Replicate = tensors.DTensor, tensors.Replicate

    words = torch.tensor(key, dtype=torch.int64) if isinstance(key, tuple) else key
    everywhere = [Replicate()] * x.device_mesh.ndim
    same = DTensor.from_local(words.to(x.device), x.device_mesh, everywhere, run_check=True)
    return same.to_local()


def contiguous(shape: Any) -> tuple[int, ...]:
    return tuple(core.strides(shape))
