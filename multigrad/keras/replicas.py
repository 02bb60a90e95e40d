"""Gradients of the replicas of `tf.distribute`, which a Keras optimizer sums in its step.

On jax and torch they come reduced: by the compiler, and by who trains.
"""

from __future__ import annotations

from typing import Any

from ..errors import RuleError
from .tracing import BACKEND

Tensor = Any
SUM = "_all_reduce_sum_gradients"  # of Keras's optimizers on TensorFlow (3.15)


def take_over_reduction(optimizer: Any) -> bool:
    """Let an optimizer, and those in it, take gradients that are summed over the replicas already;
    return whether there is anything to sum.

    Raises:
        RuleError: this Keras has no such place.
    """
    if BACKEND != "tensorflow":
        return False
    while hasattr(optimizer, "inner_optimizer"):
        optimizer._reduces = False
        optimizer = optimizer.inner_optimizer
    if not hasattr(optimizer, SUM):
        raise RuleError(
            f"after_reduce=True is not known to work with {type(optimizer).__name__} of this Keras"
        )
    setattr(optimizer, SUM, pass_on)
    return True


def pass_on(grads_and_vars: Any) -> Any:
    """Stand for an optimizer's own sum over replicas."""
    return grads_and_vars


def sum_over_replicas(grads: list[Tensor]) -> list[Tensor]:
    """Return the sums of the replicas' gradients; outside of replicas they are as they are."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return grads if context is None or not grads else context.all_reduce("SUM", grads)
