"""jax.jit never keeps a rule that is no longer in force: it follows, or StaleTraceError is
raised.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness.models.surrogates import triangle, window

pytestmark = pytest.mark.needs("jax")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)


class Compiled:
    """The gradient of `f(x).sum()` under jax.jit, and how often it was traced."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        import jax

        self.traces = 0

        def loss(x: Tensor) -> Tensor:
            self.traces += 1
            return f(x).sum()

        self.compiled = jax.jit(jax.grad(loss))

    def __call__(self, x: Array = X) -> Array:
        return np.asarray(self.compiled(x))


@pytest.fixture
def step() -> Any:
    import jax  # noqa: F401

    return xg.activation("Heaviside")


@pytest.fixture
def half() -> Iterator[Any]:
    """Register a rule that halves; it is gone after the test."""

    @xg.register("half of it")
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return 0.5 * grad_out

    yield rule
    if "half of it" in xg.rules():
        xg.unregister("half of it")


def test_changed_rule_is_followed_and_an_earlier_one_is_a_cache_hit(step: Any) -> None:
    grad = Compiled(step)
    nothing = np.zeros_like(X)
    np.testing.assert_array_equal(grad(), nothing)
    for rule, expected, traces in [
        ("triangular", triangle(X), 2),
        ("rectangular", window(X), 3),
        ("triangular", triangle(X), 3),
    ]:
        with xg.use(rule):
            np.testing.assert_allclose(grad(), expected, rtol=1e-6)
        assert grad.traces == traces
        np.testing.assert_array_equal(grad(), nothing)
        assert grad.traces == traces


def test_changed_params_are_followed_and_equal_numbers_are_a_cache_hit(step: Any) -> None:
    import jax.numpy as jnp

    grad = Compiled(step)
    widths = [0.5, 2.0, 2, jnp.float32(2.0), np.float32(0.5), 1e6, 0.5]
    for width, traces in zip(widths, [1, 2, 2, 3, 3, 4, 4], strict=True):
        with xg.use("triangular", {"width": width}):
            np.testing.assert_allclose(grad(), triangle(X, float(width)), rtol=1e-6)
        assert grad.traces == traces


def test_nested_use_and_changed_scope_are_followed(step: Any) -> None:
    grad = Compiled(step)
    with xg.use("triangular", scope="activations"):
        with xg.use("scale", {"s": 3.0}, scope="params"):
            np.testing.assert_allclose(grad(), triangle(X), rtol=1e-6)
        with xg.use("scale", {"s": 3.0}, scope=("params", "activations")):
            np.testing.assert_array_equal(grad(), np.full_like(X, 3.0))
        np.testing.assert_allclose(grad(), triangle(X), rtol=1e-6)


def test_rule_of_scope_params_is_followed_in_apply_to_gradients(half: Any) -> None:
    import jax

    apply = jax.jit(lambda g: xg.apply_to_gradients({"w": g})["w"])
    by_name = jax.jit(lambda g: xg.apply_to_gradients(g, "half of it"))
    np.testing.assert_array_equal(apply(X), X)
    for s in (2.0, 3.0):
        with xg.use("scale", {"s": s}, scope="params"):
            np.testing.assert_array_equal(apply(X), X * np.float32(s))
    np.testing.assert_array_equal(by_name(X), X / 2)
    xg.register("half of it", override=True)(lambda ctx, grad_out, tin: grad_out * 0.25)
    np.testing.assert_array_equal(by_name(X), X / 4)


def test_redefined_rule_is_followed_by_use_and_by_a_layer_on_every_thread(half: Any) -> None:
    own, plain = xg.activation("Linear", rule="half of it"), xg.activation("Linear")
    grad = Compiled(lambda x: own(x) + plain(x))
    with xg.use("half of it"):
        np.testing.assert_array_equal(grad(), np.full_like(X, 1.0))

    @xg.register("half of it", override=True)
    def quarter(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return 0.25 * grad_out

    with xg.use("half of it"):
        np.testing.assert_array_equal(grad(), np.full_like(X, 0.5))
    found = []
    thread = threading.Thread(target=lambda: found.append(grad()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], np.full_like(X, 1.25))


def test_unregistered_rule_of_a_layer_is_an_error_and_not_kept(half: Any) -> None:
    grad = Compiled(xg.activation("Linear", rule="half of it"))
    np.testing.assert_array_equal(grad(), np.full_like(X, 0.5))
    xg.unregister("half of it")
    with pytest.raises(xg.RuleError, match="half of it"):
        grad()


def test_changed_key_is_followed_and_an_equal_one_is_a_cache_hit() -> None:
    import jax

    grad = Compiled(xg.activation("Linear"))
    drawn = {}
    for seed, key, traces in [(1, 1, 1), (2, 2, 2), (1, 1, 2), (2, (0, 2), 2)]:
        with xg.use("full_jam", key=key):
            np.testing.assert_array_equal(drawn.setdefault(seed, grad()), grad())
        assert grad.traces == traces
    assert not np.array_equal(drawn[1], drawn[2])
    for seed in (1, 2):
        with xg.use("full_jam", key=jax.random.key(seed)):
            np.testing.assert_array_equal(grad(), drawn[seed])


def test_jax_keys_one_after_the_other_are_never_taken_for_each_other() -> None:
    import jax

    grad = Compiled(xg.activation("Linear"))
    drawn = []
    for seed in range(12):
        with xg.use("full_jam", key=jax.random.key(seed)):
            drawn.append(float(grad()[0]))
    assert len(set(drawn)) == len(drawn)


def test_params_and_key_given_as_tracers_are_run_time_values() -> None:
    import jax

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
    import jax

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


def test_use_inside_of_the_compiled_function_acts(step: Any) -> None:
    def inside(x: Tensor) -> Tensor:
        with xg.use("triangular", {"width": 2.0}):
            y = step(x)
        return y + step(x)

    grad = Compiled(inside)
    decorated = Compiled(xg.use("triangular", {"width": 2.0})(step))
    for _ in range(2):
        np.testing.assert_allclose(grad(), triangle(X, 2.0), rtol=1e-6)
        with xg.use("scale", {"s": 3.0}):
            np.testing.assert_allclose(grad(), triangle(X, 2.0) + 3.0, rtol=1e-6)
            np.testing.assert_allclose(decorated(), triangle(X, 2.0), rtol=1e-6)


def test_function_compiled_inside_follows_the_use_around_it(step: Any) -> None:
    import jax

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
    import jax
    import jax.numpy as jnp

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
        return
    for compiled in (
        Compiled(through),
        lambda: np.asarray(jax.grad(lambda x: through(x).sum())(X)),
    ):
        np.testing.assert_array_equal(compiled(), np.zeros_like(X))
        with xg.use("triangular"):
            np.testing.assert_allclose(compiled(), triangle(X), rtol=1e-6)
        np.testing.assert_array_equal(compiled(), np.zeros_like(X))


def test_pullback_called_after_the_with_and_on_another_thread_keeps_the_rule(step: Any) -> None:
    import jax

    with xg.use("triangular"):
        _, pullback = jax.vjp(jax.jit(step), X)
    found = []
    thread = threading.Thread(target=lambda: found.append(pullback(np.ones_like(X))[0]))
    with xg.use("rectangular"):
        thread.start()
        thread.join()
        np.testing.assert_allclose(pullback(np.ones_like(X))[0], triangle(X), rtol=1e-6)
    np.testing.assert_allclose(found[0], triangle(X), rtol=1e-6)


def test_each_thread_follows_its_own_rule(step: Any) -> None:
    grad = Compiled(step)
    found: dict[float, list[Array]] = {}

    def run(s: float) -> None:
        with xg.use("scale", {"s": s}):
            found[s] = [grad() for _ in range(5)]

    with xg.use("triangular"):
        threads = [threading.Thread(target=run, args=(s,)) for s in (2.0, 3.0, 4.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_allclose(grad(), triangle(X), rtol=1e-6)
    for s in (2.0, 3.0, 4.0):
        np.testing.assert_array_equal(found[s], np.full((5, *X.shape), s))


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
    import jax

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
    import jax.numpy as jnp

    act = xg.activation("Linear")

    def power(x: Tensor, n: int, negate: bool = False) -> Tensor:
        for _ in range(n):
            x = act(x) * 2.0
        return -x if negate else x

    for options in ({"static_argnums": (1, 2)}, {"static_argnames": ("n", "negate")}):
        fn = xg.jit(power, **options)
        np.testing.assert_array_equal(fn(jnp.asarray(X), 3), X * 8)
        np.testing.assert_array_equal(fn(jnp.asarray(X), n=2, negate=True), X * -4)
