"""On integers and bools a capture gives jax's numbers and dtypes, also where they wrap around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.needs("jax")
BOOLS = jnp.asarray([True, False, True, True])
BYTES = jnp.asarray([200, 130, 3, 0], jnp.uint8)
INTS = jnp.asarray([40001, -7, 3, 2**24 + 1], jnp.int32)
LEAST = jnp.asarray([-(2**31), 7, -7, 0], jnp.int32)
SQUARE = jnp.outer(jnp.asarray([100, 120, 3, 7], jnp.int8), jnp.ones(4, jnp.int8))
ZEROS = jnp.asarray([0, 2, 0, -3], jnp.int32)
HALVES = jnp.asarray([2.0, 3.0, 4.0, 5.0], jnp.float16)
ON_INTEGERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "clamp of bools": (jax.lax.clamp, (BOOLS, ~BOOLS, BOOLS)),
    "full_like in the dtype of a number": (lambda x: jax.lax.full_like(x, 0, 2), (INTS,)),
    "celu of zero": (lambda x: jax.nn.celu(x, 0), (INTS,)),
    "log_sigmoid": (jax.nn.log_sigmoid, (BYTES,)),
    "softmax": (jax.nn.softmax, (BYTES,)),
    "squareplus": (jax.nn.squareplus, (INTS,)),
    "standardize": (jax.nn.standardize, (INTS,)),
    "to the power zero": (lambda x: (x**0, jax.lax.integer_pow(x, 0)), (INTS,)),
    "bools to the power zero": (lambda x: jnp.power(x, 0), (BOOLS,)),
    "over zero": (lambda x: (jnp.floor_divide(x, 0), jnp.divmod(x, 0)), (INTS,)),
    "over zeros": (jnp.floor_divide, (INTS, BYTES.astype(jnp.int32))),
    "bytes over zeros": (jnp.floor_divide, (BYTES, BYTES[::-1])),
    "bools over bools": (jnp.divmod, (BOOLS, BOOLS[::-1])),
    "div of the least one": (jax.lax.div, (LEAST, jnp.asarray([2, -2, 3, 2], jnp.int32))),
    "div by zero": (jax.lax.div, (LEAST, jnp.zeros(4, jnp.int32))),
    "operators over zeros": (
        lambda x, y: (x // y, x % y, 7 // y, x // 0, divmod(x, y)),
        (INTS, ZEROS),
    ),
    "rem over zeros": (jax.lax.rem, (INTS, ZEROS)),
    "compiled": (jax.jit(lambda x, y: (x // y, jax.lax.div(x, y))), (INTS, ZEROS)),
    "compiled, of bytes": (jax.jit(lambda x, y: (jax.lax.div(x, y), x // y)), (BYTES, BYTES[::-1])),
    "batched": (jax.vmap(lambda x, y: x // y), (SQUARE[:, 0], SQUARE[::-1, 0] - 7)),
    "fmod of bools": (jnp.fmod, (BOOLS, BOOLS[::-1])),
    "fmod of a number": (lambda x: (jnp.fmod(2, x), jnp.fmod(-2, x)), (INTS,)),
    "vector_norm": (jnp.linalg.vector_norm, (INTS,)),
    "eigvalsh": (jnp.linalg.eigvalsh, (SQUARE,)),
    "outer with a number": (lambda x: (jnp.outer(x, 2), jnp.outer(2, x)), (BYTES,)),
    "where a condition is small": (jnp.where, (INTS * 1e-10, HALVES, -HALVES)),
    "a constant of bytes in a jaxpr": (lambda x: jnp.roll(2, x), (BYTES,)),
}


@pytest.mark.parametrize("case", ON_INTEGERS)
def test_on_integers_and_bools_it_gives_jaxs_numbers_and_dtype(case: str) -> None:
    function, given = ON_INTEGERS[case]
    captured = xg.function(
        lambda *args: function(*args), lambda g, *args: (None,) * len(args), native=False
    )
    results, expected = captured(*given), function(*given)
    for own, theirs in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert own.dtype == theirs.dtype
        np.testing.assert_allclose(own, theirs, rtol=1e-6, atol=1e-4)
