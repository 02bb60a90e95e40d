"""torch's own state: what fast code checks before it runs, and how to leave modes.

torch has no public names for most of this. Its private ones have plain names, each with
the reason why it is read. Emitted code uses these names (`attach.NAMESPACE`), so they are fixed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import Function
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from multigrad.core.support.lazy_modules import provided

from .versions import DTENSORS, top_hooks

Tensor: TypeAlias = torch.Tensor

# --- what fast code checks -----------------------------------------------------------------------
# Whether a transform of torch.func (grad, jvp, vmap) is around.
transforms_active = torch._C._are_functorch_transforms_active
# How many dispatch modes are entered: one may record a graph that is differentiated later.
count_modes = torch._C._len_torch_dispatch_stack
# The trace of torch.jit.trace, or None: it records no tuples of constants, ONNX no fast kernels.
tracing_state = torch._C._get_tracing_state
# `is_included(BATCHED)`: whether `torch.autograd.grad(is_grads_batched=True)` is around, which uses
# an older vmap that is no transform of torch.func.
is_included = torch._C._dispatch_tls_is_dispatch_key_included
BATCHED = torch._C._parse_dispatch_key("VmapMode")
is_forward_mode_enabled = torch._C._is_fwd_grad_enabled
# Fast code mixes its operands with plain tensors and writes in place; subclasses may allow neither.
KINDS = frozenset({Tensor, torch.nn.Parameter})
ACTING = "_multigrad_acting"  # on a module's class: what `xg.attach` put there, outermost last
# A forked child would wait forever for OpenMP threads that only its parent has, so fast code
# compares this id with its own process's, and another process computes on one thread.
PARENT_PROCESS = os.getpid()


def may_run_again() -> bool:
    """Return whether `torch.utils.checkpoint` may be around this call; takes 0.1 us if it is not.

    A checkpoint sets hooks for saved tensors, or (reentrant) calls from an `autograd.Function`, in
    which forward mode is off.
    """
    return top_hooks(True) is not None or not is_forward_mode_enabled()


def is_distributed(value: Any) -> bool:
    if type(value) is torch.Tensor:
        return False
    # Without an import: if the module is not loaded, there are no DTensors.
    tensors = sys.modules.get(DTENSORS)
    return tensors is not None and isinstance(value, tensors.DTensor)


class Like:
    """The shape, dtype and device of a tensor, kept for a backward that reads no values of it."""

    __slots__ = ("device", "dtype", "ndim", "shape")

    def __init__(self, x: Tensor) -> None:
        self.shape = x.shape
        self.dtype = x.dtype
        self.ndim = x.ndim
        self.device = x.device


# An input for a backward that is itself differentiated, with its version; or as hooks have packed
# it, with what unpacks it. torch would refuse a change of what `save_for_backward` has got in any
# backward. Emitted code drops it where backward runs for the last time, as torch does with others.
Late: TypeAlias = tuple[Any, Any]


def pack_late(x: Tensor) -> Late:
    """Return an input as the hooks around have packed it: a checkpoint's, or one that moves it."""
    pack, unpack = top_hooks(True)
    return pack(x), unpack


def read_late(late: Late | None) -> Tensor:
    if late is None:
        raise RuntimeError(
            "Trying to backward through the graph a second time, after what it kept was freed. "
            "Specify retain_graph=True"
        )
    x, version = late
    if callable(version):
        return version(x)
    if x._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: an input of shape {tuple(x.shape)} is at version {x._version}; expected "
            f"version {version} instead. A derivative of a backward reads the input itself"
        )
    return x


def eager_of(native: Any) -> Callable[..., Any]:
    """Return the `apply` of a Function for calls outside transforms.

    A Function is emitted as one class with forward mode, or as two: `native`, with what transforms
    need, and `native.eager`, whose forward has less to do.
    """
    if native.eager is native:
        return native.apply
    # `Function.apply` first looks for default arguments, in Python; its base is in C.
    base: Any = super(Function, native.eager)
    return base.apply


# --- outside modes -------------------------------------------------------------------------------


@contextmanager
def without_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def outside_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in the dtypes of its arguments, also under autocast."""

    @wraps(function)
    def run(*arguments: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return function(*arguments)
        with without_autocast():
            return function(*arguments)

    return run


@contextmanager
def untraced() -> Iterator[None]:
    """Leave a trace of torch.jit, which records everything that runs."""
    state = tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


@contextmanager
def without_modes() -> Iterator[None]:
    """Leave torch.func transforms and all modes: tracing, fake tensors, default devices."""
    with ExitStack() as stack:
        stack.enter_context(untraced())
        if torch._C._are_functorch_transforms_active():
            stack.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        # No call of torch suspends function modes: each is popped, and pushed back in order.
        modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        try:
            yield
        finally:
            for mode in reversed(modes):
                _push_mode(mode)


def as_it_is(saved: Tensor) -> Tensor:
    return saved


@provided
def replaying() -> AbstractContextManager[Any]:
    """Return a mode in which torch's own draws take the keys of a proof: the core proves none."""
    return nullcontext()


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return the result of a function that runs outside every mode, transform and hook, under
    torch's defaults, for a proof; put torch's own state back.
    """
    # The run may draw, and must not shift the program's own draws.
    state = torch.get_rng_state()
    is_grad_enabled, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(without_modes())
        stack.enter_context(without_autocast())
        if top_hooks(True) is not None:  # checkpointed regions count what their hooks are given
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if is_random:
            stack.enter_context(replaying())
        try:
            return run()
        finally:
            torch.set_rng_state(state)
            torch.set_grad_enabled(is_grad_enabled)
            torch.set_default_dtype(dtype)


def scalar(number: float) -> Tensor:
    """Return a tensor of the CPU for all later calls, also where the first is within an export."""
    with without_modes(), torch.inference_mode(False):
        return torch.full((), number, dtype=torch.float32, device="cpu")
