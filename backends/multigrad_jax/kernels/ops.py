"""JAX's kernels by op; an op with a symbol that is left out is emitted infix.

The loops are `lax.while_loop` and `lax.scan`; see `multigrad/graph/ops/arrays/loops.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax

from multigrad.backend import compositions
from multigrad.graph import ops
from multigrad.graph.ir.op import Op

from .. import distributed
from ..distributed import vary_alike
from . import arrays, elementwise, shapes

Tensor: TypeAlias = Any
Function = Callable[..., Any]

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **arrays.OPS,
    **distributed.OPS,
}
# Computed in float32 for 16-bit floats and rounded once.
WIDE = (
    *(ops.ATAN2, ops.HYPOT, ops.FMOD, ops.FLOOR_DIVIDE, ops.REMAINDER, ops.EXP2, ops.LOG2),
    *(ops.LOG10, ops.LOGADDEXP, ops.COSH, ops.SINH, ops.SINC, ops.DEG2RAD, ops.RAD2DEG),
    *(ops.ERFINV, ops.NDTRI, ops.DIGAMMA, ops.POLYGAMMA, ops.I0E, ops.I1E, ops.LOG_SIGMOID),
    *(ops.GELU, ops.PROD, ops.VAR, ops.STD, ops.LOGSUMEXP, ops.SOFTMAX, ops.LOG_SOFTMAX),
    *(ops.CUMSUM, ops.CUMPROD, ops.LOGCUMSUMEXP, ops.DISCOUNTED_SUM, ops.CONV, ops.EINSUM),
    *(ops.CHOLESKY, ops.TRIANGULAR_SOLVE, ops.SOLVE, ops.INV, ops.PINV, ops.DET, ops.LOGABSDET),
    *(ops.SIGNDET, ops.EXPM, ops.LU, ops.SVD, ops.SVDVALS, ops.EIGH, ops.EIGVALSH, ops.QR),
    ops.FFT,
)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = {**compositions(OWN, elementwise.widened, shapes.positions), **OWN}
NAMES = f"{elementwise.NAMES}; {shapes.NAMES}"

UNSUPPORTED: dict[Op, str] = {}


# --- loops ---------------------------------------------------------------------------------------
def while_loop(
    carry: tuple[Tensor, ...], constants: tuple[Any, ...], condition: Function, body: Function
) -> tuple[Tensor, ...]:
    tensors = vary_alike(tuple(map(jnp.asarray, carry)), constants)
    lengths = tuple(c if isinstance(c, int) else None for c in constants)
    others = tuple(None if isinstance(c, int) else c for c in constants)
    # Tensors among the constants are carried, and lengths are part of the key: so jax gets the same
    # function objects again and compiles once.
    return lax.while_loop(*functions(condition, body, lengths), (tensors, others))[0]


@functools.lru_cache(maxsize=1024)
def functions(
    condition: Function, body: Function, lengths: tuple[int | None, ...]
) -> tuple[Function, Function]:
    def given(values: Any) -> list[Any]:
        carry, others = values
        pairs = zip(lengths, others, strict=True)
        return [*carry, *(other if length is None else length for length, other in pairs)]

    def goes_on(values: Any) -> Tensor:
        return condition(*given(values))

    def turn(values: Any) -> Any:
        after = zip(body(*given(values)), values[0], strict=True)
        # jax needs each turn to keep the dtypes of the carry
        return tuple(jnp.asarray(new, old.dtype) for new, old in after), values[1]

    return goes_on, turn


def scan(
    carry: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    constants: tuple[Any, ...],
    body: Function,
    reverse: bool,
) -> tuple[Tensor, ...]:
    tensors = vary_alike(tuple(map(jnp.asarray, carry)), (*rows, *constants))
    lengths = tuple(c if isinstance(c, int) else None for c in constants)
    others = tuple(None if isinstance(c, int) else c for c in constants)
    turn = turn_of(body, lengths)
    # constants are carried, as in while_loop
    (after, _), results = lax.scan(turn, (tensors, others), tuple(rows), reverse=reverse)
    return (*after, *results)


@functools.lru_cache(maxsize=1024)
def turn_of(body: Function, lengths: tuple[int | None, ...]) -> Function:
    def turn(values: Any, row: Any) -> Any:
        carry, others = values
        pairs = zip(lengths, others, strict=True)
        constants = [other if length is None else length for length, other in pairs]
        found = body(*carry, *row, *constants)
        after = zip(found, carry, strict=False)
        new = tuple(jnp.asarray(new, old.dtype) for new, old in after)
        return (new, others), tuple(map(jnp.asarray, found[len(carry) :]))

    return turn


# --- masks as bits, eight to a byte, the first in the highest bit ---------------------------------


def pack(mask: Tensor) -> Tensor:
    return jnp.packbits(mask)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    flat = jnp.unpackbits(bits, count=math.prod(like.shape))
    return flat.reshape(like.shape).astype(bool)
