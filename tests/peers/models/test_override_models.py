"""`xg.override` on models of equinox and haiku, which know nothing of rules: heat maps of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.peers
eqx = pytest.importorskip("equinox")
hk = pytest.importorskip("haiku")
torch = pytest.importorskip("torch")

import jax
import jax.numpy as jnp

IMAGES = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
RULES: dict[str, Any] = {
    "guided": {"relu": "guided"},
    "epsilon_plus": xg.composites.epsilon_plus(canonize=True),
}


def original() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.AvgPool2d(2),
        torch.nn.Conv2d(4, 5, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(20, 6),
        torch.nn.ReLU(), torch.nn.Linear(6, 3),
    )  # fmt: skip


TORCH = original()


def numbers(tensor: Any, *axes: int) -> Any:
    array = tensor.detach().numpy()
    return jnp.asarray(array.transpose(axes) if axes else array)


def of_equinox() -> Any:
    """Return a model of equinox with the weights of the original, mapped over the images."""
    key = jax.random.key(0)
    layers = [
        eqx.nn.Conv2d(3, 4, 3, padding=1, key=key), eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.AvgPool2d(2, 2), eqx.nn.Conv2d(4, 5, 3, key=key), eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(20, 6, key=key), eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.Linear(6, 3, key=key),
    ]  # fmt: skip
    model = eqx.nn.Sequential(layers)
    for i in (0, 3, 6, 8):
        bias = numbers(TORCH[i].bias)
        given = numbers(TORCH[i].weight), bias.reshape(model.layers[i].bias.shape)
        model = eqx.tree_at(lambda m, i=i: (m.layers[i].weight, m.layers[i].bias), model, given)
    return model


def of_haiku() -> Any:
    """Return a function of images with the weights of the original."""

    def network(x):
        x = hk.AvgPool(2, 2, "VALID")(jax.nn.relu(hk.Conv2D(4, 3)(x)))
        x = jax.nn.relu(hk.Conv2D(5, 3, padding="VALID")(x)).transpose(0, 3, 1, 2)
        return hk.Linear(3)(jax.nn.relu(hk.Linear(6, name="hidden")(hk.Flatten()(x))))

    transformed = hk.without_apply_rng(hk.transform(network))
    names = {0: "conv2_d", 3: "conv2_d_1", 6: "hidden", 8: "linear"}
    params = {
        name: {
            "w": numbers(TORCH[i].weight, *((2, 3, 1, 0) if i < 6 else (1, 0))),
            "b": numbers(TORCH[i].bias),
        }
        for i, name in names.items()
    }
    return lambda x: transformed.apply(params, x)


def expected(rules: Any) -> Any:
    x = torch.tensor(IMAGES, requires_grad=True)
    with xg.attach(TORCH, rules):
        return torch.autograd.grad(TORCH(x)[:, 1].sum(), x)[0].numpy()


def check(found: Any, name: str) -> None:
    heat = expected(RULES[name])
    np.testing.assert_allclose(found, heat, atol=5e-6 * np.abs(heat).max(), rtol=0)


@pytest.mark.parametrize("name", RULES)
def test_equinox_gives_the_heat_maps_of_torch(name: str) -> None:
    overridden = xg.override(of_equinox(), RULES[name])
    heat = jax.vmap(jax.grad(lambda x: overridden(x)[1]))(jnp.asarray(IMAGES))
    check(heat, name)
    mapped = eqx.filter_jit(xg.override(jax.vmap(of_equinox()), RULES[name]))
    check(jax.grad(lambda x: mapped(x)[:, 1].sum())(jnp.asarray(IMAGES)), name)


@pytest.mark.parametrize("name", RULES)
def test_haiku_gives_the_heat_maps_of_torch(name: str) -> None:
    overridden = xg.override(of_haiku(), RULES[name])
    heat = jax.grad(lambda x: overridden(x)[:, 1].sum())(jnp.asarray(IMAGES.transpose(0, 2, 3, 1)))
    check(heat.transpose(0, 3, 1, 2), name)


def test_weights_of_an_equinox_model_keep_their_gradients() -> None:
    model, x = of_equinox(), jnp.asarray(IMAGES[0])
    loss = lambda m, x: xg.override(m, {"relu": "guided"})(x).sum()
    found = eqx.filter_jit(eqx.filter_grad(loss))(model, x)
    own = eqx.filter_grad(lambda m, x: m(x).sum())(model, x)
    np.testing.assert_allclose(found.layers[8].weight, own.layers[8].weight, rtol=1e-6)
    assert not np.array_equal(found.layers[0].weight, own.layers[0].weight)
