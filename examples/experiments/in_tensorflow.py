"""What the experiments need of TensorFlow; the names are those of `in_torch.py`."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from task import Tensor, Update

mean = tf.reduce_mean
reshape = tf.reshape
compiled = tf.function
stopped = tf.stop_gradient


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def tensor(array) -> tf.Tensor:
    return tf.convert_to_tensor(array)


def array(tensor: tf.Tensor) -> np.ndarray:
    return tensor.numpy()


def make_step(loss: Callable[..., Tensor], update: Update):
    """Return `step(weights, kept, *batch)`, which gives both anew and the loss."""

    @tf.function
    def step(weights, kept, *batch):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(weights, *batch)
        return *update(weights, tape.gradient(value, weights), kept), value

    return step
