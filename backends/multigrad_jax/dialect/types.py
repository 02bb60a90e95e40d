"""Which dtype JAX gives a call: its abstract value, and whether it is weak."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from multigrad.capture.types.oracle import StandInCall, TypeOracle


def run(calls: Sequence[StandInCall], mode: tuple[bool, Any]) -> list[Any]:
    """Trace calls, all at once where each takes what it is given: nothing is compiled."""
    try:
        return _trace(calls, mode)
    except Exception:  # one of them does not
        return [_alone(call, mode) for call in calls]


def _alone(call: StandInCall, mode: tuple[bool, Any]) -> Any:
    try:
        return _trace([call], mode)[0]
    except Exception:  # jax refuses such operands: there is no answer
        return None


def _trace(calls: Sequence[StandInCall], mode: tuple[bool, Any]) -> list[Any]:
    wide = [mode[0] or _is_double(call) for call in calls]  # float64 is asked where that is on
    groups = {
        is_wide: iter(
            _trace_in([c for c, w in zip(calls, wide, strict=True) if w is is_wide], is_wide)
        )
        for is_wide in set(wide)
    }
    return [next(groups[is_wide]) for is_wide in wide]


def _is_double(call: StandInCall) -> bool:
    dtypes: list[str] = []
    call.arguments(lambda dtype, *of: dtypes.append(dtype))
    return "float64" in dtypes


def _trace_in(calls: Sequence[StandInCall], is_wide: bool) -> list[Any]:
    given: list[Any] = []

    def note(*of: Any) -> None:
        given.append(tiny(*of))

    def call_all(*tensors: Any) -> list[Any]:
        rest = iter(tensors)
        return [call.run(lambda *of: next(rest)) for call in calls]

    with jax.enable_x64(is_wide), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operands that nobody wrote
        for call in calls:
            call.arguments(note)
        return list(jax.eval_shape(call_all, *given))


def tiny(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=is_weak)


def read(x: Any) -> tuple[str, bool] | None:
    return (np.dtype(x.dtype).name, bool(x.weak_type)) if hasattr(x, "weak_type") else None


def mode() -> tuple[bool, Any]:
    return jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion


NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def canonical(dtype: str, mode: tuple[bool, Any]) -> str:
    """Captures compute constants in 64 bits."""
    return dtype if mode[0] else NARROW.get(dtype, dtype)


# Those that compute in float32 by themselves.
WIDE = frozenset(
    {jax.nn.dot_product_attention, jnp.round, jnp.around, jnp.nanstd, jnp.nanvar, jnp.std, jnp.var}
)


# Those that compute among integers before they divide, or look at a condition.
AT_ONCE = frozenset({jax.nn.softmax, special.softmax, jnp.where})


def casts_first(function: Any) -> bool:
    """Return whether a function promotes its operands before it computes."""
    return function not in AT_ONCE


def is_wide(function: Any) -> bool:
    return function in WIDE


TYPES = TypeOracle(
    tiny, run, read, mode, canonical=canonical, is_wide=is_wide, casts_first=casts_first
)
