"""A tensor as a program sees it from outside: its values, and facts about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..state import transforms_active

# On a meta tensor that represents another in compiled code: the device type of that one.
STANDS_ON = "_multigrad_device_type"


def to_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a tensor, dense if it is sparse; bfloat16 stays bfloat16 (ml_dtypes)."""
    # DLPack (torch 2.13) drops the sign of lazily negated tensors, such as conj().imag.
    x = x.detach().cpu().resolve_neg()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x._is_zerotensor():  # it has no memory to share
        x = torch.zeros(x.shape, dtype=x.dtype)
    if x.dtype is torch.bfloat16:
        import ml_dtypes

        return share(x.contiguous().view(torch.uint16)).view(ml_dtypes.bfloat16)
    return share(x)


def share(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array on a tensor's memory, which torch may still free and resize.

    `Tensor.numpy()` forbids resizing for good, and `fully_shard` frees what it has gathered.
    """
    try:
        return np.from_dlpack(x)  # type: ignore[arg-type]
    except (BufferError, RuntimeError, TypeError):  # another class of tensors, or a dtype
        return x.numpy()


def from_numpy(x: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a copy of a NumPy array as a tensor; bfloat16 (ml_dtypes) stays bfloat16."""
    return on_memory(np.array(x))  # a copy of its own: torch writes in place


def on_memory(x: np.ndarray[Any, Any]) -> torch.Tensor:
    # The kind is tested first: NumPy takes long to name a dtype.
    if x.dtype.kind == "V" and x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def constant(x: np.ndarray[Any, Any], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return from_numpy(x).to(tensors[0].device)


def is_traced(x: Any) -> bool:
    if torch.compiler.is_compiling():
        return True
    if not isinstance(x, torch.Tensor):
        return False
    # A meta tensor has no values at all.
    return x.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(x)


def dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def device_type(x: torch.Tensor) -> str:
    """Return the device type of a tensor, or of the one that it represents."""
    return getattr(x, STANDS_ON, x.device.type)


def requires_grad(x: torch.Tensor) -> bool:
    """Return whether a tensor requires a gradient, or its derivative may be taken otherwise."""
    # The tangent in forward mode is that of backward, so backward has to give each gradient.
    is_differentiated = transforms_active() or forward_ad._current_level >= 0
    return x.requires_grad or (is_differentiated and x.is_floating_point())
