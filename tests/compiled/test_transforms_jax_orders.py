"""jax's higher orders, maps and control flow, over rules of every kind; the oracle is each rule's
formula in jax.

`F(x)` has the rule's gradient `r(w, x)` for the loss `sum(w F(x))`. So its derivatives are those
that jax itself finds for the plain expression `r(w, x)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("jax")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9])
W = np.array([0.5, -1.0, 2.0, 0.7, 0.3, -0.2, 1.1])
V = np.array([1.5, -0.3, 0.2, 0.9, -0.3, 1.2, 0.1])


# --- the rules, as jax expressions ----------------------------------------------------------------


def triangular(g: Tensor, x: Tensor) -> Tensor:
    return g * abs(1.0 - abs(x)) * (abs(x) < 1.0)


def rectangular(g: Tensor, x: Tensor) -> Tensor:
    return g * ((x >= -0.5) & (x <= 0.5))


def clip_norm(g: Tensor, x: Tensor) -> Tensor:
    return g / (g * g).sum().clip(1.0) ** 0.5


def identity(g: Tensor, x: Tensor) -> Tensor:
    return g


def times_norm(g: Tensor, x: Tensor) -> Tensor:
    return g * (x * x).sum() ** 0.5


def times_mean(g: Tensor, x: Tensor) -> Tensor:
    return x * g.mean(-1, keepdims=True)


def windowed_triangle(g: Tensor, x: Tensor) -> Tensor:
    return 3.0 * triangular(rectangular(g, x), x)


def clipped_triangle(g: Tensor, x: Tensor) -> Tensor:
    return clip_norm(triangular(g, x), x)


FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "triangular": triangular,
    "rectangular": rectangular,
    "clip_norm": clip_norm,
    "d(Linear)": identity,
    "test norm": times_norm,
    "test mean": times_mean,
    "rectangular then scale then triangular": windowed_triangle,
    "triangular then clip_norm": clipped_triangle,
}
FORWARDS = ["Heaviside", "Tanh", "Linear", "ReLU"]
every_rule_once = pytest.mark.parametrize(
    ("rule", "forward"), [(rule, FORWARDS[i % 4]) for i, rule in enumerate(FORMULAS)]
)


@pytest.fixture(autouse=True)
def own_rules() -> Iterator[None]:
    """Compute in float64, with a rule that has a norm of the input, and one that is no factor."""
    import jax

    @xg.register("test norm")
    def norm(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * xg.xp.norm(tin)

    @xg.register("test mean")
    def mean(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return tin * xg.xp.mean(grad_out, axis=-1, keepdims=True)

    with jax.enable_x64(True):
        yield
    xg.unregister("test norm")
    xg.unregister("test mean")


def find(name: str) -> Any:
    """Return the rule of a name above."""
    if " then " not in name:
        return name
    scale = xg.get("scale").with_params(s=3.0)
    return xg.compose(*(scale if part == "scale" else part for part in name.split(" then ")))


class Case:
    """A rule under a forward, its formula, and the loss `sum(w F(x))`."""

    def __init__(self, rule: str, forward: str) -> None:
        import jax.numpy as jnp

        self.rule = find(rule)
        self.act: Any = xg.activation(forward)
        self.x, self.w, self.v = (jnp.asarray(values, jnp.float64) for values in (X, W, V))
        self.formula = FORMULAS[rule]

    def loss(self, x: Tensor) -> Tensor:
        return (self.act(x) * self.w).sum()

    def expected(self, x: Tensor) -> Tensor:
        """Return the gradient that the rule gives; zero times x ties it to x where it does not
        depend.
        """
        return self.formula(self.w, x) + 0.0 * x

    def jacobian(self) -> Array:
        """Return the matrix of the rule: row i is what output i sends back."""
        return np.stack([self.formula(row, self.x) for row in np.eye(len(X))])

    def hessian(self) -> Array:
        import jax

        return np.asarray(jax.jit(jax.jacrev(self.expected))(self.x))


def directional(f: Callable[[Tensor], Tensor], v: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the derivative of `v f(x)`."""
    import jax

    return jax.grad(lambda x: (f(x) * v).sum())


def close(got: Any, expected: Any) -> None:
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@every_rule_once
def test_first_three_orders_are_those_of_the_formula(rule: str, forward: str) -> None:
    import jax

    case = Case(rule, forward)
    got, expected = jax.grad(case.loss), case.expected
    for _ in range(3):
        with xg.use(case.rule):
            close(jax.jit(got)(case.x), expected(case.x))
        got, expected = directional(got, case.v), directional(expected, case.v)


@pytest.mark.parametrize(
    ("rule", "forward"),
    [("rectangular", "Heaviside"), ("test mean", "Tanh"), ("triangular then clip_norm", "Linear")],
)
def test_jacobians_and_maps_over_examples_are_the_rules(rule: str, forward: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax import grad, jacrev, vmap

    case = Case(rule, forward)
    batch = jnp.stack([case.x, 0.5 * case.x, -case.x])
    many = np.stack([case.expected(x) for x in batch])
    with xg.use(case.rule):
        close(jacrev(case.act)(case.x), case.jacobian())
        close(jax.jit(vmap(jacrev(grad(case.loss))))(case.x[None])[0], case.hessian())
        close(jax.jit(vmap(grad(case.loss)))(batch), many)
        close(vmap(grad(case.loss), in_axes=1, out_axes=1)(batch.T), many.T)
        close(vmap(vmap(grad(case.loss)))(batch[None])[0], many)
        close(grad(lambda x: vmap(case.loss)(x).sum())(batch), many)


def run_scan(case: Case, x: Tensor) -> Tensor:
    import jax

    return jax.lax.scan(lambda c, _: (case.act(c) * case.w, None), x, None, length=1)[0].sum()


def run_loop(case: Case, x: Tensor) -> Tensor:
    import jax

    return jax.lax.fori_loop(0, 1, lambda _, c: case.act(c) * case.w, x).sum()


def run_branch(case: Case, x: Tensor) -> Tensor:
    import jax

    return jax.lax.cond(x.sum() < 100.0, case.loss, lambda x: 0.0 * x.sum(), x)


def run_switch(case: Case, x: Tensor) -> Tensor:
    import jax

    return jax.lax.switch(x.astype(int).sum() * 0 + 1, [lambda x: 0.0 * x.sum(), case.loss], x)


def run_again(case: Case, x: Tensor) -> Tensor:
    import jax

    return jax.checkpoint(case.loss)(x)


def run_again_wholly(case: Case, x: Tensor) -> Tensor:
    import jax

    policy = jax.checkpoint_policies.nothing_saveable
    return jax.checkpoint(case.loss, policy=policy)(x)


ROUTES = [run_scan, run_loop, run_branch, run_switch, run_again, run_again_wholly]


@pytest.mark.parametrize("rule", ["rectangular", "test norm"])
@pytest.mark.parametrize("route", ROUTES)
def test_control_flow_and_checkpoints_keep_both_orders(
    rule: str, route: Callable[[Case, Tensor], Tensor]
) -> None:
    import jax

    case = Case(rule, "Tanh")
    first = jax.grad(lambda x: route(case, x))
    with xg.use(case.rule):
        close(jax.jit(first)(case.x), case.expected(case.x))
        close(jax.jit(jax.jacrev(first))(case.x), case.hessian())


def test_while_loop_runs_forward_and_refuses_a_gradient() -> None:
    import jax

    case = Case("triangular", "Heaviside")

    def loop(x: Tensor) -> Tensor:
        return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, case.act(c[1])), (0, x))[
            1
        ]

    with xg.use("triangular"):
        np.testing.assert_array_equal(loop(case.x), X > 0)
        with pytest.raises(ValueError, match="Reverse-mode differentiation"):
            jax.grad(lambda x: loop(x).sum())(case.x)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
def test_donated_buffers_and_static_arguments_are_taken(rule: str) -> None:
    import jax

    case = Case(rule, "Heaviside")

    def power(x: Tensor, n: int) -> Tensor:
        return n * case.loss(x)

    with xg.use(case.rule):
        close(jax.jit(jax.grad(case.loss), donate_argnums=0)(case.x + 0.0), case.expected(case.x))
        step = jax.jit(jax.grad(power), static_argnums=1, donate_argnums=0)
        for n in (2, 3):
            expected = case.formula(n * case.w, case.x)
            close(step(case.x + 0.0, n), expected)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm", "test norm"])
@pytest.mark.parametrize("wide", [False, True])
def test_weakly_typed_numbers_get_the_rules_gradient_in_the_default_dtype(
    rule: str, wide: bool
) -> None:
    import jax

    act = xg.activation("Tanh")
    with jax.enable_x64(wide), xg.use(rule):
        got = [jax.grad(act)(0.25), jax.jit(jax.grad(act))(0.25), jax.vmap(jax.grad(act))(X)[5]]
        formula = FORMULAS[rule]
        expected = [formula(np.ones(()), np.asarray(x)) for x in (0.25, 0.25, X[5])]
    for value, formula_value in zip(got, expected, strict=True):
        assert value.dtype == (np.float64 if wide else np.float32)
        np.testing.assert_allclose(value, formula_value, rtol=1e-6)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
def test_forward_mode_within_every_transform_is_the_rules_or_refused_by_name(rule: str) -> None:
    import jax

    case = Case(rule, "Tanh")
    x, v = case.x, case.v

    def forward_over_reverse(x: Any) -> Any:
        return jax.jvp(jax.grad(case.loss), (x,), (v,))[1]

    ways = [
        (lambda: jax.jacfwd(case.act)(x), lambda: jax.jacrev(case.act)(x)),
        (lambda: jax.linearize(case.act, x)[1](v), lambda: jax.jacrev(case.act)(x) @ v),
        (lambda: forward_over_reverse(x), lambda: jax.jacrev(jax.grad(case.loss))(x) @ v),
        (
            lambda: jax.jit(forward_over_reverse)(x),
            lambda: jax.jacrev(jax.grad(case.loss))(x) @ v,
        ),
        (lambda: jax.vmap(jax.jacfwd(case.act))(x[None])[0], lambda: jax.jacrev(case.act)(x)),
        (
            lambda: jax.jvp(lambda x: run_scan(case, x), (x,), (v,))[1],
            lambda: jax.jacrev(lambda x: run_scan(case, x))(x) @ v,
        ),
    ]
    with xg.use(case.rule):
        for way, expected in ways:
            try:
                found = way()
            except xg.GradientError as error:
                assert rule == "clip_norm"
                assert "'clip_norm' is not linear" in str(error)
                continue
            np.testing.assert_allclose(found, expected(), rtol=1e-5, atol=1e-6)


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
    import jax
    from jax import grad, hessian, jacfwd, jacrev

    case = Case(rule, forward)
    case.act = xg.lower(case.rule, "jax", forward=forward, forward_mode=True)
    jacobian, curvature = case.jacobian(), case.hessian()
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
