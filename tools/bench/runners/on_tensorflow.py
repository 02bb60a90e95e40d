"""Forward and backward in TensorFlow: the tape and its gradient in one `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import tensorflow as tf

import multigrad as xg

from ..cases import OURS, Case
from ..harness import Array, Rival
from ..rivals.in_tensorflow import RIVALS

Tensor: TypeAlias = Any
PASSING = ("Identity", "IdentityN", "StopGradient")


def describe() -> str:
    return f"TensorFlow {tf.__version__}"


def set_threads(count: int) -> None:
    """Nothing to do: TensorFlow has read the number of threads from the environment."""


def enter_rule(case: Case, stack: ExitStack) -> None:
    stack.enter_context(xg.use(case.rule))


def list_rivals(case: Case) -> dict[str, Rival]:
    return {**RIVALS[case.forward, case.rule], OURS: xg.activation(case.forward)}


def make_inputs(x: Array, grad_out: Array) -> tuple[Tensor, Tensor]:
    return tf.constant(x), tf.constant(grad_out)


def build_step(rival: Rival, x: Tensor, grad_out: Tensor) -> Callable[[], Any]:
    @tf.function(autograph=False)
    def run(x: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = rival(x)
        return output, tape.gradient(output, x, grad_out)

    def step() -> tuple[Tensor, Tensor]:
        return run(x, grad_out)

    return step


def build_copy(x: Tensor) -> Callable[[], Any]:
    """Return a call that copies x; `tf.identity` would hand on the same memory."""

    def copy() -> None:
        tf.raw_ops.DeepCopy(x=x)

    return copy


def count_kept_bytes(rival: Rival, x: Tensor, grad_out: Tensor) -> int | None:
    """Return the bytes that cross from the forward part of the step's graph to the backward one."""
    count = 0

    def run(x: Tensor, grad_out: Tensor) -> Tensor:
        nonlocal count
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = rival(x)
        count = len(tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(output, x, grad_out)

    spec = tf.TensorSpec(x.shape, x.dtype)
    concrete = tf.function(run, autograph=False).get_concrete_function(spec, spec)
    forward = {operation.name for operation in concrete.graph.get_operations()[:count]}
    cotangent = concrete.inputs[1].name
    kept = find_crossing(concrete.outputs[0], forward)
    sizes = [measure_bytes(tensor) for tensor in kept.values() if tensor.name != cotangent]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def find_crossing(gradient: Tensor, forward: set[str]) -> dict[str, Tensor]:
    """Return the forward tensors that the gradient is computed from; constants need no keeping."""
    crossing: dict[str, Tensor] = {}
    seen: set[str] = set()
    waiting = [gradient]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.op.name not in forward:
            waiting.extend(tensor.op.inputs)
        elif tensor.op.type in PASSING:
            waiting.append(tensor.op.inputs[tensor.value_index])
        elif tensor.op.type != "Const":
            crossing[tensor.name] = tensor
    return crossing


def measure_bytes(tensor: Tensor) -> int | None:
    """Return a tensor's bytes, or None where the graph does not know its shape."""
    elements = tensor.shape.num_elements()
    return None if elements is None else elements * tensor.dtype.size


def to_numpy(tensor: Tensor) -> Array:
    return tensor.numpy()
