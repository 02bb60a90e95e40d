"""The rules in force at a module's forwards, from which hooks on its parameters choose.

A backward may belong to a forward that is not the last one. So when backward reaches the outputs of
the outermost module, they note how far forwards had come at that time. Eras count the changes of
the active rules on one thread.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multigrad.core.rules.context import CURRENT, EMPTY, ActiveRules
from multigrad.core.support.threads import SERIALS, make_lock
from multigrad.engine.trace.moving_numbers import all_at_present

from ..compile.checkpoint_regions import note_regions
from ..core import dynamo

Tensor: TypeAlias = torch.Tensor
# Notes of one module: a backward after so many changes of the rules takes the oldest note.
MOST_NOTES = 16
MOST_BACKWARDS = 256
DEVICES = ("cuda", "cpu")


class _Era(threading.local):
    """The number of the active rules that this thread noted last."""

    number = 0
    active: ActiveRules | None = None


_ERA = _Era()
# By running backward, the era that it has reached; the engine may use threads of its own.
_REACHED: OrderedDict[int, int] = OrderedDict()


def era_of(active: ActiveRules) -> int:
    """Return the era of these rules, a new one if this thread noted other rules last."""
    # All threads count together, so that notes of one module can be compared.
    if _ERA.active is not active:
        _ERA.active, _ERA.number = active, next(SERIALS)
    return _ERA.number


class Forwards:
    """The active rules at a module's forwards that record gradients, by their eras."""

    def __init__(self) -> None:
        self.notes: deque[tuple[int, ActiveRules]] = deque(maxlen=MOST_NOTES)
        self.hooks: set[Hashable] = set()
        # These hook new parameters, in a model whose hooks were attached explicitly.
        self.renewals: list[Callable[[], None]] = []
        self.is_half = False  # whether autocast to float16 was on
        self.marks = False
        self._handles: list[Any] = []

    @dynamo.disable
    def __call__(self, module: nn.Module, inputs: Any) -> None:
        for renew in (*self.renewals,):  # another thread may remove one
            renew()
        self.note()

    def note(self) -> None:
        note_regions()
        # An evaluation between forward and backward does not count.
        if not torch.is_grad_enabled():
            return
        active = all_at_present(CURRENT.get())
        era = era_of(active)
        self.is_half = torch._C._is_any_autocast_enabled() and any(map(is_half, DEVICES))
        if not self.notes or self.notes[-1][0] != era:
            self.notes.append((era, active))

    def note_at(self, era: float) -> tuple[int, ActiveRules]:
        """Return the last note up to the end of an era, else the oldest one, or an empty one."""
        for note in reversed(self.notes):
            if note[0] <= era:
                return note
        return self.notes[0] if self.notes else (0, EMPTY)

    def mark(self, module: nn.Module) -> None:
        with HOOKING:
            if not self.marks:
                self.marks = True
                self._handles.append(module.register_forward_hook(mark_outputs))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        # Without handles `forwards_of` makes a new object, so this one may stay in the dict.
        self._handles.clear()
        self.notes.clear()
        self.renewals.clear()
        self.marks = False

    def __deepcopy__(self, memo: Any) -> Forwards:
        # A copied module copies its hooks, but a parameter's hooks are not copied.
        return Forwards()

    def __reduce__(self) -> Any:
        return Forwards, ()


# Held while hooks are attached or removed, so that a module has one `Forwards`.
HOOKING = make_lock()
# By module; a value refers to its module only weakly, or neither would be freed.
_forwards: weakref.WeakKeyDictionary[nn.Module, Forwards] = weakref.WeakKeyDictionary()


def is_half(device: str) -> bool:
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.float16


def forwards_of(module: nn.Module) -> Forwards:
    """Return the object that notes a module's forwards; each hook must keep a reference to it."""
    with HOOKING:
        forwards = _forwards.get(module)
        if forwards is None or not forwards._handles:  # it has been removed
            forwards = _forwards[module] = Forwards()
            forwards._handles.append(module.register_forward_pre_hook(forwards))
        return forwards


def forget(module: nn.Module) -> None:
    with HOOKING:
        forwards = _forwards.pop(module, None)
        if forwards is not None:
            forwards.remove()


def forget_idle(model: nn.Module) -> None:
    """Stop noting the forwards of modules in a model whose parameters have no hooks."""
    for module in model.modules():
        forwards = _forwards.get(module)
        if forwards is not None and not forwards.hooks and not forwards.renewals:
            forget(module)


def rules_for(forwards: Sequence[Forwards]) -> ActiveRules:
    """Return the active rules of the modules' last forward that the running backward belongs to."""
    era = _REACHED.get(torch._C._current_graph_task_id(), math.inf)
    return max((each.note_at(era) for each in forwards), key=itemgetter(0))[1]


def note_reached(era: int, grad: Tensor) -> None:
    """Note, as a hook on an output, that backward has reached the forwards of an era."""
    task = torch._C._current_graph_task_id()
    # Moved to the end: the oldest backwards are forgotten first.
    _REACHED[task] = max(era, _REACHED.pop(task, 0))
    while len(_REACHED) > MOST_BACKWARDS:
        _REACHED.popitem(last=False)


@dynamo.disable
def mark_outputs(module: nn.Module, inputs: Any, outputs: Any) -> None:
    """Tie a module's outputs to the rules of its forward, which has just ended."""
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return
    note = partial(note_reached, era_of(all_at_present(CURRENT.get())))
    for output in pytree.tree_leaves(outputs):
        if isinstance(output, torch.Tensor) and output.grad_fn is not None:
            output.register_hook(note)
