"""The training loop in Keras, on its own backend: the layer carries the rule, `fit` trains."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any, TypeAlias

import keras
import numpy as np

from multigrad.keras import Activation

from ..task import (
    BATCH,
    CLASSES,
    FEATURES,
    HIDDEN,
    ActivationName,
    EpochReport,
    Task,
    Weights,
    batches,
    first_batch,
)

# Keras's annotations name everything that some backend may return.
Model: TypeAlias = Any
to_numpy: Any = keras.ops.convert_to_numpy
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def describe() -> str:
    return f"Keras {keras.version()} on {keras.config.backend()}"


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> Weights:
    """Train with SGD in one `fit`."""
    steps = -(-len(task.train_x) // BATCH)
    # A call of Python for each of so small steps would take most of the time. Keras (3.15) has no
    # other on torch.
    together = 1 if keras.config.backend() == "torch" else steps
    model = build(task.weights, forward, rule)
    model.compile(keras.optimizers.SGD(task.learning_rate), LOSS, steps_per_execution=together)
    test_x = keras.ops.convert_to_tensor(task.test_x)

    def report_epoch(epoch: int, logs: Any = None) -> None:
        report(float(logs["loss"]), np.argmax(to_numpy(model(test_x)), axis=1))

    model.fit(
        (batch for order in task.orders for batch in batches(task, order)),
        epochs=len(task.orders),
        steps_per_epoch=steps,
        shuffle=False,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report_epoch)],
        verbose=0,
    )
    return first_gradients(task, build(task.weights, forward, rule))


def first_gradients(task: Task, model: Model) -> Weights:
    # Keras keeps gradients to itself, but a momentum that starts at zero is exactly
    # -rate * gradient after one step, which is not worth a trace.
    optimizer = keras.optimizers.SGD(learning_rate=1.0, momentum=0.5)
    model.compile(optimizer, LOSS, run_eagerly=True)
    model.train_on_batch(*first_batch(task))
    return tuple(-to_numpy(momentum) for momentum in optimizer.momentums)


def build(weights: Weights, forward: ActivationName, rule: str | None) -> Model:
    model = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(HIDDEN),
            Activation(forward, rule=rule),
            keras.layers.Dense(CLASSES),
        ]
    )
    for variable, weight in zip(model.trainable_variables, weights, strict=True):
        variable.assign(weight)  # not set_weights, which would ask for the rule's numbers too
    return model
