"""Random rules in Keras: new draws in each step, repeatable by Keras's seed, exact under a key."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")

# jax.random.uniform(jax.random.fold_in(jax.random.key(7), n), (1, 6)), n = 0, 1, 2, by jax 0.10.2.
FACTORS = np.array(
    [
        [0.86737049, 0.55631435, 0.30067706, 0.33249056, 0.99207819, 0.20568824],
        [0.67513359, 0.82617640, 0.39398670, 0.42432010, 0.20956135, 0.52323830],
        [0.20599794, 0.25844133, 0.03597891, 0.97925127, 0.18327618, 0.49306464],
    ]
)


class Step:
    """One step on one row through the identity: the first bias moves by the rule's gradient."""

    def __init__(self, network: Any) -> None:
        self.network = network
        network.x, network.y = network.x[:1], network.y[:1]
        x, y, a, b, c, d = (w.astype(np.float64) for w in (network.x, network.y, *network.weights))
        self.expected = (2 * ((x @ a + b) @ c + d - y) / y.size @ c.T)[0]

    def __call__(self, model: Any) -> Any:
        """Give the factor by which each gradient was multiplied in one step of training."""
        self.network.reset(model)
        moved = self.network.weights[1] - self.network.train(model)[1]
        return moved / self.network.rate / self.expected


@pytest.fixture
def step(network: Any) -> Step:
    return Step(network)


def test_every_step_draws_anew(network: Any, step: Step, mode: dict[str, Any]) -> None:
    model = network.build(xk.Activation("Linear", rule="full_jam"), **mode)
    factors = np.array([step(model) for _ in range(4)])
    assert factors.min() >= -1e-5
    assert factors.max() < 1 + 1e-5
    assert np.ptp(factors, axis=0).min() > 1e-2
    assert np.ptp(factors, axis=1).min() > 1e-2


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["auto", "eagerly"])
@pytest.mark.parametrize("by_use", [False, True], ids=["own rule", "use"])
def test_kerass_seed_repeats_the_draws(
    network: Any, step: Step, options: dict[str, Any], by_use: bool
) -> None:
    def run(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        if by_use:
            model = network.build(xk.Activation("Linear"), **options)
            with xg.use("full_jam"):
                return [step(model) for _ in range(3)]
        model = network.build(xk.Activation("Linear", rule="full_jam"), **options)
        return [step(model) for _ in range(3)]

    first, again, other = run(1), run(1), run(2)
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.subtract(first, other)).max() > 1e-2


def test_two_layers_draw_different_numbers() -> None:
    weights = [np.eye(6, dtype=np.float32), np.zeros(6, np.float32)]
    parts = [keras.layers.Dense(6), xk.Activation("Linear", rule="full_jam")]
    parts += [keras.layers.Dense(6), xk.Activation("Linear", rule="full_jam")]
    model = keras.Sequential([keras.Input((6,)), *parts])
    model.set_weights(weights * 2)
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(np.zeros((1, 6), np.float32), np.full((1, 6), -3.0, np.float32))
    # The gradient that reaches the last layer is 1 in each place.
    last = -model.get_weights()[3]
    first = -model.get_weights()[1] / last
    assert np.abs(first - last).max() > 1e-2


def test_a_key_gives_the_known_numbers_in_the_first_step(
    network: Any, step: Step, kind: str
) -> None:
    model = network.build(xk.Activation("Linear"), kind)
    with xg.use("full_jam", key=7):
        np.testing.assert_allclose(step(model), FACTORS[0], rtol=1e-4)


def test_a_key_seeds_a_layers_own_rule(
    network: Any, step: Step, usual_mode: dict[str, Any]
) -> None:
    model = network.build(xk.Activation("Linear", rule="full_jam"), **usual_mode)
    with xg.use("clip_norm", key=7):
        np.testing.assert_allclose(step(model), FACTORS[0], rtol=1e-4)


@pytest.mark.usefixtures("whole_step")
def test_steps_count_their_draws_and_compiled_ones_count_their_traces(
    network: Any, step: Step, usual_mode: dict[str, Any]
) -> None:
    model = network.build(xk.Activation("Linear"), **usual_mode)
    compiled = {
        "torch": usual_mode.get("jit_compile", False),
        "jax": usual_mode.get("jit_compile", True),
        "tensorflow": True,
    }
    counts = usual_mode.get("run_eagerly") or not compiled[os.environ["KERAS_BACKEND"]]
    with xg.use("full_jam", key=7):
        gradients = [step(model) for _ in range(3)]
    drawn = [
        next(n for n, factor in enumerate(FACTORS) if np.allclose(gradient, factor, rtol=1e-4))
        for gradient in gradients
    ]
    # torch.compile traces Keras's step a second time, once the weights hold gradients.
    traced_twice = os.environ["KERAS_BACKEND"] == "torch"
    assert drawn == ([0, 1, 2] if counts else [0, 1, 1] if traced_twice else [0, 0, 0])


def test_finding_shapes_counts_no_draw(network: Any, step: Step) -> None:
    with xg.use("full_jam", key=7):
        model = network.build(xk.Activation("Linear"), "functional", run_eagerly=True)
        network.chain([model]).compute_output_spec(keras.KerasTensor((None, 8)))
        np.testing.assert_allclose(step(model), FACTORS[0], rtol=1e-4)


def test_another_key_is_followed_or_refused(
    network: Any, step: Step, mode: dict[str, Any], is_fixed: bool
) -> None:
    model = network.build(xk.Activation("Linear"), **mode)
    with xg.use("full_jam", key=7):
        step(model)
    with xg.use("full_jam", key=8):
        if is_fixed:
            with pytest.raises(xg.StaleTraceError):
                step(model)
        else:
            assert np.abs(step(model) - FACTORS[0]).max() > 1e-2
