"""Schedules in compiled code: what acts is what stands at the call, never an earlier number; under
`xg.jit`, and where the framework's compiler can follow a number, without a retrace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...conftest import BACKENDS, is_installed
from ...harness.models.surrogates import triangle
from ...support.threads import on_threads

X = np.array([-1.5, -0.5, 0.25, 0.75], np.float32)


class Slope:
    """A function of x that gives the gradient of an activation, and counts its traces."""

    def __init__(self, act: Any) -> None:
        self.traces = 0
        self.act = act

    def __call__(self, x: Any) -> Any:
        self.traces += 1
        y, pull = xg.vjp(self.act, x)
        return pull(xg.xp.ones_like(y))[0]


def array(backend: str) -> Any:
    return BACKENDS[backend].array(X)


def plain(backend: str) -> Callable[..., Any]:
    if backend == "jax":
        import jax

        return jax.jit
    import tensorflow as tf

    return tf.function


GRAPHS = [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("jax", "tensorflow")]
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "own": lambda s: xg.activation("Heaviside", "triangular", {"width": s}),
    "inside": lambda s: xg.use("triangular", {"width": s})(xg.activation("Heaviside")),
    "bind": lambda s: xg.get("triangular").under("Heaviside").bind({"width": s}),
    "with_params": lambda s: xg.get("triangular").with_params(width=s).under("Heaviside"),
}


@pytest.fixture
def width() -> Any:
    return xg.schedule.linear(2.0, 0.5, steps=12)


def follow(f: Any, x: Any, width: Any, steps: int = 4) -> None:
    for _ in range(steps):
        for _ in range(2):
            np.testing.assert_allclose(f(x), triangle(X, width.value), rtol=1e-5, atol=1e-6)
        width.step()


# One graph follows all numbers but jax.jit's, which is traced for each; xg.jit finds out once.
TRACES = [
    ("jax", "xg.jit", 2),
    ("jax", "plain", 4),
    ("tensorflow", "xg.jit", 2),
    ("tensorflow", "plain", 1),
]


@pytest.mark.parametrize(
    ("name", "way", "traces"),
    [pytest.param(*row, marks=pytest.mark.needs(row[0])) for row in TRACES],
)
@pytest.mark.parametrize("holder", HOLDERS)
def test_compiled_code_follows_with_no_more_traces_than_it_needs(
    name: str, way: str, traces: int, holder: str, width: Any
) -> None:
    slope = Slope(HOLDERS[holder](width))
    follow((xg.jit if way == "xg.jit" else plain(name))(slope), array(name), width)
    assert slope.traces == traces


def captured(width: Any) -> Any:
    """A Function whose captured graph holds the number as it was."""
    rule = xg.get("triangular").with_params(width=width)

    def step(x: Any) -> Any:
        return xg.xp.greater(x, 0.0) * 1.0 + 0.0 * x, lambda upstream: rule(None, upstream, x)

    return xg.custom_gradient(step)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("first", ["xg.jit", "eager"])
def test_xg_jit_keeps_no_graph_for_an_earlier_number(name: str, first: str, width: Any) -> None:
    slope = Slope(captured(width))
    if first == "eager":
        slope(array(name))
    follow(xg.jit(slope), array(name), width)


@pytest.mark.needs("jax")
def test_functions_compiled_within_xg_jit_keep_none_either(width: Any) -> None:
    import jax

    inner = jax.jit(captured(width))
    for _ in range(2):
        follow(xg.jit(Slope(inner)), array("jax"), width, steps=3)


@pytest.mark.parametrize("name", GRAPHS)
def test_xg_jit_traces_once_for_a_rule_in_force(name: str, width: Any) -> None:
    slope = Slope(xg.activation("Heaviside"))
    with xg.use("triangular", {"width": width}):
        follow(xg.jit(slope), array(name), width)
    assert slope.traces == 1


@pytest.mark.needs("tensorflow")
def test_a_tf_function_follows_in_branches_loops_and_functions_within(width: Any) -> None:
    import tensorflow as tf

    slope = Slope(xg.activation("Heaviside", "triangular", {"width": width}))
    inner = tf.function(slope)

    @tf.function
    def f(x: Any) -> Any:
        branch = tf.cond(x[0] > 9.0, lambda: x, lambda: slope(x))
        looped = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, slope(x)), (0, x))[1]
        return tf.reduce_mean(tf.stack([branch, looped, inner(x)]), 0)

    follow(f, array("tensorflow"), width)


@pytest.mark.needs("jax")
def test_a_jax_jit_is_not_stale_where_another_thread_steps(width: Any) -> None:
    act = xg.activation("Heaviside")
    f = plain("jax")(Slope(act))
    with xg.use("triangular", {"width": width}):
        f(array("jax"))
        on_threads(width.step, 6)
        follow(f, array("jax"), width, steps=1)


@pytest.mark.needs("jax")
def test_many_traces_of_jax_jit_are_said_once(width: Any) -> None:
    f = plain("jax")(Slope(HOLDERS["own"](width)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        follow(f, array("jax"), width, steps=12)
    assert [str(each.message).count("xg.jit") for each in said] == [1]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("compile_", [plain, lambda _: xg.jit], ids=["plain", "xg.jit"])
def test_a_step_inside_of_a_trace_is_refused(name: str, compile_: Any, width: Any) -> None:
    act = xg.activation("Heaviside", "triangular", {"width": width})

    def f(x: Any) -> Any:
        y = act(x)
        width.step()
        return y

    with pytest.raises(Exception, match="stepped while code is traced"):
        compile_(name)(f)(array(name))
    assert width.count == 0


@pytest.mark.needs("jax")
def test_a_traced_count_gives_a_traced_number(width: Any) -> None:
    import jax

    assert float(jax.jit(width)(6)) == pytest.approx(1.25)


# --- torch ----------------------------------------------------------------------------------------


@pytest.fixture
def graphs() -> Iterator[Any]:
    import torch

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def torch_slope(act: Any) -> Callable[[Any], Any]:
    return lambda x: BACKENDS["torch"].vjp(act, x, np.ones_like(x))[1]


def compiled(f: Any) -> Any:
    import torch

    return torch.compile(f, backend="aot_eager", fullgraph=True)


def jitted(f: Any) -> Any:
    return xg.jit(f, backend="aot_eager", fullgraph=True)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("wrap", [compiled, jitted])
def test_compiled_torch_has_one_graph_for_all_numbers(wrap: Any, width: Any, graphs: Any) -> None:
    own, act = HOLDERS["own"](width), xg.activation("Heaviside")
    follow(torch_slope(wrap(lambda x: own(x) * 1.0)), X, width)
    with xg.use("triangular", {"width": width}):
        follow(torch_slope(wrap(lambda x: act(x) * 1.0)), X, width)
    assert graphs() == 2


@pytest.mark.needs("torch")
def test_a_backward_in_compiled_torch_uses_its_forwards_number(width: Any, graphs: Any) -> None:
    import torch

    own = HOLDERS["own"](width)
    f = compiled(lambda x: own(x) * 1.0)
    for _ in range(2):
        leaf, before = torch.tensor(X, requires_grad=True), width.value
        y = f(leaf)
        width.step(3)
        y.sum().backward()
        np.testing.assert_allclose(leaf.grad.numpy(), triangle(X, before), rtol=1e-5, atol=1e-6)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("native", [True, None], ids=["as it is", "looks at it"])
def test_compiled_torch_is_not_stale_where_code_needs_the_number(
    native: bool | None, width: Any, graphs: Any
) -> None:
    import torch

    def looks(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out * 2.0 if width > 1.8 else grad_out * 3.0

    @xg.register(f"looks_in_compiled_{native}", native=native, override=True)
    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return looks(ctx, grad_out, tin, width)

    act = xg.activation("Heaviside", rule, {"width": width})
    for wrap in (lambda f: torch.compile(f, backend="aot_eager"), xg.jit):
        f = torch_slope(wrap(act, backend="aot_eager") if wrap is xg.jit else wrap(act))
        for _ in range(4):
            np.testing.assert_allclose(f(X), (2.0 if width.value > 1.8 else 3.0) * np.ones(4))
            width.step()
        width.load_state_dict({"count": 0})


@pytest.mark.needs("tensorflow")
def test_a_tf_variable_is_followed_in_place() -> None:
    import tensorflow as tf

    number = tf.Variable(2.0)
    slope = Slope(xg.activation("Heaviside", "triangular", {"width": number}))
    for f in (slope, tf.function(slope), xg.jit(slope)):
        for each in (2.0, 1.0):
            number.assign(each)
            np.testing.assert_allclose(f(array("tensorflow")), triangle(X, each), rtol=1e-5)


@pytest.mark.needs("jax", "optax")
@pytest.mark.skipif(not is_installed("optax"), reason="optax is not installed")
def test_optax_advances_a_schedule_by_its_count() -> None:
    import jax
    import jax.numpy as jnp

    from multigrad.compat.optax import apply_rule

    norm = xg.schedule.linear(1.0, 0.2, steps=4)
    transform = apply_rule("clip_norm", {"max_norm": norm})
    gradient = 10.0 * jnp.asarray(X)
    state, update = transform.init(gradient), jax.jit(transform.update)
    for step in range(6):
        clipped, state = update(gradient, state)
        assert float(jnp.linalg.norm(clipped)) == pytest.approx(norm(step), rel=1e-5)
    assert norm.count == 0
