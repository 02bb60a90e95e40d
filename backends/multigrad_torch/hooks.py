"""Regions that `torch.utils.checkpoint` runs again.

It runs forward again within backward, perhaps outside of its `use`: a region is noted at its first forward, and then runs
under that frame.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.utils.checkpoint import CheckpointFunction

from multigrad.activation import Activation, tracers
from multigrad.context import CURRENT, Application, Counter, Frame
from multigrad.lowering.backend import mirror_frame

Tensor: TypeAlias = Any

top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
is_forward_mode_enabled = torch._C._is_fwd_grad_enabled


def may_run_again() -> bool:
    """Return whether `torch.utils.checkpoint` may be around this call, at 0.1 us where it is not.

    It sets hooks for saved tensors, or (reentrant) calls from an `autograd.Function`, where forward mode is off.
    """
    return top_hooks(True) is not None or not is_forward_mode_enabled()


def call_noted(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    """Apply an activation in what may be a checkpointed region."""
    note_regions()
    if values:
        return activation.apply_as(x, activation.with_values(values))
    return activation.apply(x)


def note_regions() -> None:
    """Tie each region around this call to the frame of its first forward.

    Called at the first application and at the first `use` in a region, so the frame is still that around it.
    """
    if torch.compiler.is_compiling() or not may_run_again():
        return
    for owner, name in (*hooked_regions(), *reentrant_regions()):
        function = getattr(owner, name)
        if not isinstance(function, RunAgain):
            setattr(owner, name, RunAgain(function, CURRENT.get()))


def hooked_regions() -> Iterator[tuple[Any, str]]:
    """Yield the regions of `use_reentrant=False`: each is held by its hook for saved tensors."""
    hooks = []
    while torch._C._autograd._saved_tensors_hooks_is_enabled() and (top := top_hooks(True)):
        torch._C._autograd._pop_saved_tensors_default_hooks()
        hooks.append(top)
    for pack, unpack in reversed(hooks):
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    for pack, _ in hooks:
        code = getattr(pack, "__code__", None)
        names = code.co_freevars if code is not None else ()
        if "frame" in names and pack.__module__ == CheckpointFunction.__module__:
            yield pack.__closure__[names.index("frame")].cell_contents, "recompute_fn"


def reentrant_regions() -> Iterator[tuple[Any, str]]:
    """Yield the regions of `use_reentrant=True`: each is an `autograd.Function` being called."""
    if is_forward_mode_enabled() or torch.is_inference_mode_enabled():
        return
    caller = sys._getframe()
    while caller is not None:
        if caller.f_code is CheckpointFunction.forward.__code__:
            yield caller.f_locals["ctx"], "run_function"
        caller = caller.f_back


class RunAgain:
    """A region's function, run under the frame of its first forward; draws count as they did there."""

    def __init__(self, function: Callable[..., Any], frame: Frame) -> None:
        self.function = function
        self.frame = frame
        application = frame.activations
        self.count = getattr(application.counter, "count", None) if application else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        frame = self.frame
        if self.count is not None and frame.activations is not None:
            counter = Counter()
            counter.advance(self.count)
            application = Application(frame.activations.spec, frame.activations.key, counter)
            frame = replace(frame, activations=application)
        with ExitStack() as stack:
            mirror_frame(stack, frame.token)
            stack.callback(CURRENT.reset, CURRENT.set(frame))
            return self.function(*args, **kwargs)


tracers.append((torch.Tensor, may_run_again, call_noted))
