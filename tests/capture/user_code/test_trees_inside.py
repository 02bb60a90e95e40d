"""Maps over trees inside of a captured function: a symbolic value is a leaf."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)
Pair = namedtuple("Pair", "first second")


def check(written: Any) -> None:
    """Check outputs and gradient of 3 (x + 1)^2 + sin(x), on NumPy."""
    outputs, pullback = xg.vjp(xg.function(written, native=False), X)
    np.testing.assert_allclose(outputs, 3 * (X + 1) ** 2 + np.sin(X), rtol=1e-6)
    gradient = pullback(np.ones_like(X))[0]
    np.testing.assert_allclose(gradient, 6 * (X + 1) + np.cos(X), rtol=1e-5, atol=1e-6)


@pytest.mark.needs("jax")
def test_jaxs_trees(jax: Any, jnp: Any) -> None:
    def tree(x: Any) -> Any:
        y = jax.tree.map(jnp.square, {"a": (x + 1,), "b": None})["a"][0]
        return 3 * y + jnp.sin(x)

    def tree_util(x: Any) -> Any:
        both = jax.tree_util.tree_map(lambda a, b: a * b, [x + 1, x], [x + 1, 1.0])
        return 3 * both[0] + jnp.sin(both[1])

    def flat(x: Any) -> Any:
        leaves, structure = jax.tree.flatten({"a": x + 1, "b": [x]})
        given = jax.tree.unflatten(structure, [leaves[0] ** 2, jnp.sin(leaves[1])])
        return 3 * given["a"] + given["b"][0]

    def of_namedtuples(x: Any) -> Any:
        pair = jax.tree.map(lambda leaf: leaf + 1, Pair(x, x - 1))
        return 3 * pair.first**2 + jnp.sin(pair.second)

    def reduce(x: Any) -> Any:
        return jax.tree.reduce(jnp.add, jax.tree.leaves([3 * (x + 1) ** 2, {"s": jnp.sin(x)}]))

    for written in (tree, tree_util, flat, of_namedtuples, reduce):
        check(written)


@pytest.mark.needs("tensorflow")
def test_tensorflows_nested_structures(tf: Any) -> None:
    def mapped(x: Any) -> Any:
        both = tf.nest.map_structure(
            lambda a, b: a * b, {"a": x + 1, "b": [x]}, {"a": x + 1, "b": [1]}
        )
        return 3 * both["a"] + tf.sin(both["b"][0])

    def flat(x: Any) -> Any:
        leaves = tf.nest.flatten({"a": x + 1, "b": [x]})
        assert tf.nest.is_nested(leaves)
        given = tf.nest.pack_sequence_as({"a": 0, "b": [0]}, [leaves[0] ** 2, tf.sin(leaves[1])])
        return 3 * given["a"] + given["b"][0]

    for written in (mapped, flat):
        check(written)


@pytest.mark.needs("tensorflow")
def test_a_gradient_function_that_packs_its_result_is_kept(tf: Any) -> None:
    @tf.custom_gradient
    def rounded(x: Any) -> Any:
        structure = tf.nest.map_structure(lambda _: 0, (x,))

        def grad(dy: Any) -> Any:
            return tf.nest.pack_sequence_as(structure, tf.nest.flatten([5 * dy]))

        return tf.round(x), grad

    _, pullback = xg.vjp(xg.function(lambda x: rounded(x) * 1.0, native=False), X)
    np.testing.assert_array_equal(pullback(np.ones_like(X))[0], np.full_like(X, 5))


@pytest.mark.needs("torch")
def test_torchs_trees(torch: Any) -> None:
    from torch.utils import _pytree

    def mapped(x: Any) -> Any:
        given = _pytree.tree_map(torch.square, {"a": [x + 1]})
        leaves, spec = _pytree.tree_flatten((given["a"][0], torch.sin(x)))
        first, second = _pytree.tree_unflatten(leaves, spec)
        return 3 * first + second

    check(mapped)


def test_optrees_trees() -> None:
    import optree

    def mapped(x: Any) -> Any:
        both = optree.tree_map(lambda a: (a + 1) ** 2, {"a": [x], "b": Pair(x, x)}, namespace="")
        return 3 * both["b"].second + xg.xp.sin(x)

    check(mapped)


@pytest.mark.needs("keras")
def test_kerass_trees(keras: Any) -> None:
    def mapped(x: Any) -> Any:
        both = keras.tree.map_structure(keras.ops.square, {"a": x + 1, "b": (x,)})
        (leaf, _) = keras.tree.flatten(both)
        return 3 * leaf + keras.ops.sin(x)

    check(mapped)


@pytest.mark.needs("tensorflow")
def test_a_class_that_names_itself_to_super_is_made_as_ever() -> None:
    tf = pytest.importorskip("tensorflow")

    class Scaled(namedtuple("Scaled", "a b")):
        def __new__(cls, a: Any, b: Any = None) -> Any:
            return super(Scaled, cls).__new__(cls, a, tf.exp(a) if b is None else b)  # noqa: UP008

    function = xg.function(lambda x: Scaled(x).a * Scaled(x).b, native=False, dialect="tensorflow")
    np.testing.assert_allclose(function(np.ones(2)), np.full(2, np.e))
