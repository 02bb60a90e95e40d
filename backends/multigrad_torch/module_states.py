"""Modules that captured code calls: what they hold is looked at anew at each call of what was
captured, as `.eval()` and `.train()` change what they compute.

A module with tensors is a matter of `multigrad.functions.held`, or runs as it is.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Self

import torch

from multigrad.active.reads import Telling, look_up
from multigrad.capture.interception import Interception
from multigrad.ground.trees import optree
from multigrad.tracing.trace import Value

COUNT = itertools.count()
NUMBERS: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
PLAIN = (bool, int, float, str, type(None))
CALL: Any = vars(torch.nn.Module)["__call__"]


class ModuleState(Telling):
    """The fact that tells what a module holds: its flags, its numbers, its modules."""

    may_be_made = True
    module: weakref.ref[torch.nn.Module]

    @classmethod
    def of(cls, module: torch.nn.Module) -> Self:
        """Return the fact about a module."""
        number = NUMBERS.setdefault(module, next(COUNT))  # an id may be another's later
        fact = cls(f"state {number} of a {type(module).__name__}")
        fact.module = weakref.ref(module)
        return fact

    def meaning(self) -> Any:
        """Return what it holds now, as a key: of each module in it the class and the numbers."""
        whole = self.module()
        return (
            None
            if whole is None
            else tuple(
                (type(module), *[row for row in vars(module).items() if type(row[1]) in PLAIN])
                for module in whole.modules()
            )
        )

    def is_over(self) -> bool:
        """Return whether the module is no more: code that makes one anew each time reads none."""
        return self.module() is None


def call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """Call a module; on symbolic values, note what it holds, with all that is in it."""
    given: Any = (args, kwargs)
    symbols = (leaf for leaf in optree.tree_leaves(given) if isinstance(leaf, Value))
    trace = next((each.trace for each in symbols), None)
    if trace is None or not trace.looks_into:
        return CALL(self, *args, **kwargs)
    look_up(ModuleState.of(self))
    trace.looks_into = False
    try:
        return CALL(self, *args, **kwargs)
    finally:
        trace.looks_into = True


INTERCEPTIONS = (Interception(torch.nn.Module, "__call__", call),)
