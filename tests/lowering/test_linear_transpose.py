"""`xg.linear_transpose`: `sum(ct * f(x))` is `sum(transposed(ct) * x)`, on every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.own_library import assert_as_in

xp = xg.xp
generator = np.random.default_rng(11)
X, C = generator.normal(size=(3, 4)), generator.normal(size=(4, 3))
D = generator.normal(size=(3, 3))


def differences(x: Any) -> Any:
    return x[:, 1:] - 2.0 * x[:, :-1]


def test_it_is_the_transpose(backend: Any) -> None:
    with backend.precision(np.float64):
        transposed = xg.linear_transpose(differences, backend.array(X))
        (found,) = transposed(backend.array(D))
    found = backend.numpy(found)
    assert found.shape == X.shape
    np.testing.assert_allclose((found * X).sum(), (D * differences(X)).sum(), rtol=1e-13)


def test_arguments_and_outputs_are_nested(backend: Any) -> None:
    def both(pair: Any, y: Any) -> Any:
        return {"sum": pair[0] @ y * 0.0 + y.sum(), "rest": (pair[1] * 2.0, 5)}

    def linear(pair: Any, y: Any) -> Any:
        return {"sum": pair[0] + y, "rest": (pair[1] * 2.0, 5)}

    with backend.precision(np.float64):
        x, c = backend.array(X), backend.array(C)
        transposed = xg.linear_transpose(linear, (x, c), x)
        (first, second), third = transposed({"sum": x, "rest": (c, None)})
        (none, _), _ = transposed({"sum": None, "rest": (c, None)})
        with pytest.raises(xg.UnsupportedOp, match=r"both.*is not linear.*: matmul"):
            xg.linear_transpose(both, (x, c), x)
    np.testing.assert_array_equal(backend.numpy(first), X)
    np.testing.assert_array_equal(backend.numpy(second), 2.0 * C)
    np.testing.assert_array_equal(backend.numpy(third), X)
    np.testing.assert_array_equal(backend.numpy(none), np.zeros_like(X))


def test_its_own_gradient_is_the_function(backend: Any) -> None:
    with backend.precision(np.float64):
        transposed = xg.linear_transpose(differences, X)
        _, pull = xg.vjp(transposed, backend.array(D))
        (found,) = pull((backend.array(X),))
    np.testing.assert_allclose(backend.numpy(found), differences(X), rtol=1e-14)


def test_what_is_not_linear_is_refused_by_name_and_line() -> None:
    def affine(x: Any) -> Any:
        return 2.0 * x + 1.0

    def noisy(x: Any) -> Any:
        return x * xp.rand_like(x)

    with pytest.raises(xg.UnsupportedOp, match=r"'affine' is not linear.*: add \(.*test_linear_tr"):
        xg.linear_transpose(affine, X)
    with pytest.raises(xg.UnsupportedOp, match="'noisy' draws random numbers"):
        xg.linear_transpose(noisy, X)
    with pytest.raises(TypeError, match="'i' that is no float tensor"):
        xg.linear_transpose(lambda x, i: x[i], X, np.array([0, 1]))


def test_cotangents_that_do_not_fit_are_refused() -> None:
    transposed = xg.linear_transpose(differences, X)
    with pytest.raises(ValueError, match=r"shape \(3, 4\) for an output of shape \(3, 3\)"):
        transposed(X)
    with pytest.raises(TypeError, match="nested like the function's outputs"):
        transposed((D, D))


def test_a_linear_function_with_a_gradient_of_its_own_is_transposed_as_it_is_computed() -> None:
    reversed_ = xg.function(lambda x: 2.0 * x, lambda grad_out, x: -grad_out)
    np.testing.assert_array_equal(xg.linear_transpose(reversed_, X)(X)[0], 2.0 * X)


@pytest.mark.needs("jax")
def test_it_gives_what_jax_gives() -> None:
    import jax
    import jax.numpy as jnp

    def smooth(x: Any) -> Any:
        return jnp.cumsum(x, axis=1) @ jnp.asarray(C, "float32")

    x, d = jnp.asarray(X, "float32"), jnp.asarray(D, "float32")
    (found,) = jax.jit(xg.linear_transpose(smooth, x))(d)
    (expected,) = jax.linear_transpose(smooth, x)(d)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# `einsum` with `...`, also where it is summed away or broadcast: values and gradients.


# As written, spelled out by letters, and the shapes; a length of 1 is dropped from the spelled out.
CASES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "...i,io->...o": ("abi,io->abo", [(2, 3, 4), (4, 5)]),
    "...i,io->o": ("abi,io->o", [(2, 3, 4), (4, 5)]),
    "...i,io->oi": ("abi,io->oi", [(2, 3, 4), (4, 5)]),
    "...->": ("ab->", [(2, 3)]),
    "i...j->ij": ("iaj->ij", [(3, 2, 4)]),
    "...i,i->...": ("ai,i->a", [(2, 3), (3,)]),
    "...i,...i->": ("ai,ai->", [(2, 3), (2, 3)]),
    "...i,...->i": ("ai,a->i", [(2, 3), (2,)]),
    "i,...->...i": ("i,ab->abi", [(2,), (3, 4)]),
    "ij,...->i": ("ij,a->i", [(2, 3), (4,)]),
    "ij...,jk...->ik": ("ija,jka->ik", [(2, 3, 4), (3, 5, 4)]),
    "...a,...b,ab->...": ("xa,xb,ab->x", [(2, 3), (2, 4), (3, 4)]),
    "...i,...j->ij": ("bi,abj->ij", [(2, 3), (5, 2, 4)]),
    "...i,...k->ik": ("i,ak->ik", [(1, 3), (2, 4)]),
    "...i,...k->...ik": ("i,ak->aik", [(1, 3), (2, 4)]),
    "...i,io->...": ("i,io->", [(4,), (4, 5)]),
}


@pytest.mark.parametrize("subscripts", CASES)
def test_an_ellipsis_is_summed_away_and_broadcast(subscripts: str, backend: Any) -> None:
    letters, shapes = CASES[subscripts]
    terms = letters.partition("->")[0].split(",")

    def spelled_out(*arrays: Any) -> Any:
        given = (
            array.reshape([n for n in array.shape if len(term) == array.ndim or n != 1])
            for array, term in zip(arrays, terms, strict=True)
        )
        return np.asarray(np.einsum(letters, *given))

    of = xg.function(lambda *given: xp.einsum(subscripts, *given), native=False)
    arrays = [np.random.default_rng(0).normal(size=shape) for shape in shapes]
    assert_as_in("numpy", spelled_out, *arrays, of=of, backend=backend)


@pytest.mark.backends("tensorflow")
def test_lengths_may_be_open_in_a_graph_of_tensorflow(backend: Any) -> None:
    import tensorflow as tf

    function = xg.function(lambda x, w: xg.xp.einsum("...i,io->...o", x, w), native=False)
    x, w = np.ones((2, 3, 4), np.float32), np.arange(20, dtype=np.float32).reshape(4, 5)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4)), tf.TensorSpec((4, 5))])
    def run(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = function(x, w)
        return y, tape.gradient(y, [x, w])

    y, (_, of_w) = run(x, w)
    np.testing.assert_allclose(y, x @ w)
    np.testing.assert_allclose(of_w, np.full_like(w, 6.0))
