"""What fast code asks of torch's state before it runs, and what backward reads of a tensor."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.autograd import Function
from torch.utils._python_dispatch import _disable_current_modes

from .versions import told_keys

Tensor: TypeAlias = torch.Tensor
transforms_active = torch._C._are_functorch_transforms_active
# The dispatch modes that are entered: one may record a graph, differentiated later.
count_modes = torch._C._len_torch_dispatch_stack
# torch.jit.trace does not know constants in a tuple, nor ONNX the fast kernels.
tracing_state = torch._C._get_tracing_state
# `torch.autograd.grad(is_grads_batched=True)` maps by an older vmap, no functorch transform.
is_included = torch._C._dispatch_tls_is_dispatch_key_included
BATCHED = torch._C._parse_dispatch_key("VmapMode")
# Fast code mixes its operands with plain tensors and writes in place: others may allow neither.
KINDS = frozenset({Tensor, torch.nn.Parameter})
dispatch_keys = torch._C._dispatch_keys
# A forked child would wait for ever for threads of OpenMP that only its parent has: it gets one.
PROCESS = os.getpid()


def is_memory(x: Tensor) -> bool:
    """Return whether a tensor is memory of its device, as nothing but memory: no zeros or negatives
    that are only noted, no other layout.
    """
    keys = told_keys(dispatch_keys(x))
    return keys in _seen or keys in keys_of_memory(x.device.type)


_seen: set[Any] = set()  # of every kind of device that was asked for


@cache
def keys_of_memory(device: str) -> frozenset[Any]:
    """Return the dispatch keys of plain tensors on a kind of device."""
    found = set()
    for inference in (False, True):
        with torch.inference_mode(inference), _disable_current_modes():
            found.add(told_keys(dispatch_keys(torch.empty(0, device=device))))
    _seen.update(found)
    return frozenset(found)


class Like:
    """What backward reads of a tensor that it computes nothing from."""

    __slots__ = ("device", "dtype", "ndim", "shape")

    def __init__(self, x: Tensor) -> None:
        self.shape = x.shape
        self.dtype = x.dtype
        self.ndim = x.ndim
        self.device = x.device


def eager_of(native: Any) -> Callable[..., Any]:
    """Return the `apply` of a Function for use outside transforms."""
    if native.eager is native:  # with forward mode there is one class only
        return native.apply
    # Function.apply looks for default arguments in Python first; its base is the C implementation.
    base: Any = super(Function, native.eager)
    return base.apply
