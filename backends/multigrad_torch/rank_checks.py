"""The processes that MULTIGRAD_CHECK_RANKS compares, and when: before each `optimizer.step()`.

They exchange text through the key-value store of the default process group; `trace/ranks.py` says
what is compared.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from multigrad.backend import Group
from multigrad.trace.ranks import CHECKED, compare

from . import dynamo

PREFIX = "multigrad"  # of our keys in the store


class Latest:
    """The store of the default process group and our group on it; replaced with the store."""

    store: Any = None
    group: Group | None = None


def rank_group() -> Group | None:
    """Return the ranks of the default process group; None without one, or for one rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    # Comparisons are made by the main thread only.
    if threading.current_thread() is not threading.main_thread():
        return None
    store = distributed.distributed_c10d._get_default_store()
    if store is not Latest.store:
        Latest.store, Latest.group = store, None
        if distributed.get_world_size() > 1:
            Latest.group = make_group(distributed, store)
    return Latest.group


def make_group(distributed: Any, store: Any) -> Group:
    """Return the ranks of the default process group, which write to its store and read from it."""
    keys = distributed.PrefixStore(PREFIX, store)

    def put(key: str, text: str) -> None:
        keys.set(key, text)

    def look(key: str) -> str | None:
        return keys.get(key).decode() if keys.check([key]) else None

    def drop(key: str) -> None:
        # The file of a FileStore only grows, by deletions too.
        if not isinstance(store, distributed.FileStore):
            keys.delete_key(key)

    def timeout() -> float:
        return store.timeout.total_seconds()

    rank, size = distributed.get_rank(), distributed.get_world_size()
    return Group(rank=rank, size=size, put=put, look=look, drop=drop, timeout=timeout)


@dynamo.disable
def before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
    compare("optimizer.step()")


if CHECKED:
    register_optimizer_step_pre_hook(before_update)
