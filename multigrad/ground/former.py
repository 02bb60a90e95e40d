"""Where things stood that pickles of earlier versions name: a pickle outlives its makers' rooms.

A module that is gone stands here with what pickles name of it, and the room where each is now. The
files of `tests/data` hold what must be found.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

FORMER = {
    "multigrad.activation": {"Activation": "multigrad.in_force.activation"},
    "multigrad.rule": {
        "Rule": "multigrad.rulebook.rule",
        "_by_name": "multigrad.rulebook.rule",
        "_rebuild": "multigrad.rulebook.rule",
    },
    "multigrad.rule_documents": {"function_of": "multigrad.saving.files"},
}


class _FormerModule(ModuleType):
    """A module that is gone."""

    def __getattr__(self, name: str) -> Any:
        rooms = FORMER[self.__name__]
        if name not in rooms:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(import_module(rooms[name]), name)


for _module in FORMER:
    sys.modules.setdefault(_module, _FormerModule(_module))
