"""The command `multigrad same`: names in files or modules to two paths, parameters and a batch."""

from __future__ import annotations

from typing import Any

import multigrad as xg
from multigrad.audit.same import LAWS_OF_BATCHES, SameReport
from multigrad.command.named_objects import find_in
from multigrad.command.targets import import_target


def compare_named(path_a: str, path_b: str, parameters: str, batch: str) -> SameReport:
    """Compare two paths by their names, each behind its file or module and a colon.

    A name alone is looked up where the first path is. Parameters and a batch may be functions
    without arguments that make them.
    """
    home = path_a.rpartition(":")[0]

    def named(word: str) -> Any:
        module, _, name = word.rpartition(":")
        return find_in(import_target(module or home), name)

    def made(word: str) -> Any:
        found = named(word)
        is_maker = callable(found) and getattr(found, "__code__", None) is not None
        return found() if is_maker else found

    other = path_b if path_b in LAWS_OF_BATCHES else named(path_b)
    return xg.same(named(path_a), other, made(parameters), made(batch))
