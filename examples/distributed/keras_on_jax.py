"""The same `fit` on one device and on two in Keras on JAX, by keras.distribution.

    python keras_on_jax.py --one
    python keras_on_jax.py          two devices of one process, DataParallel

One line more: `set_distribution`, before the model is made. The layers carry their rules, and jax
shards the whole step, so a norm is that of the whole batch by itself. The exit code is 1 where two
devices do not train to the weights of one. Needs: pip install 'multigrad-rules[keras,jax]'
scikit-learn
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "2"

import keras
import numpy as np
from digits import BATCH, RATE, compare, draw_weights, load_batches

import multigrad.keras as xk


def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, use_bias=False),
            xk.Activation("Heaviside", "triangular"),
            keras.layers.Dense(32, use_bias=False),
            xk.Activation("Tanh", "clip_norm", {"max_norm": 0.01}),
            xk.Activation("Linear", "noise", {"sigma": 1e-3}),
            keras.layers.Dense(10, use_bias=False),
        ]
    )
    model.set_weights(draw_weights())
    # The gradients that it gets are those of the whole batch.
    optimizer = xk.apply_to_gradients(keras.optimizers.SGD(RATE), "clip_norm", {"max_norm": 0.2})
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(logs["loss"]))  # the mean of all so far


def train():
    images, labels = (np.concatenate(arrays) for arrays in zip(*load_batches(), strict=True))
    model, losses = build(), Losses()
    model.fit(images, labels, BATCH, shuffle=False, verbose=0, callbacks=[losses])
    return losses.seen, model.get_weights()


def main() -> int:
    one = train()
    if "--one" in sys.argv:
        print(f"one device: loss {one[0][0]:.4f} to {one[0][-1]:.4f}")
        return 0
    devices = keras.distribution.list_devices()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    return 0 if compare(f"DataParallel on {len(devices)} devices", one, train()) else 1


if __name__ == "__main__":
    sys.exit(main())
