"""Regions that `torch.utils.checkpoint` runs again within backward.

The second run may happen outside the `use` of the first. So each region is noted at its first
forward, and later runs again under the rules of that time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from traceback import walk_stack
from typing import Any, TypeAlias

import torch
import torch.utils.checkpoint
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointFunction

from multigrad.core.backend.compiler_events import show_tensors
from multigrad.core.rules.activation import Activation
from multigrad.core.rules.context import CURRENT, ActiveRules, in_force
from multigrad.core.support.threads import set_within
from multigrad.engine.trace.moving_numbers import Noted

from ..core.compile.dynamo_guards import RUNNING
from ..core.state import as_it_is, is_forward_mode_enabled, may_run_again
from ..core.versions import top_hooks
from ..kernels.random import DRAWN

Tensor: TypeAlias = torch.Tensor

REENTRANT = "run_function"  # the attribute of a reentrant region's ctx that holds its function


def on_call() -> AbstractContextManager[Any]:
    """Note the regions around this call: each runs again under the rules of its first forward."""
    note_regions()
    return nullcontext()


def call_noted(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    """Apply an activation in a region that may be checkpointed."""
    note_regions()
    activation = activation.looked_up_again()
    if values:
        return activation.apply_as(x, activation.with_values(values))
    return activation.apply(x)


def note_regions() -> list[RunAgain]:
    """Tie each region around this call to the active rules of its first forward; return them.

    Called at the first application and at the first `use` in a region, so the active rules are
    still those around the region.
    """
    if torch.compiler.is_compiling() or not may_run_again():
        return []
    regions = []
    for owner, name in (*hooked_regions(), *reentrant_regions()):
        region = getattr(owner, name)
        if not isinstance(region, RunAgain):
            region = RunAgain(region, CURRENT.get(), name == REENTRANT)
            setattr(owner, name, region)
        regions.append(region)
    return regions


def hooked_regions() -> Iterator[tuple[Any, str]]:
    """Yield the regions of `use_reentrant=False`, each held by its hook for saved tensors."""
    hooks = []
    # torch tells only the innermost hooks, so all are popped and pushed back.
    while torch._C._autograd._saved_tensors_hooks_is_enabled() and (top := top_hooks(True)):
        torch._C._autograd._pop_saved_tensors_default_hooks()
        hooks.append(top)
    for pack, unpack in reversed(hooks):
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    for pack, _ in hooks:
        code = getattr(pack, "__code__", None)
        # The region's frame is a closure variable of torch's own pack hook.
        names = code.co_freevars if code is not None else ()
        if "frame" in names and pack.__module__ == CheckpointFunction.__module__:
            yield pack.__closure__[names.index("frame")].cell_contents, "recompute_fn"


def reentrant_regions() -> Iterator[tuple[Any, str]]:
    """Yield the regions of `use_reentrant=True`, each an `autograd.Function` being called."""
    if is_forward_mode_enabled() or torch.is_inference_mode_enabled():
        return
    for caller, _ in walk_stack(sys._getframe()):
        if caller.f_code is CheckpointFunction.forward.__code__:
            yield caller.f_locals["ctx"], REENTRANT


def draw_in_region(draw: Callable[[], Any]) -> Any:
    """Return the key of a call in a region; in a second run of it, the key of its first run."""
    rerun = RUNNING.get()
    regions = note_regions()
    key_and_origin = draw_noting(draw) if rerun is None else rerun.draw_again(draw)
    for region in regions:
        region.drawn.append(key_and_origin)
    return key_and_origin[0]


def draw_noting(draw: Callable[[], Any]) -> tuple[Any, bool]:
    count_before = DRAWN.number
    key = draw()
    return key, DRAWN.number != count_before


class RunAgain:
    """A region's function, run under the rules of its first forward and with its draws.

    Attributes:
        function: the region's own function.
        active: the rules in force at its first forward.
        is_reentrant: whether the first forward ran without recording gradients.
        noted: the moving numbers, and the meanings of rule names, at that time.
        acted: by what acted on modules then, a context in which it acts again.
        modes: the modes that applied rules to operations then, each with a context that enters it.
        drawn: the keys of calls in the first run, and whether torch's own generator produced them.
        repeated: how many of these the current run has used.
    """

    def __init__(
        self, function: Callable[..., Any], active: ActiveRules, is_reentrant: bool
    ) -> None:
        self.function = function
        self.active = active
        self.is_reentrant = is_reentrant
        self.noted = Noted()
        self.acted: dict[Any, Callable[[], AbstractContextManager[Any]]] = {}
        self.modes: dict[Any, Callable[[], AbstractContextManager[Any]]] = {}
        self.drawn: list[tuple[Any, bool]] = []
        self.repeated = 0

    def draw_again(self, draw: Callable[[], Any]) -> tuple[Any, bool]:
        position, self.repeated = self.repeated, self.repeated + 1
        if position >= len(self.drawn):
            return draw_noting(draw)
        if self.drawn[position][1]:
            # Advance the generator as in the first run: other code draws from it, too.
            draw()
        return self.drawn[position]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(in_force(self.active))
            show_tensors(self.active)
            stack.enter_context(self.noted.again())
            # With hooks `may_run_again` is true, so activations look up what names meant then.
            if self.noted.names:
                stack.enter_context(saved_tensors_hooks(as_it_is, as_it_is))
            stack.enter_context(set_within(RUNNING, self))
            self.repeated = 0
            # The mode that was noted first is the innermost.
            for enter in (*self.acted.values(), *reversed(self.modes.values())):
                stack.enter_context(enter())
            return self.function(*args, **kwargs)
