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


def pooled(
    reduce: Any, start: float, strides: tuple[int, ...] = (2, 2, 1), padding: Any = "SAME"
) -> Callable[[Any], Any]:
    def of_one(picture: Any) -> Any:
        return lax.reduce_window(picture, start, reduce, (3, 3, 1), strides, padding)

    return jax.vmap(of_one)


def convolved(x: Any, w: Any) -> Any:
    """Two groups of channels, with borders of which one cuts."""
    return lax.conv_general_dilated(
        x, w, (2, 1), ((2, 1), (-1, 0)), rhs_dilation=(1, 2), feature_group_count=2,
        dimension_numbers=LAYOUT,
    )  # fmt: skip


def in_parts(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 2), ((1, 2), (0, 1)), lhs_dilation=(2, 1), batch_group_count=2,
        dimension_numbers=LAYOUT,
    )  # fmt: skip


def pulled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients that jax's own derivative gives, behind one another."""

    def gradients(*arrays: Any) -> Any:
        result, pull = jax.vjp(function, *arrays)
        return jnp.concatenate([each.ravel() for each in pull(jnp.cos(result) + result)])

    return gradients


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "network": (network, (PICTURES, KERNELS)),
    "largest": (pooled(lax.max, -np.inf), (PICTURES,)),
    "smallest": (pooled(lax.min, np.inf), (PICTURES,)),
    "sums": (pooled(lax.add, 0.0), (PICTURES,)),
    "parts of the batch": (in_parts, (PICTURES, KERNELS[:, :, [0, 1, 0, 1]])),
    "det": (jax.vmap(lambda a: jnp.linalg.det(a) * a[0, 0]), (MATRICES,)),
    "slogdet": (jax.vmap(lambda a: jnp.linalg.slogdet(a)[1] - a[0, 0]), (MATRICES,)),
}
TIES = np.round(PICTURES)
DERIVED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "largest": (pooled(lax.max, -np.inf), (TIES,)),
    "largest, apart": (pooled(lax.max, -np.inf, (4, 1, 1), "VALID"), (TIES,)),
    "smallest": (pooled(lax.min, np.inf, padding=((2, 0), (1, 1), (0, 0))), (TIES,)),
    "sums": (pooled(lax.add, 0.0), (PICTURES,)),
    "groups": (convolved, (PICTURES, KERNELS)),
    "parts of the batch": (in_parts, (PICTURES, KERNELS[:, :, [0, 1, 0, 1]])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_means_what_it_means_in_jax(name: str) -> None:
    function, arrays = FUNCTIONS[name]
    assert_as_in("jax", function, *arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DERIVED)
def test_jaxs_own_gradient_means_what_it_means_in_jax(name: str, dtype: str) -> None:
    function, arrays = DERIVED[name]
    with jax.enable_x64(dtype == "float64"):
        given = [array.astype(dtype) for array in arrays]
        assert_as_in("jax", pulled(function), *given, atol=1e-4)


def test_reshaping_in_another_order_of_the_axes_moves_them() -> None:
    assert_as_in("jax", lambda x: lax.reshape(x, (8, 64), (3, 1, 0, 2)) ** 2, PICTURES)


@pytest.mark.parametrize("axis", [1, 2])
def test_determinants_of_matrices_along_other_axes_are_right_or_refused(axis: int) -> None:
    function = jax.vmap(lambda a: jnp.linalg.det(a) * a[0, 0], in_axes=axis)
    try:
        found = xg.function(function, native=False)(MATRICES)
    except xg.TraceError:
        return
    np.testing.assert_allclose(found, function(MATRICES), rtol=1e-4)
