"""`xg.memory` of Keras models: bytes by layer, as the backends of Keras count them themselves."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import multigrad as xg
import multigrad.keras
from multigrad import xp
from multigrad.errors import RuleTypeError, RuleValueError

from ..harness.traced import kept_by_torch

pytestmark = pytest.mark.needs("keras")
BACKEND = keras.backend.backend()


def spiking() -> Any:
    positive = xg.function(lambda x: x * 2, lambda g, x: xp.where(x > 0, g, 0.0))
    return keras.Sequential(
        [
            keras.layers.Input((20,)),
            keras.layers.Dense(30, name="first"),
            multigrad.keras.Activation("Heaviside", rule="rectangular", name="spike"),
            keras.layers.Dense(5, name="second"),
            multigrad.keras.CustomGradient(positive, name="own"),
        ]
    )


def test_layers_keep_their_inputs_and_rules_their_masks() -> None:
    kept = xg.memory(spiking(), (8, 20))
    assert kept.backend == BACKEND
    found = {each.layer: (each.what, each.shape, each.bytes) for each in kept.residuals}
    assert found == {
        "first": ("input", (8, 20), 8 * 20 * 4),
        "spike": ("mask", (8, 30), 8 * 30),
        "second": ("input", (8, 30), 8 * 30 * 4),
        "own": ("mask", (8, 5), 8 * 5),
    }
    assert kept.total == sum(kept.layers.values()) == 1880
    rows = str(kept).splitlines()
    assert rows[0] == f"Sequential on {BACKEND} keeps 1,880 bytes for backward:"
    assert rows[1].split() == ["layer", "name", "what", "shape", "dtype", "bytes"]


def test_attached_rule_and_a_dtype_of_the_layer_are_seen() -> None:
    model = keras.Sequential(
        [
            keras.layers.Input((20,)),
            keras.layers.Dense(30, name="first", dtype="mixed_bfloat16"),
            keras.layers.Activation("sigmoid", name="gate"),
        ]
    )
    assert xg.memory(model, (8, 20)).layers["first"] == 8 * 20 * 2
    with xg.attach(model, {"gate": "rectangular"}):
        (gate,) = [each for each in xg.memory(model, (8, 20)).residuals if each.layer == "gate"]
    assert (gate.what, gate.bytes) == ("mask", 240)


def test_nothing_of_the_model_changes() -> None:
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.5),
        ]
    )
    before = [np.array(keras.ops.convert_to_numpy(each)) for each in model.variables]
    assert xg.memory(model, (8, 6)).layers["norm"] >= 8 * 4 * 4
    for each, was in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(each), was)
    assert not any("call" in vars(layer) for layer in (model, *model.layers))


def test_functional_models_count_a_tensor_once_and_weights_never() -> None:
    given = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, name="first")(given)
    y = keras.layers.Conv2D(4, 3, padding="same", name="second")(x)
    z = keras.layers.Flatten()(keras.layers.Add()([x, y]))
    model = keras.Model(given, keras.layers.Dense(2, name="last")(z))
    kept = xg.memory(model, (2, 8, 8, 3))
    floats = {"first": 2 * 8 * 8 * 3, "second": 2 * 6 * 6 * 4, "last": 2 * 6 * 6 * 4}
    if BACKEND == "torch":  # whose convolutions take kernels in another order, as copies
        floats["first"] += 3 * 3 * 3 * 4
        floats["second"] += 3 * 3 * 4 * 4
    assert kept.layers == {name: 4 * count for name, count in floats.items()}


def saved_by_torch(model: Any, shape: tuple[int, ...]) -> int:
    import torch

    return kept_by_torch(model, torch.zeros(shape), besides=[v.value for v in model.variables])


def kept_by_jax(model: Any, shape: tuple[int, ...]) -> int:
    import jax

    values = [each.value for each in model.trainable_variables]
    others = [each.value for each in model.non_trainable_variables]

    def call(values: Any) -> Any:
        return model.stateless_call(values, others, np.zeros(shape, np.float32))[0]

    _, pull = jax.vjp(call, values)
    kept = {id(each): each for each in jax.tree_util.tree_leaves(pull)}
    own = {each.shape for each in values}
    return sum(each.nbytes for each in kept.values() if each.shape not in own)


COUNTED = {"torch": saved_by_torch, "jax": kept_by_jax}


@pytest.mark.skipif(BACKEND not in COUNTED, reason="TensorFlow does not count what its tape keeps")
def test_frameworks_keep_as_many_bytes_as_are_told() -> None:
    model = spiking()
    assert xg.memory(model, (8, 20)).total == COUNTED[BACKEND](model, (8, 20))


def test_what_cannot_be_told_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RuleValueError, match=r"call it once, or loose.build\(\(4, 8\)\)"):
        xg.memory(keras.layers.Dense(3, name="loose"), (4, 8))
    loop = keras.Sequential([keras.layers.Input((5, 6)), keras.layers.LSTM(4, name="loop")])
    if BACKEND == "tensorflow":
        with pytest.raises(RuleTypeError, match=r"layer 'loop' keeps StatelessWhile.*unroll=True"):
            xg.memory(loop, (2, 5, 6))
    else:
        assert xg.memory(loop, (2, 5, 6)).layers["loop"] > 2 * 5 * 4 * 4
    unrolled = keras.Sequential(
        [keras.layers.Input((5, 6)), keras.layers.LSTM(4, name="loop", unroll=True)]
    )
    assert xg.memory(unrolled, (2, 5, 6)).total > 2 * 5 * 4 * 4


def test_an_activation_is_asked_without_a_model() -> None:
    spike = multigrad.keras.Activation("Heaviside", rule="rectangular")
    assert xg.memory(spike, (4, 8)).total == 32
