"""A surrogate gradient narrows while the network trains, batch by batch, and nothing is compiled
anew.

Wide windows let every neuron learn, narrow ones come close to the step's own derivative.
Needs: pip install 'multigrad-rules[keras]' scikit-learn, and one of torch, jax, tensorflow
(KERAS_BACKEND)
"""

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import multigrad.keras

EPOCHS = 12


def narrowing(step: int) -> float:
    """The window's width at a step: 4 at first, half of it every 60 steps, at least 0.25."""
    return max(4.0 * 0.5 ** (step / 60), 0.25)


def main() -> None:
    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0
    )

    spikes = multigrad.keras.activation("Heaviside", rule="triangular", name="spikes")
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation=spikes),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.005),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    class Report(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            width = spikes.params.numbers()["width"]
            print(f"epoch {epoch + 1:2}  width {width:.3f}  accuracy {logs['accuracy']:.3f}")

    model.fit(
        train_x,
        train_y,
        batch_size=64,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[multigrad.keras.Anneal("width", narrowing), Report()],
    )
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    print(f"test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
