"""The training loop in TensorFlow: a `tf.function`, traced under `xg.use`, runs an epoch."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

import multigrad as xg

from ..task import (
    BATCH,
    FEATURES,
    ActivationName,
    EpochReport,
    Task,
    Tensor,
    Weights,
    backward_rule,
    first_batch,
    mean_loss,
)

Variables = list[tf.Variable]
Activation = Callable[[Tensor], Tensor]

EPOCH_SIGNATURE = (
    tf.TensorSpec((None, FEATURES), tf.float32),
    tf.TensorSpec((None,), tf.int64),
)


def describe() -> str:
    return f"TensorFlow {tf.__version__}"


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> Weights:
    activation = xg.activation(forward)
    variables = [tf.Variable(tf.constant(weight)) for weight in task.weights]
    run_epoch = build_epoch(activation, variables, task.learning_rate)
    test_x = tf.constant(task.test_x)
    with backward_rule(rule):
        _, first = differentiate(activation, variables, *map(tf.constant, first_batch(task)))
        for order in task.orders:
            losses = run_epoch(task.train_x[order], task.train_y[order]).numpy()
            predicted = tf.argmax(compute_logits(activation, variables, test_x), axis=1)
            report(mean_loss(losses, len(order)), predicted.numpy())
    return tuple(gradient.numpy() for gradient in first)


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


def build_epoch(
    activation: Activation, variables: Variables, learning_rate: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of an epoch's samples, in their order, that gives the loss of each step."""

    @tf.function(input_signature=EPOCH_SIGNATURE)
    def run_epoch(x: Tensor, labels: Tensor) -> Tensor:
        losses = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for start in tf.range(0, tf.shape(x)[0], BATCH):
            batch = slice(start, start + BATCH)  # the last one is smaller
            loss, gradients = differentiate(activation, variables, x[batch], labels[batch])
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(learning_rate * gradient)
            losses = losses.write(losses.size(), loss)
        return losses.stack()

    return run_epoch
