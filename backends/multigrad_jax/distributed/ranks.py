"""The processes of `jax.distributed`, and their coordination service: what the debug check
MULTIGRAD_CHECK_RANKS compares by.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax

from multigrad.backend import Group

from ..versions import distributed

KEYS = "multigrad/"  # how ours begin
SECONDS = 100.0  # after so many jax (0.10) takes a process for dead that says nothing, by default
MISSING = "NOT_FOUND"


def group() -> Group | None:
    """Return the processes of `jax.distributed.initialize`; None: it was not called, or there is
    one, or another thread than the main one asks.
    """
    state = distributed.global_state
    if state.client is None or (state.num_processes or 1) < 2:
        return None
    if threading.current_thread() is not threading.main_thread():
        return None
    return make_group(state.client, state.process_id, state.num_processes)


@functools.lru_cache(1)
def make_group(client: Any, rank: int, size: int) -> Group:
    """Return the processes that share a coordination service."""

    def put(key: str, text: str) -> None:
        client.key_value_set(KEYS + key, text)

    def look(key: str) -> str | None:
        try:
            return client.key_value_try_get(KEYS + key)
        except jax.errors.JaxRuntimeError as error:
            if MISSING in str(error):
                return None
            raise

    def drop(key: str) -> None:
        client.key_value_delete(KEYS + key)

    return Group(rank=rank, size=size, put=put, look=look, drop=drop, timeout=timeout)


def timeout() -> float:
    """Return how long jax waits for a process that says nothing."""
    return SECONDS
