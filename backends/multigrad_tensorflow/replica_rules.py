"""The rules in force in the replicas of `tf.distribute`, and the count of their draws.

A replica runs on a thread, which starts with an empty context, and TensorFlow copies only the state
that it knows. So each replica runs in a copy of the context around it, whichever strategy starts
the threads. Replicas take turns, from one `merge_call` to the next, and never race.

Draws are counted in each replica from where they parted (`Branch`), so all draw the same keys:

    strategy.run(f)       a branch per replica; after it, the caller counts on from the furthest one
      merge_call(g)       g runs once, in a branch of its own, in the first replica's context; after
                          it, each replica counts on by as many draws

TensorFlow has no public hook: its functions that start the threads and that enter a `merge_call`
are replaced when this module is imported.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

from tensorflow.python.distribute import mirrored_run  # pyright: ignore[reportAttributeAccessIssue]

from multigrad.graph.support.class_bases import dataclass
from multigrad.rules.context import CURRENT, ActiveRules
from multigrad.trace import active_rules
from multigrad.trace.active_rules import BRANCH, Branch, Counter, join

start_replicas = mirrored_run._call_for_each_replica
pause_to_merge = mirrored_run._MirroredReplicaContext._merge_call


@functools.wraps(start_replicas)
def call_for_each_replica(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function once per replica, each in a copy of this call's context."""
    around = copy_context()
    branches = active_rules.part(len(strategy.extended.worker_devices))

    def call_replica(*args: Any, **kwargs: Any) -> Any:
        thread: Any = threading.current_thread()
        copied_context = around.copy()
        copied_context.run(BRANCH.set, branches[thread.replica_id])
        return copied_context.run(fn, *args, **kwargs)

    try:
        return start_replicas(strategy, call_replica, args, kwargs)
    finally:
        join(branches)


@dataclass(frozen=True, slots=True, eq=False)
class MergeDraws:
    """The draws of a `merge_call`: the first replica's active rules, and the branch it ran in."""

    active: ActiveRules
    branch: Branch


@functools.wraps(pause_to_merge)
def merge_call(context: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function across replicas in a copy of the first one's context.

    Each replica calls this with a function of its own. TensorFlow runs that of the first one, and
    returns what it returned to all.
    """
    around, active = copy_context(), CURRENT.get()
    (branch,) = active_rules.part(1)

    def merge(*args: Any, **kwargs: Any) -> Any:
        around.run(BRANCH.set, branch)
        return around.run(fn, *args, **kwargs), MergeDraws(active, branch)

    result, draws = pause_to_merge(context, merge, args, kwargs)
    count_on(active, draws)
    return result


def count_on(active: ActiveRules, draws: MergeDraws) -> None:
    """Count a merged call's draws in a replica, whose counters may be others than the first's."""
    own_counters = dict(zip(counters_of(draws.active), counters_of(active), strict=True))
    for counter, number in draws.branch.numbers.items():
        (own_counters.get(counter) or counter).advance(number)


def counters_of(active: ActiveRules) -> Iterator[Counter | None]:
    """Yield the counters of the active rules; replicas that enter a `use` have one each."""
    for in_force in (active.activations, active.params):
        yield None if in_force is None else in_force.counter


mirrored_run._call_for_each_replica = call_for_each_replica
mirrored_run._MirroredReplicaContext._merge_call = merge_call
