"""jax.jit never keeps a rule that is no longer in force: it follows, or StaleTraceError is
raised.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness.models.surrogates import triangle, window

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.needs("jax")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)


class Compiled:
    """The gradient of `f(x).sum()` under jax.jit, and how often it was traced."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.traces = 0

        def loss(x: Tensor) -> Tensor:
            self.traces += 1
            return f(x).sum()

        self.compiled = jax.jit(jax.grad(loss))

    def __call__(self, x: Array = X) -> Array:
        return np.asarray(self.compiled(x))


def test_rule_of_scope_params_is_followed_in_apply_to_gradients(half: Any) -> None:
    apply = jax.jit(lambda g: xg.apply_to_gradients({"w": g})["w"])
    by_name = jax.jit(lambda g: xg.apply_to_gradients(g, "half of it"))
    np.testing.assert_array_equal(apply(X), X)
    for s in (2.0, 3.0):
        with xg.use("scale", {"s": s}, scope="params"):
            np.testing.assert_array_equal(apply(X), X * np.float32(s))
    np.testing.assert_array_equal(by_name(X), X / 2)
    xg.register("half of it", override=True)(lambda ctx, grad_out, tin: grad_out * 0.25)
    np.testing.assert_array_equal(by_name(X), X / 4)


def test_a_key_of_jax_draws_what_its_number_does() -> None:
    grad = Compiled(xg.activation("Linear"))
    for seed in (1, 2):
        with xg.use("full_jam", key=seed):
            drawn = grad()
        with xg.use("full_jam", key=jax.random.key(seed)):
            np.testing.assert_array_equal(grad(), drawn)


def test_jax_keys_one_after_the_other_are_never_taken_for_each_other() -> None:
    grad = Compiled(xg.activation("Linear"))
    drawn = []
    for seed in range(12):
        with xg.use("full_jam", key=jax.random.key(seed)):
            drawn.append(float(grad()[0]))
    assert len(set(drawn)) == len(drawn)


def test_params_and_key_given_as_tracers_are_run_time_values() -> None:
    act = xg.activation("Heaviside")
    traces = []

    @jax.jit
    def grad(x: Tensor, width: Tensor, key: Tensor) -> Tensor:
        traces.append(None)

        def loss(x: Tensor) -> Tensor:
            with xg.use("triangular", {"width": width}):
                y = act(x)
            with xg.use("full_jam", key=key):
                return (y + act(x)).sum()

        return jax.grad(loss)(x)

    for width, seed in [(0.5, 1), (2.0, 2), (0.5, 1)]:
        key = jax.random.key(seed)
        jam = jax.random.uniform(jax.random.fold_in(key, 0), X.shape)
        expected = triangle(X, width) + np.asarray(jam)
        np.testing.assert_allclose(grad(X, width, key), expected, rtol=1e-6)
    assert len(traces) == 1


def test_traced_param_of_a_rule_that_runs_as_it_is_is_a_run_time_value() -> None:
    def flip(ctx: Any, grad_out: Tensor, tin: Tensor, sign: str = "+", s: float = 1.0) -> Tensor:
        return grad_out * s if sign == "+" else -grad_out * s

    rule = xg.register("test as it is", native=True)(flip)
    xg.unregister("test as it is")
    act = xg.activation("Linear")

    def grad(x: Tensor, s: Any) -> Tensor:
        with xg.use(rule, {"s": s, "sign": "-"}):
            return jax.grad(lambda x: act(x).sum())(x)

    for s in (2.0, 3.0):
        np.testing.assert_array_equal(jax.jit(grad)(X, s), np.full_like(X, -s))
        np.testing.assert_array_equal(grad(X, jax.numpy.float32(s)), np.full_like(X, -s))


def test_function_compiled_inside_follows_the_use_around_it(step: Any) -> None:
    inner = jax.jit(step)

    def outer(x: Tensor) -> Tensor:
        with xg.use("triangular"):
            y = inner(x)
        return y + inner(x)

    grad = Compiled(outer)
    np.testing.assert_allclose(grad(), triangle(X), rtol=1e-6)
    with xg.use("rectangular"):
        np.testing.assert_allclose(grad(), triangle(X) + window(X), rtol=1e-6)
        np.testing.assert_array_equal(Compiled(inner)(), window(X))
    np.testing.assert_array_equal(Compiled(inner)(), np.zeros_like(X))


@pytest.mark.parametrize("transform", ["scan", "cond", "while_loop", "map", "checkpoint"])
def test_control_flow_keeps_no_rule(step: Any, transform: str) -> None:
    def through(x: Tensor) -> Tensor:
        if transform == "scan":
            return jax.lax.scan(lambda c, _: (c, step(x)), 0.0, None, length=1)[1][0]
        if transform == "cond":
            return jax.lax.cond(x.sum() < 100.0, step, jnp.ones_like, x)
        if transform == "while_loop":  # forward mode only: no gradient goes through it
            return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, step(c[1])), (0, x))[
                1
            ]
        return jax.lax.map(step, x) if transform == "map" else jax.checkpoint(step)(x)

    if transform == "while_loop":
        np.testing.assert_array_equal(jax.jit(through)(X), X > 0)
        with xg.use("triangular"), pytest.raises(ValueError, match="Reverse-mode differentiation"):
            jax.grad(lambda x: through(x).sum())(X)
        return
    for compiled in (
        Compiled(through),
        lambda: np.asarray(jax.grad(lambda x: through(x).sum())(X)),
    ):
        np.testing.assert_array_equal(compiled(), np.zeros_like(X))
        with xg.use("triangular"):
            np.testing.assert_allclose(compiled(), triangle(X), rtol=1e-6)
        np.testing.assert_array_equal(compiled(), np.zeros_like(X))


def interleave(first: Callable[[], Any]) -> list[Any]:
    """Run `first` under triangular while another task, still open, has put rectangular in force."""
    found: list[Any] = []

    async def outer() -> None:
        with xg.use("triangular"):
            entered.set()
            await asyncio.sleep(0.01)
            try:
                found.append(first())
            except xg.StaleTraceError as error:
                found.append(error)

    async def other() -> None:
        await entered.wait()
        with xg.use("rectangular"):
            await asyncio.sleep(0.05)

    async def both() -> None:
        await asyncio.gather(outer(), other())

    entered = asyncio.Event()
    asyncio.run(both())
    return found


def test_trace_in_an_interleaved_task_is_refused_and_eager_code_follows(step: Any) -> None:
    grad = Compiled(step)
    (refused,) = interleave(grad)
    assert isinstance(refused, xg.StaleTraceError)
    assert "xg.jit" in str(refused)
    (eager,) = interleave(lambda: jax.grad(lambda x: step(x).sum())(X))
    np.testing.assert_allclose(eager, triangle(X), rtol=1e-6)


def test_interleaved_tasks_leave_nothing_behind(step: Any) -> None:
    grad = Compiled(step)
    with xg.use("triangular"):
        grad()
    interleave(lambda: None)
    np.testing.assert_array_equal(grad(), np.zeros_like(X))
    with xg.use("rectangular"):
        np.testing.assert_array_equal(grad(), window(X))


def test_rule_put_in_force_before_jax_is_imported_is_refused_and_not_kept() -> None:
    script = """
        import multigrad as xg

        act = xg.activation("Heaviside")
        with xg.use("triangular"):
            import jax

            f = jax.jit(jax.grad(lambda x: act(x)))
            try:
                f(0.25)
                raise SystemExit("kept")
            except xg.StaleTraceError as error:
                assert "Import jax first" in str(error)
            assert float(jax.grad(act)(0.25)) == 0.75
        assert float(f(0.25)) == 0.0
        with xg.use("triangular"):
            assert float(f(0.25)) == 0.75
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_options_of_xg_jit_are_handed_on() -> None:
    act = xg.activation("Linear")

    def power(x: Tensor, n: int, negate: bool = False) -> Tensor:
        for _ in range(n):
            x = act(x) * 2.0
        return -x if negate else x

    for options in ({"static_argnums": (1, 2)}, {"static_argnames": ("n", "negate")}):
        fn = xg.jit(power, **options)
        np.testing.assert_array_equal(fn(jnp.asarray(X), 3), X * 8)
        np.testing.assert_array_equal(fn(jnp.asarray(X), n=2, negate=True), X * -4)
