"""A rule's numbers are state of a Keras model, as a generator's: saved with it, and not counted
among its weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras: Any = pytest.importorskip("keras")

pytestmark = pytest.mark.needs("keras")
PARAMS = {"width": 2.0}


def build(*middle: Any) -> Any:
    """Give a model with layers in the middle, the weights the same each time."""
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((4,)), dense(5, name="a"), *middle, dense(2, name="b")])


def build_pair() -> tuple[Any, Any]:
    """Give a model without rules, and the same with them in layers and in an activation."""

    import multigrad.keras as xk

    class Holder(keras.layers.Layer):
        """A layer of the user's own that holds an activation."""

        def __init__(self) -> None:
            super().__init__()
            self.spikes = xk.activation("Heaviside", "triangular", PARAMS)

        def call(self, inputs: Any) -> Any:
            return self.spikes(inputs)

    plain = build(keras.layers.Dense(5, activation="relu", name="c"))
    ruled = build(
        xk.Activation("ReLU", "triangular", PARAMS),
        keras.layers.Dense(5, activation=xk.activation("ReLU", "noise", {"sigma": 0.5}), name="c"),
        Holder(),
    )
    return plain, ruled


def test_weights_and_their_counts_are_those_of_the_model_without_rules() -> None:
    plain, ruled = build_pair()
    assert [w.path for w in ruled.weights] == [
        w.path.replace(plain.name, ruled.name) for w in plain.weights
    ]
    assert ruled.count_params() == plain.count_params()
    assert len(ruled.non_trainable_weights) == len(plain.non_trainable_weights) == 0
    said: list[str] = []
    ruled.summary(print_fn=lambda text, **_: said.append(text))
    assert "Non-trainable params: 0" in "".join(said)


def test_a_list_of_weights_of_the_model_without_rules_fits() -> None:
    plain, ruled = build_pair()
    old = [w + 1 for w in plain.get_weights()]
    ruled.set_weights(old)
    for ours, theirs in zip(ruled.get_weights(), old, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert float(ruled.layers[1].params["width"].value) == 2.0


def test_the_numbers_are_state_that_a_step_hands_on() -> None:
    _, ruled = build_pair()
    layer = ruled.layers[1]
    width = layer.params["width"]
    for holder in (layer, ruled):
        assert any(each is width for each in holder.variables)
        assert any(each is width for each in holder.non_trainable_variables)


def test_the_numbers_are_saved_and_loaded(tmp_path: Path) -> None:
    _, ruled = build_pair()
    ruled.layers[1].params["width"].assign(0.25)
    ruled.save_weights(tmp_path / "ruled.weights.h5")
    _, other = build_pair()
    other.load_weights(tmp_path / "ruled.weights.h5")
    assert float(other.layers[1].params["width"].value) == 0.25


def test_frozen_layers_have_the_same_weights() -> None:
    plain, ruled = build_pair()
    plain.trainable = ruled.trainable = False
    assert len(ruled.non_trainable_weights) == len(plain.non_trainable_weights) == 6


def test_an_optimizer_takes_the_numbers_of_the_one_without_a_rule() -> None:
    import multigrad.keras as xk

    def fit(optimizer: Any) -> Any:
        model = build()
        model.compile(optimizer, "mse")
        model.fit(np.ones((4, 4), np.float32), np.ones((4, 2), np.float32), verbose=0)
        return optimizer

    plain = fit(keras.optimizers.Adam(0.5))
    ruled = fit(xk.apply_to_gradients(keras.optimizers.Adam(0.5), "clip_norm", {"max_norm": 0.5}))
    values = [np.array(keras.ops.convert_to_numpy(v.value)) for v in plain.variables]
    ruled.set_weights(values)
    for variable, value in zip(ruled.inner_optimizer.variables, values, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable.value), value)
    assert float(ruled.params["max_norm"].value) == 0.5
