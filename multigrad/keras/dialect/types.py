"""Which dtype Keras's operations give: those of its backend, on that backend's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ...capture.code.table import find_dialect
from ...capture.types.oracle import StandInCall, TypeOracle

backend: Any = vars(keras)["backend"]


def below() -> TypeOracle:
    """Return how the library is asked that Keras computes with."""
    dialect = find_dialect(backend.backend())
    assert dialect is not None and dialect.types is not None
    oracle: TypeOracle = dialect.types
    return oracle


def tiny(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return below().tiny(dtype, shape, number, is_weak)


def run(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    return below().run(calls, mode[2])


def read(x: Any) -> tuple[str, bool] | None:
    return below().read(x)


def mode() -> Any:
    return backend.backend(), backend.floatx(), below().mode()


def floats(mode: Any) -> Sequence[str]:
    return below().floats(mode[2])


def canonical(dtype: str, mode: Any) -> str:
    return below().canonical(dtype, mode[2])


WIDE = frozenset(
    """
    batch_normalization layer_normalization moments rms_normalization round std var
    """.split()  # noqa: SIM905
)


# Those that compute in an operand's own dtype before they take a root, a product or a choice.
AT_ONCE = frozenset({"floor_divide", "where"})


def casts_first(function: Any) -> bool:
    """Return whether a function promotes its operands before it computes."""
    return getattr(function, "__name__", "") not in AT_ONCE


def is_wide(function: Any) -> bool:
    """Return whether an operation computes in float32 by itself."""
    return getattr(function, "__name__", "") in WIDE


TYPES = TypeOracle(
    tiny,
    run,
    read,
    mode,
    floats,
    ranks_count=below().ranks_count,
    canonical=canonical,
    is_wide=is_wide,
    casts_first=casts_first,
)
