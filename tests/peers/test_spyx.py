"""Activations of ours as `activation=` of spyx's neurons, and in the place of snnax's and
braintools' surrogates; rules with their names have their gradients.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = [pytest.mark.peers, pytest.mark.needs("jax", "flax")]

EDGES = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0]
X = jnp.concatenate([jnp.array(EDGES), jnp.linspace(-3, 3, 97)])
G = jnp.linspace(-1, 2, X.size)


def pulled(spike: Any) -> tuple[Any, Any]:
    y, pull = jax.vjp(spike, X)
    return y, pull(G)[0]


def assert_equal_numbers(given: Any, expected: Any) -> None:
    np.testing.assert_array_equal(given[0], expected[0])
    np.testing.assert_allclose(given[1], expected[1], rtol=4e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["tanh", "boxcar", "triangular", "arctan", "superspike"])
def test_a_rule_of_spyxs_name_has_its_spikes_and_gradients(name: str) -> None:
    axn = pytest.importorskip("spyx.axn")
    for params in ({}, {"width": 1.0, "height": 2.0} if name == "boxcar" else {"k": 3.0}):
        ours = xg.activation("Heaviside", f"spyx.{name}", params)
        assert_equal_numbers(pulled(ours), pulled(getattr(axn, name)(**params)))


@pytest.mark.parametrize("name", ["LIF", "ALIF", "CuBaLIF", "IF", "RLIF"])
def test_each_neuron_of_spyx_takes_it(name: str) -> None:
    nn, axn = pytest.importorskip("spyx.nn"), pytest.importorskip("spyx.axn")
    from flax import nnx

    def gradient(activation: Any) -> Any:
        options = {} if name == "IF" else {"rngs": nnx.Rngs(0)}
        neuron = getattr(nn, name)((6,), activation=activation, **options)
        graph, state = nnx.split(neuron)

        def loss(state: Any, x: Any) -> Any:
            unit = nnx.merge(graph, state)

            def step(held: Any, x: Any) -> Any:
                spikes, held = unit(x, held)
                return held, spikes

            return (jax.lax.scan(step, unit.initial_state(3), x)[1] ** 2).sum()

        x = jax.random.uniform(jax.random.key(0), (5, 3, 6)) * 3
        return jax.jit(jax.grad(loss, argnums=(0, 1)))(state, x)

    expected = gradient(axn.superspike())
    given = gradient(xg.activation("Heaviside", "spyx.superspike"))
    for mine, wanted in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def snnax_surrogates() -> Any:
    """Its module alone: `import snnax` of 0.0.1 fails by a circle of its own."""
    package = importlib.util.find_spec("snnax")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("snnax is not installed")
    path = Path(package.submodule_search_locations[0], "functional", "surrogate.py")
    spec = importlib.util.spec_from_file_location("snnax_surrogates", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("superspike", "superspike_surrogate"), ("piecewise", "piecewise_surrogate")],
)
def test_a_rule_of_snnaxs_name_has_its_spikes_and_gradients(name: str, theirs: str) -> None:
    surrogate = snnax_surrogates()
    ours = xg.activation("Heaviside", f"snnax.{name}", at_zero=1.0)
    given, expected = pulled(ours), pulled(getattr(surrogate, theirs)())
    assert_equal_numbers(given, expected)


BRAINTOOLS = [name for name in xg.rules() if name.startswith("braintools.")]


@pytest.mark.parametrize("name", BRAINTOOLS)
def test_a_rule_of_braintools_name_has_its_spikes_and_gradients(name: str) -> None:
    surrogate = pytest.importorskip("braintools.surrogate")
    theirs = getattr(surrogate, name.partition(".")[2])
    ours = xg.activation("Heaviside", name, at_zero=1.0)
    assert_equal_numbers(pulled(ours), pulled(theirs))
