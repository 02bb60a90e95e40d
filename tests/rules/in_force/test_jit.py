"""What is compiled follows the rule in force. Under `xg.jit` numbers and keys are run-time
arguments, a changed rule retraces, an earlier one is a cache hit; what torch.compile and jax.jit
compile by themselves is traced anew for a number, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.differences import kept

from ...harness.models.surrogates import triangle, window
from ...harness.traced import OPTIONS, Traced, X
from ...support.threads import on_threads

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

compiling = pytest.mark.backends("torch", "jax", "tensorflow")
by_itself = pytest.mark.backends("torch", "jax")


@pytest.fixture(params=["xg.jit", "by itself"])
def compiled(request: pytest.FixtureRequest, backend: Any) -> Callable[..., Traced]:
    """Compile by `xg.jit`, or by the framework alone."""
    is_ours = request.param == "xg.jit"
    if backend.name == "tensorflow" and not is_ours:
        pytest.skip("tf.function looks at no rule: see compiled/test_compiled_tensorflow.py")
    return partial(Traced, backend, is_ours=is_ours)


def with_breaks(backend: Any) -> dict[str, bool]:
    return {"fullgraph": False} if backend.name == "torch" else {}


@pytest.fixture
def branching() -> str:
    """Register a rule whose Python code looks at the number of its param."""

    @xg.register("test branching")
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor, s: float = 1.0, t: float = 1.0) -> Tensor:
        return grad_out * t if s > 1 else -grad_out * t

    return "test branching"


@compiling
def test_changed_numbers_do_not_retrace(backend: Any) -> None:
    traced = Traced(backend, xg.activation("Heaviside"))
    for width in (0.5, 1.0, 1, 2.0, 1e3):
        with xg.use("triangular", {"width": width}):
            np.testing.assert_allclose(traced.gradient(), triangle(X, width), rtol=1e-6)
    assert traced.traces == 1


@by_itself
def test_where_the_framework_compiles_changed_params_retrace_and_equal_ones_are_a_cache_hit(
    backend: Any,
) -> None:
    traced = Traced(backend, xg.activation("Heaviside"), is_ours=False)
    two = backend.array(np.array(2.0, np.float32))
    widths = [0.5, 2.0, 2, two, np.float32(0.5), 1e6, 0.5]
    for width, count in zip(widths, [1, 2, 2, 3, 3, 4, 4], strict=True):
        with xg.use("triangular", {"width": width}):
            np.testing.assert_allclose(traced.gradient(), triangle(X, float(width)), rtol=1e-6)
        assert traced.traces == count


@compiling
def test_changed_rule_retraces_and_an_earlier_one_is_a_cache_hit(
    backend: Any, compiled: Callable[..., Traced]
) -> None:
    traced, nothing = compiled(xg.activation("Heaviside")), np.zeros_like(X)
    np.testing.assert_array_equal(traced.gradient(), nothing)
    for rule, expected, traces in [
        ("triangular", triangle(X), 2),
        ("rectangular", window(X), 3),
        ("triangular", triangle(X), 3),
    ]:
        with xg.use(rule):
            np.testing.assert_allclose(traced.gradient(), expected, rtol=1e-6)
        assert traced.traces == traces
        np.testing.assert_array_equal(traced.gradient(), nothing)
        assert traced.traces == traces


@compiling
def test_nested_use_and_changed_scope_are_followed(
    backend: Any, compiled: Callable[..., Traced]
) -> None:
    traced = compiled(xg.activation("Heaviside"))
    with xg.use("triangular", scope="activations"):
        with xg.use("scale", {"s": 3.0}, scope="params"):
            np.testing.assert_allclose(traced.gradient(), triangle(X), rtol=1e-6)
        with xg.use("scale", {"s": 3.0}, scope=("params", "activations")):
            np.testing.assert_array_equal(traced.gradient(), np.full_like(X, 3.0))
        np.testing.assert_allclose(traced.gradient(), triangle(X), rtol=1e-6)


@compiling
def test_twelve_rules_are_twelve_traces_and_then_cache_hits(backend: Any) -> None:
    traced = Traced(backend, xg.activation("Linear"))
    rules = [xg.compose(*["gradient_reversal"] * n) for n in range(1, 13)]
    for _ in range(2):
        for n, rule in enumerate(rules, start=1):
            with xg.use(rule):
                np.testing.assert_array_equal(traced.gradient(), np.full_like(X, (-1) ** n))
    assert traced.traces == 12


@compiling
def test_redefined_rule_of_use_and_of_a_layer_is_followed_on_every_thread(
    backend: Any, compiled: Callable[..., Traced]
) -> None:
    def define(factor: float) -> None:
        @xg.register("test redefined", override=True)
        def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
            return factor * grad_out

    define(2.0)
    own, act = xg.activation("Linear", rule="test redefined"), xg.activation("Linear")
    traced = compiled(lambda x: own(act(x)))
    for factor in (2.0, 3.0):
        define(factor)
        found = [traced.gradient()]
        with xg.use("test redefined"):
            np.testing.assert_array_equal(traced.gradient(), np.full_like(X, factor**2))
        on_threads(lambda x, to=found: to.append(traced.gradient(x)), X)
        np.testing.assert_array_equal(found, np.full((2, *X.shape), factor))


@by_itself
def test_unregistered_rule_of_a_layer_is_an_error_and_not_kept(backend: Any) -> None:
    xg.register("half of it")(lambda ctx, grad_out, tin: 0.5 * grad_out)
    own = xg.activation("Linear", rule="half of it")
    traced = Traced(backend, own, is_ours=False, **with_breaks(backend))
    np.testing.assert_array_equal(traced.gradient(), np.full_like(X, 0.5))
    xg.unregister("half of it")
    with pytest.raises(xg.RuleError, match="half of it"):
        traced.gradient()


@compiling
def test_draws_are_those_of_eager_code_and_a_new_key_does_not_retrace(backend: Any) -> None:
    act = xg.activation("Linear")
    traced = Traced(backend, lambda x: act(act(x)))
    _, nothing = backend.vjp(act, X, np.zeros_like(X))
    for key in (3, 4, (0, 3)):
        with xg.use("full_jam", key=key):
            found = traced.gradient()
        with xg.use("full_jam", key=key):
            _, eager = backend.vjp(lambda x: act(act(x)), X, np.ones_like(X))
        np.testing.assert_allclose(found, eager, rtol=1e-6)
        assert not np.array_equal(found, nothing)
    assert traced.traces == 1


@compiling
def test_calls_within_one_use_go_on_counting_with_eager_code_between_them(backend: Any) -> None:
    act = xg.activation("Linear")
    traced = Traced(backend, lambda x: act(act(x)))

    def eager() -> Array:
        return backend.vjp(lambda x: act(act(x)), X, np.ones_like(X))[1]

    with xg.use("full_jam", key=5):
        expected = [eager() for _ in range(4)]
    with xg.use("full_jam", key=5):
        got = [traced.gradient(), eager(), traced.gradient(), traced.gradient()]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert traced.traces == 1


@compiling
def test_count_goes_on_by_what_each_trace_applied(backend: Any) -> None:
    act = xg.activation("Linear")

    def deep(x: Tensor) -> Tensor:
        for _ in range(len(x.shape)):
            x = act(x)
        return x

    traced = Traced(backend, deep)
    line, square = X, X.reshape(3, 3)

    def eager(x: Array) -> Array:
        return backend.vjp(deep, x, np.ones_like(x))[1]

    order = [line, square, line, square, square, line]
    with xg.use("full_jam", key=5):
        expected = [eager(x) for x in order]
    with xg.use("full_jam", key=5):
        for x, grad in zip(order, expected, strict=True):
            np.testing.assert_allclose(traced.gradient(x), grad, rtol=1e-6)


@by_itself
def test_where_the_framework_compiles_a_changed_key_retraces_and_an_equal_one_is_a_cache_hit(
    backend: Any,
) -> None:
    act = xg.activation("Linear")
    traced = Traced(backend, act, is_ours=False)
    drawn = {}
    for seed, key, count in [(1, 1, 1), (2, 2, 2), (1, 1, 2), (2, (0, 2), 2)]:
        with xg.use("full_jam", key=key):
            found = traced.gradient()
        with xg.use("full_jam", key=key):
            np.testing.assert_array_equal(found, backend.vjp(act, X, np.ones_like(X))[1])
        np.testing.assert_array_equal(found, drawn.setdefault(seed, found))
        assert traced.traces == count
    assert not np.array_equal(drawn[1], drawn[2])


@compiling
def test_key_of_use_seeds_a_layers_own_random_rule(backend: Any) -> None:
    own = xg.activation("Heaviside", rule="rectangular_jam", params={"a": -9.0, "b": 9.0})
    traced = Traced(backend, own)
    for key in (7, 8):
        with xg.use("scale", key=key):
            found = traced.gradient()
        with xg.use("scale", key=key):
            np.testing.assert_array_equal(found, backend.vjp(own, X, np.ones_like(X))[1])
    assert traced.traces == 1


@compiling
def test_rule_that_looks_at_a_number_retraces_for_it_alone(backend: Any, branching: str) -> None:
    traced = Traced(backend, xg.activation("Linear"))
    for s, t in [(0.5, 1.0), (3.0, 1.0), (3.0, 7.0), (0.5, 7.0), (0.75, 2.0)]:
        with xg.use(branching, {"s": s, "t": t}):
            expected = np.full_like(X, t if s > 1 else -t)
            np.testing.assert_array_equal(traced.gradient(), expected)


@compiling
def test_rule_that_runs_as_it_is_follows_its_params(
    backend: Any, compiled: Callable[..., Traced]
) -> None:
    @xg.register("test as it is", native=True)
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor, factor: float = 1.0) -> Tensor:
        return grad_out * factor

    traced = compiled(xg.activation("ReLU"))
    for factor in (2.0, 3.0, 2.0):
        with xg.use(rule, {"factor": factor}):
            np.testing.assert_array_equal(traced.gradient(), np.full_like(X, factor))
    assert traced.traces == 2


@compiling
def test_two_scopes_are_hidden_each_with_its_numbers(backend: Any) -> None:
    act = xg.activation("Linear")

    def both(x: Tensor) -> Tensor:
        return act(x) + xg.apply_to_gradients([x * 0 + 1])[0] * x

    traced = Traced(backend, both, **with_breaks(backend))
    for s, t in [(2.0, 10.0), (3.0, 20.0)]:
        with (
            xg.use("scale", {"s": s}, scope="activations"),
            xg.use("scale", {"s": t}, scope="params"),
        ):
            np.testing.assert_array_equal(traced.gradient(), np.full_like(X, s + t))


@compiling
def test_backward_after_the_with_keeps_the_rule_and_its_numbers(backend: Any) -> None:
    fn = xg.jit(xg.activation("Heaviside"), **OPTIONS[backend.name])

    def forward_under_its_own_width(x: Tensor) -> Tensor:
        with xg.use("triangular", {"width": 0.75}):
            y = fn(x)
        with xg.use("triangular", {"width": 3.0}):
            fn(x)
        return y

    _, grad = backend.vjp(forward_under_its_own_width, X, np.ones_like(X))
    np.testing.assert_allclose(grad, triangle(X, 0.75), rtol=1e-6)


@compiling
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_pullback_called_after_the_with_and_on_another_thread_keeps_the_rule(
    backend: Any, is_compiled: bool
) -> None:
    act = xg.activation("Heaviside")
    with xg.use("triangular"):
        f = Traced(backend, act, is_ours=False).fn if is_compiled else act
        _, pull = xg.vjp(f, backend.array(X))
    found: list[Array] = []

    def run(upstream: Tensor) -> None:
        found.append(backend.numpy(pull(upstream)[0]))

    with xg.use("rectangular"):
        on_threads(run, backend.array(np.ones_like(X)))
        run(backend.array(np.ones_like(X)))
    np.testing.assert_allclose(found, [triangle(X)] * 2, rtol=1e-6)


@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_nan_times_a_mask_is_nan_but_where_xla_is_declared_to_choose(
    backend: Any, dtype: str
) -> None:
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, grad = (backend.array(np.array(a, own)) for a in ([2.0, 0.1, 2.0], [np.nan, np.nan, 1.0]))
    act = xg.activation("Heaviside", "rectangular")

    def pull(x: Tensor) -> Tensor:
        return xg.vjp(act, x)[1](grad)[0]

    (row,) = kept(backend.name, "compiled", "multiply")
    chosen = 0.0 if dtype in row.dtypes else np.nan
    options = {"jit_compile": True} if backend.name == "tensorflow" else {}
    for run, first in ((pull, np.nan), (xg.jit(pull, backend.name, **options), chosen)):
        np.testing.assert_array_equal(np.float32(backend.numpy(run(x))), [first, np.nan, 0.0])


@compiling
def test_interleaved_tasks_each_keep_their_rule(backend: Any) -> None:
    act = xg.activation("Linear")
    traced = Traced(backend, act)

    async def run(rule: str, params: dict[str, float], expected: Any) -> None:
        with xg.use(rule, params):
            for _ in range(3):
                await asyncio.sleep(0)
                for found in (traced.gradient(), backend.vjp(act, X, np.ones_like(X))[1]):
                    np.testing.assert_allclose(found, expected, rtol=1e-6)
            found = await asyncio.to_thread(traced.gradient)
            np.testing.assert_allclose(found, expected, rtol=1e-6)

    async def gather() -> None:
        scales = [run("scale", {"s": s}, np.full_like(X, s)) for s in (2.0, 3.0, 5.0)]
        with xg.use("scale", {"s": 100.0}):
            await asyncio.gather(*scales, run("triangular", {"width": 2.0}, triangle(X, 2.0)))

    asyncio.run(gather())
    np.testing.assert_array_equal(traced.gradient(), np.ones_like(X))


@compiling
def test_threads_of_one_function_keep_their_own_numbers(
    backend: Any, compiled: Callable[..., Traced]
) -> None:
    numbers, traced = (2.0, 3.0, 5.0, 7.0), compiled(xg.activation("Linear"))
    found: dict[float, list[Array]] = {}

    def run(s: float) -> None:
        with xg.use("scale", {"s": s}):
            found[s] = [traced.gradient() for _ in range(20)]

    with xg.use("triangular"):
        np.testing.assert_allclose(traced.gradient(), triangle(X), rtol=1e-6)
        on_threads(run, *numbers)
        np.testing.assert_allclose(traced.gradient(), triangle(X), rtol=1e-6)
    for s in numbers:
        np.testing.assert_array_equal(found[s], np.full((20, *X.shape), s))


@compiling
def test_it_is_a_decorator_with_and_without_options_and_takes_keywords(backend: Any) -> None:
    act = xg.activation("Linear")

    @xg.jit
    def double(x: Tensor, *, factor: float = 2.0) -> Tensor:
        """Say what it does."""
        return act(x) * factor

    @xg.jit(framework=backend.name, **OPTIONS[backend.name])
    def add(x: Tensor, y: Tensor | None = None) -> Tensor:
        return act(x) if y is None else act(x) + y

    assert (double.__name__, double.__doc__) == ("double", "Say what it does.")
    x = backend.array(X)
    np.testing.assert_array_equal(backend.numpy(add(x)), X)
    np.testing.assert_array_equal(backend.numpy(add(x, y=x)), X + X)
    if backend.name != "torch":  # inductor is another test's
        np.testing.assert_array_equal(backend.numpy(double(x, factor=3.0)), 3.0 * X)


@compiling
def test_compiled_function_inside_of_a_compiled_function_follows(backend: Any) -> None:
    inner = xg.jit(xg.activation("Linear"), **OPTIONS[backend.name])
    outer = Traced(backend, lambda x: inner(x) * 2.0)
    for s in (2.0, 3.0):
        with xg.use("scale", {"s": s}):
            np.testing.assert_array_equal(outer.gradient(), np.full_like(X, 2 * s))
    np.testing.assert_array_equal(outer.gradient(), np.full_like(X, 2.0))


@compiling
def test_use_inside_of_the_compiled_function_acts(
    backend: Any, compiled: Callable[..., Traced]
) -> None:
    act = xg.activation("Heaviside")

    def inside(x: Tensor) -> Tensor:
        with xg.use("triangular", {"width": 2.0}):
            y = act(x)
        return y + act(x)

    decorated = xg.use("triangular", {"width": 2.0})(act)
    for f, is_partly in ((inside, True), (decorated, False)):
        traced = compiled(f, **with_breaks(backend))
        np.testing.assert_allclose(traced.gradient(), triangle(X, 2.0), rtol=1e-6)
        for s in (3.0, 4.0):
            with xg.use("scale", {"s": s}):
                expected = triangle(X, 2.0) + s * is_partly
                np.testing.assert_allclose(traced.gradient(), expected, rtol=1e-6)


def test_function_without_a_tensor_among_its_arguments_must_name_the_framework() -> None:
    fn = xg.jit(lambda x: x)
    with pytest.raises(xg.BackendNotFound, match=r"no argument is a tensor.*framework="):
        fn(3.0)
    with pytest.raises(xg.BackendNotFound, match="no argument is a tensor"):
        fn(X)


def test_unknown_framework_and_what_is_no_function_are_refused_at_once() -> None:
    with pytest.raises(xg.BackendNotFound, match="did you mean 'torch'"):
        xg.jit(abs, framework="torhc")
    with pytest.raises(xg.BackendNotFound, match="numpy"):
        xg.jit(abs, framework="numpy")
    with pytest.raises(xg.MultigradError, match="needs a function, got int"):
        xg.jit(3)  # type: ignore[arg-type]


@pytest.mark.needs("tensorflow")
def test_options_of_tensorflow_are_handed_on() -> None:
    import tensorflow as tf

    traces = []

    def halve(x: Tensor) -> Tensor:
        traces.append(x.shape)
        if tf.reduce_sum(x) > 0:  # AutoGraph makes a tf.cond of it
            return xg.activation("Linear")(x) / 2.0
        return x

    for options in (
        {"jit_compile": True},
        {"input_signature": [tf.TensorSpec([None], tf.float32)], "reduce_retracing": True},
    ):
        traces.clear()
        fn = xg.jit(halve, **options)
        with xg.use("full_jam", key=1):
            np.testing.assert_array_equal(fn(tf.constant([2.0, 4.0])), [1.0, 2.0])
            np.testing.assert_array_equal(fn(tf.constant([2.0, -4.0])), [2.0, -4.0])
        if "input_signature" in options:
            fn(tf.constant([1.0]))
            assert traces == [tf.TensorShape([None])] * 2
    with pytest.raises(Exception, match=r"bool|autograph"):
        xg.jit(halve, autograph=False)(tf.constant([2.0]))
