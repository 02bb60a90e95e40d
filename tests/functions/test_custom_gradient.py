"""`xg.custom_gradient`: one signature and one result on every framework, also where
`keras.ops.custom_gradient` fails.
"""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleValueError
from multigrad_conformance.under_test import pull

from ..written.unseen import Unseen

xp = xg.xp
X = np.array([[0.5, -1.0, 2.0], [3.0, 0.0, -0.25]], np.float32)


@xg.custom_gradient
def log1pexp(x: Any) -> Any:
    e = xp.exp(x)

    def grad(upstream: Any) -> Any:
        return upstream * (1 - 1 / (1 + e))

    return xp.log(1 + e), grad


def test_the_gradient_of_log1pexp_is_one_at_a_hundred(backend: Any) -> None:
    _, (gradient,) = pull(backend, log1pexp, (np.array([0.0, 100.0], np.float32),))
    assert gradient.tolist() == [0.5, 1.0]


def upstream_alone(x: Any, w: Any) -> Any:
    def grad(upstream: Any) -> Any:
        return upstream * w * 2.0, upstream * x * 3.0

    return x * w, grad


def upstream_by_name(x: Any, w: Any) -> Any:
    def grad(*args: Any, upstream: Any) -> Any:
        a, b = args
        return upstream * b * 2.0, upstream * a * 3.0

    return x * w, grad


def upstream_in_either_place(x: Any, w: Any) -> Any:
    def grad(*args: Any, upstream: Any = None) -> Any:
        upstream = args[0] if upstream is None else upstream
        return upstream * w * 2.0, upstream * x * 3.0

    return x * w, grad


def upstream_last(x: Any, w: Any) -> Any:
    def grad(x: Any, w: Any, upstream: Any) -> Any:
        return upstream * w * 2.0, upstream * x * 3.0

    return x * w, grad


def gradients_as_a_list(x: Any, w: Any) -> Any:
    return x * w, lambda upstream: [upstream * w * 2.0, upstream * x * 3.0]


@pytest.mark.parametrize(
    "form",
    [
        upstream_alone,
        upstream_by_name,
        upstream_in_either_place,
        upstream_last,
        gradients_as_a_list,
    ],
)
@pytest.mark.parametrize("native", [None, True])
def test_each_form_of_the_gradient_function_gives_the_same(
    backend: Any, form: Any, native: bool | None
) -> None:
    w = X + 1
    y, gradients = pull(backend, xg.custom_gradient(form, native=native), (X, w))
    assert np.array_equal(y, X * w)
    assert np.array_equal(gradients[0], w * 2)
    assert np.array_equal(gradients[1], X * 3)


@pytest.mark.parametrize("native", [None, True])
def test_keyword_arguments_reach_the_function(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def scaled(x: Any, *, factor: float = 1.0, mode: str = "times") -> Any:
        assert mode == "double"
        return x * factor, lambda upstream: upstream * factor * 2.0

    y, (gradient,) = pull(backend, lambda x: scaled(x, factor=3.0, mode="double"), (X,))
    assert np.array_equal(y, X * 3)
    assert np.array_equal(gradient, np.full_like(X, 6.0))


@pytest.mark.parametrize("native", [None, True])
def test_arguments_that_are_no_tensors_are_handed_on(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def chosen(x: Any, factor: float, mode: str, count: int, nothing: None, flag: bool) -> Any:
        assert (mode, count, nothing, flag) == ("times", 3, None, True)
        return x * factor * count, lambda upstream: (
            upstream * factor,
            None,
            None,
            None,
            None,
            None,
        )

    y, gradients = pull(backend, chosen, (X, 2.0, "times", 3, None, True))
    assert np.array_equal(y, X * 6)
    assert np.array_equal(gradients[0], np.full_like(X, 2.0))
    assert gradients[1:] == (None,) * 5


class OwnError(Exception):
    """Raised by the user's function; it takes more than a message."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(number, words)


@pytest.mark.parametrize("native", [None, True, False])
def test_an_error_of_the_users_function_arrives_once_and_unchanged(
    backend: Any, native: bool | None
) -> None:
    calls = Unseen()
    error = OwnError(7, "the user's own words")

    @xg.custom_gradient(native=native)
    def failing(x: Any) -> Any:
        calls.append(1)
        raise error

    ways = [failing, lambda x: xg.vjp(failing, x)]
    if backend.name in ("jax", "tensorflow"):
        ways.append(xg.jit(failing, backend.name))
    for count, run in enumerate(ways, 1):
        with pytest.raises(OwnError) as caught:
            run(backend.array(X))
        assert caught.value is error
        assert len(calls) == count


@pytest.mark.parametrize("native", [None, True])
@pytest.mark.parametrize("x", [X, X[0, :2], np.array(1.5, np.float32)])
def test_a_function_that_returns_no_gradient_function_is_an_error(
    backend: Any, native: bool | None, x: Any
) -> None:
    @xg.custom_gradient(native=native)
    def outputs_alone(x: Any) -> Any:
        return x * 2.0

    with pytest.raises(
        xg.GradientError, match=r"'outputs_alone' returned a .*expected \(outputs, grad\)"
    ):
        outputs_alone(backend.array(x))


@pytest.mark.parametrize("native", [None, True])
def test_a_gradient_that_would_broadcast_names_its_argument(
    backend: Any, native: bool | None
) -> None:
    @xg.custom_gradient(native=native)
    def repeated(x: Any, w: Any) -> Any:
        return x * w, lambda upstream: (upstream * w, upstream * x)

    ways = [lambda f: f]
    if backend.name in ("jax", "tensorflow"):
        ways.append(lambda f: xg.jit(lambda x, w: f(x, w), backend.name))
    for way in ways:
        named = r"'repeated'.*shape \(2, 3\).*'w' of shape \(1, 3\)"
        with pytest.raises(xg.GradientError, match=named):
            pull(backend, way(repeated), (X, X[:1]))


@pytest.mark.parametrize("native", [None, True])
def test_a_gradient_of_integers_names_its_argument(backend: Any, native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def counted(x: Any) -> Any:
        return x * 1.0, lambda upstream: xp.astype(upstream, "int32")

    with pytest.raises(xg.GradientError, match=r"int32 .*argument 'x' of float32"):
        pull(backend, counted, (X,))


def test_a_gradient_may_read_a_number_that_only_the_code_around_it_has() -> None:
    def scaled(x: Any, by: float) -> Any:
        inner = xg.custom_gradient(lambda x: (x * x, lambda grad_out: grad_out * by))
        return inner(3.0 * x)

    x = np.array([1.0, 2.0])
    np.testing.assert_array_equal(xg.vjp(xg.function(scaled), x, 5.0)[1](x)[0], 15.0 * x)


def test_two_values_of_one_name_are_told_apart_or_refused() -> None:
    def squared(x: Any, by: float) -> Any:
        outer = x
        inner = xg.custom_gradient(lambda x: (x * x, lambda grad_out: grad_out * outer))
        return inner(by * x if by > 1 else x)

    x = np.array([1.0, 2.0])
    f = xg.function(squared)
    np.testing.assert_array_equal(xg.vjp(f, x, 1.0)[1](np.ones(2))[0], x)
    with pytest.raises(xg.TraceError, match="reads 'x' of the code around it and has an argument"):
        xg.vjp(f, x, 3.0)


def test_a_branch_on_a_number_is_captured_once_per_value() -> None:
    @xg.custom_gradient(native=False)
    def halved(x: Any, factor: float) -> Any:
        y = x * 2.0 if factor > 1 else x
        return y + 0.0, lambda upstream: (upstream, None)

    assert np.array_equal(halved(X, 2.0), X * 2)
    assert np.array_equal(halved(X, 0.5), X)
    assert np.array_equal(halved(X, 3.0), X * 2)


def test_a_complex_tensor_names_its_argument() -> None:
    with pytest.raises(xg.GradientError, match=r"complex64 for argument 'x'.*real"):
        log1pexp(X.astype(np.complex64))


def test_a_value_that_changes_outside_is_read_at_each_call_where_asked_for() -> None:
    state = {"factor": 2.0}

    @xg.custom_gradient(native=True)
    def scaled(x: Any) -> Any:
        return x * state["factor"], lambda upstream: upstream

    assert np.array_equal(scaled(X), X * 2)
    state["factor"] = 3.0
    assert np.array_equal(scaled(X), X * 3)


assigned = xg.function(lambda x, mode: x, lambda grad_out, x, mode: (grad_out, None))


@pytest.mark.parametrize("function", [log1pexp, assigned])
def test_a_function_pickles_by_its_name_and_copies_as_itself(function: Any) -> None:
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    with pytest.raises(xg.TraceError, match=rf"Under a name in {__name__}, it is pickled by that"):
        pickle.dumps(xg.function(lambda x, words: x * len(words.split()), lambda g, x, words: g))


def test_a_function_of_a_session_pickles_by_its_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    function, main = xg.function(lambda x: x * 2.0, lambda g, x: g * 5.0), sys.modules["__main__"]
    monkeypatch.setattr(function, "__module__", "__main__")
    monkeypatch.setattr(main, "of_session", function, raising=False)
    monkeypatch.setattr(main, "__file__", "script.py", raising=False)  # a worker of xdist has none
    assert pickle.loads(pickle.dumps(function)) is function  # of a script
    monkeypatch.delattr(main, "__file__")
    assert pickle.loads(pickle.dumps(function)) is not function


def test_a_function_without_a_name_of_its_own_pickles_by_its_graphs() -> None:
    function = xg.custom_gradient(lambda x: (x * 2.0, lambda upstream: upstream * 5.0))
    function(X)
    again = pickle.loads(pickle.dumps(function))
    y, pullback = xg.vjp(again, X)
    assert np.array_equal(y, X * 2)
    assert np.array_equal(pullback(np.ones_like(X))[0], np.full_like(X, 5.0))


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match="'x'"):
        log1pexp()


@pytest.mark.parametrize("make", [xg.custom_gradient, xg.function])
def test_a_class_is_no_function(make: Any) -> None:
    class Doubled:
        """What is meant is mostly an object of it."""

        def __call__(self, x: Any) -> Any:
            return x * 2.0

    with pytest.raises(TypeError, match=r"class .Doubled.: give an object of it, Doubled\(\)"):
        make(Doubled)
    np.testing.assert_array_equal(xg.function(Doubled())(X), X * 2)


def test_other_ways_than_a_sum_of_cotangents_are_refused_by_name() -> None:
    make: Any = xg.function
    for other in ("max", {"x": "overwrite"}, None):
        with pytest.raises(RuleValueError, match="give each call within an argument of its own"):
            make(lambda x: x * x, accumulate=other)
