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


def describe() -> str:
    return f"Keras {keras.version()} on {keras.config.backend()}"


def first_gradients(task: Task, forward: ActivationName, rule: str | None) -> Weights:
    # Keras keeps gradients to itself, but a momentum that starts at zero is exactly
    # -rate * gradient after one step.
    optimizer = keras.optimizers.SGD(learning_rate=1.0, momentum=0.5)
    model = build(task.weights, forward, rule, optimizer)
    model.train_on_batch(*first_batch(task))
    return tuple(-to_numpy(momentum) for momentum in optimizer.momentums)


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> None:
    """Train with SGD in one `fit`; report each epoch."""
    model = build(task.weights, forward, rule, keras.optimizers.SGD(task.learning_rate))

    def report_epoch(epoch: int, logs: Any = None) -> None:
        logits = to_numpy(model.predict_on_batch(task.test_x))
        report(float(logs["loss"]), np.argmax(logits, axis=1))

    model.fit(
        (batch for order in task.orders for batch in batches(task, order)),
        epochs=len(task.orders),
        steps_per_epoch=-(-len(task.train_x) // BATCH),
        shuffle=False,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report_epoch)],
        verbose=0,
    )


def build(
    weights: Weights,
    forward: ActivationName,
    rule: str | None,
    optimizer: keras.optimizers.Optimizer,
) -> Model:
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
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
