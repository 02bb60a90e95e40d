"""The replicas and workers of `tf.distribute`: the rules in force in them, and the check of ranks.

A replica runs on a thread, which starts with an empty context, and TensorFlow copies only the state
that it knows. So each replica runs in a copy of the context around it, whichever strategy starts
the threads. Replicas take turns, from one `merge_call` to the next, and never race.

Draws are counted in each replica from where they parted (`Branch`), so all draw the same keys:

    strategy.run(f)     a branch per replica; after it, the caller counts on from the furthest one
      merge_call(g)     g runs once, in a branch of its own, in the first replica's context; after
                        it, each replica counts on by as many draws

TensorFlow has no public hook: its functions that start the threads and that enter a `merge_call`
are replaced when the backend is loaded.
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
from tensorflow.python.eager.context import context as eager_context

from multigrad.core.rules.context import CURRENT, ActiveRules
from multigrad.engine.backend.features import Group
from multigrad.engine.trace import random_keys
from multigrad.engine.trace.random_keys import BRANCH, Counter, join

# TensorFlow's own, for which `engine.py` put those below in place.
start_replicas = mirrored_run._call_for_each_replica.__wrapped__
pause_to_merge = mirrored_run._MirroredReplicaContext._merge_call.__wrapped__


@functools.wraps(start_replicas)
def call_for_each_replica(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function once per replica, each in a copy of this call's context."""
    context = copy_context()
    branches = random_keys.part(len(strategy.extended.worker_devices))

    def call_replica(*args: Any, **kwargs: Any) -> Any:
        thread: Any = threading.current_thread()
        copied_context = context.copy()
        copied_context.run(BRANCH.set, branches[thread.replica_id])
        return copied_context.run(fn, *args, **kwargs)

    try:
        return start_replicas(strategy, call_replica, args, kwargs)
    finally:
        join(branches)


@functools.wraps(pause_to_merge)
def merge_call(context: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function across replicas in a copy of the first one's context.

    Each replica calls this with a function of its own. TensorFlow runs that of the first one, and
    returns what it returned to all.
    """
    copied_context, active = copy_context(), CURRENT.get()
    (branch,) = random_keys.part(1)

    def merge(*args: Any, **kwargs: Any) -> Any:
        copied_context.run(BRANCH.set, branch)
        return copied_context.run(fn, *args, **kwargs), (active, branch)

    result, (first_active, first_branch) = pause_to_merge(context, merge, args, kwargs)
    # The merged call's draws are counted here too, by counters that may be others than the first's.
    own_counters = dict(zip(counters_of(first_active), counters_of(active), strict=True))
    for counter, number in first_branch.numbers.items():
        (own_counters.get(counter) or counter).advance(number)
    return result


def counters_of(active: ActiveRules) -> Iterator[Counter | None]:
    for rule_in_force in (active.activations, active.params):
        yield None if rule_in_force is None else rule_in_force.counter


# --- the workers or replicas that MULTIGRAD_CHECK_RANKS compares ----------------------------------
# In a cluster these are the workers, each with as many lanes as it runs replicas: replica 1 of a
# worker is compared with replica 1 of the others. Without one they are the replicas of one process.
# `trace/ranks.py` says what is compared.
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
        lane = 0
        if replica is not None:
            lane = number_of(replica) % len(replica.strategy.extended.worker_devices)
        return group_of_workers(*workers, lane=f"replica {lane}" if lane else "")
    if replica is None or replica.num_replicas_in_sync < 2:
        return None
    messages = _messages.setdefault(replica.strategy, {})
    return Group(
        rank=number_of(replica),
        size=replica.num_replicas_in_sync,
        put=messages.__setitem__,
        look=messages.get,
        drop=messages.__delitem__,
        timeout=lambda: TIMEOUT,
        waits=False,  # one of them runs at a time
    )


def number_of(replica: Any) -> int:
    number = replica.replica_id_in_sync_group
    return number if isinstance(number, int) else int(tf.get_static_value(number))


def find_workers() -> tuple[Any, int, int] | None:
    """Return a cluster's context, this worker's rank and the number of workers, if several."""
    context = eager_context()
    server = context._collective_ops_server_def
    if context.coordination_service is None or context._context_handle is None or server is None:
        return None
    size = sum(len(job.tasks) for job in server.cluster.job if job.name == server.job_name)
    return (context, server.task_index, size) if size > 1 else None


@functools.lru_cache(16)
def group_of_workers(active: Any, rank: int, size: int, lane: str) -> Group:
    """Return the workers of a cluster, which exchange text by its coordination service."""

    def look(key: str) -> str | None:
        try:
            return active.get_config_key_value(key, LOOK_MILLISECONDS)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return None

    put, drop = active.set_config_key_value, active.delete_config_key_value
    return Group(
        rank=rank, size=size, put=put, look=look, drop=drop, timeout=lambda: TIMEOUT, lane=lane
    )
