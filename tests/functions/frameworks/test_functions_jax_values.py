"""Functions inside jax: what they raise, take and return; captured, and run as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from ...harness.functions_jax import ROUTES, X, Y, arrays

pytestmark = pytest.mark.needs("jax")
Tensor = Any


@pytest.mark.parametrize("native", [None, True])
@pytest.mark.parametrize("where", ["eager", "grad", "jit"])
def test_an_exception_of_the_function_reaches_the_user_once_and_unchanged(
    native: bool | None, where: str
) -> None:
    import jax

    raised: list[Exception] = []

    @xg.custom_gradient(native=native)
    def failing(x: Tensor) -> Any:
        raised.append(ZeroDivisionError("mine"))
        raise raised[-1]

    (x,) = arrays(X)
    run = {
        "eager": failing,
        "grad": jax.grad(lambda x: failing(x).sum()),
        "jit": jax.jit(failing),
    }[where]
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        run(x)
    assert [caught.value] == raised


@pytest.mark.parametrize("compiled", [False, True])
def test_an_exception_of_the_backward_is_raised_where_a_gradient_is_asked_for(
    compiled: bool,
) -> None:
    import jax

    @xg.custom_gradient(native=True)
    def unfinished(x: Tensor) -> Any:
        def grad(g: Tensor) -> Tensor:
            raise LookupError("no gradient yet")

        return x * 2, grad

    (x,) = arrays(X)
    run = jax.jit(unfinished) if compiled else unfinished
    np.testing.assert_array_equal(run(x), X * 2)
    with pytest.raises(LookupError, match="no gradient yet"):
        jax.grad(lambda x: run(x).sum())(x)


@ROUTES
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_of_another_shape_is_refused_by_the_arguments_name(
    native: bool, compiled: bool
) -> None:
    import jax

    @xg.custom_gradient(native=native)
    def outer(x: Tensor, weight: Tensor) -> Any:
        return x * weight, lambda g: (g * weight, g * x)

    x, weight = arrays(X, np.float32(2.0))
    gradient = jax.grad(lambda x, w: outer(x, w).sum(), argnums=(0, 1))
    gradient = jax.jit(gradient) if compiled else gradient
    with pytest.raises(xg.GradientError, match=r"'outer'.*shape \(5,\).*'weight'.*shape \(\)"):
        gradient(x, weight)


def test_the_shapes_that_backward_compares_with_are_no_arrays() -> None:
    import jax

    @xg.custom_gradient(native=False)
    def outer(x: Tensor, weight: Tensor) -> Any:
        return x * weight, lambda g: (g * weight, xp.sum(g * x, axis=0))

    x, weight = arrays(np.stack([X, X]), X)
    for run in (
        jax.grad,
        lambda f, n: jax.jit(jax.grad(f, n)),
        lambda f, n: jax.grad(jax.jit(f), n),
    ):
        _, by_weight = run(lambda x, w: outer(x, w).sum(), (0, 1))(x, weight)
        np.testing.assert_array_equal(by_weight, 2 * X)
    by_weight = jax.vmap(jax.grad(lambda w, x: outer(x, w).sum()), (None, 0))(weight, x[:, None])
    np.testing.assert_array_equal(by_weight, np.stack([X, X]))


@ROUTES
def test_a_python_number_under_grad_is_an_array_without_dimensions(native: bool) -> None:
    import jax

    @xg.custom_gradient(native=native)
    def log1pexp(x: Tensor) -> Any:
        e = xp.exp(x)
        return xp.log(1 + e), lambda g: g * (1 - 1 / (1 + e))

    for run in (jax.grad(log1pexp), jax.jit(jax.grad(log1pexp))):
        assert run(100.0) == 1.0
        np.testing.assert_allclose(run(0.5), 1 / (1 + np.exp(-0.5)), rtol=1e-6)


@ROUTES
def test_outputs_that_are_an_argument_or_one_value_twice(native: bool) -> None:
    import jax

    @xg.custom_gradient(native=native)
    def copies(x: Tensor) -> Any:
        y = x * 2
        return (x, y, y), lambda g: g[0] + 10 * g[1] + 100 * g[2]

    (x,) = arrays(X)

    def total(x: Tensor) -> Tensor:
        a, b, c = copies(x)
        return (a + 2 * b + 3 * c).sum()

    for run in (jax.grad(total), jax.grad(jax.jit(total)), jax.jit(jax.grad(total))):
        np.testing.assert_array_equal(run(x), np.full_like(X, 321.0))


@ROUTES
def test_keywords_words_and_nothing_among_the_arguments(native: bool) -> None:
    import jax

    @xg.custom_gradient(native=native)
    def act(x: Tensor, slope: float, kind: str = "up", mask: Any = None) -> Any:
        sign = {"up": 1, "down": -1}[kind]
        y = x * slope * sign
        return {"y": y if mask is None else y * mask}, lambda g: g["y"] * slope * 7

    (x,) = arrays(X)
    for kind, sign in (("up", 1), ("down", -1)):
        np.testing.assert_array_equal(act(x, slope=0.5, kind=kind)["y"], X * 0.5 * sign)
    run = jax.grad(lambda x: act(x, 0.5, kind="down")["y"].sum())
    np.testing.assert_array_equal(run(x), np.full_like(X, 3.5))
    np.testing.assert_array_equal(jax.jit(run)(x), np.full_like(X, 3.5))


@ROUTES
def test_both_forms_of_the_gradient_function_and_flat_gradients_of_nested_arguments(
    native: bool,
) -> None:
    import jax

    @xg.custom_gradient(native=native)
    def with_arguments(x: Tensor) -> Any:
        return x * 2, lambda *args, upstream: upstream * 3 * args[0]

    @xg.custom_gradient(native=native)
    def nested(pair: Any) -> Any:
        return pair["a"] * pair["b"], lambda g: [g * pair["b"], 2 * g * pair["a"]]

    x, y = arrays(X, Y)
    np.testing.assert_array_equal(jax.grad(lambda x: with_arguments(x).sum())(x), 3 * X)
    gradients = jax.grad(lambda pair: nested(pair).sum())({"a": x, "b": y})
    np.testing.assert_array_equal(gradients["a"], Y)
    np.testing.assert_array_equal(gradients["b"], 2 * X)


def test_a_random_function_with_a_key_draws_numpys_numbers_eager_and_compiled() -> None:
    import jax

    @xg.custom_gradient(native=False)
    def dropped(x: Tensor) -> Any:
        kept = xp.astype(xp.rand_like(x) > 0.5, x.dtype)
        return x * kept, lambda g: g * kept * 2

    on_numpy, pullback = xg.vjp(dropped.keyed(3), X)
    (expected,) = pullback(np.ones_like(X))
    (x,) = arrays(X)
    np.testing.assert_array_equal(dropped.keyed(3)(x), on_numpy)
    for wrap in (lambda f: f, jax.jit):
        keyed = dropped.keyed(3)
        gradient = wrap(jax.grad(lambda x, keyed=keyed: keyed(x).sum()))(x)
        np.testing.assert_array_equal(gradient, expected)
    by_key = jax.jit(lambda key, x: dropped.keyed(key)(x))
    np.testing.assert_array_equal(by_key(jax.random.key(3), x), on_numpy)
    with pytest.raises(xg.RuleError, match="needs a key on jax"):
        dropped(x)


def test_a_function_without_a_backward_that_is_not_captured_has_jaxs_derivative() -> None:
    import jax

    cube = xg.function(lambda x: x**3, native=True)
    (x,) = arrays(X)
    np.testing.assert_allclose(jax.grad(lambda x: cube(x).sum())(x), 3 * X**2, rtol=1e-6)


@ROUTES
def test_a_code_that_jax_cannot_differentiate_may_stand_in_the_forward(native: bool) -> None:
    import jax
    import jax.numpy as jnp

    def host_floor(x: Tensor) -> Tensor:
        return jax.pure_callback(np.floor, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    @xg.custom_gradient(native=native or None)
    def floor_through(x: Tensor) -> Any:
        return host_floor(x) + jnp.zeros_like(x), lambda g: g

    (x,) = arrays(X)
    np.testing.assert_array_equal(floor_through(x), np.floor(X))
    for run in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        np.testing.assert_array_equal(run(lambda x: floor_through(x).sum())(x), np.ones_like(X))
