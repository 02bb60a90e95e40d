"""Replicas of `tf.distribute` that see the rules in force around them, and exchange debug checks.

A replica runs on a thread, which starts with an empty context, and TensorFlow copies only the state
that it knows. So each replica runs in a copy of the context around it, whichever strategy starts
the threads, and draws are counted in each from where they parted. Replicas take turns, from one
`merge_call` to the next, and never race. TensorFlow has no public hook: its functions that start
the threads and that enter a `merge_call` are replaced.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import mirrored_run  # pyright: ignore[reportAttributeAccessIssue]
from tensorflow.python.eager import context

from multigrad.backend import Group
from multigrad.graph.support.class_bases import dataclass
from multigrad.rules.context import CURRENT, ActiveRules
from multigrad.trace.active_rules import BRANCH, Branch, Counter, join, part

start_replicas = mirrored_run._call_for_each_replica
pause_to_merge = mirrored_run._MirroredReplicaContext._merge_call


@functools.wraps(start_replicas)
def call_for_each_replica(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function once per replica, each in a copy of this call's context."""
    around = copy_context()
    branches = part(len(strategy.extended.worker_devices))

    def call_replica(*args: Any, **kwargs: Any) -> Any:
        thread: Any = threading.current_thread()
        own = around.copy()
        own.run(BRANCH.set, branches[thread.replica_id])
        return own.run(fn, *args, **kwargs)

    try:
        return start_replicas(strategy, call_replica, args, kwargs)
    finally:
        join(branches)


@dataclass(frozen=True, slots=True, eq=False)
class MergeCall:
    """The draws of a `merge_call`: the first replica's active rules, and the count of draws."""

    active: ActiveRules
    branch: Branch


@functools.wraps(pause_to_merge)
def merge_call(context: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function across replicas in a copy of the first one's context."""
    around, active = copy_context(), CURRENT.get()
    (branch,) = part(1)

    def merge(*args: Any, **kwargs: Any) -> Any:
        around.run(BRANCH.set, branch)
        return around.run(fn, *args, **kwargs), MergeCall(active, branch)

    result, merged = pause_to_merge(context, merge, args, kwargs)
    # each replica counts on after the draws of the merged call
    own = dict(zip(counters(merged.active), counters(active), strict=True))
    for counter, number in merged.branch.numbers.items():
        (own.get(counter) or counter).advance(number)
    return result


def counters(active: ActiveRules) -> Iterator[Counter | None]:
    """Yield the counters of the active rules; replicas that enter a `use` have one each."""
    for in_force in (active.activations, active.params):
        yield None if in_force is None else in_force.counter


mirrored_run._call_for_each_replica = call_for_each_replica
mirrored_run._MirroredReplicaContext._merge_call = merge_call


# --- the exchange of the debug check MULTIGRAD_CHECK_RANKS ----------------------------------------
# The workers of a strategy and their coordination service, and the replicas within one process.
KEYS = "multigrad/"  # the prefix of our keys
# TensorFlow (2.21) waits for ever by default; after this time a worker counts as dead.
SECONDS = 100.0
LOOK = 100  # milliseconds; a look at a worker's key takes one or two
# By strategy: the messages of its replicas in this process.
_said: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


def group() -> Group | None:
    """Return the workers of the cluster, or the replicas of one process, if several."""
    replica = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    # other threads have no order that all workers share
    if replica is None and threading.current_thread() is not threading.main_thread():
        return None
    workers = find_workers()
    if workers is not None:
        number = 0 if replica is None else number_of(replica)
        here = 1 if replica is None else len(replica.strategy.extended.worker_devices)
        return make_group(*workers, lane=f"replica {number % here}" if number % here else "")
    if replica is None or replica.num_replicas_in_sync < 2:
        return None
    said = _said.setdefault(replica.strategy, {})
    return replicas(said, number_of(replica), replica.num_replicas_in_sync)


def number_of(replica: Any) -> int:
    number = replica.replica_id_in_sync_group
    return number if isinstance(number, int) else int(tf.get_static_value(number))


def find_workers() -> tuple[Any, int, int] | None:
    """Return a cluster's context, this worker's rank and the number of workers, if several."""
    active = context.context()
    server = active._collective_ops_server_def
    if active.coordination_service is None or active._context_handle is None or server is None:
        return None
    size = sum(len(job.tasks) for job in server.cluster.job if job.name == server.job_name)
    return (active, server.task_index, size) if size > 1 else None


@functools.lru_cache(16)
def make_group(active: Any, rank: int, size: int, lane: str) -> Group:
    put, look, drop = store_of(active)
    return Group(
        rank=rank, size=size, put=put, look=look, drop=drop, timeout=lambda: SECONDS, lane=lane
    )


def store_of(active: Any) -> Any:
    def put(key: str, text: str) -> None:
        active.set_config_key_value(KEYS + key, text)

    def look(key: str) -> str | None:
        try:
            return active.get_config_key_value(KEYS + key, LOOK)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return None

    def drop(key: str) -> None:
        active.delete_config_key_value(KEYS + key)

    return put, look, drop


def replicas(said: dict[str, str], rank: int, size: int) -> Group:
    """Return the replicas in this process, of which one runs at a time: none waits for another."""
    return Group(
        rank=rank,
        size=size,
        put=said.__setitem__,
        look=said.get,
        drop=said.__delitem__,
        timeout=lambda: SECONDS,
        waits=False,
    )
