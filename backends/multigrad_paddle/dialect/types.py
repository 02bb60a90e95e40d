"""Which dtype Paddle gives a call: the call itself, on tensors of one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle

from multigrad.backend import dialects


def tiny(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return paddle.full(shape, number, dtype=dtype)


def run(calls: Sequence[dialects.StandInCall], mode: Any) -> list[Any]:
    """Run calls at once, outside of records."""
    with paddle.no_grad():
        return dialects.run_each(calls, tiny)


def read(x: Any) -> tuple[str, bool] | None:
    return (x.dtype.name.lower(), False) if isinstance(x, paddle.Tensor) else None


TYPES = dialects.TypeOracle(tiny, run, read, paddle.get_default_dtype, ranks_count=True)
