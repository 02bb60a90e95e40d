"""A layer that runs in another framework than Keras trains by the same formulas, in each way that
Keras runs a step.
"""

from __future__ import annotations

import itertools
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..support.threads import on_threads
from .conftest import DISTINCT_MODES, KINDS

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
HOST = os.environ.get("KERAS_BACKEND", "")
FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")
GUESTS = tuple(name for name in FRAMEWORKS if name != HOST)  # Keras runs in the host itself
# A framework, a style of model, a way of running a step.
WAYS = itertools.product(FRAMEWORKS, KINDS, DISTINCT_MODES)


@pytest.fixture(params=GUESTS)
def guest(request: pytest.FixtureRequest) -> str:
    """A framework to run a layer in."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed beside Keras's backend")
    return request.param


def is_refused(guest: str, mode: dict[str, Any]) -> bool:
    """Whether TensorFlow's XLA would have to call another framework."""
    return HOST == "tensorflow" and guest != HOST and mode.get("jit_compile") is True


@pytest.mark.parametrize(("guest", "kind", "mode"), sorted(WAYS), indirect=True)
def test_first_step_is_the_formulas(
    network: Any, guest: str, kind: str, mode: dict[str, Any]
) -> None:
    layer = xk.Activation("Heaviside", "triangular", {"width": 2.0}, backend=guest)
    model = network.build(layer, kind, **mode)
    if is_refused(guest, mode):
        with pytest.raises(xg.UnsupportedOp, match=r"jit_compile=False"):
            network.train(model)
        return
    network.check(model, lambda x: network.surrogates["triangular"](x, 2.0))


def test_xla_is_refused_before_anything_runs_and_the_model_stays_usable(
    network: Any, kind: str
) -> None:
    if HOST != "tensorflow":
        pytest.skip("about TensorFlow's XLA, and Keras runs on another backend here")
    layer = xk.Activation("Heaviside", "triangular", backend="numpy", name="gate")
    model = network.build(layer, kind, jit_compile=True)
    with pytest.raises(xg.UnsupportedOp, match=r"layer 'gate' runs in 'numpy', which .*XLA"):
        network.train(model)
    network.assert_trained(model, network.weights, 0.0)
    layer.backend = None
    network.check(model, network.surrogates["triangular"])


def test_a_layer_without_a_rule_follows_use(
    network: Any, guest: str, is_fixed: bool, usual_mode: dict[str, Any]
) -> None:
    if is_refused(guest, usual_mode):
        return
    model = network.build(xk.Activation("Heaviside", backend=guest), **usual_mode)
    with xg.use("rectangular"):
        network.check(model, network.surrogates["rectangular"])
    if is_fixed:
        with pytest.raises(xg.StaleTraceError):
            network.train(model)
    else:
        network.check(model, network.surrogates[None])


def test_a_true_derivative_crosses_the_bridge(network: Any, guest: str) -> None:
    model = network.build(xk.Activation("Tanh", backend=guest))
    native = network.build(xk.Activation("Tanh"))
    for ours, theirs in zip(network.train(model), network.train(native), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_float16", 5e-5), ("mixed_bfloat16", 1e-3), ("float64", 1e-6)]
)
@pytest.mark.parametrize("guest", [HOST, *GUESTS], indirect=True)
def test_other_precisions_train(network: Any, guest: str, policy: str, tolerance: float) -> None:
    layer = xk.Activation("Heaviside", "triangular", dtype=policy, backend=guest)
    outputs = layer(np.ones((2, 2), np.float32))
    assert keras.backend.standardize_dtype(outputs.dtype) == (
        "float32"
        if policy == "float64" and keras.config.backend() == "jax"
        else layer.compute_dtype
    )
    # Inputs and weights that 16 bits hold, and sums too large to change sign.
    network.x = np.sign(network.x)
    network.weights = [np.round(w * 4) / 4 + 0.125 * (w.ndim == 1) for w in network.weights]
    model = network.build(layer)
    network.check(model, network.surrogates["triangular"], tolerance)
    if policy.startswith("mixed"):
        assert {w.dtype.name for w in network.trained(model)} == {"float32"}


@pytest.mark.anywhere
def test_the_backend_may_change_between_fits(network: Any, usual_mode: dict[str, Any]) -> None:
    guests = [name for name in FRAMEWORKS if find_spec(name) and not is_refused(name, usual_mode)]
    layer = xk.Activation("Heaviside", "triangular")
    model = network.build(layer, **usual_mode)
    outputs, losses = [], []
    for backend in (None, *guests, None, guests[0]):
        layer.backend = backend
        assert layer.get_config()["backend"] == backend
        network.check(model, network.surrogates["triangular"])
        network.reset(model)
        outputs.append(model.predict(network.x, verbose=0))
        losses.append(model.evaluate(network.x, network.y, verbose=0))
        np.testing.assert_allclose(outputs[-1], outputs[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


def test_a_changed_param_crosses_without_a_retrace(network: Any, guest: str) -> None:
    layer = xk.Activation("Heaviside", "triangular", backend=guest)
    model = network.build(layer)
    for width in (1.0, 0.5, 2.0):
        layer.params["width"].assign(width)
        network.check(model, lambda x, w=width: network.surrogates["triangular"](x, w))


def test_a_random_rule_draws_anew_in_each_step(network: Any, guest: str) -> None:
    model = network.build(xk.Activation("Linear", "full_jam", backend=guest))
    moved = []
    for _ in range(3):
        network.reset(model)
        moved.append(network.train(model)[0] - network.weights[0])
    assert np.abs(moved[0] - moved[1]).max() > 1e-4
    assert np.abs(moved[1] - moved[2]).max() > 1e-4


def test_draws_under_a_key_are_those_of_the_native_layer(network: Any, guest: str) -> None:
    trained = []
    for backend in (None, guest):
        model = network.build(xk.Activation("Linear", "full_jam", backend=backend))
        with xg.use("full_jam", key=7):
            trained.append(network.train(model))
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.needs("torch")
def test_a_rule_that_runs_as_it_is_runs_in_its_own_framework(network: Any) -> None:
    import torch

    @xg.register("keras_test_torch_only", native=True)
    def torch_only(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return torch.where(tin.abs() <= 0.5, grad_out, torch.zeros_like(grad_out))

    layer = xk.Activation("Heaviside", "keras_test_torch_only", backend="torch")
    network.check(network.build(layer), network.surrogates["rectangular"])


def test_layers_called_on_several_threads_are_right(guest: str) -> None:
    layer = xk.Activation("Heaviside", "triangular", {"width": 4.0}, backend=guest)
    found: list[bool] = []

    def run(seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=10_000).astype(np.float32)
        for _ in range(10):
            y = keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(x)))
            found.append(bool(np.array_equal(y, (x > 0).astype(np.float32))))

    on_threads(run, *range(4))
    assert found == [True] * 40


def test_a_saved_layer_keeps_its_backend(network: Any, tmp_path: Path) -> None:
    model = network.build(xk.Activation("Heaviside", "triangular", backend="numpy", name="gate"))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("gate").backend == "numpy"
    network.check(loaded, network.surrogates["triangular"])


def test_a_backend_that_is_not_there_is_said_when_the_layer_is_made() -> None:
    with pytest.raises(xg.BackendNotFound, match="no backend named 'torhc'; did you mean 'torch'"):
        xk.Activation("Heaviside", "triangular", backend="torhc")
    for name in GUESTS:
        if find_spec(name) is None:
            install = rf"pip install '{name}"
            with pytest.raises(xg.BackendNotFound, match=install):
                xk.Activation("Heaviside", "triangular", backend=name)
