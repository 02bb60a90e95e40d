"""The command `multigrad same`: names in files or modules to two paths, parameters and a batch."""

from __future__ import annotations

from typing import Any

import multigrad as xg
from multigrad.audit.same import LAWS_OF_BATCHES, SameReport
from multigrad.command.named_objects import find_in, split_name
from multigrad.command.targets import import_target


def compare_named(path_a: str, path_b: str, parameters: str, batch: str) -> SameReport:
    """Compare two paths by their names, each behind its file or module and a colon.

    A name alone is looked up where the first path is. Parameters and a batch may be functions
    without arguments that make them.
    """
    home, _ = split_name(path_a)

    def find_word(word: str) -> Any:
        module, name = split_name(word)
        return find_in(import_target(module if name else home), name or word)

    def find_or_make(word: str) -> Any:
        obj = find_word(word)
        is_maker = callable(obj) and getattr(obj, "__code__", None) is not None
        return obj() if is_maker else obj

    second_path = path_b if path_b in LAWS_OF_BATCHES else find_word(path_b)
    return xg.same(find_word(path_a), second_path, find_or_make(parameters), find_or_make(batch))
