"""The workers or replicas that MULTIGRAD_CHECK_RANKS compares, and how they exchange text.

In a cluster these are the workers, each with as many lanes as it runs replicas: replica 1 of a
worker is compared with replica 1 of the others. Without one they are the replicas of one process.
`trace/ranks.py` says what is compared.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.context import context as eager_context

from multigrad.backend import Group

PREFIX = "multigrad/"  # of our keys in the store
# TensorFlow (2.21) waits for ever by default; after this time a worker counts as dead.
TIMEOUT = 100.0  # seconds
LOOK_MILLISECONDS = 100  # a look at a worker's key takes one or two
# By strategy: the messages of its replicas in this process, by key.
_messages: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


def rank_group() -> Group | None:
    """Return the workers of the cluster, or the replicas of one process, if several."""
    replica = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    # Other threads have no order that all workers share.
    if replica is None and threading.current_thread() is not threading.main_thread():
        return None
    workers = find_workers()
    if workers is not None:
        return group_of_workers(*workers, lane=lane_of(replica))
    if replica is None or replica.num_replicas_in_sync < 2:
        return None
    messages = _messages.setdefault(replica.strategy, {})
    return group_of_replicas(messages, number_of(replica), replica.num_replicas_in_sync)


def lane_of(replica: Any) -> str:
    """Return the name of a replica's thread among those of its worker; "" for the first."""
    if replica is None:
        return ""
    number = number_of(replica) % len(replica.strategy.extended.worker_devices)
    return f"replica {number}" if number else ""


def number_of(replica: Any) -> int:
    number = replica.replica_id_in_sync_group
    return number if isinstance(number, int) else int(tf.get_static_value(number))


def find_workers() -> tuple[Any, int, int] | None:
    """Return a cluster's context, this worker's rank and the number of workers, if several."""
    active = eager_context()
    server = active._collective_ops_server_def
    if active.coordination_service is None or active._context_handle is None or server is None:
        return None
    size = sum(len(job.tasks) for job in server.cluster.job if job.name == server.job_name)
    return (active, server.task_index, size) if size > 1 else None


@functools.lru_cache(16)
def group_of_workers(active: Any, rank: int, size: int, lane: str) -> Group:
    """Return the workers of a cluster, which exchange text by its coordination service."""

    def put(key: str, text: str) -> None:
        active.set_config_key_value(PREFIX + key, text)

    def look(key: str) -> str | None:
        try:
            return active.get_config_key_value(PREFIX + key, LOOK_MILLISECONDS)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return None

    def drop(key: str) -> None:
        active.delete_config_key_value(PREFIX + key)

    return Group(
        rank=rank, size=size, put=put, look=look, drop=drop, timeout=lambda: TIMEOUT, lane=lane
    )


def group_of_replicas(messages: dict[str, str], rank: int, size: int) -> Group:
    """Return the replicas in this process, of which one runs at a time: none waits for another."""
    return Group(
        rank=rank,
        size=size,
        put=messages.__setitem__,
        look=messages.get,
        drop=messages.__delitem__,
        timeout=lambda: TIMEOUT,
        waits=False,
    )
