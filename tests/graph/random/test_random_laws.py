"""The random rules of the library draw by the law that they state: statistics of 1e6 draws.

Each result is turned back into what was drawn, uniforms or normals. Keys are fixed, so that a bound
holds always or never; it is four standard errors. NumPy stands for every backend, whose draws are
the same (`test_random_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.rule_names import OWN
from multigrad.engine import random

Array: TypeAlias = np.ndarray[Any, Any]
Law: TypeAlias = Callable[[Array, Array, Array], tuple[Array, Array]]

SIZE = 1_750_000  # of which a rule that draws where tin <= 0 draws 1e6
SIGMAS = 4.0
FOURTH_MOMENTS = {"normal": 3.0, "uniform": 9.0 / 5.0}
G = np.resize(np.float32([1.0, -2.0, 0.5, -0.25, 4.0]), SIZE)  # powers of two: dividing is exact
X = np.resize(np.float32([0.0, -0.5, 4.75, 1.0, -3.0, 9.0, -6.0]), SIZE)


# --- what each rule states: what was drawn where it draws, and its result elsewhere ---------------


def scaled_everywhere(g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return y / g, np.full_like(y, np.nan)


def scaled_from_zero_on(g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return np.where(x >= 0.0, y / g, np.nan), np.zeros_like(y)


def scaled_in_a_window(g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return np.where((x >= -5.0) & (x <= 5.0), y / g, np.nan), np.zeros_like(y)


def drawn_in_the_place_of_the_magnitude(g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return y * np.sign(g), np.full_like(y, np.nan)


def drawn_where_there_is_no_spike(g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return np.where(x <= 0.0, y / g / np.float32(0.2) + np.float32(0.5), np.nan), g


def added(g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return (y - g) / np.float32(0.1), np.full_like(y, np.nan)


def added_to_the_threshold(g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return (y - g * (x >= 0.0)) / np.float32(0.1), np.full_like(y, np.nan)


# name: (the law of its draws, how they are found again). Params have their defaults.
LAWS: dict[str, tuple[str, Law]] = {
    "full_jam": ("uniform", scaled_everywhere),
    "noise": ("normal", added),
    "noisy_threshold": ("normal", added_to_the_threshold),
    "optax.add_noise": ("normal", added),
    "positive_jam": ("uniform", scaled_from_zero_on),
    "rectangular_jam": ("uniform", scaled_in_a_window),
    "sign_jam": ("uniform", drawn_in_the_place_of_the_magnitude),
    "snntorch.SSO": ("uniform", drawn_where_there_is_no_spike),
    "stochastic_spike": ("uniform", drawn_where_there_is_no_spike),
}


each_rule = pytest.mark.parametrize("name", [name for name in LAWS if name in xg.rules()])


def find_random_rules() -> Iterator[str]:
    """Yield the library's rules whose result depends on the key."""
    g, x = G[:70].reshape(10, 7), X[:70].reshape(10, 7)
    for name in xg.rules():
        rule = xg.get(name)
        if not str(getattr(rule.function, "__module__", "")).startswith(OWN):
            continue
        needed = {each: g for each, default in rule.params.items() if default is Parameter.empty}
        one, other = (rule(None, g, x, **needed, key=key) for key in (0, 1))
        if not np.array_equal(one, other, equal_nan=True):
            yield name


def drawn_by(name: str, key: Any, g: Array = G, x: Array = X) -> Array:
    """Return what a rule drew in its order; elsewhere its result is what it states."""
    result = xg.get(name)(None, g, x, key=key)
    assert (result.dtype, result.shape) == (g.dtype, g.shape)
    drawn, elsewhere = LAWS[name][1](g, x, result)
    draws = ~np.isnan(drawn)
    np.testing.assert_array_equal(result[~draws], elsewhere[~draws])
    return drawn[draws].astype(np.float64)


def standardized(name: str, drawn: Array) -> Array:
    """Return draws with mean 0 and variance 1, as their law has it."""
    return drawn if LAWS[name][0] == "normal" else (drawn - 0.5) * 12.0**0.5


def assert_uncorrelated(one: Array, other: Array) -> None:
    """Two series with mean 0 and variance 1."""
    assert abs((one * other).mean()) < SIGMAS / one.size**0.5


# --- the tests ------------------------------------------------------------------------------------


def test_every_random_rule_states_its_law() -> None:
    found = set(find_random_rules())
    assert {"full_jam", "noise", "stochastic_spike"} <= found
    assert found == {name for name in LAWS if name in xg.rules()}


@each_rule
def test_mean_variance_and_distribution_are_those_of_the_law(name: str) -> None:
    from scipy.special import ndtr

    drawn = drawn_by(name, 7)
    z, size, law = standardized(name, drawn), drawn.size, LAWS[name][0]
    assert abs(z.mean()) < SIGMAS / size**0.5
    assert abs(z.var() - 1.0) < SIGMAS * ((FOURTH_MOMENTS[law] - 1.0) / size) ** 0.5
    if law == "uniform":
        assert drawn.min() > -1e-6 and drawn.max() < 1.0 + 1e-6
    reached = np.sort(drawn) if law == "uniform" else ndtr(np.sort(drawn))
    steps = np.arange(size + 1) / size
    distance = max((steps[1:] - reached).max(), (reached - steps[:-1]).max())
    assert distance * size**0.5 < 1.95  # Kolmogorov and Smirnov: one in a thousand is farther


@each_rule
def test_elements_are_independent_of_one_another(name: str) -> None:
    z = standardized(name, drawn_by(name, 7))
    squares = (z**2 - 1.0) / (FOURTH_MOMENTS[LAWS[name][0]] - 1.0) ** 0.5
    for lag in (1, 2, 3, 7, 64, 1000, 1 << 16):
        assert_uncorrelated(z[:-lag], z[lag:])
        assert_uncorrelated(squares[:-lag], squares[lag:])
    # Neighbors' pairs in 16 x 16 cells of equal probability: chi squared of 255 degrees.
    ranks = z.argsort().argsort() * 16 // z.size
    pairs = ranks[0 : z.size // 2 * 2 : 2] * 16 + ranks[1::2]
    counts = np.bincount(pairs, minlength=256)
    chi_squared = ((counts - pairs.size / 256) ** 2).sum() / (pairs.size / 256)
    assert abs(chi_squared - 255.0) < SIGMAS * (2 * 255.0) ** 0.5


@each_rule
def test_keys_are_independent_of_one_another(name: str) -> None:
    size = 300_000
    keys = (7, 8, (1, 7), random.fold_in((0, 7), 3))
    series = [standardized(name, drawn_by(name, key, G[:size], X[:size])) for key in keys]
    for one, other in combinations(series, 2):
        assert_uncorrelated(one, other)


@pytest.mark.parametrize("name", ["full_jam", "noise"])
def test_leaves_and_updates_are_independent_of_one_another(name: str) -> None:
    size = 300_000
    g = G[:size]
    leaves = {"a": g, "b": g, "of another shape": g.reshape(600, -1)}
    with xg.use(name, scope="params", key=7):
        updates = [xg.apply_to_gradients(leaves) for _ in range(2)]
    results = [leaf.reshape(-1) for update in updates for leaf in update.values()]
    series = [standardized(name, LAWS[name][1](g, g, each)[0].astype(float)) for each in results]
    for one, other in combinations(series, 2):
        assert_uncorrelated(one, other)
