"""A trace is bound to what it read: what it did not read may change, and it neither raises nor is
made anew.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any, Self, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ...harness.traced import Traced, X
from ...support.threads import on_threads

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

TRIANGLE = np.maximum(0.0, 1.0 - np.abs(X)).astype(np.float32)
WINDOW = (np.abs(X) <= 0.5).astype(np.float32)
FRESH = itertools.count(1000)


def others() -> list[tuple[str, dict[str, float]]]:
    """Return rules that no trace has read before: on jax, one that did keys the others' traces
    too.
    """
    n = float(next(FRESH))
    return [
        ("rectangular", {"a": -n}),
        ("triangular", {"width": n}),
        ("triangular", {"width": n + 0.5}),
        ("scale", {"s": n}),
    ]


compiling = pytest.mark.backends("jax", "tensorflow")


@pytest.fixture
def compiled(backend: Any) -> Callable[[Callable[[Tensor], Tensor]], Traced]:
    """Compile by the framework alone, and count the traces."""
    return lambda f: Traced(backend, f, is_ours=False)


@pytest.fixture
def named() -> Callable[[str, float], None]:
    """Register rules that scale by a number, as often as asked; they are gone after the test."""

    def register(name: str, number: float) -> None:
        xg.register(name, override=True)(lambda ctx, grad_out, tin: grad_out * number)

    return register


@compiling
def test_a_layer_with_a_rule_of_its_own_is_traced_once_whatever_use_is_around_it(
    compiled: Any,
) -> None:
    grad = compiled(xg.activation("Heaviside", rule="triangular"))
    rules = others()
    for rule, params in [*rules, *rules]:
        with xg.use(rule, params):
            np.testing.assert_allclose(grad.gradient(), TRIANGLE, rtol=1e-6)
    assert grad.traces == 1


@compiling
@pytest.mark.parametrize("scope", ["all", "activations"])
def test_a_function_with_use_inside_is_traced_once_whatever_use_is_around_it(
    compiled: Any, scope: str
) -> None:
    act = xg.activation("Heaviside")

    def inside(x: Tensor) -> Tensor:
        with xg.use("triangular", scope=scope):
            return act(x)

    for grad in (compiled(inside), compiled(xg.use("triangular", scope=scope)(act))):
        rules = others()
        for rule, params in [*rules, *rules]:
            with xg.use(rule, params):
                np.testing.assert_allclose(grad.gradient(), TRIANGLE, rtol=1e-6)
        assert grad.traces == 1


@compiling
def test_a_function_without_activations_is_traced_once_under_all_rules(compiled: Any) -> None:
    grad = compiled(lambda x: x * x)
    for rule, params in others():
        with xg.use(rule, params, key=len(params)):
            np.testing.assert_array_equal(grad.gradient(), 2 * X)
    assert grad.traces == 1


@compiling
def test_another_rule_for_the_other_scope_leaves_a_trace_valid(compiled: Any) -> None:
    grad = compiled(xg.activation("Heaviside"))
    with xg.use("triangular", scope="activations"):
        for s in (1.0, 2.0, 3.0):
            with xg.use("scale", {"s": s}, scope="params"):
                np.testing.assert_allclose(grad.gradient(), TRIANGLE, rtol=1e-6)


@compiling
def test_a_rule_registered_anew_leaves_traces_of_others_valid(compiled: Any, named: Any) -> None:
    named("registered anew", 2.0)
    named("stays", 5.0)
    with xg.use("registered anew"):  # looked up, and by no trace
        pass
    own = compiled(xg.activation("Linear", rule="stays"))
    framed = compiled(xg.activation("Linear"))
    for number in (2.0, 3.0, 4.0):
        named("registered anew", number)
        np.testing.assert_array_equal(own.gradient(), np.full_like(X, 5.0))
        with xg.use("stays"):
            np.testing.assert_array_equal(framed.gradient(), np.full_like(X, 5.0))
    assert (own.traces, framed.traces) == (1, 1)


@compiling
def test_a_name_that_a_trace_looked_up_is_followed_or_refused(compiled: Any, named: Any) -> None:
    named("read", 2.0)
    act = xg.activation("Linear")
    inner = xg.function(lambda x: x * 1.0, lambda g, x: xg.get("read")(None, g, x))

    def by_use(x: Tensor) -> Tensor:
        with xg.use("read"):
            return act(x)

    def by_gradients(x: Tensor) -> Tensor:
        return act(x) * float(np.ravel(xg.apply_to_gradients(np.ones(1), "read"))[0])

    functions = [
        by_use,
        by_gradients,
        inner,
        xg.activation("Linear", rule="read"),
        xg.activation("Linear", rule=xg.compose("read", "scale")),
    ]
    grads = [compiled(f) for f in functions]
    for number in (2.0, 3.0):
        named("read", number)
        for grad in grads:
            try:
                found = grad.gradient()
            except xg.StaleTraceError as error:
                assert number == 3.0 and "'read' was redefined" in str(error)
            else:
                np.testing.assert_array_equal(found, np.full_like(X, number))


@pytest.mark.needs("jax")
def test_an_eager_step_on_jax_compiles_nothing_for_a_new_number_or_key(jax: Any) -> None:
    act, traces = xg.activation("Heaviside"), []
    unrelated = jax.jit(lambda x: traces.append(None) or x * 2.0)

    def step(width: float, key: int) -> Array:
        with xg.use("triangular", {"width": width}, key=key):
            unrelated(X)
            return np.asarray(jax.grad(lambda x: act(x).sum())(X))

    step(1.0, 0)
    with jax.log_compiles(), Compilations() as compiled:
        for n in range(5):
            expected = np.maximum(0.0, 1.0 - np.abs(X) / (n + 2.0))
            np.testing.assert_allclose(step(n + 2.0, n), expected, rtol=1e-6)
    assert len(traces) == 1
    assert compiled.messages == []


class Compilations(logging.Handler):
    """What jax says that it compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger("jax").addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger("jax").removeHandler(self)


@pytest.mark.needs("jax")
def test_threads_on_jax_that_share_no_rule_share_no_trace(jax: Any) -> None:
    act = xg.activation("Heaviside")
    grad = jax.jit(jax.grad(lambda x: act(x).sum()))
    found: dict[float, list[Array]] = {}
    barrier = threading.Barrier(3)

    def run(s: float) -> None:
        with xg.use("scale", {"s": s}):
            barrier.wait()  # all have entered before one traces
            found[s] = [np.asarray(grad(X)) for _ in range(3)]
        with xg.use("scale", {"s": -s}):
            found[-s] = [np.asarray(grad(X)) for _ in range(3)]

    for _ in range(2):  # the second threads show what the first ones showed
        on_threads(run, *(100.0 + n for n in range(3)))
    for s, gradients in found.items():
        np.testing.assert_array_equal(gradients, np.full((3, *X.shape), s))


@pytest.mark.needs("jax")
def test_nested_uses_on_jax_are_told_apart_whichever_is_traced_first(jax: Any) -> None:
    act = xg.activation("Linear")

    def grad_of(f: Callable[[Tensor], Tensor]) -> Callable[[], Array]:
        compiled = jax.jit(jax.grad(lambda x: f(x).sum()))
        return lambda: np.asarray(compiled(X))

    def inside(x: Tensor) -> Tensor:
        with xg.use("scale", {"s": 203.0}):
            y = inner(x)
        return y + inner(x)

    inner = jax.jit(act)
    grad, outer = grad_of(act), grad_of(inside)
    for _ in range(2):
        with xg.use("scale", {"s": 201.0}):
            with xg.use("scale", {"s": 202.0}):
                np.testing.assert_array_equal(grad(), np.full_like(X, 202.0))
                np.testing.assert_array_equal(outer(), np.full_like(X, 405.0))
            np.testing.assert_array_equal(grad(), np.full_like(X, 201.0))
            np.testing.assert_array_equal(outer(), np.full_like(X, 404.0))
        np.testing.assert_array_equal(grad(), np.ones_like(X))
        with xg.use("scale", {"s": 203.0}):
            np.testing.assert_array_equal(grad_of(inner)(), np.full_like(X, 203.0))
            np.testing.assert_array_equal(outer(), np.full_like(X, 406.0))
