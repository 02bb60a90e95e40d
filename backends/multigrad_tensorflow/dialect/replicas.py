"""TensorFlow's dialect, what replicas tell each other: `tf.distribute.get_replica_context`; see
`table.py`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multigrad.capture.meanings.creation import Told
from multigrad.graph.support.trees import optree
from multigrad.trace.trace import Trace, Value
from multigrad.trace.xp import all as xp

Tensor = Any
SUM = tf.distribute.ReduceOp.SUM
ADVICE = "Replicas tell each other all_reduce('SUM', x), all_reduce('MEAN', x), xg.xp.all_max(x)"


class ReplicaContext:
    """Stands in for the replica context, whose `all_reduce` is given symbols."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the sums or the means over all replicas, in the structure of `value`."""
        kind = reduce_op.upper() if isinstance(reduce_op, str) else reduce_op.value
        takes_sum = tf.distribute.ReduceOp(kind) is SUM
        if options is not None:
            raise self._trace.error("gives all_reduce options: leave them to the strategy")

        def reduced(x: Tensor) -> Tensor:
            if not isinstance(x, Value):
                raise self._trace.error(
                    f"calls all_reduce of {x!r:.60}, on which no input has a bearing"
                )
            total = xp.all_sum(x)
            return total if takes_sum else total / xp.all_sum(xp.ones_like(xp.sum(x)), of=x)

        return optree.tree_map(reduced, value)  # pyright: ignore[reportArgumentType]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._trace.error(f"asks the replica context for {name}, which has no op. {ADVICE}")


HIDDEN = {tf.distribute.get_replica_context: Told(ReplicaContext)}
STRATEGIES = (
    tf.distribute.get_strategy,
    tf.distribute.has_strategy,
    tf.distribute.in_cross_replica_context,
)
REFUSED = dict.fromkeys(
    STRATEGIES, f"whose answer is another one outside of the strategy. {ADVICE}"
)
