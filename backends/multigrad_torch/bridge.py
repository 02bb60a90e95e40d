"""Torch tensors to and from NumPy, so that no backend knows another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a tensor; bfloat16 keeps its dtype (ml_dtypes)."""
    x = x.detach().cpu()
    if x.dtype is torch.bfloat16:
        import ml_dtypes

        return x.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def from_numpy(x: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a copy of a NumPy array as a tensor; bfloat16 (ml_dtypes) keeps its dtype."""
    x = np.array(x)  # a copy of its own: torch writes in place
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def is_traced(x: Any) -> bool:
    """Return whether a tensor's values are known at run time only."""
    if torch.compiler.is_compiling():
        return True
    if not isinstance(x, torch.Tensor):
        return False
    # A meta tensor has no values at all.
    return x.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(x)


def dtype(name: str) -> torch.dtype:
    """Return torch's dtype of an IR name."""
    return getattr(torch, name)
