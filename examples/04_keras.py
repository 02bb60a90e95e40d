"""A Keras layer that carries its rule: it trains with `fit` on every backend of Keras and survives
its config.

Needs: pip install 'multigrad-rules[keras]' scikit-learn, and one of torch, jax, tensorflow
(KERAS_BACKEND)
"""

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import multigrad.keras


def build_model() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64),
            multigrad.keras.Activation("Heaviside", rule="triangular", params={"width": 1.0}),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0
    )

    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(0.005),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    print(f"Keras {keras.__version__} on {keras.backend.backend()}")
    history = model.fit(train_x, train_y, batch_size=64, epochs=10, verbose=0)
    for epoch, accuracy in enumerate(history.history["accuracy"], start=1):
        print(f"epoch {epoch:2}  training accuracy {accuracy:.3f}")
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    print(f"test accuracy {accuracy:.3f}")

    copy = keras.Sequential.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    same = np.array_equal(model.predict(test_x, verbose=0), copy.predict(test_x, verbose=0))
    print("a model rebuilt from its config predicts the same:", same)


if __name__ == "__main__":
    main()
