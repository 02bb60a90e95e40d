"""How tensors of torch lie in memory, as proofs and kernels that write into it ask."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..releases import hashable_keys

Tensor: TypeAlias = torch.Tensor
# What kernels a tensor needs, as a set of keys: each way in which it is unlike plain memory is one.
dispatch_keys = torch._C._dispatch_keys


def is_memory(x: Tensor) -> bool:
    """Return whether a tensor is plain strided memory: not lazily zero, negated or conjugate.

    Such tensors have dispatch keys that a new tensor on the same kind of device has not.
    """
    keys = hashable_keys(dispatch_keys(x))
    # Asking for the device would double the time of a call.
    return keys in _plain_keys or keys in plain_keys_on(x.device.type)


# The keys of plain tensors, of each kind of device asked for so far. Never emptied.
_plain_keys: set[Any] = set()


@cache
def plain_keys_on(device: str) -> frozenset[Any]:
    """Return the dispatch keys of plain tensors on a kind of device, and add them to the table."""
    keys = set()
    for is_inference in (False, True):
        with torch.inference_mode(is_inference), _disable_current_modes():
            keys.add(hashable_keys(dispatch_keys(torch.empty(0, device=device))))
    _plain_keys.update(keys)
    return frozenset(keys)


def say_unwritable(tensor: torch.Tensor) -> str:
    """Return why a tensor cannot be written to, "" if it can."""
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        return "it is a leaf that requires grad; call within torch.no_grad()"
    is_dense = tensor.layout is torch.strided
    if is_dense and 0 in tensor.stride() and torch._debug_has_internal_overlap(tensor) == 1:
        return "several of its elements are one number in memory (expand): give its clone()"
    return ""


def is_strided(x: torch.Tensor) -> bool:
    """Return whether a tensor is neither sparse nor of another special layout."""
    return x.layout is torch.strided


def lies_in_order(x: torch.Tensor) -> bool:
    return is_strided(x) and x.is_contiguous()


def address(x: torch.Tensor) -> Any:
    # Without elements, or a storage, it shares none.
    return x.untyped_storage().data_ptr() if is_strided(x) and x.numel() else id(x)
