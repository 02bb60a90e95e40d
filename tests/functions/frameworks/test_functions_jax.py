"""Functions inside jax: its transforms, its tracers, its checker; captured, and run as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from ...written.unseen import Unseen

X = np.array([-1.5, -0.25, 0.0, 0.75, 2.0], np.float32)
Y = np.array([2.0, -1.0, 0.5, 3.0, -0.75], np.float32)
ROUTES = pytest.mark.parametrize("native", [False, True], ids=["captured", "as it is"])


def arrays(*values: Any) -> tuple[Any, ...]:
    import jax.numpy as jnp

    return tuple(map(jnp.asarray, values))


jax: Any = pytest.importorskip("jax")

pytestmark = pytest.mark.needs("jax")
Tensor = Any

COUNTS = np.array([1, 2, 3, 4, 5], np.int32)


def mixed(native: bool | None) -> Any:
    """Float, integer and bool arguments, two outputs, a gradient that is not the derivative."""

    @xg.custom_gradient(native=native)
    def weigh(x: Tensor, y: Tensor, counts: Tensor, chosen: Tensor) -> Any:
        weights = xp.where(chosen, xp.astype(counts, x.dtype), 0.5)

        def grad(upstream: Any) -> Any:
            g, h = upstream
            return 3 * g * y * weights, g * x * weights + 2 * h, None, None

        return (x * y * weights, xp.tanh(y)), grad

    return weigh


def loss(f: Any) -> Callable[[Tensor, Tensor], Tensor]:
    counts, chosen = arrays(COUNTS, X > 0)

    def total(x: Tensor, y: Tensor) -> Tensor:
        a, b = f(x, y, counts, chosen)
        return (a * a).sum() + b.sum()

    return total


def expected_gradients() -> tuple[Any, Any]:
    x, y = X.astype(np.float64), Y.astype(np.float64)
    weights = np.where(X > 0, COUNTS, 0.5)
    g = 2 * x * y * weights
    return 3 * g * y * weights, g * x * weights + 2


@ROUTES
@pytest.mark.parametrize(
    "order",
    ["grad", "jit of grad", "grad of jit", "grad of vmap", "grad of scan", "grad of checkpoint"],
)
def test_gradients_are_the_same_under_every_order_of_transforms(native: bool, order: str) -> None:
    total = loss(mixed(native))
    counts, chosen = arrays(COUNTS, X > 0)
    f = mixed(native)

    def each(x: Tensor, y: Tensor, n: Tensor, c: Tensor) -> Tensor:
        a, b = f(x, y, n, c)
        return a * a + b

    def scanned(x: Tensor, y: Tensor) -> Tensor:
        def step(carry: Tensor, row: Any) -> tuple[Tensor, None]:
            return carry + each(*row), None

        return jax.lax.scan(step, 0.0, (x, y, counts, chosen))[0]

    def grad(function: Any) -> Any:
        return jax.grad(function, argnums=(0, 1))

    run = {
        "grad": grad(total),
        "jit of grad": jax.jit(grad(total)),
        "grad of jit": grad(jax.jit(total)),
        "grad of vmap": grad(lambda x, y: jax.vmap(each)(x, y, counts, chosen).sum()),
        "grad of scan": grad(scanned),
        "grad of checkpoint": grad(jax.checkpoint(total)),
    }[order]
    for given, expected in zip(run(*arrays(X, Y)), expected_gradients(), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-6)


def test_a_constant_index_of_a_called_function_is_looked_at_with_the_callers_shape() -> None:
    import jax

    last = jax.custom_vjp(lambda x: x[..., -1:])
    last.defvjp(lambda x: (x[..., -1:], x), lambda x, g: (g + 0.0 * x,))
    inner = xg.convert(last)
    outer = xg.function(lambda x, by: inner(x) * by)
    y, pull = xg.vjp(outer, np.ones((2, 3), np.float32), 2.0)
    np.testing.assert_array_equal(y, [[2.0], [2.0]])
    np.testing.assert_array_equal(pull(y)[0], np.full((2, 3), 4.0))


@pytest.mark.parametrize("kind", [np.float32, float])
def test_numbers_in_compiled_code_are_no_constants_that_xla_regroups(kind: Any) -> None:
    import jax
    import jax.numpy as jnp

    def zero_point(x: Any, low: Any, high: Any) -> Any:
        low, high = (jnp.full_like(x[0], end, dtype=jnp.float32) for end in (low, high))
        width = jnp.where(high > low, high - low, 255.0)
        return 0.0 * x + jnp.round(low / (width / 255.0))  # XLA has -127.5 for -127.49999

    f, ends = xg.convert(zero_point), (kind(-1.0), kind(1.0))
    for run in (lambda x: f(x, *ends), lambda x: jax.vjp(lambda x: f(x, *ends), x)[0]):
        np.testing.assert_array_equal(jax.jit(run)(*arrays(X)), f(X, *ends))


@ROUTES
@pytest.mark.parametrize("outer", ["eager", "jit"])
def test_closed_over_tracers_raise_where_their_derivative_would_be_lost(
    native: bool, outer: str
) -> None:
    def model(w: Tensor, x: Tensor) -> Tensor:
        @xg.custom_gradient(native=native or None)
        def scale(x: Tensor) -> Any:
            return x * w, lambda g: 10 * g * w

        return scale(x).sum()

    run = jax.jit(model) if outer == "jit" else model
    w, x = arrays(np.float32(2.0), X)
    for gradients in (jax.grad(run, (0, 1)), jax.jit(jax.grad(run, (0, 1)))):
        with pytest.raises(xg.GradientError, match=r"'scale'.*reads .* from around it.*argument"):
            gradients(w, x)
        by_x = jax.grad(run, 1)(w, x)
        np.testing.assert_array_equal(by_x, np.full_like(X, 20.0))
    np.testing.assert_allclose(jax.vmap(run, (0, None))(x, x), X * X.sum(), rtol=1e-6)


def test_a_tracer_in_an_object_that_the_function_belongs_to_is_found() -> None:
    class Layer:
        def __init__(self, weight: Tensor) -> None:
            self.state = {"weights": [weight]}

        def call(self, x: Tensor) -> Any:
            return x * self.state["weights"][0], lambda g: g * self.state["weights"][0]

    def model(w: Tensor, x: Tensor) -> Tensor:
        return xg.custom_gradient(Layer(w).call, native=True)(x).sum()

    w, x = arrays(np.float32(3.0), X)
    with pytest.raises(xg.GradientError, match="reads a value from around it"):
        jax.grad(model, (0, 1))(w, x)
    np.testing.assert_array_equal(jax.grad(model, 1)(w, x), np.full_like(X, 3.0))


def test_as_it_is_the_function_is_traced_once_by_each_compilation() -> None:
    calls = Unseen()

    @xg.custom_gradient(native=True)
    def double(x: Tensor) -> Any:
        calls.append("forward")
        return x * 2, lambda g: g * 2

    (x,) = arrays(X)
    run = jax.jit(jax.grad(lambda x: double(x).sum()))
    run(x)
    run(x + 1)
    assert calls == ["forward"]


# Functions inside jax: what they raise, take and return; captured, and run as they are.


jnp = jax.numpy


@pytest.mark.parametrize("compiled", [False, True])
def test_an_exception_of_the_backward_is_raised_where_a_gradient_is_asked_for(
    compiled: bool,
) -> None:
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


def test_the_shapes_that_backward_compares_with_are_no_arrays() -> None:
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
    @xg.custom_gradient(native=native)
    def log1pexp(x: Tensor) -> Any:
        e = xp.exp(x)
        return xp.log(1 + e), lambda g: g * (1 - 1 / (1 + e))

    for run in (jax.grad(log1pexp), jax.jit(jax.grad(log1pexp))):
        assert run(100.0) == 1.0
        np.testing.assert_allclose(run(0.5), 1 / (1 + np.exp(-0.5)), rtol=1e-6)


def test_a_key_may_be_traced_and_without_one_nothing_is_drawn() -> None:
    noisy = xg.function(lambda x: x + xp.rand_like(x), native=False)
    (x,) = arrays(X)
    by_key = jax.jit(lambda key, x: noisy.keyed(key)(x))
    np.testing.assert_array_equal(by_key(jax.random.key(3), x), noisy.keyed(3)(X))
    with pytest.raises(xg.RuleError, match="needs a key on jax"):
        noisy(x)


def test_a_function_without_a_backward_that_is_not_captured_has_jaxs_derivative() -> None:
    cube = xg.function(lambda x: x**3, native=True)
    (x,) = arrays(X)
    np.testing.assert_allclose(jax.grad(lambda x: cube(x).sum())(x), 3 * X**2, rtol=1e-6)


@ROUTES
def test_a_code_that_jax_cannot_differentiate_may_stand_in_the_forward(native: bool) -> None:
    def host_floor(x: Tensor) -> Tensor:
        return jax.pure_callback(np.floor, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    @xg.custom_gradient(native=native or None)
    def floor_through(x: Tensor) -> Any:
        return host_floor(x) + jnp.zeros_like(x), lambda g: g

    (x,) = arrays(X)
    np.testing.assert_array_equal(floor_through(x), np.floor(X))
    for run in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        np.testing.assert_array_equal(run(lambda x: floor_through(x).sum())(x), np.ones_like(X))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_with_a_mask_is_what_it_is_in_jax(dtype: str) -> None:
    import jax.numpy as jnp

    def masked(x: Tensor) -> Tensor:
        return jnp.log(x) * (x > 0) + (x < 2) * x

    @jax.custom_vjp
    def rectified(x: Tensor) -> Tensor:
        return jnp.maximum(x, 0)

    rectified.defvjp(lambda x: (rectified(x), x > 0), lambda mask, ct: (ct * mask,))
    x = jnp.array([-1.0, 0.0, 1.0, np.inf, np.nan], dtype)
    pairs = [(xg.function(masked, native=False)(x), masked(x))]
    cotangent = jnp.array([np.inf, np.nan, -np.inf, 1.0, np.inf], dtype)
    pairs.append(tuple(jax.vjp(f, x)[1](cotangent)[0] for f in (xg.convert(rectified), rectified)))
    for ours, own in pairs:
        np.testing.assert_array_equal(ours.astype("float32"), own.astype("float32"))
