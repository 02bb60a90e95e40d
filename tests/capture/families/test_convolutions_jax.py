"""JAX's convolutions and windows mean in a graph what they mean in JAX."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import X, assert_as_in

jax: Any = pytest.importorskip("jax")
pytestmark = pytest.mark.needs("jax")
lax, jnp = jax.lax, jax.numpy
RNG = np.random.default_rng(4)
FIRST, LAST = (2, 4, 9, 8), (2, 9, 8, 4)
NHWC = ("NHWC", "HWIO", "NHWC")
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "conv": (lambda x, w: lax.conv(x, w, (1, 2), "SAME"), (FIRST, (6, 4, 3, 2))),
    **{
        f"resize, {method}, {shape}": (
            lambda x, m=method, s=shape: jax.image.resize(x, s, m, antialias=s[0] == 2),
            ((2, 3, 5),),
        )
        for method in ("nearest", "linear", "lanczos3")
        for shape in ((2, 4, 9), (2, 2, 3), (3, 1, 10))
    },
    "conv_general_dilated": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=NHWC
        ),
        (LAST, (3, 2, 4, 6)),
    ),
    "groups and borders": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), [(2, 0), (-1, 1)], dimension_numbers=NHWC, feature_group_count=2
        ),
        (LAST, (3, 2, 2, 6)),
    ),
    "conv_with_general_padding": (
        lambda x, w: lax.conv_with_general_padding(x, w, (1, 2), ((1, 0), (0, 2)), None, (2, 1)),
        (FIRST, (6, 4, 3, 2)),
    ),
    "lhs_dilation": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (0, 2)], (2, 3)),
        (FIRST, (6, 4, 3, 2)),
    ),
    "conv_transpose": (
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), (LAST, (3, 3, 4, 2))
    ),
    "max windows": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME"),
        (LAST,),
    ),
    "min windows": (
        lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 3, 2, 1), (1, 1, 2, 1), "VALID"),
        (LAST,),
    ),
    "sums of windows": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 2, 1), (1, 1, 2, 1), "SAME"), (LAST,)
    ),
    "convolve": (lambda x, v: jnp.convolve(x, v, mode="same"), ((9,), (4,))),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_it_means_what_it_means_in_jax(name: str) -> None:
    function, shapes = CASES[name]
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_as_in("jax", function, *arrays)


# JAX's functions that give or take integer places mean in a graph what they mean in JAX.


Tensor = Any
PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "argmax": lambda t: t * jnp.argmax(t, axis=1, keepdims=True),
    "taken in order": lambda t: (
        jnp.take_along_axis(t, jnp.argsort(t, axis=-1, descending=True), axis=-1) * 2
    ),
    "take": lambda t: jnp.take(t, jnp.argmax(t[:, :, 0], axis=1), axis=1),
    "top_k": lambda t: operator.mul(*jax.lax.top_k(t, 2)),
    "one_hot": lambda t: jax.nn.one_hot(jnp.argmax(t, -1), 5) * t,
    "set at": lambda t: t.at[jnp.arange(3), jnp.argmax(t[:, :, 0], 1)].set(0.0),
    "add at": lambda t: jnp.zeros_like(t).at[:, :, jnp.argmax(t[0], -1)].add(t[..., :4]),
    "two indices": lambda t: t[jnp.arange(3), jnp.argmax(t[:, :, 0], 1)],
    "nearest": lambda t: t[0][jnp.argmin(((t[1][:, None] - t[0][None]) ** 2).sum(-1), axis=-1)],
    "segment_sum": lambda t: jax.ops.segment_sum(
        t[:, 0, 0], jnp.argmax(t[:, 0], 1), num_segments=5
    ),
    "how many": lambda t: t * jnp.sum(t > 0, axis=-1, keepdims=True),
    "cast": lambda t: t * (t * 3).astype(jnp.int32),
    "put_along_axis": lambda t: jnp.put_along_axis(
        t, jnp.argmax(t, 1, keepdims=True), 9.0, 1, inplace=False
    ),
    "take, clipped": lambda t: jnp.take(t, jnp.argmax(t[0], -1) + 2, axis=2, mode="clip"),
    "take, filled": lambda t: jnp.take(t, jnp.argmax(t[0], -1) + 2, axis=2, fill_value=3.0),
    "take, filled from either side": lambda t: jnp.take(
        t, jnp.array([0, 7, -9, -1]), axis=1, mode="fill", fill_value=3.0
    ),
    "take of all, filled": lambda t: jnp.take(t, jnp.array([[2, -99]]), mode="fill", fill_value=1),
    "take, filled at one": lambda t: jnp.take(t, 9, axis=1, mode="fill", fill_value=3.0) + t[:, 0],
    "take, NaN outside": lambda t: (
        jnp.isnan(jnp.take(t, jnp.array([0, 7]), axis=1, mode="fill")).sum() * t
    ),
    "take_along_axis, filled": lambda t: jnp.take_along_axis(
        t, jnp.argmax(t, 1, keepdims=True) + 3, 1, fill_value=0.0
    ),
    "argmax of all": lambda t: t * jnp.argmax(t),
    "bincount": lambda t: jnp.bincount(jnp.argmax(t, -1).ravel(), length=6) * t.sum(),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_mean_what_they_mean_in_jax(name: str) -> None:
    assert_as_in("jax", PLACES[name], X, atol=1e-6)


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_an_index_that_names_what_stands_outside_is_never_taken_for_another(mode: str) -> None:
    def pick(t: Any, at: Any) -> Any:
        return t.at[at].get(mode=mode, fill_value=3.0)

    function = jax.custom_vjp(pick)
    function.defvjp(lambda t, at: (pick(t, at), None), lambda _, g: (g, None))
    given = jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 5, -7])
    assert jnp.array_equal(xg.from_custom_vjp(function)(*given), function(*given))


def test_a_place_before_the_first_is_no_place_from_the_end() -> None:
    taken = xg.function(lambda t, at: jnp.take(t, at, axis=0), None)
    given = jnp.array([1.0, 2.0, 4.0]), jnp.array([0, -1, -4, -5])
    assert taken(*given)[:2].tolist() == [1.0, 4.0]
    assert jnp.isnan(taken(*given)[2:]).all()
    slope = jax.grad(lambda t: jnp.nansum(taken(t, given[1])))(given[0])
    assert slope.tolist() == [1.0, 0.0, 1.0]
