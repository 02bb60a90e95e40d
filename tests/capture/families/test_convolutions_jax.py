"""JAX's convolutions and windows mean in a graph what they mean in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ...harness.own_library import assert_as_in
from ...support.sampling import sample

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


@pytest.mark.parametrize("name", sample(CASES, 1 / 2))
def test_it_means_what_it_means_in_jax(name: str) -> None:
    function, shapes = CASES[name]
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_as_in("jax", function, *arrays)
