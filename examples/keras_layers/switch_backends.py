"""One layer of a Keras model runs in another framework, and changes it between two fits.

Each fit begins from the same weights, so it must end at the same ones, whichever framework ran the
layer. Needs: pip install 'multigrad-rules[keras]' scikit-learn, one of torch, jax, tensorflow
(KERAS_BACKEND), and any of the others
"""

import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import multigrad as xg
import multigrad.keras


def main() -> None:
    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)

    spikes = multigrad.keras.Activation("Heaviside", rule="triangular", name="spikes")
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64), spikes, keras.layers.Dense(10)]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    initial = [keras.ops.convert_to_numpy(v.value) for v in model.trainable_variables]

    def train() -> tuple[list[np.ndarray], float]:
        """Train from the initial weights; the trained ones and the accuracy."""
        for variable, value in zip(model.trainable_variables, initial, strict=True):
            variable.assign(value)
        history = model.fit(images, labels, batch_size=128, epochs=5, shuffle=False, verbose=0)
        weights = [keras.ops.convert_to_numpy(v.value) for v in model.trainable_variables]
        return weights, history.history["accuracy"][-1]

    installed = [status.name for status in xg.backends() if status.installed]
    print(f"Keras on {keras.backend.backend()}; the layer 'spikes' runs in")
    results = []
    for backend in (None, *installed):
        spikes.backend = backend  # the next step is compiled anew
        begin = time.perf_counter()
        weights, accuracy = train()
        results.append(weights)
        difference = max(np.abs(a - b).max() for a, b in zip(results[0], results[-1], strict=True))
        print(
            f"  {backend or 'the same':10}  accuracy {accuracy:.3f}  "
            f"largest difference {difference:.1e}  {time.perf_counter() - begin:.1f} s"
        )

    spikes.rule = "rectangular"  # a rule may be assigned as well
    print(f"under another rule: accuracy {train()[1]:.3f}")


if __name__ == "__main__":
    main()
