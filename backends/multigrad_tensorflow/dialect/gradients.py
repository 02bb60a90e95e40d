"""Gradients that captured code takes itself, and its replica context of `tf.distribute`.

`tf.GradientTape` and `tf.gradients` become derivatives of the graph that is being captured. The
text of a TypeError follows a colon: "function 'f' raised TypeError while captured: it takes ...".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager.record import VariableWatcher

from multigrad.capture.meanings.creation import TraceBound
from multigrad.capture.taken_gradients import rename, take_gradients, tell_apart
from multigrad.graph.ir.graph import Node, walk
from multigrad.graph.support.trees import optree
from multigrad.trace.trace import Trace, Value, setting
from multigrad.trace.xp import all as xp

if TYPE_CHECKING:
    from typing_extensions import Self

Tensor = Any
NONE = tf.UnconnectedGradients.NONE
ELSEWHERE = ". Pass it as an argument of the function"


@contextmanager
def watching() -> Iterator[Callable[[], str]]:
    """Yield a function that lists the trainable variables that code has read."""
    with VariableWatcher() as watcher:
        yield lambda: ", ".join(
            f"the tf.Variable {each.name!r}" for each in watcher.watched_variables()
        )


class WatchedValue(NamedTuple):
    """A value that a tape watches.

    While the tape records, the value carries a renamed copy of its node. So a value computed from
    it meanwhile, which depends on the copy, can be told from one computed before.
    """

    value: Value
    original: Node
    taped: Node


class Tape:
    """A stand-in for `tf.GradientTape`."""

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._watched: list[WatchedValue] = []
        self._records = False

    def __enter__(self) -> Self:
        self._resume()
        return self

    def __exit__(self, *error: object) -> None:
        self._pause()

    def _resume(self) -> None:
        self._records = True
        for value, _, taped in self._watched:
            value.node, value.trace.backward.is_taped = taped, True

    def _pause(self) -> None:
        self._records = False
        for value, original, _ in reversed(self._watched):
            value.node, value.trace.backward.is_taped = original, False

    def watch(self, tensor: Any) -> None:
        for value in optree.tree_leaves(tensor):
            if not isinstance(value, Value):
                raise TypeError(f"it watches a tensor that is no value of a graph{ELSEWHERE}")
            elif all(value is not each.value for each in self._watched):
                if value.trace.kind == "rule":
                    raise value.trace.error(
                        "uses tf.GradientTape, but a rule is the backward pass"
                        f"{value.trace.words.advise('write the derivative out')}"
                    )
                taped = rename(value.node)
                self._watched.append(WatchedValue(value, value.node, taped))
                if self._records:
                    value.node, value.trace.backward.is_taped = taped, True

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = NONE,
    ) -> Any:
        outputs = [leaf for leaf in optree.tree_leaves(target) if isinstance(leaf, Value)]
        leaves, structure = optree.tree_flatten(sources)
        cotangents = cotangents_of(outputs, output_gradients)
        results = self._gradients_of(outputs, leaves, cotangents)
        return optree.tree_unflatten(structure, connected(leaves, results, unconnected_gradients))

    def _gradients_of(
        self, outputs: list[Value], sources: list[Any], cotangents: list[Any]
    ) -> list[Value | None]:
        """Return the gradients of outputs with respect to each source.

        None for a source that is neither watched nor computed from a watched value meanwhile.
        """
        taped_nodes = {id(value): taped for value, _, taped in self._watched}
        taped = set(taped_nodes.values())
        targets: list[Value | None] = []
        for source in sources:
            if not isinstance(source, Value):
                raise TypeError(f"it takes a gradient of a {type(source).__name__}{ELSEWHERE}")
            if id(source) not in taped_nodes:
                tell_apart(source.trace)
            node = taped_nodes.get(id(source), source.node)
            is_recorded = not taped.isdisjoint(walk((node,)))
            targets.append(source.trace.value(node) if is_recorded else None)
        recorded = [target for target in targets if target is not None]
        if not outputs or not recorded:
            return [None] * len(targets)
        trace = recorded[0].trace
        # After recording, a watched output carries its original node again, which is no source's.
        outputs = [trace.value(taped_nodes[id(y)]) if id(y) in taped_nodes else y for y in outputs]
        with setting(trace, types=None):  # the derivatives consist of our ops, not TensorFlow's
            gradients = iter(take_gradients(outputs, cotangents, recorded))
        return [None if target is None else next(gradients) for target in targets]

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        self._pause()
        yield
        self._resume()

    def reset(self) -> None:
        self._pause()
        self._watched.clear()
        self._records = True

    def watched_variables(self) -> tuple[Any, ...]:
        return ()

    def jacobian(self, *args: Any, **options: Any) -> Any:
        raise TypeError("it takes a Jacobian. Take the gradient of each output")

    batch_jacobian = jacobian


def cotangents_of(outputs: Sequence[Value], cotangents: Any) -> list[Any]:
    """Return a list of the cotangents of outputs; None for one that is ones."""
    if cotangents is None:
        return [None] * len(outputs)
    return optree.tree_leaves(cotangents, none_is_leaf=True)


def connected(sources: list[Any], results: list[Value | None], unconnected: Any) -> list[Any]:
    """Return gradients; None becomes zeros if `unconnected` asks for zeros."""
    if tf.UnconnectedGradients(unconnected) is NONE:
        return list(results)
    return [
        xp.zeros_like(source) if each is None else each
        for source, each in zip(sources, results, strict=True)
    ]


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    gate_gradients: bool = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: Any = NONE,
) -> Any:
    """A stand-in for `tf.gradients`."""
    outputs, sources = optree.tree_leaves(ys), optree.tree_leaves(xs)
    are_symbols = all(isinstance(each, Value) for each in (*sources, *outputs))
    if stop_gradients is not None or not are_symbols:
        raise TypeError("it has stop_gradients, or takes a gradient of a tensor from elsewhere")
    trace = sources[0].trace
    if trace.kind == "rule":
        raise TypeError("a rule is the backward pass, and takes no gradients")
    tell_apart(trace)
    results = take_gradients(outputs, cotangents_of(outputs, grad_ys), sources)
    return connected(sources, results, unconnected_gradients)


# --- the replica context of `tf.distribute` -------------------------------------------------------
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

        def reduced(x: Tensor) -> Tensor:
            self._refuse_constant("all_reduce", x)
            total = xp.all_sum(x)
            return total if is_sum else total / xp.all_sum(xp.ones_like(xp.sum(x)), of=x)

        return optree.tree_map(reduced, value)  # pyright: ignore[reportArgumentType]

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Return the values of all replicas joined along an axis, in the structure of `value`."""
        self._refuse_options("all_gather", options)

        def gathered(x: Tensor) -> Tensor:
            self._refuse_constant("all_gather", x)
            return xp.all_gather(x, axis=axis)

        return optree.tree_map(gathered, value)  # pyright: ignore[reportArgumentType]

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


# Functions without tensor arguments, for which the table takes these while code is captured.
HIDDEN = {tf.distribute.get_replica_context: TraceBound(ReplicaContext)}
STRATEGIES = (
    tf.distribute.get_strategy,
    tf.distribute.has_strategy,
    tf.distribute.in_cross_replica_context,
)
REFUSED = dict.fromkeys(STRATEGIES, f"whose answer is another one outside the strategy. {ADVICE}")
