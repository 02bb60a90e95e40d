"""Values of tensors outside torch: NumPy arrays, DLPack buffers and numbers of Python.

Other frameworks read a tensor by the buffer that `lend` makes, and torch reads theirs by `borrow`,
so that no backend knows another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from multigrad.backend import SharedBuffer


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
    x = np.array(x)  # a copy of its own: torch writes in place
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


def read_number(x: torch.Tensor) -> Any:
    """Return the number in a 0-d tensor if no device has to be waited for, otherwise the tensor."""
    if is_traced(x) or x.device.type != "cpu" or torch._C._is_tracing():
        return x
    return x.item()


def dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def lend(x: torch.Tensor) -> SharedBuffer:
    """Return a buffer for other frameworks to read, without a copy for contiguous CPU tensors."""
    x = x.detach().resolve_neg()
    if x.device.type != "cpu":
        x = x.cpu()
    x = x.contiguous()
    return SharedBuffer(
        str(x.dtype).removeprefix("torch."), tuple(x.shape), partial(to_numpy, x), x
    )


def borrow(lent: SharedBuffer, own: bool = False) -> torch.Tensor:
    """Return a tensor on a buffer that another framework lent, or a copy if `own` is set."""
    if lent.exporter is None:
        x = lent.array()
        # torch may write in place, so it gets no read-only memory.
        if own or not x.flags.writeable or not x.flags.c_contiguous:
            return from_numpy(x)
        if lent.dtype == "bfloat16":
            return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(x)
    shared = torch.from_dlpack(lent.exporter)
    return shared.clone() if own else shared


def say_unwritable(tensor: torch.Tensor) -> str:
    """Return why a tensor cannot be written to, "" if it can."""
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        return "it is a leaf that requires grad; call within torch.no_grad()"
    is_dense = tensor.layout is torch.strided
    if is_dense and 0 in tensor.stride() and torch._debug_has_internal_overlap(tensor) == 1:
        return "several of its elements are one number in memory (expand): give its clone()"
    return ""
