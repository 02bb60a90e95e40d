"""Keras models with rules attached, as people keep, train and save them; and what is refused."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.models.models_keras import (
    NONE,
    RULE,
    WEIGHTS,
    X,
    Y,
    assert_close,
    differ,
    fit,
    plain,
    registered,  # noqa: F401 (a fixture)
    trained,
)

keras: Any = pytest.importorskip("keras")

xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = [pytest.mark.needs("keras"), pytest.mark.usefixtures("registered")]


def test_fit_follows_attach_and_detach(mode: dict[str, Any]) -> None:
    model = plain(**mode)
    own = fit(model)  # compiled before there is a rule
    model.set_weights(WEIGHTS)
    handle = xk.attach(model, {"relu": RULE})
    ruled = fit(model)
    assert_close(ruled, trained())
    handle.detach()
    model.set_weights(WEIGHTS)
    assert_close(fit(model), own)
    assert differ(own, ruled)


def test_rules_attached_before_compile_act() -> None:
    model = plain()
    with xk.attach(model, {keras.layers.ReLU: RULE}):
        model.compile(keras.optimizers.SGD(0.25), "mse")
        ruled = fit(model)
    assert_close(ruled, trained())


def test_steps_of_a_model_around_the_one_that_is_changed_follow() -> None:
    inner = plain()
    start = inner.get_weights()
    outer = keras.Sequential([keras.Input((6,)), inner])
    outer.compile(keras.optimizers.SGD(0.25), "mse")
    own = fit(outer)
    inner.set_weights(start)
    with xk.attach(inner, {"relu": RULE}):
        ruled = fit(outer)
    assert_close(ruled, trained())
    inner.set_weights(start)
    assert_close(fit(outer), own)


def test_a_loaded_model_takes_rules(tmp_path: Path) -> None:
    plain().save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    with xk.attach(model, {"relu": RULE}):
        assert_close(fit(model), trained())


def contents(path: Path) -> dict[str, bytes]:
    """Give what a file of Keras holds, without the times in it."""
    if not zipfile.is_zipfile(path):
        return {"": path.read_bytes()}
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if name != "metadata.json"}


def test_weights_files_and_configs_are_those_of_before(tmp_path: Path) -> None:
    def state(name: str) -> tuple[Any, ...]:
        model.save_weights(tmp_path / f"{name}.weights.h5")
        model.save(tmp_path / f"{name}.keras")
        said: list[str] = []
        model.summary(print_fn=lambda text, **_: said.append(text))
        files = [contents(tmp_path / f"{name}{end}") for end in (".weights.h5", ".keras")]
        names = [(w.path, w.shape, w.trainable) for w in model.weights]
        return names, model.count_params(), model.get_config(), said, files

    model = plain()
    fit(model)
    before, twice = state("before"), state("twice")
    weights = model.get_weights()
    with xk.attach(model, {"relu": RULE, "b": NONE}):
        during = state("during")
        copy = pickle.loads(pickle.dumps(model))
        for ours, theirs in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    after = state("after")
    assert during[:4] == before[:4] == after[:4]
    if before[4] == twice[4]:  # Keras itself writes the same bytes
        assert during[4] == before[4] == after[4]
    assert not any("call" in vars(layer) for layer in (copy, *copy.layers, model, *model.layers))


def test_handles_come_off_in_any_order() -> None:
    model = plain()
    start = model.get_weights()
    first = xk.attach(model, {"relu": RULE})
    second = xk.attach(model, {"c": NONE})
    third = xk.attach(model, {"tanh": RULE, "b": NONE})
    first.detach()
    first.detach()
    third.detach()
    assert_close(fit(model)[:4], start[:4])  # no gradient passes the last layer
    second.detach()
    model.set_weights(start)
    assert_close(fit(model), fit(plain()))
    assert "call" not in vars(model)
    assert keras.ops.relu.__module__.startswith("keras")
    assert not second.is_attached


def compile_gradient(model: Any) -> Callable[[], Any]:
    """Give a compiled function of one's own: the gradient of a model's input."""
    backend, x = keras.config.backend(), keras.ops.convert_to_tensor(X)
    if backend == "torch":
        import torch

        forward = torch.compile(lambda x: model(x), backend="aot_eager")

        def compute() -> Any:
            given = x.detach().clone().requires_grad_()
            forward(given).sum().backward()
            return given.grad.numpy()

        return compute
    if backend == "jax":
        import jax

        gradient = jax.jit(jax.grad(lambda x: model(x).sum()))
        return lambda: np.asarray(gradient(x))
    import tensorflow as tf

    @tf.function
    def traced(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(model(x))
        return tape.gradient(y, x)

    return lambda: traced(x).numpy()


def test_compiled_functions_of_ones_own_follow() -> None:
    model = plain()
    compute, other = compile_gradient(model), compile_gradient(plain())
    own, others = compute(), other()
    assert np.abs(own).max() > 1e-4
    for _ in range(2):
        with xk.attach(model, {"a": NONE}):
            np.testing.assert_array_equal(compute(), 0.0 * own)
        np.testing.assert_allclose(other(), others, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(compute(), own, rtol=1e-5, atol=1e-7)


def test_guided_backprop_of_a_model_of_somebody_else_is_its_formula() -> None:
    @xg.register("keras_test_guided", override=True)
    def guided(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.where((tin > 0) & (grad_out > 0), grad_out, 0.0)

    model = plain()
    with xk.attach(model, {"relu": "keras_test_guided"}):
        _, pull = xg.vjp(model, keras.ops.convert_to_tensor(X))
        heat = keras.ops.convert_to_numpy(pull(keras.ops.convert_to_tensor(Y))[0])
    xg.unregister("keras_test_guided")
    a, p, b, q, c, _ = (w.astype(np.float64) for w in model.get_weights())
    first = X @ a + p
    second = np.maximum(first, 0) @ b + q
    back = Y @ c.T
    back = np.where((second > 0) & (back > 0), back, 0) @ b.T
    back = np.where((first > 0) & (back > 0), back, 0) @ a.T
    np.testing.assert_allclose(heat, back, rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="Dynamo reads Keras on torch"
)
def test_dynamo_reads_an_attached_model_whole(backend: Any) -> None:
    torch = pytest.importorskip("torch")

    model = plain()
    for rules in ({"relu": RULE}, {"a": NONE, "relu": RULE}):
        with xk.attach(model, rules):
            whole = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
            found, expected = (keras.ops.convert_to_tensor(X).requires_grad_() for _ in "12")
            whole(found).sum().backward()
            model(expected).sum().backward()
            torch.testing.assert_close(found.grad, expected.grad)
