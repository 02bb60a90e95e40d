"""Gradients that captured code takes itself, by `tf.GradientTape` and `tf.gradients`.

They become derivatives of the graph that is being captured. A tape has to tell what was computed
while it recorded from what was computed before. So it renames the nodes of what it watches:

    y = x * x                      a node of x's node
    with tf.GradientTape() as t:
        t.watch(x)                 x carries a renamed copy of its node
        z = x * y                  a node of the copy, and of y
    t.gradient(z, x)               the derivative by the copy, which y does not depend on

The text of a TypeError follows a colon: "function 'f' raised TypeError while captured: it takes
...".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import tensorflow as tf
from tensorflow.python.eager.record import VariableWatcher

from multigrad.core.ir.graph import Node, walk
from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value, setting
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.taken_gradients import rename, take_gradients, tell_apart

Tensor = Any
NONE = tf.UnconnectedGradients.NONE
ELSEWHERE = ". Pass it as an argument of the function"


@contextmanager
def watching_variables() -> Iterator[Callable[[], str]]:
    """Yield a function that lists the trainable variables that code has read."""
    with VariableWatcher() as watcher:
        yield lambda: ", ".join(
            f"the tf.Variable {each.name!r}" for each in watcher.watched_variables()
        )


class Tape:
    """A stand-in for `tf.GradientTape`.

    It records within `with`, besides `stop_recording`, and from `reset` on.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        # (value, its node, a renamed copy): each value that it watches carries the copy while the
        # tape records, and its own node otherwise.
        self._watched: list[tuple[Value, Node, Node]] = []
        self._is_recording = False

    def __enter__(self) -> Self:
        self._resume()
        return self

    def __exit__(self, *error: object) -> None:
        self._pause()

    def _resume(self) -> None:
        self._is_recording = True
        for value, _, copy in self._watched:
            put_node(value, copy, is_taped=True)

    def _pause(self) -> None:
        self._is_recording = False
        for value, original, _ in reversed(self._watched):
            put_node(value, original, is_taped=False)

    def watch(self, tensor: Any) -> None:
        for value in optree.tree_leaves(tensor):
            if not isinstance(value, Value):
                raise TypeError(f"it watches a tensor that is no value of a graph{ELSEWHERE}")
            elif all(value is not each for each, _, _ in self._watched):
                if value.trace.kind == "rule":
                    raise value.trace.error(
                        "uses tf.GradientTape, but a rule is the backward pass"
                        f"{value.trace.words.advise('write the derivative out')}"
                    )
                copy = rename(value.node)
                self._watched.append((value, value.node, copy))
                if self._is_recording:
                    put_node(value, copy, is_taped=True)

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
        return optree.tree_unflatten(
            structure, fill_unconnected(leaves, results, unconnected_gradients)
        )

    def _gradients_of(
        self, outputs: list[Value], sources: list[Any], cotangents: list[Any]
    ) -> list[Value | None]:
        """Return the gradients of outputs with respect to each source.

        None for a source that is neither watched nor computed from a watched value meanwhile.
        """
        taped_nodes = {id(value): copy for value, _, copy in self._watched}
        targets = [self._target_of(source, taped_nodes) for source in sources]
        active_targets = [target for target in targets if target is not None]
        if not outputs or not active_targets:
            return [None] * len(targets)
        trace = active_targets[0].trace
        # After recording, a watched output carries its original node again, which is no source's.
        outputs = [trace.value(taped_nodes[id(y)]) if id(y) in taped_nodes else y for y in outputs]
        with setting(trace, types=None):  # the derivatives consist of our ops, not TensorFlow's
            gradients = iter(take_gradients(outputs, cotangents, active_targets))
        return [None if target is None else next(gradients) for target in targets]

    def _target_of(self, source: Any, taped_nodes: dict[int, Node]) -> Value | None:
        """Return the value by which a derivative is taken; None if it was not recorded."""
        if not isinstance(source, Value):
            raise TypeError(f"it takes a gradient of a {type(source).__name__}{ELSEWHERE}")
        if id(source) not in taped_nodes:
            tell_apart(source.trace)
        node = taped_nodes.get(id(source), source.node)
        is_recorded = not set(taped_nodes.values()).isdisjoint(walk((node,)))
        return source.trace.value(node) if is_recorded else None

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        self._pause()
        yield
        self._resume()

    def reset(self) -> None:
        self._pause()
        self._watched.clear()
        self._is_recording = True

    def watched_variables(self) -> tuple[Any, ...]:
        return ()

    def jacobian(self, *args: Any, **options: Any) -> Any:
        raise TypeError("it takes a Jacobian. Take the gradient of each output")

    batch_jacobian = jacobian


def put_node(value: Value, node: Node, is_taped: bool) -> None:
    """Let a value carry another node, and its trace know whether a tape records."""
    value.node, value.trace.backward.is_taped = node, is_taped


def cotangents_of(outputs: Sequence[Value], cotangents: Any) -> list[Any]:
    """Return a list of the cotangents of outputs; None for one that is ones."""
    if cotangents is None:
        return [None] * len(outputs)
    return optree.tree_leaves(cotangents, none_is_leaf=True)


def fill_unconnected(
    sources: list[Any], results: list[Value | None], unconnected: Any
) -> list[Any]:
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
    outputs, sources = optree.tree_leaves(ys), optree.tree_leaves(xs)
    are_symbols = all(isinstance(each, Value) for each in (*sources, *outputs))
    if stop_gradients is not None or not are_symbols:
        raise TypeError("it has stop_gradients, or takes a gradient of a tensor from elsewhere")
    trace = sources[0].trace
    if trace.kind == "rule":
        raise TypeError("a rule is the backward pass, and takes no gradients")
    tell_apart(trace)
    results = take_gradients(outputs, cotangents_of(outputs, grad_ys), sources)
    return fill_unconnected(sources, results, unconnected_gradients)
