"""A Function has the same outputs and gradients on every backend: captured or as it is, eager or
compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import optree
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ..harness.own_library import in_numpy
from ..rules.library.test_rules_checkers import agrees, backward_of
from ..written.unseen import Unseen

xp = xg.xp
Array = np.ndarray[Any, Any]
X = np.linspace(-1.5, 1.5, 6).reshape(2, 3)
W = np.array([[0.5, -1.0, 2.0]])
COMPILERS: dict[str, list[dict[str, Any]]] = {
    "torch": [{"fullgraph": True, "backend": "aot_eager"}],
    "jax": [{}],
    "tensorflow": [{}, {"jit_compile": True}],
}
COMPILED = pytest.mark.backends(*COMPILERS)


def ways(backend: Any, native: bool | None = None) -> Iterator[Callable[..., Any]]:
    """Yield how code may run: as it is written, and by each compiler of the framework."""
    yield lambda f: f
    for options in COMPILERS.get(backend.name, ()):
        if native and backend.name == "torch":  # it runs as it is between two graphs
            options = {**options, "fullgraph": False}
        yield functools.partial(xg.jit, framework=backend.name, **options)


def make_attention(native: bool | None) -> Any:
    """Scaled scores and their spread: two inputs that broadcast, a number, two outputs."""

    def scores(x: Any, w: Any, scale: Any) -> Any:
        product = x * w * scale

        def grad(upstream: Any) -> Any:
            first, second = upstream
            inner = (first + 2 * x * w * scale * second) * scale
            return inner * w, xp.sum(inner * x, axis=0, keepdims=True), None

        return (product, product * product), grad

    return xg.custom_gradient(scores, native=native)


ROUTES = pytest.mark.parametrize("native", [None, True], ids=["captured", "as it is"])
G1 = np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]])
G2 = np.array([[0.5, 1.0, -1.5], [2.0, -0.75, 0.125]])


@ROUTES
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_numbers_that_a_mask_chooses_between_have_the_dtype_of_the_call(
    backend: Any, native: bool | None, dtype: str
) -> None:
    def moved(x: Any) -> Any:
        def grad(upstream: Any) -> Any:
            return upstream * xp.where(x >= 0, 0.1, -0.3)

        return x + xp.where(x >= 0, 0.1, -0.3), grad

    x = X.astype(dtype)
    steps = np.where(x >= 0, 0.1, -0.3).astype(dtype)
    y, (gradient,) = pull(backend, xg.custom_gradient(moved, native=native), (x,))
    for each, expected in ((y, x + steps), (gradient, steps)):
        assert each.dtype == dtype
        np.testing.assert_array_equal(each, expected)


@ROUTES
def test_gradients_agree_with_finite_differences(backend: Any, native: bool | None) -> None:
    def plain(x: Array, w: Array) -> Any:
        product = x * w * 1.5
        return product, product**2

    expected = in_numpy(plain, X, W)[1]((G1, G2))
    attention, eager = make_attention(native), None
    for way in ways(backend, native):
        run = way(lambda x, w: attention(x, w, 1.5))
        found = pull(backend, run, (X, W), cotangent=(G1, G2))
        eager = eager or found
        for a, b in zip(optree.tree_leaves(found), optree.tree_leaves(eager), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14)
    for a, b in zip(eager[1], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)
    assert pull(backend, attention, (X, W, 1.5), cotangent=(G1, G2))[1][2] is None


@COMPILED
@ROUTES
def test_first_and_second_derivatives_pass_the_frameworks_own_checks(
    backend: Any, native: bool | None
) -> None:
    @xg.custom_gradient(native=native)
    def softened(x: Any, w: Any, scale: Any) -> Any:
        e = xp.exp(x * w)

        def grad(upstream: Any) -> Any:
            inner = upstream[0] * (1 - 1 / (1 + e)) + upstream[2] * scale
            return inner * w, inner * x, None

        return (xp.log(1 + e), x > 0, x * w * scale), grad

    def run(x: Any, w: Any) -> Any:
        soft, _, product = softened(x, w, 1.5)
        return soft + product

    y = X[::-1] + 0.25
    assert agrees(backend, run, X, y)
    assert agrees(backend, backward_of(backend, lambda x: run(x, x * 0.5)), X, G1)


def test_as_it_is_a_function_sees_values_and_runs_once_for_each_call(backend: Any) -> None:
    calls = Unseen()

    @xg.custom_gradient(native=True)
    def by_sign(x: Any) -> Any:
        calls.append("forward")
        positive = float(backend.numpy(x).sum()) > 0  # numbers, which no tracer has

        def grad(upstream: Any) -> Any:
            calls.append("backward")
            return upstream * (2.0 if positive else -2.0)

        return x * 1, grad

    by_sign(backend.array(X))
    assert calls == ["forward"]
    for x, slope in ((X + 9, 2.0), (X - 9, -2.0)):
        _, (gradient,) = pull(backend, by_sign, (x,))
        np.testing.assert_array_equal(gradient, np.full_like(X, slope))
    assert calls == ["forward", *["forward", "backward"] * 2]


@ROUTES
def test_no_axes_no_elements_and_one_element(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def cubed(x: Any) -> Any:
        return x * x * x, lambda upstream: 3 * x * x * upstream

    # What torch compiles of it gives its buffers away, so that no pullback may be called again.
    for way in islice(ways(backend, native), 1 if backend.name == "torch" else None):
        for x in (np.array(2.0), np.zeros((0, 3)), np.array([[3.0]])):
            y, (gradient,) = pull(backend, way(lambda x: cubed(x)), (x,), cotangent=np.ones_like(x))
            assert (y.shape, gradient.shape) == (x.shape, x.shape)
            np.testing.assert_array_equal(gradient, 3 * x * x)


@ROUTES
def test_an_input_returned_as_it_is_takes_the_own_gradient(
    backend: Any, native: bool | None
) -> None:
    @xg.custom_gradient(native=native)
    def reversed_gradient(x: Any, strength: Any) -> Any:
        return x, lambda upstream: (-strength * upstream, None)

    for way in ways(backend, native):
        run = way(lambda x: reversed_gradient(x, 0.5))
        y, (gradient,) = pull(backend, run, (X,), cotangent=G1)
        np.testing.assert_array_equal(y, X)
        np.testing.assert_array_equal(gradient, -0.5 * G1)


@ROUTES
def test_one_value_as_two_outputs_has_two_cotangents(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def thrice(x: Any) -> Any:
        y = x * 3.0
        return [y, y, x], lambda upstream: upstream[0] + 10.0 * upstream[1] + 100.0 * upstream[2]

    for way in ways(backend, native):
        outputs, (gradient,) = pull(
            backend, way(lambda x: thrice(x)), (X,), cotangent=[G1, G2, 2.0 * G1]
        )
        np.testing.assert_array_equal(outputs[0], outputs[1])
        np.testing.assert_array_equal(outputs[2], X)
        np.testing.assert_allclose(gradient, 201.0 * G1 + 10.0 * G2)


@ROUTES
def test_an_output_whose_cotangent_is_missing_counts_as_zero(
    backend: Any, native: bool | None
) -> None:
    attention = make_attention(native)
    for way in ways(backend, native):
        first = way(lambda x, w: attention(x, w, 1.5)[0])
        _, gradients = pull(backend, first, (X, W), cotangent=G1)
        np.testing.assert_allclose(gradients[0], G1 * W * 1.5)


@ROUTES
def test_whole_numbers_and_bools_pass_without_a_gradient(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def pick(x: Any, index: Any, mask: Any) -> Any:
        def grad(upstream: Any) -> Any:
            return xp.where(mask, upstream["x"], 0.0), None, None

        return {
            "x": xp.where(mask, x, 0.0),
            "next": index + 1,
            "flipped": xp.logical_not(mask),
        }, grad

    index, mask = np.arange(3, dtype=np.int32), X > 0
    cotangents = {"x": G1, "next": None, "flipped": None}
    for way in ways(backend, native):
        run = way(lambda x, index, mask: pick(x, index, mask))
        outputs, gradients = pull(backend, run, (X, index, mask), cotangent=cotangents)
        assert (outputs["next"].dtype, outputs["flipped"].dtype) == (np.int32, np.bool_)
        np.testing.assert_array_equal(outputs["next"], [1, 2, 3])
        np.testing.assert_array_equal(outputs["flipped"], ~mask)
        np.testing.assert_array_equal(gradients[0], np.where(mask, G1, 0.0))
        assert gradients[1:] == (None, None)


@ROUTES
def test_whole_numbers_alone(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def following(n: Any) -> Any:
        return n + 1, lambda upstream: None

    for way in ways(backend, native):
        y = way(lambda n: following(n))(backend.array(np.arange(3, dtype=np.int32)))
        np.testing.assert_array_equal(backend.numpy(y), [1, 2, 3])


@ROUTES
def test_keywords_words_and_nested_arguments(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def blended(pair: Any, *, share: Any, kind: str = "up", mask: Any = None) -> Any:
        sign = {"up": 1.0, "down": -1.0}[kind]

        def grad(upstream: Any) -> Any:
            up = upstream["y"]
            return {"a": up * share, "b": None}, {"share": up * pair["a"] * 7.0}

        y = (pair["a"] * share + pair["b"]) * sign
        return {"y": y if mask is None else y * mask, "rest": [kind, y + share]}, grad

    def run(a: Any, b: Any, c: Any, kind: str) -> Any:
        outputs = blended({"a": a, "b": b}, share=c, kind=kind)
        return outputs["y"] if outputs["rest"][0] == kind else a

    for way in ways(backend, native):
        for kind, sign in (("up", 1.0), ("down", -1.0)):
            call = way(functools.partial(run, kind=kind))
            y, gradients = pull(backend, call, (X, G1, G2), cotangent=G1)
            np.testing.assert_allclose(y, sign * (X * G2 + G1))
            for found, expected in zip(gradients, (G1 * G2, 0 * X, G1 * X * 7), strict=True):
                np.testing.assert_allclose(0 * X if found is None else found, expected)


@ROUTES
def test_without_any_gradient_all_are_zero(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def opaque(x: Any, w: Any) -> Any:
        return x * w, lambda upstream: (None, None)

    for way in ways(backend, native):
        _, gradients = pull(backend, way(lambda x, w: opaque(x, w)), (X, X), cotangent=G1)
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, np.zeros_like(X))


def make_dropout() -> Any:
    @xg.custom_gradient
    def dropout(x: Any, rate: Any) -> Any:
        kept = xp.rand_like(x) >= rate

        def grad(upstream: Any) -> Any:
            return upstream * kept / (1.0 - rate), None

        return x * kept / (1.0 - rate), grad

    return dropout


@COMPILED
def test_draws_under_a_key_are_numpys_eager_and_compiled(backend: Any) -> None:
    ones, dropout = np.ones((8, 8), np.float32), make_dropout()

    def draw_twice(way: Callable[..., Any]) -> list[Array]:
        keyed = dropout.keyed(5)
        draws = way(lambda x: (keyed(x, 0.5), keyed(x, 0.5)))(backend.array(ones))
        keyed = dropout.keyed(5)
        _, (gradient,) = pull(backend, way(lambda x: keyed(x, 0.5)), (ones,))
        return [*map(backend.numpy, draws), gradient]

    numpys = dropout.keyed(5)
    expected = [numpys(ones, 0.5), numpys(ones, 0.5)]
    for found in map(draw_twice, ways(backend)):
        np.testing.assert_array_equal(found, [*expected, expected[0]])
    assert not np.array_equal(*expected)


def test_the_calls_of_a_keyed_function_draw_anew(backend: Any) -> None:
    x, keyed = backend.array(np.ones(64, np.float32)), make_dropout().keyed(5)
    first, second = (backend.numpy(keyed(x, 0.5)) for _ in range(2))
    assert not np.array_equal(first, second)


@COMPILED
@ROUTES
def test_the_own_backward_is_differentiated(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def doubled_square(x: Any) -> Any:
        return x * x, lambda upstream: 4.0 * x * upstream

    def slope(x: Any) -> Any:
        y, pullback = xg.vjp(doubled_square, x)
        return pullback(xp.ones_like(y))[0]

    y, gradient = backend.vjp(slope, X, G1)
    np.testing.assert_allclose(y, 4 * X)
    np.testing.assert_allclose(gradient, 4 * G1)


@pytest.mark.usefixtures("unproven")  # as written, each call takes one key
def test_draws_of_two_functions_within_one_are_not_the_same(backend: Any) -> None:
    twice = xg.function(lambda x: 0 * xp.rand_like(x) + xp.rand_like(x), lambda g, x: g)
    once = xg.function(lambda x: xp.rand_like(x), lambda g, x: g)
    both = xg.function(lambda x: (twice(x), once(x)), lambda g, x: g[0])
    after = xg.function(lambda x: (once(x), twice(x)), lambda g, x: g[0])
    for function in (both, after):
        first, second = map(
            backend.numpy, function.keyed(7)(backend.array(np.zeros(8, np.float32)))
        )
        assert not np.intersect1d(first, second).size
