"""jax's transforms see the rule; forward mode, which `custom_vjp` has not, is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.differences import kept

pytestmark = pytest.mark.needs("jax")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)


def triangle(x: Array, width: float = 1.0) -> Array:
    return np.maximum(0.0, 1.0 - np.abs(x) / width).astype(x.dtype)


@pytest.fixture
def times_norm() -> Iterator[str]:
    """Register `g * |x|`, whose second order needs how the norm depends on x."""

    @xg.register("test norm")
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * xg.xp.norm(tin)

    yield "test norm"
    xg.unregister("test norm")


def test_second_order_has_the_terms_of_a_norm_of_the_input(times_norm: str) -> None:
    import jax

    act = xg.activation("Linear")
    with xg.use(times_norm), jax.enable_x64(True):
        x = jax.numpy.array([1.0, 2.0, 2.0], jax.numpy.float64)
        first = jax.grad(lambda x: (act(x) ** 2).sum())
        np.testing.assert_allclose(first(x), 6.0 * x, rtol=1e-12)
        second = jax.grad(lambda x: first(x).sum())(x)
    # first = 2 act(x) |x|, and d act = |x| by the rule: 2 |x| |x| + 2 sum(x) x / |x|.
    np.testing.assert_allclose(second, 18.0 + 10.0 * np.array([1.0, 2.0, 2.0]) / 3.0, rtol=1e-12)


def test_third_order_of_a_rule_is_that_of_its_formula() -> None:
    import jax

    act = xg.activation("Tanh")
    with xg.use("arctan", {"alpha": 2.0 / np.pi}), jax.enable_x64(True):  # 1 / (pi (1 + x^2))
        third = jax.grad(jax.grad(jax.grad(act)))
        x = jax.numpy.float64(0.7)
        got = third(x)
    u = 1 + 0.7**2
    np.testing.assert_allclose(got, (8 * 0.7**2 / u**3 - 2 / u**2) / np.pi, rtol=1e-10)


def test_a_python_number_is_differentiated_too() -> None:
    import jax

    act = xg.activation("Heaviside")
    with xg.use("triangular"):
        assert float(jax.grad(act)(0.25)) == 0.75
        assert float(jax.jit(jax.grad(act))(-0.25)) == 0.75


def test_vmap_grad_jacrev_and_jit_compose() -> None:
    import jax

    act = xg.activation("Heaviside")
    with xg.use("triangular", {"width": 1.5}):
        expected = triangle(X, 1.5)
        for wrap in (lambda f: f, jax.jit):
            np.testing.assert_allclose(wrap(jax.vmap(jax.grad(act)))(X), expected, rtol=1e-6)
            np.testing.assert_allclose(wrap(jax.jacrev(act))(X), np.diag(expected), rtol=1e-6)
            mapped = jax.grad(lambda x: jax.vmap(act)(x).sum())
            np.testing.assert_allclose(wrap(mapped)(X), expected, rtol=1e-6)
            np.testing.assert_array_equal(wrap(jax.vmap(act))(X), X > 0)
        curved = jax.jacrev(jax.jacrev(lambda x: (act(x) * x).sum()))(X + 0.01)
    at = X + np.float32(0.01)
    slope = np.where(np.abs(at) < 1.5, -np.sign(at) / 1.5, 0.0)
    np.testing.assert_allclose(
        np.diag(curved), 2 * triangle(at, 1.5) + at * slope, rtol=1e-5, atol=1e-6
    )


def test_norm_under_vmap_is_that_of_each_example() -> None:
    import jax

    act = xg.activation("Linear")
    x = np.array([[3.0, 4.0], [0.3, 0.4]], np.float32)
    with xg.use("clip_norm"):
        grads = jax.vmap(jax.grad(lambda x: 0.5 * (act(x) ** 2).sum()))(x)
    np.testing.assert_allclose(grads, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)


def test_keys_mapped_over_give_each_example_its_own_draws() -> None:
    import jax

    act = xg.activation("Linear")

    def draw(key: Tensor, x: Tensor) -> Tensor:
        with xg.use("full_jam", key=key):
            return jax.grad(lambda x: act(x).sum())(x)

    keys = jax.random.split(jax.random.key(0), 3)
    got = jax.jit(jax.vmap(draw, (0, None)))(keys, X)
    for key, row in zip(keys, got, strict=True):
        jam = jax.random.uniform(jax.random.fold_in(key, 0), X.shape)
        np.testing.assert_array_equal(row, jam)


@pytest.mark.parametrize("compile_it", [False, True])
def test_scan_applies_the_rule_at_every_step(compile_it: bool) -> None:
    import jax

    act = xg.activation("Linear")

    def loss(x: Tensor) -> Tensor:
        return jax.lax.scan(lambda c, _: (act(c) * 1.0, None), x, None, length=3)[0].sum()

    grad = jax.jit(jax.grad(loss)) if compile_it else jax.grad(loss)
    for s in (2.0, 3.0):
        with xg.use("scale", {"s": s}):
            np.testing.assert_array_equal(grad(X), np.full_like(X, s**3))


@pytest.mark.parametrize("compile_it", [False, True])
def test_checkpoint_runs_again_under_the_rule_of_its_first_forward(compile_it: bool) -> None:
    import jax

    act = xg.activation("Heaviside")
    f: Callable[..., Any] = jax.checkpoint(lambda x: act(jax.numpy.sin(x)))
    with xg.use("triangular"):
        _, pullback = jax.vjp(jax.jit(f) if compile_it else f, X)
    with xg.use("scale"):
        (grad,) = pullback(np.ones_like(X))
    np.testing.assert_allclose(grad, triangle(np.sin(X)) * np.cos(X), rtol=1e-5, atol=1e-7)


def test_linear_transpose_and_remat_of_a_rule_are_its_pullback() -> None:
    import jax

    act = xg.activation("Linear")
    with xg.use("scale", {"s": 3.0}):
        _, pullback = jax.vjp(act, X)
        jacobian = jax.jacrev(act)(X)
    np.testing.assert_array_equal(jacobian, 3.0 * np.eye(9))
    (transposed,) = jax.linear_transpose(lambda g: pullback(g)[0], X)(X)
    np.testing.assert_array_equal(transposed, 3.0 * X)


@pytest.mark.parametrize("name", ["jvp", "linearize", "jacfwd", "jit"])
def test_forward_mode_is_the_rules_and_not_the_forwards_own(name: str) -> None:
    import jax

    act, one = xg.activation("Tanh"), np.ones_like(X)
    ways: dict[str, Callable[[], Any]] = {
        "jvp": lambda: np.diag(jax.jvp(act, (X,), (one,))[1]),
        "linearize": lambda: np.diag(jax.linearize(act, X)[1](one)),
        "jacfwd": lambda: jax.jacfwd(act)(X),
        "jit": lambda: jax.jit(jax.jacfwd(jax.jit(act)))(X),
    }
    with xg.use("triangular"):
        np.testing.assert_array_equal(ways[name](), jax.jacrev(act)(X))
    with xg.use("clip_norm"), pytest.raises(xg.GradientError, match="'clip_norm' is not linear"):
        ways[name]()


def test_without_a_rule_forward_mode_works() -> None:
    import jax

    act = xg.activation("Tanh")
    _, tangent = jax.jvp(act, (X,), (np.ones_like(X),))
    np.testing.assert_allclose(tangent, 1.0 - np.tanh(X) ** 2, rtol=1e-4, atol=1e-6)


def test_sharded_input_gives_the_global_norm() -> None:
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    x = jax.device_put(np.full(4, 2.0, np.float32), sharding)
    act = xg.activation("Linear")
    with xg.use("clip_norm"):
        grad = jax.jit(jax.grad(lambda x: 0.5 * (act(x) ** 2).sum()))(x)
    np.testing.assert_allclose(grad, np.full(4, 0.5), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_nan_times_a_mask_is_nan_but_where_xla_is_declared_to_choose(dtype: str) -> None:
    import jax
    import jax.numpy as jnp

    act = xg.activation("Heaviside", "rectangular")
    x, grad = jnp.array([2.0, 0.1, 2.0], dtype), jnp.array([np.nan, np.nan, 1.0], dtype)

    def pull(x: Any) -> Any:
        return jax.vjp(act, x)[1](grad)[0]

    (row,) = kept("jax", "compiled", "multiply")
    chosen = 0.0 if dtype in row.dtypes else np.nan
    np.testing.assert_array_equal(np.float32(pull(x)), np.float32([np.nan, np.nan, 0.0]))
    np.testing.assert_array_equal(np.float32(jax.jit(pull)(x)), np.float32([chosen, np.nan, 0.0]))
