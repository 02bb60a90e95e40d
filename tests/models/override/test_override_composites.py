"""Composites on functions of jax: heat maps equal to those of the same model in torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch", "jax", "flax")
pytest.importorskip("torch")
pytest.importorskip("flax")

import jax
import jax.numpy as jnp
import torch
from flax import linen, nnx

IMAGES = np.random.default_rng(0).normal(size=(2, 3, 12, 12)).astype(np.float32)
COMPOSITES = {
    "epsilon_plus": xg.composites.epsilon_plus(),
    "epsilon_plus, canonized": xg.composites.epsilon_plus(canonize=True),
    "flat, canonized": xg.composites.epsilon_alpha2_beta1_flat(canonize=True),
    "box": xg.composites.epsilon_gamma_box(-3.0, 3.0),
    "guided": xg.composites.guided_backprop(),
}


def original() -> torch.nn.Sequential:
    """Return a model of torch with numbers of its own."""
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.AvgPool2d(2), torch.nn.Conv2d(4, 6, 3, stride=2, bias=False), torch.nn.GELU(),
        torch.nn.MaxPool2d(2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3),
    ).eval()  # fmt: skip
    with torch.no_grad():
        for given in (made[1].running_mean, made[1].running_var, made[1].weight, made[1].bias):
            given.copy_(torch.rand(4) + 0.5)
    return made


TORCH = original()


def numbers(tensor: Any, *axes: int) -> Any:
    array = tensor.detach().numpy()
    return jnp.asarray(array.transpose(axes) if axes else array)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Conv(4, (3, 3))(x)
        x = linen.relu(linen.BatchNorm(use_running_average=True)(x))
        x = linen.avg_pool(x, (2, 2), (2, 2))
        x = linen.Conv(6, (3, 3), strides=2, padding="VALID", use_bias=False)(x)
        x = linen.max_pool(linen.gelu(x, approximate=False), (2, 2), (2, 2)).mean((1, 2))
        x = linen.relu(linen.Dense(5)(x))
        return linen.remat(linen.Dense)(3)(x)


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs)
        self.second = nnx.Conv(4, 6, (3, 3), 2, padding="VALID", use_bias=False, rngs=rngs)
        self.third = nnx.Linear(6, 5, rngs=rngs)
        self.last = nnx.Linear(5, 3, rngs=rngs)

    @nnx.jit
    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.norm(self.first(x))), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.gelu(self.second(x), approximate=False), (2, 2), (2, 2))
        return self.last(nnx.relu(self.third(x.mean((1, 2)))))


def variables() -> Any:
    conv, norm, second, third, last = (TORCH[i] for i in (0, 1, 4, 9, 11))
    return {
        "params": {
            "Conv_0": {"kernel": numbers(conv.weight, 2, 3, 1, 0), "bias": numbers(conv.bias)},
            "BatchNorm_0": {"scale": numbers(norm.weight), "bias": numbers(norm.bias)},
            "Conv_1": {"kernel": numbers(second.weight, 2, 3, 1, 0)},
            "Dense_0": {"kernel": numbers(third.weight, 1, 0), "bias": numbers(third.bias)},
            "CheckpointDense_0": {"kernel": numbers(last.weight, 1, 0), "bias": numbers(last.bias)},
        },
        "batch_stats": {
            "BatchNorm_0": {"mean": numbers(norm.running_mean), "var": numbers(norm.running_var)}
        },
    }


def of_linen() -> Any:
    given = variables()
    return lambda x: Linen().apply(given, x)


def of_nnx() -> Any:
    made, given = Nnx(nnx.Rngs(0)), variables()
    params, statistics = given["params"], given["batch_stats"]["BatchNorm_0"]
    layers = (made.first, made.second, made.third, made.last)
    names = ("Conv_0", "Conv_1", "Dense_0", "CheckpointDense_0")
    for layer, name in zip(layers, names, strict=True):
        layer.kernel[...] = params[name]["kernel"]
        if "bias" in params[name]:
            layer.bias[...] = params[name]["bias"]
    made.norm.scale[...], made.norm.bias[...] = params["BatchNorm_0"].values()
    made.norm.mean[...], made.norm.var[...] = statistics.values()
    return made


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.parametrize("make", [of_linen, of_nnx], ids=["linen", "nnx"])
def test_a_composite_gives_the_heat_maps_that_it_gives_in_torch(make: Any, name: str) -> None:
    composite = COMPOSITES[name]
    x = torch.tensor(IMAGES, requires_grad=True)
    with xg.attach(TORCH, composite):
        expected = torch.autograd.grad(TORCH(x)[:, 1].sum(), x)[0].numpy()
    model, given = make(), jnp.asarray(IMAGES.transpose(0, 2, 3, 1))
    overridden = xg.override(model, composite)
    np.testing.assert_allclose(overridden(given), model(given), rtol=1e-6)
    found = jax.jit(jax.grad(lambda x: overridden(x)[:, 1].sum()))(given)
    most = np.abs(expected).max()
    np.testing.assert_allclose(found.transpose(0, 3, 1, 2), expected, atol=5e-6 * most, rtol=0)


def test_a_bound_whose_shape_does_not_fit_the_input_is_refused() -> None:
    layers = {"linear": xg.attribution.zbox(jnp.zeros(2), 1.0)}
    overridden = xg.override(lambda x: x @ jnp.eye(3), xg.composites.Composite("box", layers))
    with pytest.raises(xg.RuleError, match=r"'low' has shape \(2,\), and the layer's input \(3,\)"):
        jax.grad(lambda x: overridden(x).sum())(jnp.ones((4, 3)))


def test_an_operation_that_multiplies_relevance_without_a_rule_is_named_in_a_warning() -> None:
    weight, scale = jnp.eye(3) + 0.5, jnp.array([1.0, 2.0, 3.0])
    x = jnp.array([[0.5, 1.0, 1.5]])

    def share(function: Any, composite: Any) -> tuple[float, list[str]]:
        overridden = xg.override(function, composite)
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            score, pull = jax.vjp(lambda x: overridden(x)[:, 1].sum(), x)
        assert all(each.category is xg.errors.ActsNowhereWarning for each in w)
        return float(pull(score)[0].sum() / score), [str(each.message) for each in w]

    default, canonized = xg.composites.epsilon_plus(), xg.composites.epsilon_plus(canonize=True)

    def residual(x: Any) -> Any:
        return (jax.nn.relu(x @ weight) + x) @ weight

    found, said = share(residual, default)
    assert abs(found - 1) > 1e-2
    assert "no rule for add (activations)" in said[0]
    assert "canonize=True" in said[0]
    for function, words in (
        (lambda x: (jax.nn.relu(x @ weight) * scale) @ weight, "mul (a weight)"),
        (lambda x: (x @ weight) @ (x.T @ x), "dot_general (activations)"),
        (lambda x: jax.nn.softmax(x @ weight), "sub (activations), exp (an activation)"),
        (lambda x: jnp.cumsum(x @ weight, 1), "cumsum (an activation)"),
        (lambda x: 1.0 - x @ weight, "sub (an activation)"),
    ):
        found, said = share(function, canonized)
        assert abs(found - 1) > 1e-2
        assert f"no rule for {words}" in said[0]
    found, said = share(residual, canonized)
    assert abs(found - 1) < 1e-3
    assert not said
    with pytest.raises(xg.RuleError, match=r"'guided_backprop' has no rule.*it is for relu, and"):
        share(lambda x: jax.nn.gelu(x @ weight), xg.composites.guided_backprop())
