"""The training loop in TensorFlow: the activation is in a `tf.function` traced under `xg.use`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import multigrad as xg

from ..task import (
    FEATURES,
    ActivationName,
    EpochReport,
    Task,
    Tensor,
    Weights,
    backward_rule,
    batches,
    first_batch,
    mean_loss,
)

Variables = list[tf.Variable]
Activation = Callable[[Tensor], Tensor]

# The number of samples is left open: the last batch of an epoch is smaller.
BATCH_SIGNATURE = (
    tf.TensorSpec((None, FEATURES), tf.float32),
    tf.TensorSpec((None,), tf.int64),
)


def describe() -> str:
    return f"TensorFlow {tf.__version__}"


def first_gradients(task: Task, forward: ActivationName, rule: str | None) -> Weights:
    activation = xg.activation(forward)
    variables = load(task.weights)
    with backward_rule(rule):
        _, gradients = differentiate(activation, variables, *map(tf.constant, first_batch(task)))
    return tuple(gradient.numpy() for gradient in gradients)


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> None:
    activation = xg.activation(forward)
    variables = load(task.weights)
    step = build_step(activation, variables, task.learning_rate)
    with backward_rule(rule):
        for order in task.orders:
            losses = [step(tf.constant(x), tf.constant(y)) for x, y in batches(task, order)]
            report(mean_loss(losses, len(order)), predict(activation, variables, task.test_x))


def load(weights: Weights) -> Variables:
    return [tf.Variable(tf.constant(weight)) for weight in weights]


def compute_logits(activation: Activation, variables: Variables, x: Tensor) -> Tensor:
    hidden_weight, hidden_bias, output_weight, output_bias = variables
    hidden = activation(x @ hidden_weight + hidden_bias)
    return hidden @ output_weight + output_bias


def differentiate(
    activation: Activation, variables: Variables, x: Tensor, labels: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return the mean cross entropy and its gradient with respect to each variable."""
    with tf.GradientTape() as tape:
        logits = compute_logits(activation, variables, x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, variables)


def build_step(
    activation: Activation, variables: Variables, learning_rate: float
) -> Callable[[Tensor, Tensor], Tensor]:
    @tf.function(input_signature=BATCH_SIGNATURE)
    def step(x: Tensor, labels: Tensor) -> Tensor:
        loss, gradients = differentiate(activation, variables, x, labels)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(learning_rate * gradient)
        return loss

    return step


def predict(activation: Activation, variables: Variables, x: np.ndarray) -> np.ndarray:
    return np.argmax(compute_logits(activation, variables, tf.constant(x)).numpy(), axis=1)
