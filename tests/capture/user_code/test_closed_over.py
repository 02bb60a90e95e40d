"""A value that a custom gradient reads from around it gets no gradient in silence."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import multigrad as xg

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

X = np.array([1.0, -2.0, 0.5], np.float32)
pytestmark = pytest.mark.needs("jax")


def test_what_is_closed_over_without_a_derivative_may_be_traced() -> None:
    @jax.jit
    def derive(w: Any, x: Any) -> Any:
        @xg.custom_gradient
        def scaled(x: Any) -> Any:
            return x * w, lambda up: up * w

        return jax.grad(lambda x: scaled(x).sum())(x)

    found = derive(jnp.asarray(2.0), jnp.asarray(X))
    np.testing.assert_array_equal(np.asarray(found), np.full_like(X, 2.0))


@pytest.mark.parametrize("jitted", [False, True])
def test_its_arguments_get_their_gradients_beside_what_is_stopped(jitted: bool) -> None:
    def loss(w: Any, x: Any) -> Any:
        fixed = jax.lax.stop_gradient(w)

        @xg.custom_gradient
        def scaled(x: Any) -> Any:
            return x * fixed, lambda up: up * fixed

        return (scaled(x * w)).sum()

    derive = jax.grad(loss)
    found = (jax.jit(derive) if jitted else derive)(jnp.asarray(2.0), jnp.asarray(X))
    np.testing.assert_allclose(float(found), 2 * X.sum(), rtol=1e-6)


# Objects of classes that are registered with `jax.tree_util` are containers, whose tensors are
# arguments with gradients, on every framework.


A, B = np.float32([2.0, -1.0, 0.5]), np.float32([1.0, 3.0, -2.0])
X_REGISTERED = np.float32([0.5, 4.0, -3.0])


def make_class(way: str) -> Any:
    """Make a class anew, as it is learned once."""
    if way == "dataclass":

        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Line:
            a: Any
            b: Any
            kind: str = dataclasses.field(default="line", metadata={"static": True})

        return Line

    @jax.tree_util.register_pytree_node_class
    class Node:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b, self.kind = a, b, "line"

        def tree_flatten(self) -> Any:
            return (self.a, self.b), self.kind

        @classmethod
        def tree_unflatten(cls, kind: Any, parts: Any) -> Any:
            assert kind == "line"
            return cls(*parts)

    return Node


def make_function(cls: Any, way: str) -> Any:
    if way == "custom_gradient":
        return xg.custom_gradient(
            lambda line, x: (line.a * x + line.b, lambda g: (cls(g * x, 2 * g), 3 * g * line.a))
        )
    function = jax.custom_vjp(lambda line, x: line.a * x + line.b)
    function.defvjp(
        lambda line, x: (line.a * x + line.b, (line, x)),
        lambda kept, g: (cls(g * kept[1], 2 * g), 3 * g * kept[0].a),
    )
    return xg.from_custom_vjp(function)


@pytest.mark.parametrize("first", ["call", "vjp"])
@pytest.mark.parametrize("way", ["custom_gradient", "custom_vjp"])
@pytest.mark.parametrize("kind", ["dataclass", "class"])
def test_an_object_of_a_registered_class_gets_its_gradients(
    backend: Any, kind: str, way: str, first: str
) -> None:
    cls = make_class(kind)
    function = make_function(cls, way)
    line, x = cls(*map(backend.array, (A, B))), backend.array(X_REGISTERED)
    for _ in range(2 if first == "call" else 0):
        np.testing.assert_allclose(
            backend.numpy(function(line, x)), A * X_REGISTERED + B, rtol=1e-6
        )
    y, pull = xg.vjp(function, line, x)
    of_line, of_x = pull(backend.array(X_REGISTERED))
    np.testing.assert_allclose(backend.numpy(y), A * X_REGISTERED + B, rtol=1e-6)
    assert (type(of_line), of_line.kind) == (cls, "line")
    found = [backend.numpy(each) for each in (of_line.a, of_line.b, of_x)]
    for each, expected in zip(
        found, (X_REGISTERED * X_REGISTERED, 2 * X_REGISTERED, 3 * X_REGISTERED * A), strict=True
    ):
        np.testing.assert_allclose(each, expected, rtol=1e-6)


def test_within_others_and_in_jaxs_transforms_too() -> None:
    cls = make_class("class")
    function = xg.custom_gradient(
        lambda lines, x: (
            lines["first"].a * x,
            lambda g: ({"first": cls(5 * g * x, None)}, g),
        )
    )
    lines = {"first": cls(jax.numpy.asarray(A), None)}
    gradient = jax.jit(jax.grad(lambda lines, x: function(lines, x).sum()))(lines, X_REGISTERED)
    np.testing.assert_allclose(gradient["first"].a, 5 * X_REGISTERED)
    batched = jax.vmap(function, (None, 0))(lines, np.stack([X_REGISTERED, 2 * X_REGISTERED]))
    np.testing.assert_allclose(batched, [A * X_REGISTERED, 2 * A * X_REGISTERED])


def test_no_other_library_learns_of_it() -> None:
    import optree

    cls = make_class("class")
    make_function(cls, "custom_gradient")(cls(A, B), X_REGISTERED)
    line = cls(A, B)
    assert optree.tree_leaves(line) == [line]
    optree.register_pytree_node(
        cls, lambda line: ((line.a, line.b), line.kind), cls.tree_unflatten, namespace="theirs"
    )
