"""Which dtype torch gives a call: the call itself, on tensors of one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from multigrad.capture.type_oracle import StandInCall, TypeOracle, run_each


def tiny(dtype: str, rank: int, number: int, is_weak: bool) -> torch.Tensor:
    return torch.full((1,) * rank, number, dtype=getattr(torch, dtype))


def run(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    """Run calls outside of every mode, transform and record."""
    modes = torch.utils._python_dispatch._disable_current_modes()
    with modes, torch._C._DisableFuncTorch(), torch.no_grad():
        return run_each(calls, tiny)


def read(x: Any) -> tuple[str, bool] | None:
    return (str(x.dtype).removeprefix("torch."), False) if isinstance(x, torch.Tensor) else None


TYPES = TypeOracle(tiny, run, read, torch.get_default_dtype, ranks_count=True)
