"""What acts on modules in regions that `torch.utils.checkpoint` runs again within backward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from traceback import walk_stack
from typing import Any

import torch
import torch.utils.checkpoint

from ..compile.checkpoint_regions import RUNNING, note_regions, reentrant_regions
from ..core.state import is_forward_mode_enabled
from ..core.versions import top_hooks

CHECKPOINT = vars(torch.utils.checkpoint)
graph_task = torch._C._current_graph_task_id  # -1 outside backward


def note_acting(key: Any, act_again: Callable[[], AbstractContextManager[Any]]) -> None:
    """Note that a rule acts on modules in the regions around this call, and how to repeat that."""
    for region in note_regions():
        region.acted.setdefault(key, act_again)


def is_around_region() -> bool:
    """Return whether a region may be around this call, in its first or second run."""
    return top_hooks(True) is not None or not is_forward_mode_enabled() or graph_task() != -1


def is_second_run() -> bool:
    return graph_task() != -1 and (RUNNING.get() is not None or is_run_again())


def has_acted(key: Any) -> bool:
    """Return whether something acted on modules in the first run of a region that runs again."""
    rerun = RUNNING.get()
    if rerun is not None:
        return key in rerun.acted
    # Outside second runs it may act; in one that was not noted, nothing has acted.
    return graph_task() == -1 or not is_run_again()


def is_run_again() -> bool:
    """Return whether torch runs a region again in which nothing of ours acted before."""
    return any(caller.f_globals is CHECKPOINT for caller, _ in walk_stack(sys._getframe()))


def is_first_without_gradients() -> bool:
    """Return whether a reentrant region runs for the first time, without gradients, or again."""
    rerun = RUNNING.get()
    if rerun is not None:
        # A call must draw in both runs or in none, or the second would get other keys.
        return rerun.is_reentrant
    return not is_forward_mode_enabled() and any(reentrant_regions())
