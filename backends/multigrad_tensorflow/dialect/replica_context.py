"""The replica context of `tf.distribute` in captured code: its exchanges, as ops over shards."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multigrad.capture.meanings.creation import TraceBound
from multigrad.graph.support.trees import optree
from multigrad.trace.trace import Trace, Value
from multigrad.trace.xp import all as xp

Tensor = Any
SUM = tf.distribute.ReduceOp.SUM
ADVICE = (
    "Replicas tell each other all_reduce('SUM', x), all_reduce('MEAN', x), all_gather(x, axis), "
    "xg.xp.all_max(x)"
)


class ReplicaContext:
    """A stand-in for the replica context, whose `all_reduce` takes symbols."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the sums or the means over all replicas, in the structure of `value`."""
        self._refuse_options("all_reduce", options)
        kind = reduce_op.upper() if isinstance(reduce_op, str) else reduce_op.value
        is_sum = tf.distribute.ReduceOp(kind) is SUM

        def reduce(x: Tensor) -> Tensor:
            self._refuse_constant("all_reduce", x)
            total = xp.all_sum(x)
            return total if is_sum else total / xp.all_sum(xp.ones_like(xp.sum(x)), of=x)

        return optree.tree_map(reduce, value)  # pyright: ignore[reportArgumentType]

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Return the values of all replicas joined along an axis, in the structure of `value`."""
        self._refuse_options("all_gather", options)

        def gather(x: Tensor) -> Tensor:
            self._refuse_constant("all_gather", x)
            return xp.all_gather(x, axis=axis)

        return optree.tree_map(gather, value)  # pyright: ignore[reportArgumentType]

    def _refuse_options(self, name: str, options: Any) -> None:
        if options is not None:
            raise self._trace.error(f"gives {name} options: leave them to the strategy")

    def _refuse_constant(self, name: str, x: Any) -> None:
        if not isinstance(x, Value):
            raise self._trace.error(f"calls {name} of {x!r:.60}, on which no input has a bearing")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._trace.error(f"asks the replica context for {name}, which has no op. {ADVICE}")


# By function, what the table takes for it while code is captured: it has no tensor arguments.
STAND_INS = {tf.distribute.get_replica_context: TraceBound(ReplicaContext)}
STRATEGIES = (
    tf.distribute.get_strategy,
    tf.distribute.has_strategy,
    tf.distribute.in_cross_replica_context,
)
REFUSED = dict.fromkeys(STRATEGIES, f"whose answer is another one outside the strategy. {ADVICE}")
