"""A model with a rule of one's own is saved on one Keras backend and trained on with another, where
the rule is unknown.

Needs: pip install 'multigrad-rules[keras]' scikit-learn, and two of torch, jax, tensorflow (one is
enough to save and load on the same): name them as arguments, first the one that saves
"""

import os
import subprocess
import sys
import tempfile

SAVE = """
import sys
import keras, numpy as np
import multigrad as xg
import multigrad.keras
from multigrad import xp
from sklearn.datasets import load_digits


@xg.register("bump")
def bump(ctx, grad_out, tin, width: float = 1.0):
    return grad_out * xp.exp(-((tin / width) ** 2))


keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
model = keras.Sequential([
    keras.Input((64,)),
    keras.layers.Dense(64, activation=multigrad.keras.activation("Heaviside", rule="bump")),
    keras.layers.Dense(10),
])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
model.fit(images / 16, labels, epochs=10, verbose=0)
model.save(sys.argv[1])
accuracy = model.evaluate(images / 16, labels, verbose=0)[1]
print(f"saved on {keras.backend.backend()}:  accuracy {accuracy:.4f}")
"""

LOAD = """
import sys
import keras, numpy as np
import multigrad as xg
import multigrad.keras  # all that loading needs
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
model = keras.saving.load_model(sys.argv[1], safe_mode=True, compile=False)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
accuracy = model.evaluate(images / 16, labels, verbose=0)[1]
print(f"loaded on {keras.backend.backend()}: accuracy {accuracy:.4f}")
model.fit(images / 16, labels, epochs=5, verbose=0)
accuracy = model.evaluate(images / 16, labels, verbose=0)[1]
print(f"trained on {keras.backend.backend()}: accuracy {accuracy:.4f}")
print("'bump' is registered here:", "bump" in xg.rules())
print(xg.show(model.layers[0].activation.rule))
"""


def run(script: str, backend: str, file: str) -> None:
    """Run a script in a process of its own, with Keras on a backend."""
    subprocess.run(
        [sys.executable, "-c", script, file],
        env={**os.environ, "KERAS_BACKEND": backend},
        check=True,
    )


def main(saves: str, loads: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "digits.keras")
        run(SAVE, saves, file)
        run(LOAD, loads, file)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ("tensorflow", "jax")))
