"""The processes of `torch.distributed`, and their store: what the debug check
MULTIGRAD_CHECK_RANKS compares by.

`optimizer.step()` is the end of a step on every rank, whatever rule is in force there: a rank with
no rule comes to it too.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from multigrad.backend import Group
from multigrad.trace.scope.ranks import CHECKED, compare

from .. import dynamo

KEYS = "multigrad"  # how ours begin


class _Known:
    """The group of the store that was met last."""

    store: Any = None
    group: Group | None = None


def group() -> Group | None:
    """Return the ranks of the default process group; None: there is none, or it is of one, or
    another thread than the main one asks.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if threading.current_thread() is not threading.main_thread():
        return None
    store = distributed.distributed_c10d._get_default_store()
    if store is not _Known.store:
        _Known.store, _Known.group = store, None
        if distributed.get_world_size() > 1:
            _Known.group = make_group(distributed, store)
    return _Known.group


def make_group(distributed: Any, store: Any) -> Group:
    """Return the ranks that share a store."""
    keys = distributed.PrefixStore(KEYS, store)

    def put(key: str, text: str) -> None:
        keys.set(key, text)

    def look(key: str) -> str | None:
        return keys.get(key).decode() if keys.check([key]) else None

    def drop(key: str) -> None:
        if not isinstance(store, distributed.FileStore):  # a file only grows
            keys.delete_key(key)

    def timeout() -> float:
        return store.timeout.total_seconds()

    rank, size = distributed.get_rank(), distributed.get_world_size()
    return Group(rank=rank, size=size, put=put, look=look, drop=drop, timeout=timeout)


@dynamo.disable
def before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Compare before parameters change."""
    compare("optimizer.step()")


if CHECKED:
    register_optimizer_step_pre_hook(before_update)
