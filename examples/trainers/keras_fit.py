"""Somebody's Keras model of binary neurons, trained by `fit` on whichever backend Keras runs.

`keras.ops.sign` has no gradient. `attach` puts a straight-through estimator under it, in the
functional model's nodes and in the custom layer, and `fit` compiles the step anew by itself.

Needs: pip install 'multigrad-rules[keras,torch]' scikit-learn (or jax, or tensorflow)
"""

import keras
import numpy as np
from digits import as_arrays
from keras import layers

import multigrad as xg

EPOCHS, BATCH = 5, 64


class Binary(layers.Layer):
    """A layer of neurons that send -1 or 1; it knows nothing of multigrad."""

    def __init__(self, units, **options):
        super().__init__(**options)
        self.dense = layers.Dense(units)

    def call(self, inputs):
        return keras.ops.sign(self.dense(inputs))


def make_model():
    keras.utils.set_random_seed(0)
    images = keras.Input((64,))
    hidden = Binary(128, name="first")(images)
    hidden = keras.ops.sign(layers.Dense(64)(hidden))
    return keras.Model(images, layers.Dense(10)(hidden))


def main() -> None:
    (images, labels), test = as_arrays()
    rule = xg.get("rectangular").with_params(a=-1.0, b=1.0)
    for with_rules in (False, True):
        model = make_model()
        before, names = model.get_weights(), [w.path for w in model.weights]
        changed = xg.attach(model, {"sign": rule}) if with_rules else None
        model.compile(
            keras.optimizers.Adam(2e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        model.fit(images, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
        if changed is not None:
            print(changed)
            changed.detach()
        accuracy = model.evaluate(*test, verbose=0)[1]
        moved = np.abs(model.get_weights()[0] - before[0]).max()
        same = names == [w.path for w in model.weights]
        print(
            f"rules {with_rules!s:5}: accuracy {accuracy:.4f}, first layer moved by {moved:.4f}, "
            f"the same weights: {same}"
        )


if __name__ == "__main__":
    main()
