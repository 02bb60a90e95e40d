"""Inputs of audited code that uses Triton: on the GPU, where its kernels run.

The command `audit` loads this file alone, in a process of its own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

# Its own, where this file was loaded before.
FROM_NUMPY = getattr(torch.from_numpy, "__wrapped__", torch.from_numpy)


@functools.wraps(FROM_NUMPY)
def on_gpu(array: Any) -> Any:
    return FROM_NUMPY(array).cuda()


def place_inputs() -> None:
    """Let audits make inputs and cotangents on the GPU, if there is one; they begin as arrays."""
    if torch.cuda.is_available():
        torch.from_numpy = on_gpu
