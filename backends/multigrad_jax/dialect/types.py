"""jax's `TypeOracle`: the dtypes of results, found by tracing calls on abstract values.

Nothing compiles or computes. A result may be weak, as a Python number is: its dtype then gives way
to that of the tensor it meets.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from multigrad.engine.capture.values.oracle import StandInCall, TypeOracle

Mode = tuple[bool, Any]  # whether 64 bits are switched on, and how dtypes are promoted


def stand_in_tensor(
    dtype: str, shape: tuple[int, ...], number: int, is_weak: bool
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=is_weak)


def trace_calls(calls: Sequence[StandInCall], mode: Mode) -> list[Any]:
    """Return the results of calls as abstract values; None for a call that jax refuses.

    All are traced together; one by one if one of them is refused.
    """
    # A call with float64 is traced with 64 bits switched on, the others in the mode of now.
    wide = [mode[0] or _takes_float64(call) for call in calls]
    results = {
        is_wide: iter(
            _trace_alike([c for c, w in zip(calls, wide, strict=True) if w is is_wide], is_wide)
        )
        for is_wide in set(wide)
    }
    return [next(results[is_wide]) for is_wide in wide]


def _trace_alike(calls: Sequence[StandInCall], is_wide: bool) -> list[Any]:
    try:
        return _trace_together(calls, is_wide)
    except Exception:  # noqa: BLE001 (jax raises many kinds for operands that do not fit)
        return [None] if len(calls) == 1 else [_trace_alike([c], is_wide)[0] for c in calls]


def _takes_float64(call: StandInCall) -> bool:
    dtypes: list[str] = []
    with suppress(Exception):  # the trace refuses such a call
        call.arguments(lambda dtype, *others: dtypes.append(dtype))
    return "float64" in dtypes


def _trace_together(calls: Sequence[StandInCall], is_wide: bool) -> list[Any]:
    structs: list[Any] = []

    def note(*description: Any) -> None:
        structs.append(stand_in_tensor(*description))

    def call_all(*tensors: Any) -> list[Any]:
        tensor_iterator = iter(tensors)
        return [call.run(lambda *description: next(tensor_iterator)) for call in calls]

    with jax.enable_x64(is_wide), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about made-up operands
        for call in calls:
            call.arguments(note)
        return list(jax.eval_shape(call_all, *structs))


def dtype_of_leaf(x: Any) -> tuple[str, bool] | None:
    """Return a result's dtype and whether it is weak; None for what is no array of jax."""
    return (np.dtype(x.dtype).name, bool(x.weak_type)) if hasattr(x, "weak_type") else None


def mode() -> Mode:
    return jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion


WITHOUT_64_BITS = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def canonical(dtype: str, mode: Mode) -> str:
    """Return the dtype that jax gives a constant, which a capture computes in 64 bits always."""
    return dtype if mode[0] else WITHOUT_64_BITS.get(dtype, dtype)


# Functions that compute 16-bit floats in float32 by themselves.
COMPUTES_IN_FLOAT32 = frozenset(
    {jax.nn.dot_product_attention, jnp.round, jnp.around, jnp.nanstd, jnp.nanvar, jnp.std, jnp.var}
)


# All others promote their operands first; these divide integers later, or take a condition.
DOES_NOT_CAST_FIRST = frozenset({jax.nn.softmax, special.softmax, jnp.where})


TYPES = TypeOracle(
    stand_in_tensor,
    trace_calls,
    dtype_of_leaf,
    mode,
    canonical=canonical,
    is_wide=COMPUTES_IN_FLOAT32.__contains__,
    casts_first=lambda function: function not in DOES_NOT_CAST_FIRST,
)
