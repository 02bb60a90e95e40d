"""Rules on MLX: its transformations, its compiler, its dialect, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import GradientError, StaleTraceError

from ..support.threads import on_threads
from ..users.test_demo import ROWS, invoke_demo, read_results

pytestmark = pytest.mark.needs("mlx")
X = np.array([-1.0, 0.25, 0.375, 2.0], np.float32)
TRIANGULAR = [0.0, 0.75, 0.625, 0.0]


@pytest.fixture
def mx() -> Any:
    core = pytest.importorskip("mlx.core")
    pytest.importorskip("multigrad_mlx")  # which puts its own compile in the place of MLX's
    return core


def gradient(mx: Any, f: Any) -> Any:
    return mx.grad(lambda x: f(x).sum())


def test_grad_and_vmap_in_any_order_give_the_rule(mx: Any) -> None:
    act = xg.activation("ReLU", "triangular")
    x = mx.array(X)
    mapped = mx.vmap(gradient(mx, act))(x)
    within = gradient(mx, mx.vmap(act))(x)
    twice = gradient(mx, mx.vmap(mx.vmap(act, in_axes=1)))(x.reshape(1, 2, 2))
    for found in (mapped, within, twice):
        np.testing.assert_array_equal(np.array(found).reshape(-1), TRIANGULAR)


def test_a_rule_over_an_example_is_mapped_over_each(mx: Any) -> None:
    act = xg.activation("Linear", "centralize")
    rows = mx.array(np.stack([X, 2 * X]))

    def loss(x: Any) -> Any:
        return (mx.vmap(act)(x) * rows).sum()

    expected = [row - row.mean() for row in np.array(rows)]
    np.testing.assert_allclose(np.array(mx.grad(loss)(rows)), expected, rtol=1e-6)


def test_a_second_derivative_goes_through_the_rule(mx: Any) -> None:
    act = xg.activation("ReLU", "triangular")
    second = gradient(mx, gradient(mx, act))(mx.array(X))
    np.testing.assert_array_equal(np.array(second), [0.0, -1.0, -1.0, 0.0])


def test_forward_mode_is_refused_where_the_rule_has_none(mx: Any) -> None:
    act = xg.activation("ReLU", "clip_norm")
    with pytest.raises(GradientError, match=r"mx\.jvp.*'clip_norm' is not linear"):
        mx.jvp(act, [mx.array(X)], [mx.array(X)])
    with pytest.raises(GradientError, match="is not linear"):
        xg.jvp(act, (mx.array(X),), (mx.array(X),))


def test_forward_mode_of_a_function_is_the_transpose_of_its_backward(mx: Any) -> None:
    @xg.custom_gradient
    def layer(x: Any, w: Any, scale: float) -> Any:
        y = xg.xp.tanh(x @ w) * scale
        rest = (y > 0, y * 2.0)

        def grad(upstream: Any, _: Any, other: Any) -> Any:
            inner = (3.0 * upstream + other) * (1.0 - y * y)
            return inner @ w.T, x.T @ inner, None

        return (y, *rest), grad

    own = np.random.default_rng(3)
    x, w, dx, dw, u = (
        mx.array(own.normal(size=s).astype(np.float32))
        for s in ((3, 4), (4, 2), (3, 4), (4, 2), (3, 2))
    )

    def first(x: Any, w: Any) -> Any:
        return layer(x, w, 0.5)[0]

    _, (dy, nothing, _) = xg.jvp(lambda x, w: layer(x, w, 0.5), (x, w), (dx, dw))
    assert nothing is None
    found = mx.jvp(first, [x, w], [dx, dw])[1][0]
    np.testing.assert_array_equal(np.array(found), np.array(dy))
    gradients = mx.vjp(first, [x, w], [u])[1]
    right = sum((np.array(g) * np.array(d)).sum() for g, d in zip(gradients, (dx, dw), strict=True))
    np.testing.assert_allclose((np.array(u) * np.array(dy)).sum(), right, rtol=1e-5)
    alone = mx.jvp(lambda x: first(x, w), [x], [dx])[1][0]
    rows = mx.jvp(lambda x: mx.vmap(first, in_axes=(0, None))(x[:, None], w), [x], [dx])[1][0]
    np.testing.assert_allclose(np.array(rows)[:, 0], np.array(alone), rtol=1e-5)
    compiled = mx.compile(lambda x: mx.jvp(lambda x: first(x, w), [x], [dx])[1][0])(x)
    np.testing.assert_allclose(np.array(compiled), np.array(alone), rtol=1e-5)
    second = mx.jvp(mx.grad(lambda x: first(x, w).sum()), [x], [dx])[1][0]
    other = mx.grad(lambda x: (mx.jvp(lambda x: first(x, w), [x], [dx])[1][0]).sum())(x)
    assert np.isfinite(np.array(second)).all()
    assert np.isfinite(np.array(other)).all()


def test_forward_mode_that_was_asked_for_is_the_rule_and_is_mapped(mx: Any) -> None:
    lowered = xg.lower("triangular", "mlx", forward="ReLU", forward_mode=True)
    x, tangent = mx.array(X), mx.array([1.0, 2.0, 3.0, 4.0])
    expected = np.array(TRIANGULAR) * np.array(tangent)
    np.testing.assert_array_equal(np.array(mx.jvp(lowered, [x], [tangent])[1][0]), expected)
    rows, tangents = mx.stack([x, x]), mx.stack([tangent, tangent])
    mapped = mx.jvp(mx.vmap(lowered), [rows], [tangents])[1][0]
    np.testing.assert_array_equal(np.array(mapped), [expected, expected])


def test_a_written_program_holds_the_rule_in_force(mx: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "gradient.mlxfn")
    with xg.use("triangular"):
        mx.export_function(file, gradient(mx, xg.activation("ReLU")), mx.array(X))
    (found,) = mx.import_function(file)(mx.array(X))
    np.testing.assert_array_equal(np.array(found), TRIANGULAR)


def test_what_a_solver_cannot_solve_is_no_number_however_often_it_is_read(mx: Any) -> None:
    solve = xg.function(lambda s: xg.xp.solve(s, s), native=False)
    for matrix in (mx.zeros((2, 2)), mx.ones((2, 2))):
        result = solve(matrix)
        for _ in range(2):
            assert np.isnan(np.array(result)).all()


def test_a_trace_that_would_keep_the_rule_in_force_is_refused(mx: Any) -> None:
    act = xg.activation("ReLU")
    with pytest.raises(StaleTraceError, match=r"xg\.jit"):
        mx.compile(gradient(mx, act))(mx.array(X))


def test_an_activation_with_its_own_rule_and_a_use_within_may_be_compiled(mx: Any) -> None:
    def within(x: Any) -> Any:
        with xg.use("triangular"):
            return gradient(mx, xg.activation("ReLU"))(x)

    own = gradient(mx, xg.activation("ReLU", "triangular"))
    for f in (own, within):
        np.testing.assert_array_equal(np.array(mx.compile(f)(mx.array(X))), TRIANGULAR)


@pytest.fixture
def named() -> str:
    """Yield the name of a rule that gives twice the gradient; `tripled` makes it three times."""
    xg.register("mlx_scaled")(lambda ctx, grad_out, tin: 2 * grad_out)
    return "mlx_scaled"


def tripled(name: str) -> None:
    xg.register(name, override=True)(lambda ctx, grad_out, tin: 3 * grad_out)


def test_a_compiled_function_follows_a_name_that_is_registered_anew(mx: Any, named: str) -> None:
    def within(x: Any) -> Any:
        with xg.use(named):
            return gradient(mx, xg.activation("Linear"))(x)

    own = gradient(mx, xg.activation("Linear", named))
    inner = mx.compile(lambda: own(mx.array(X)))
    inner()
    around = mx.compile(lambda x: inner() + 0 * x)  # its trace is made while the inner one is there
    functions = [mx.compile(own), mx.compile(within), inner, around, mx.compile(mx.vmap(own))]
    arguments = [(mx.array(X),), (mx.array(X),), (), (mx.array(X),), (mx.array(X),)]
    for scale in (2, 3):
        for f, given in zip(functions, arguments, strict=True):
            np.testing.assert_array_equal(np.array(f(*given)), [scale] * 4)
        tripled(named)


def test_a_compiled_step_keeps_its_state_where_it_is_compiled_anew(mx: Any, named: str) -> None:
    slope = gradient(mx, xg.activation("Linear", named))
    state: dict[str, Any] = {"w": mx.zeros(4)}

    def step(x: Any) -> None:
        state["w"] = state["w"] + slope(x)

    compiled = mx.compile(step, inputs=state, outputs=state)
    compiled(mx.array(X))
    tripled(named)
    compiled(mx.array(X))
    np.testing.assert_array_equal(np.array(state["w"]), [5] * 4)


def test_a_compiled_function_follows_a_schedule(mx: Any) -> None:
    width = xg.schedule.linear(1.0, 2.0, 2)
    act = xg.activation("ReLU", "triangular", params={"width": width})
    compiled = mx.compile(gradient(mx, act))
    for number in (1.0, 1.5, 2.0):
        expected = np.maximum(1 - np.abs(X) / np.float32(number), 0)
        np.testing.assert_allclose(np.array(compiled(mx.array(X))), expected, rtol=1e-6)
        width.step()


def test_no_trace_keeps_a_rule_from_outside_of_it(mx: Any) -> None:
    act = xg.activation("ReLU")
    slope, x = gradient(mx, act), mx.array(X)
    function = gradient(mx, xg.function(lambda x: act(x) * 2))

    def in_other_scope(x: Any) -> Any:
        with xg.use("clip_norm", scope="params"):
            return slope(x)

    def compiled_within_a_use(y: Any) -> Any:
        with xg.use("rectangular"):
            return y.sum() + mx.compile(lambda: slope(x))().sum()

    kept = [
        in_other_scope, function, lambda y: y + function(x), lambda y: y + slope(x),
        xg.jit(slope, "mlx"), lambda y: y + xg.jit(slope, "mlx")(x),
    ]  # fmt: skip
    with xg.use("triangular"):
        for f in (*map(mx.compile, kept), mx.grad(compiled_within_a_use)):
            with pytest.raises(StaleTraceError, match=r"xg\.jit"):
                f(x)


def test_what_runs_at_once_may_read_the_rule_in_force(mx: Any) -> None:
    act = xg.activation("ReLU")
    slope, x = gradient(mx, act), mx.array(X)

    def once_more(x: Any) -> Any:
        with xg.use("triangular"):
            return slope(x)

    with xg.use("triangular"):
        for f in (
            mx.vmap(slope), gradient(mx, mx.vmap(act)), gradient(mx, mx.compile(act)),
            mx.vmap(mx.compile(slope)), gradient(mx, xg.jit(act, "mlx")), mx.compile(once_more),
        ):  # fmt: skip
            np.testing.assert_array_equal(np.array(f(x)), TRIANGULAR)
        mx.disable_compile()
        try:
            np.testing.assert_array_equal(np.array(mx.compile(slope)(x)), TRIANGULAR)
        finally:
            mx.enable_compile()


def test_a_function_compiled_before_the_backend_was_loaded_is_refused(mx: Any) -> None:
    from multigrad_mlx.compile import make_compiled

    act = xg.activation("ReLU")
    function = xg.function(lambda x: act(x) * 2)

    def within(x: Any) -> Any:
        with xg.use("triangular"):
            return gradient(mx, function)(x)

    width = xg.schedule.linear(1.0, 2.0, 2)
    moving = xg.activation("ReLU", "triangular", params={"width": width})
    for f in (act, function, within, moving, xg.activation("ReLU", "triangular")):
        with pytest.raises(StaleTraceError):
            make_compiled(f)(mx.array(X))
    own = xg.activation("ReLU", xg.get("triangular"))  # nothing of it can change
    np.testing.assert_array_equal(
        np.array(make_compiled(gradient(mx, own))(mx.array(X))), TRIANGULAR
    )


def test_a_checkpoint_runs_again_under_the_rule_of_its_first_run(mx: Any) -> None:
    act = xg.activation("ReLU")
    region = mx.checkpoint(act)
    nested = mx.checkpoint(lambda x: mx.checkpoint(act)(x) * 100)

    def loss(x: Any) -> Any:
        with xg.use("triangular"):
            first = region(x) + nested(x)
        with xg.use("rectangular"):
            return (first + 10 * region(x)).sum()

    rectangular = np.array(gradient(mx, xg.activation("ReLU", "rectangular"))(mx.array(X)))
    expected = 101 * np.array(TRIANGULAR) + 10 * rectangular
    for f in (mx.grad(loss), mx.compile(mx.grad(loss))):
        np.testing.assert_allclose(np.array(f(mx.array(X))), expected, rtol=1e-6)


@pytest.mark.parametrize("key", [None, 3])
def test_a_checkpoint_runs_again_on_the_draws_of_its_first_run(mx: Any, key: int | None) -> None:
    act = xg.activation("Linear")

    def draw(checkpoint: Any) -> Any:
        inner = checkpoint(act)
        outer = checkpoint(lambda x: act(inner(x)))
        mx.random.seed(5)

        def loss(x: Any) -> Any:
            with xg.use("noise", key=key):
                return (inner(x) + outer(x)).sum()

        return np.array(mx.grad(loss)(mx.array(X)))

    np.testing.assert_array_equal(draw(mx.checkpoint), draw(lambda f: f))


def test_a_custom_gradient_and_the_tree_of_a_module_are_taken(mx: Any) -> None:
    from mlx import nn

    @xg.custom_gradient
    def squared(x: Any) -> Any:
        return mx.square(x), lambda grad_out: grad_out * 3 * mx.exp(x)

    found = mx.compile(gradient(mx, squared))(mx.array(X))
    np.testing.assert_allclose(np.array(found), 3 * np.exp(X), rtol=1e-5)
    model = nn.Linear(4, 1)
    _, gradients = nn.value_and_grad(model, lambda x: model(x).sum())(mx.array(3 * X))
    clipped = xg.apply_to_gradients(gradients, "clip_norm")
    norm = np.linalg.norm(3 * X)
    np.testing.assert_allclose(np.array(clipped["weight"][0]), 3 * X / norm, rtol=1e-5)


def test_a_compiled_function_in_a_class_takes_no_self_as_with_mlx_alone(mx: Any) -> None:
    class Holder:
        compiled = mx.compile(abs)
        mapped = mx.vmap(abs)
        region = mx.checkpoint(abs)

    for f in (Holder().compiled, Holder().mapped, Holder().region):
        np.testing.assert_array_equal(np.array(f(mx.array(X))), np.abs(X))


@pytest.mark.parametrize(("name", "value"), [("any", False), ("all", True), ("count_nonzero", 0)])
def test_a_reduction_of_no_elements_ends(mx: Any, name: str, value: Any) -> None:
    reduce = xg.function(lambda x: getattr(xg.xp, name)(x, axis=0) + 0 * x.sum())
    for _ in range(20):
        found = np.array(reduce(mx.zeros((0, 3))))
        np.testing.assert_array_equal(found, np.full(3, value))


def test_threads_have_rules_of_their_own(mx: Any) -> None:
    act, x = xg.activation("ReLU"), mx.array(X)
    compiled = mx.compile(gradient(mx, xg.activation("ReLU", "triangular")))
    found: dict[str, Any] = {}

    def run(rule: str) -> None:
        for _ in range(20):
            with xg.use(rule):
                found[rule] = np.array(gradient(mx, act)(x)), np.array(compiled(x))

    on_threads(run, "triangular", "stop")
    np.testing.assert_array_equal(found["triangular"], [TRIANGULAR, TRIANGULAR])
    np.testing.assert_array_equal(found["stop"], [[0] * 4, TRIANGULAR])


def test_jit_follows_the_rule_and_its_numbers(mx: Any) -> None:
    compiled = xg.jit(gradient(mx, xg.activation("ReLU")), "mlx")
    x = mx.array(X)
    for width in (1.0, 0.5, 1.0):
        with xg.use("triangular", params={"width": width}):
            expected = np.maximum(1 - np.abs(X) / np.float32(width), 0)
            np.testing.assert_allclose(np.array(compiled(x)), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.array(compiled(x)), [0.0, 1.0, 1.0, 1.0])


def test_jit_counts_the_draws_of_a_key(mx: Any) -> None:
    f = gradient(mx, xg.activation("Linear"))
    compiled = xg.jit(f, "mlx")
    found = []
    for call in (f, compiled):
        with xg.use("noise", key=3):
            found.append(np.array([np.array(call(mx.array(X))) for _ in range(2)]))
    np.testing.assert_array_equal(*found)


def test_a_seed_of_mlx_repeats_draws_without_a_key(mx: Any) -> None:
    act = xg.activation("Linear", "noise")
    draws = []
    for _ in range(2):
        mx.random.seed(7)
        draws.append(np.array(gradient(mx, act)(mx.array(X))))
    np.testing.assert_array_equal(*draws)


def test_compiled_code_draws_anew_or_says_what_to_pass(mx: Any) -> None:
    slope, x, state = gradient(mx, xg.activation("Linear", "noise")), mx.array(X), mx.random.state

    def within(x: Any) -> Any:
        with xg.use("noise"):
            return gradient(mx, xg.activation("Linear"))(x)

    for compile, f in ((xg.jit, slope), (mx.compile, within)):
        with pytest.raises(StaleTraceError, match=r"inputs=mx\.random\.state"):
            compile(f)(x)
        compiled = compile(f, inputs=state, outputs=state)
        assert not np.array_equal(np.array(compiled(x)), np.array(compiled(x)))
    differentiated = gradient(mx, xg.jit(xg.activation("Linear", "noise")))
    assert not np.array_equal(np.array(differentiated(x)), np.array(differentiated(x)))


def test_a_rule_written_in_mlx_runs_on_numpy(mx: Any) -> None:
    def damped(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * mx.exp(-mx.abs(tin)) / mx.sum(mx.square(tin))

    rule = xg.register("damped_mlx")(damped)
    expected = np.exp(-np.abs(X)) / np.sum(X * X)
    np.testing.assert_allclose(rule(None, np.ones_like(X), X), expected, rtol=1e-6)


@pytest.mark.parametrize("forward", ["Logistic", "Softplus", "SiLU", "GELU", "ELU", "Tanh"])
def test_what_mlx_differentiates_itself_is_the_true_derivative(mx: Any, forward: str) -> None:
    act = xg.activation(forward)
    x = np.array([-100.0, -3.0, 0.0, 0.5, 90.0], np.float32)
    _, pullback = xg.vjp(act, x)
    expected = pullback(np.ones_like(x))[0]
    found = np.array(gradient(mx, act)(mx.array(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.needs("typer", "rich")
def test_the_page_is_what_the_tables_say_now() -> None:
    from pages.backend_docs import render_backend

    written = (Path(__file__).parents[2] / "docs" / "mlx.md").read_text(encoding="utf-8")
    assert written == render_backend("mlx", written), (
        "type: python tools/write_pages.py --backend mlx"
    )


@pytest.mark.needs("typer", "rich", "sklearn", "matplotlib")
def test_its_column_of_the_demo_has_the_numbers_of_numpy(tmp_path: Path) -> None:
    result = invoke_demo("--frameworks", "numpy,mlx", "--epochs", 2, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    parity = read_results(tmp_path)["parity"]
    assert [(row["forward"], row["rule"]) for row in parity] == ROWS
    for row in parity:
        assert row["worst"]["predictions"] <= 1
        (difference,) = row["to_reference"]
        assert difference["second"] == "mlx"
        assert difference["gradient"] <= 4e-6 * row["largest_gradient"]
