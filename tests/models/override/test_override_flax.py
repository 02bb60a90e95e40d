"""`xg.override` on models of flax: linen's functions of variables, nnx's objects with state."""

from __future__ import annotations

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleValueError

pytestmark = pytest.mark.needs("jax", "flax")
pytest.importorskip("flax")

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from ...harness.models.overridden import tenfold  # noqa: F401

IMAGES = jax.random.normal(jax.random.key(0), (2, 4, 4, 3))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.relu(x)
        return nn.remat(nn.Dense)(2)(x).mean((1, 2))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.dense = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.dropout(nnx.relu(self.norm(self.conv(x))))).mean((1, 2))


def model() -> Nnx:
    return Nnx(nnx.Rngs(0))


def test_linen_apply_takes_rules_and_its_arguments() -> None:
    linen = Linen()
    variables = linen.init(jax.random.key(1), IMAGES)
    overridden = xg.override(linen.apply, {nn.relu: "tenfold"})
    np.testing.assert_array_equal(overridden(variables, IMAGES), linen.apply(variables, IMAGES))
    own = jax.grad(lambda x: linen.apply(variables, x).sum())(IMAGES)
    changed = jax.grad(lambda x: overridden(variables, x).sum())(IMAGES)
    np.testing.assert_allclose(changed, 10 * own, rtol=1e-5)
    options = {"train": True, "mutable": ["batch_stats"]}
    outputs, updates = overridden(variables, IMAGES, **options)
    expected, statistics = linen.apply(variables, IMAGES, **options)
    np.testing.assert_array_equal(outputs, expected)
    jax.tree.map(np.testing.assert_array_equal, updates, statistics)


def test_an_nnx_module_is_overridden_as_it_is() -> None:
    given = model()
    given.eval()
    overridden = xg.override(given, {"relu": "tenfold"})
    own = jax.grad(lambda x: given(x).sum())(IMAGES)
    np.testing.assert_allclose(
        jax.grad(lambda x: overridden(x).sum())(IMAGES), 10 * own, rtol=1e-5, atol=1e-8
    )
    weights = nnx.grad(lambda m: xg.override(m, {"relu": "tenfold"})(IMAGES).sum())(given)
    expected = nnx.grad(lambda m: m(IMAGES).sum())(given)
    np.testing.assert_array_equal(weights.dense.kernel[...], expected.dense.kernel[...])


@pytest.mark.parametrize("way", ["module", "method", "argument", "jit"])
def test_what_a_call_changes_of_an_nnx_module_is_kept(way: str) -> None:
    given, twin = model(), model()
    rules = {"relu": "tenfold"}
    calls = {
        "module": lambda: xg.override(given, rules)(IMAGES),
        "method": lambda: xg.override(given.__call__, rules)(IMAGES),
        "argument": lambda: xg.override(lambda x, m: m(x), rules)(IMAGES, m=given),
        "jit": lambda: nnx.jit(lambda m: xg.override(m, rules)(IMAGES))(given),
    }
    for _ in range(2):
        np.testing.assert_allclose(calls[way](), twin(IMAGES), rtol=1e-5, atol=1e-6)
    assert given.dropout.rngs.count[...] == twin.dropout.rngs.count[...] == 2
    np.testing.assert_allclose(given.norm.mean[...], twin.norm.mean[...], rtol=1e-6)


def test_a_module_that_is_changed_and_closed_over_is_refused_with_the_way_out() -> None:
    given = model()
    with pytest.raises(RuleValueError, match="give the module itself"):
        xg.override(lambda x: given(x), {"relu": "tenfold"})(IMAGES)
    assert isinstance(given.norm.mean[...], jnp.ndarray)
