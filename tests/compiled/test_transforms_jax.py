"""jax's transforms see the rule; forward mode, which `custom_vjp` has not, is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from .formulas import PAIRS, Case, V, W, close, formulas
from .formulas import X as POINTS

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.needs("jax")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)


def test_keys_mapped_over_give_each_example_its_own_draws() -> None:
    act = xg.activation("Linear")

    def draw(key: Tensor, x: Tensor) -> Tensor:
        with xg.use("full_jam", key=key):
            return jax.grad(lambda x: act(x).sum())(x)

    keys = jax.random.split(jax.random.key(0), 3)
    got = jax.jit(jax.vmap(draw, (0, None)))(keys, X)
    for key, row in zip(keys, got, strict=True):
        jam = jax.random.uniform(jax.random.fold_in(key, 0), X.shape)
        np.testing.assert_array_equal(row, jam)


def test_linear_transpose_and_remat_of_a_rule_are_its_pullback() -> None:
    act = xg.activation("Linear")
    with xg.use("scale", {"s": 3.0}):
        _, pullback = jax.vjp(act, X)
        jacobian = jax.jacrev(act)(X)
    np.testing.assert_array_equal(jacobian, 3.0 * np.eye(9))
    (transposed,) = jax.linear_transpose(lambda g: pullback(g)[0], X)(X)
    np.testing.assert_array_equal(transposed, 3.0 * X)


def test_without_a_rule_forward_mode_works() -> None:
    act = xg.activation("Tanh")
    _, tangent = jax.jvp(act, (X,), (np.ones_like(X),))
    np.testing.assert_allclose(tangent, 1.0 - np.tanh(X) ** 2, rtol=1e-4, atol=1e-6)


# jax's higher orders, maps and control flow, over rules of every kind; the oracle is each rule's
# formula in jax.


in_64_bits = pytest.mark.usefixtures("wide_with_own_rules")
every_rule_once = pytest.mark.parametrize(("rule", "forward"), PAIRS)


@pytest.fixture
def wide_with_own_rules(own_rules: None) -> Iterator[None]:
    """Compute in float64."""
    with jax.enable_x64(True):
        yield


def hessian_of(case: Case) -> Array:
    return np.asarray(jax.jit(jax.jacrev(case.expected))(case.x))


def directional(f: Callable[[Tensor], Tensor], v: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the derivative of `v f(x)`."""
    return jax.grad(lambda x: (f(x) * v).sum())


@in_64_bits
@every_rule_once
def test_first_three_orders_are_those_of_the_formula(rule: str, forward: str) -> None:
    case = Case("jax", rule, forward)
    got, expected = jax.grad(case.loss), case.expected
    for _ in range(3):
        with xg.use(case.rule):
            close(jax.jit(got)(case.x), expected(case.x))
        got, expected = directional(got, case.v), directional(expected, case.v)


@in_64_bits
@pytest.mark.parametrize(
    ("rule", "forward"),
    [("rectangular", "Heaviside"), ("test mean", "Tanh"), ("triangular then clip_norm", "Linear")],
)
def test_jacobians_and_maps_over_examples_are_the_rules(rule: str, forward: str) -> None:
    from jax import grad, jacrev, vmap

    case = Case("jax", rule, forward)
    batch = jnp.stack([case.x, 0.5 * case.x, -case.x])
    many = np.stack([case.expected(x) for x in batch])
    with xg.use(case.rule):
        close(jacrev(case.act)(case.x), case.jacobian())
        close(jax.jit(vmap(jacrev(grad(case.loss))))(case.x[None])[0], hessian_of(case))
        close(jax.jit(vmap(grad(case.loss)))(batch), many)
        close(vmap(case.act)(batch), case.act(batch))
        close(vmap(grad(case.loss), in_axes=1, out_axes=1)(batch.T), many.T)
        close(vmap(vmap(grad(case.loss)))(batch[None])[0], many)
        close(grad(lambda x: vmap(case.loss)(x).sum())(batch), many)


def run_scan(case: Case, x: Tensor) -> Tensor:
    return jax.lax.scan(lambda c, _: (case.act(c) * case.w, None), x, None, length=1)[0].sum()


def run_loop(case: Case, x: Tensor) -> Tensor:
    return jax.lax.fori_loop(0, 1, lambda _, c: case.act(c) * case.w, x).sum()


def run_branch(case: Case, x: Tensor) -> Tensor:
    return jax.lax.cond(x.sum() < 100.0, case.loss, lambda x: 0.0 * x.sum(), x)


def run_switch(case: Case, x: Tensor) -> Tensor:
    return jax.lax.switch(x.astype(int).sum() * 0 + 1, [lambda x: 0.0 * x.sum(), case.loss], x)


def run_again(case: Case, x: Tensor) -> Tensor:
    return jax.checkpoint(case.loss)(x)


def run_again_wholly(case: Case, x: Tensor) -> Tensor:
    policy = jax.checkpoint_policies.nothing_saveable
    return jax.checkpoint(case.loss, policy=policy)(x)


ROUTES = [run_scan, run_loop, run_branch, run_switch, run_again, run_again_wholly]


@in_64_bits
@pytest.mark.parametrize("rule", ["rectangular", "test norm"])
@pytest.mark.parametrize("route", ROUTES)
def test_control_flow_and_checkpoints_keep_both_orders(
    rule: str, route: Callable[[Case, Tensor], Tensor]
) -> None:
    case = Case("jax", rule, "Tanh")
    first = jax.grad(lambda x: route(case, x))
    with xg.use(case.rule):
        close(jax.jit(first)(case.x), case.expected(case.x))
        close(jax.jit(jax.jacrev(first))(case.x), hessian_of(case))


def lower_spike() -> Any:
    return xg.lower("arctan", "jax", forward="Heaviside", forward_mode=True)


@in_64_bits
@pytest.mark.parametrize("make", [lambda: xg.activation("Heaviside", "arctan"), lower_spike])
def test_second_derivatives_in_a_loop_are_those_outside_also_through_the_output(
    make: Callable[[], Any],
) -> None:
    """In `s(x) x`, s itself is a residual: jax's own `custom_jvp` loses its gradient in a scan."""
    from jax import grad, jacfwd, jacrev, jvp, lax

    s = make()

    def f(x: Tensor) -> Tensor:
        return s(x) * x

    def scan(x: Tensor) -> Tensor:
        return lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]

    loops: list[Callable[[Tensor], Tensor]] = [
        scan,
        lambda x: lax.fori_loop(0, 1, lambda _, c: f(c), x),
        lambda x: lax.cond(x > -1.0, scan, lambda x: 0.0 * x, x),
        lambda x: jax.vmap(scan)(x[None])[0],
        lambda x: lax.scan(jax.checkpoint(lambda c, _: (f(c), None)), x, None, length=1)[0],
    ]
    x, one = jnp.float64(0.3), jnp.float64(1.0)
    slope = 1.0 / (1.0 + (np.pi * 0.3) ** 2)
    expected = 2.0 * slope - 2.0 * (0.3 * np.pi * slope) ** 2
    pairs = [(grad, grad), (jacrev, jacfwd), (jacfwd, jacfwd)]
    of_each = jax.jit(lambda x: [second(first(f))(x) for f in loops for first, second in pairs])
    close(of_each(x), [expected] * len(loops) * len(pairs))
    close(jvp(jax.jit(grad(scan)), (x,), (one,))[1], expected)

    def while_loop(x: Tensor) -> Tensor:
        return lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]

    close(jvp(lambda x: jvp(while_loop, (x,), (one,))[1], (x,), (one,))[1], expected)

    # the first derivative is by another factor than the second
    def mixed(c: Tensor, x: Tensor) -> Tensor:
        return lax.scan(lambda c, x: (s(x) * c, None), c, x[None])[0]

    close(jax.jit(grad(grad(mixed), 1))(one, x), slope)


@in_64_bits
@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
def test_donated_buffers_and_static_arguments_are_taken(rule: str) -> None:
    case = Case("jax", rule, "Heaviside")

    def power(x: Tensor, n: int) -> Tensor:
        return n * case.loss(x)

    with xg.use(case.rule):
        close(jax.jit(jax.grad(case.loss), donate_argnums=0)(case.x + 0.0), case.expected(case.x))
        step = jax.jit(jax.grad(power), static_argnums=1, donate_argnums=0)
        for n in (2, 3):
            expected = case.formula(n * case.w, case.x)
            close(step(case.x + 0.0, n), expected)


@in_64_bits
@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm", "test norm"])
@pytest.mark.parametrize("wide", [False, True])
def test_weakly_typed_numbers_get_the_rules_gradient_in_the_default_dtype(
    rule: str, wide: bool
) -> None:
    act = xg.activation("Tanh")
    with jax.enable_x64(wide), xg.use(rule):
        got = [
            jax.grad(act)(0.25),
            jax.jit(jax.grad(act))(0.25),
            jax.vmap(jax.grad(act))(POINTS)[5],
        ]
        formula = formulas("jax")[rule]
        expected = [formula(np.ones(1), np.array([x]))[0] for x in (0.25, 0.25, POINTS[5])]
    for value, formula_value in zip(got, expected, strict=True):
        assert value.dtype == (np.float64 if wide else np.float32)
        np.testing.assert_allclose(value, formula_value, rtol=1e-6)


@in_64_bits
@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
def test_forward_mode_within_every_transform_is_the_rules_or_refused_by_name(rule: str) -> None:
    case = Case("jax", rule, "Tanh")
    x, v = case.x, case.v

    def forward_over_reverse(x: Any) -> Any:
        return jax.jvp(jax.grad(case.loss), (x,), (v,))[1]

    of_the_rule = [
        (lambda: forward_over_reverse(x), lambda: jax.jacrev(jax.grad(case.loss))(x) @ v),
        (lambda: jax.jvp(case.act, (x,), (v,))[1], lambda: jax.jacrev(case.act)(x) @ v),
        (lambda: jax.jacfwd(case.act)(x), lambda: jax.jacrev(case.act)(x)),
        (lambda: jax.jit(jax.jacfwd(jax.jit(case.act)))(x), lambda: jax.jacrev(case.act)(x)),
        (lambda: jax.linearize(case.act, x)[1](v), lambda: jax.jacrev(case.act)(x) @ v),
        (lambda: jax.vmap(jax.jacfwd(case.act))(x[None])[0], lambda: jax.jacrev(case.act)(x)),
        (
            lambda: jax.jvp(lambda x: run_scan(case, x), (x,), (v,))[1],
            lambda: jax.jacrev(lambda x: run_scan(case, x))(x) @ v,
        ),
    ]
    with xg.use(case.rule):
        # What is compiled leaves the tangent of the forward out, which nobody reads.
        expected = jax.jacrev(jax.grad(case.loss))(x) @ v
        np.testing.assert_allclose(jax.jit(forward_over_reverse)(x), expected, rtol=1e-5)
        for tangent, pulled in of_the_rule:
            if rule == "clip_norm":
                with pytest.raises(xg.GradientError, match="'clip_norm' is not linear"):
                    tangent()
            else:
                np.testing.assert_allclose(tangent(), pulled(), rtol=1e-5, atol=1e-6)


@in_64_bits
@pytest.mark.parametrize(
    ("rule", "forward"),
    [
        ("triangular", "Heaviside"),
        ("rectangular", "Tanh"),
        ("test mean", "Linear"),
    ],
)
def test_forward_mode_that_is_asked_for_composes_with_every_transform(
    rule: str, forward: str
) -> None:
    from jax import grad, hessian, jacfwd, jacrev

    case = Case("jax", rule, forward)
    case.act = xg.lower(case.rule, "jax", forward=forward, forward_mode=True)
    jacobian, curvature = case.jacobian(), hessian_of(case)
    third = directional(directional(case.expected, case.v), case.v)(case.x)
    close(jax.linearize(case.act, case.x)[1](case.v), jacobian @ V)
    for f, expected in (
        (jacfwd(case.act), jacobian),
        (jacrev(case.act), jacobian),
        (hessian(case.loss), curvature),
        (jacfwd(jacfwd(case.loss)), curvature),
        (jacrev(jacrev(case.loss)), curvature),
        (grad(jax.checkpoint(case.loss)), case.expected(case.x)),
        (directional(directional(grad(case.loss), case.v), case.v), third),
    ):
        close(jax.jit(f)(case.x), expected)
    mapped = jax.vmap(lambda x, v: jax.jvp(case.act, (x,), (v,))[1])
    close(mapped(case.x[None], case.v[None])[0], jacobian @ V)
    _, tangent = jax.jvp(lambda x: run_scan(case, x), (case.x,), (case.v,))
    close(tangent, W @ jacobian @ V)
