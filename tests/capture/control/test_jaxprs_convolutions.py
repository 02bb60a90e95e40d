"""Convolutions, windows and determinants in code that is read by its jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
pytestmark = pytest.mark.needs("jax")
RNG = np.random.default_rng(3)
PICTURES = RNG.normal(size=(2, 8, 8, 4)).astype(np.float32)
KERNELS = RNG.normal(size=(3, 3, 2, 6)).astype(np.float32)
MATRICES = (RNG.normal(size=(4, 4, 4)) + 3 * np.eye(4)).astype(np.float32)
LAYOUT = ("NHWC", "HWIO", "NHWC")


@jax.custom_vjp
def step(x: Any) -> Any:
    """1 above zero, whose slope is a triangle."""
    return jnp.where(x > 0, 1.0, 0.0)


step.defvjp(lambda x: (step(x), x), lambda x, g: (g * jnp.maximum(1 - jnp.abs(x), 0),))


def network(x: Any, w: Any) -> Any:
    def of_one(picture: Any) -> Any:
        y = lax.conv_general_dilated(
            picture[None], w, (2, 1), "SAME", rhs_dilation=(1, 2), feature_group_count=2,
            dimension_numbers=LAYOUT,
        )  # fmt: skip
        y = step(y) * y
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")[0]

    return jax.vmap(of_one)(x)


def pooled(reduce: Any, start: float) -> Callable[[Any], Any]:
    def of_one(picture: Any) -> Any:
        return lax.reduce_window(picture, start, reduce, (3, 3, 1), (2, 2, 1), "SAME")

    return jax.vmap(of_one)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "network": (network, (PICTURES, KERNELS)),
    "largest": (pooled(lax.max, -np.inf), (PICTURES,)),
    "smallest": (pooled(lax.min, np.inf), (PICTURES,)),
    "sums": (pooled(lax.add, 0.0), (PICTURES,)),
    "det": (jax.vmap(lambda a: jnp.linalg.det(a) * a[0, 0]), (MATRICES,)),
    "slogdet": (jax.vmap(lambda a: jnp.linalg.slogdet(a)[1] - a[0, 0]), (MATRICES,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_means_what_it_means_in_jax(name: str) -> None:
    function, arrays = FUNCTIONS[name]
    assert_as_in("jax", function, *arrays)


@pytest.mark.parametrize("axis", [1, 2])
def test_determinants_of_matrices_along_other_axes_are_right_or_refused(axis: int) -> None:
    function = jax.vmap(lambda a: jnp.linalg.det(a) * a[0, 0], in_axes=axis)
    try:
        found = xg.function(function, native=False)(MATRICES)
    except xg.TraceError:
        return
    np.testing.assert_allclose(found, function(MATRICES), rtol=1e-4)
