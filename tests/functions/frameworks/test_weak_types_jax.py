"""Dtypes that give way in JAX: a result does where the original's does, so that code after it
computes in the same dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = [pytest.mark.needs("jax"), pytest.mark.backends("jax")]


def scaled(x: Any) -> Any:
    return x * 1.5


def squared(x: Any) -> Any:
    return x * x


def masked(x: Any) -> Any:
    return jnp.where(x > 0, 1.0, 0.0)


def pair(x: Any) -> Any:
    return x * 1.5, x + 1


FUNCTIONS: tuple[Callable[[Any], Any], ...] = (scaled, squared, masked, pair)


def with_gradient(function: Callable[[Any], Any]) -> Any:
    own = jax.custom_vjp(function)
    own.defvjp(lambda x: (function(x), x), lambda x, g: (jax.vjp(function, x)[1](g)[0],))
    return own


def described(tree: Any) -> list[Any]:
    return [(str(y.dtype), y.weak_type) for y in jax.tree.leaves(tree)]


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_result_gives_way_where_that_of_the_original_does(
    function: Callable[[Any], Any], compile_it: bool
) -> None:
    own = with_gradient(function)
    converted = xg.from_custom_vjp(own)
    narrow = jnp.ones(3, jnp.bfloat16)
    wrap = jax.jit if compile_it else (lambda run: run)
    for x in (
        jnp.arange(3),
        jnp.arange(3) > 0,
        jnp.arange(3.0),
        jnp.ones(3, jnp.bfloat16),
        jnp.asarray(2.5),
        masked(jnp.arange(3)),
    ):
        assert described(wrap(converted)(x)) == described(wrap(own)(x))

        def after(run: Callable[[Any], Any], x: Any = x) -> Any:
            return wrap(lambda x: jax.tree.map(lambda y: y * narrow, run(x)))(x)

        assert described(after(converted)) == described(after(own))


def test_integers_to_the_power_of_an_integer_array_stay_integers() -> None:
    for function in (lambda x: x ** jnp.int8(3), lambda x: jnp.power(x, jnp.asarray(3))):
        found = xg.function(function, lambda g, x: None, native=False)(jnp.arange(4))
        assert found.dtype == jnp.arange(4).dtype
        assert found.tolist() == [0, 1, 8, 27]
