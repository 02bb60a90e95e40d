"""`tf.distribute` runs replicas on threads of its own: what is in force around them is in force in
them.

A thread starts with an empty context, and TensorFlow hands on only the state that it knows of. So
each replica runs in a copy of the context around it, whichever strategy starts the threads, and
calls that draw are counted in each from where they parted. Replicas take turns, from one
`merge_call` to the next, and never race. TensorFlow has no public way in: its function that starts
the threads, and the one that a `merge_call` comes by, are replaced.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

from tensorflow.python.distribute import mirrored_run  # pyright: ignore[reportAttributeAccessIssue]

from multigrad.graph.support.data import dataclass
from multigrad.rules.context import CURRENT, ActiveRules
from multigrad.trace.scope.draws import BRANCH, Branch, Counter, join, part

start_replicas = mirrored_run._call_for_each_replica
pause_to_merge = mirrored_run._MirroredReplicaContext._merge_call


@functools.wraps(start_replicas)
def call_for_each_replica(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function once per replica, each in a copy of the context of this call."""
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
class Merged:
    """What a `merge_call` has drawn: the active rules around it in the first replica, and the calls
    that drew.
    """

    active: ActiveRules
    branch: Branch


@functools.wraps(pause_to_merge)
def merge_call(context: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function across replicas in a copy of the first one's context, as TensorFlow does with
    its name scope; each replica counts on behind what it has drawn.
    """
    around, active = copy_context(), CURRENT.get()
    (branch,) = part(1)

    def merge(*args: Any, **kwargs: Any) -> Any:
        around.run(BRANCH.set, branch)
        return around.run(fn, *args, **kwargs), Merged(active, branch)

    result, merged = pause_to_merge(context, merge, args, kwargs)
    own = dict(zip(counters(merged.active), counters(active), strict=True))
    for counter, number in merged.branch.numbers.items():
        (own.get(counter) or counter).advance(number)
    return result


def counters(active: ActiveRules) -> Iterator[Counter | None]:
    """Yield the counters of the active rules; replicas that enter a `use` have their own each."""
    for in_force in (active.activations, active.params):
        yield None if in_force is None else in_force.counter


mirrored_run._call_for_each_replica = call_for_each_replica
mirrored_run._MirroredReplicaContext._merge_call = merge_call
