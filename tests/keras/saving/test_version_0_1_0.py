"""Model files of version 0.1.0, written on TensorFlow, load and train on each Keras backend."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import multigrad as xg

from ...data import v0_1_0 as before

pytestmark = pytest.mark.needs("keras")


@pytest.mark.parametrize("name", ["activations", "functional"])
def test_a_model_file_predicts_and_trains_the_same(xk: ModuleType, name: str) -> None:
    import keras

    assert "window" not in xg.rules()
    model = keras.saving.load_model(before.HERE / "keras" / f"{name}.keras", safe_mode=True)
    assert type(model.optimizer) is type(xk.apply_to_gradients("sgd", "scale"))
    found = before.compute_keras(model)
    with np.load(before.HERE / "keras" / f"{keras.config.backend()}.npz") as numbers:
        for what, array in found.items():
            np.testing.assert_allclose(array, numbers[f"{name}/{what}"], rtol=0, atol=1e-6)
