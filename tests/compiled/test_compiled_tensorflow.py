"""tf.function keeps its traces, whatever rule is in force: a stale one raises StaleTraceError."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness import fresh
from ..harness.models.surrogates import triangle
from ..harness.traced import taped
from ..support.threads import on_threads

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
NOTHING = np.zeros_like(X)


def gradient(f: Callable[[Tensor], Tensor]) -> Array:
    return taped(f)(tf.constant(X)).numpy()


def looping(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, step(y)

    def loop(x: Tensor) -> Tensor:
        return tf.while_loop(lambda i, y: i < 1, body, [0, x], maximum_iterations=1)[1]

    return loop


def branching(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: tf.cond(tf.reduce_sum(x) < 100.0, lambda: step(x), lambda: x)


def mapping(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: tf.map_fn(step, x)


def nesting(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: tf.function(tf.function(step))(x)


def plain(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: step(x)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("build", [plain, nesting, looping, branching, mapping])
def test_trace_is_kept_for_its_rule_and_refused_under_another(
    step: Any, build: Callable[..., Any], jit_compile: bool
) -> None:
    f = tf.function(build(step), jit_compile=jit_compile)
    grad = tf.function(taped(f), jit_compile=True) if jit_compile else lambda x: gradient(f)
    x = tf.constant(X)
    np.testing.assert_array_equal(grad(x), NOTHING)
    with xg.use("triangular"), pytest.raises(xg.StaleTraceError, match=r"no rule.*triangular"):
        grad(x)
    with xg.use("scale", scope="activations"), pytest.raises(xg.StaleTraceError, match=r"xg\.jit"):
        f(x)
    np.testing.assert_array_equal(grad(x), NOTHING)

    g = tf.function(build(step), jit_compile=jit_compile)
    grad = tf.function(taped(g), jit_compile=True) if jit_compile else lambda x: gradient(g)
    with xg.use("triangular"):
        np.testing.assert_allclose(grad(x), triangle(X), rtol=1e-6)
    with pytest.raises(xg.StaleTraceError, match=r"triangular.*no rule"):
        grad(x)
    with xg.use("triangular", {"width": 1}):
        np.testing.assert_allclose(grad(x), triangle(X), rtol=1e-6)
    with xg.use("triangular", {"width": 2}), pytest.raises(xg.StaleTraceError):
        grad(x)


def test_changed_key_and_changed_scope_are_refused() -> None:
    f = tf.function(xg.activation("Linear"))
    with xg.use("full_jam", key=1):
        first = gradient(f)
    with xg.use("full_jam", key=1):
        np.testing.assert_array_equal(gradient(f), first)
    with xg.use("full_jam", key=2), pytest.raises(xg.StaleTraceError):
        gradient(f)
    with xg.use("full_jam", key=1, scope="params"), pytest.raises(xg.StaleTraceError):
        gradient(f)


def test_redefined_rule_is_refused_for_use_and_for_a_layer(half: Any) -> None:
    own = tf.function(xg.activation("Linear", rule="half of it"))
    framed = tf.function(xg.activation("Linear"))
    np.testing.assert_array_equal(gradient(own), NOTHING + 0.5)
    with xg.use("half of it"):
        np.testing.assert_array_equal(gradient(framed), NOTHING + 0.5)
    xg.register("half of it", override=True)(lambda ctx, grad_out, tin: grad_out * 0.25)
    with pytest.raises(xg.StaleTraceError, match="redefined"):
        gradient(own)
    with xg.use("half of it"), pytest.raises(xg.StaleTraceError):
        gradient(framed)
    xg.unregister("half of it")
    with pytest.raises(xg.StaleTraceError):
        gradient(own)


def test_apply_to_gradients_in_a_trace_is_refused_under_another_rule(half: Any) -> None:
    apply = tf.function(lambda g: xg.apply_to_gradients([g, {"b": None}])[0])
    by_name = tf.function(lambda g: xg.apply_to_gradients(g, "half of it"))
    np.testing.assert_array_equal(by_name(X), X / 2)
    with xg.use("scale", {"s": 2.0}, scope="params"):
        np.testing.assert_array_equal(apply(X), X * 2)
    with xg.use("scale", {"s": 3.0}, scope="params"), pytest.raises(xg.StaleTraceError):
        apply(X)
    with pytest.raises(xg.StaleTraceError):
        apply(X)
    xg.register("half of it", override=True)(lambda ctx, grad_out, tin: grad_out * 0.25)
    with pytest.raises(xg.StaleTraceError):
        by_name(X)


def test_gradients_traced_before_any_rule_are_refused_under_one() -> None:
    apply = tf.function(lambda g: xg.apply_to_gradients(g))
    np.testing.assert_array_equal(apply(X), X)
    with xg.use("scale", {"s": 2.0}), pytest.raises(xg.StaleTraceError):
        apply(X)


@pytest.mark.parametrize("decorate", [False, True])
def test_use_inside_of_the_traced_function_is_part_of_the_trace(step: Any, decorate: bool) -> None:
    def inside(x: Tensor) -> Tensor:
        with xg.use("triangular", {"width": 2.0}):
            return step(x)

    f = tf.function(xg.use("triangular", {"width": 2.0})(step) if decorate else inside)
    for _ in range(2):
        np.testing.assert_allclose(gradient(f), triangle(X, 2.0), rtol=1e-6)
    nested = tf.function(lambda x: f(x) * 2.0)
    np.testing.assert_allclose(gradient(nested), 2.0 * triangle(X, 2.0), rtol=1e-6)


def test_function_called_in_another_trace_is_checked_against_the_rule_there(step: Any) -> None:
    inner = tf.function(step)

    @tf.function
    def outer(x: Tensor) -> Tensor:
        with xg.use("triangular"):
            return inner(x)

    for _ in range(2):  # traced inside of outer, under outer's rule
        np.testing.assert_allclose(gradient(outer), triangle(X), rtol=1e-6)
    fresh = tf.function(step)
    gradient(fresh)

    @tf.function
    def around(x: Tensor) -> Tensor:
        with xg.use("triangular"):
            return fresh(x)

    with pytest.raises(xg.StaleTraceError, match=r"no rule.*triangular"):
        gradient(around)  # else the gradient of the cached trace would be taken for triangular's


def test_concrete_function_is_checked_too(step: Any) -> None:
    concrete = tf.function(step).get_concrete_function(tf.TensorSpec([None], tf.float32))
    np.testing.assert_array_equal(gradient(concrete), NOTHING)
    with xg.use("triangular"), pytest.raises(xg.StaleTraceError):
        concrete(tf.constant(X))


def test_threads_are_checked_each_by_its_own_rule(step: Any) -> None:
    f = tf.function(step)
    found: dict[str, Any] = {}

    def run(rule: str) -> None:
        try:
            with xg.use(rule):
                found[rule] = gradient(f)
        except xg.StaleTraceError as error:
            found[rule] = error

    with xg.use("triangular"):
        gradient(f)
    on_threads(run, "triangular")
    on_threads(run, "scale")
    np.testing.assert_allclose(found["triangular"], triangle(X), rtol=1e-6)
    assert isinstance(found["scale"], xg.StaleTraceError)


def test_interleaved_tasks_are_checked_each_by_its_own_rule(step: Any) -> None:
    f = tf.function(step)

    async def run(s: float) -> list[Array]:
        g = tf.function(step)
        with xg.use("scale", {"s": s}):
            grads = []
            for _ in range(3):
                await asyncio.sleep(0)
                grads.append(gradient(g))
                with pytest.raises(xg.StaleTraceError):
                    f(tf.constant(X))
        return grads

    async def both() -> list[list[Array]]:
        return await asyncio.gather(run(2.0), run(3.0))

    gradient(f)
    first, second = asyncio.run(both())
    np.testing.assert_array_equal(first, [NOTHING + 2.0] * 3)
    np.testing.assert_array_equal(second, [NOTHING + 3.0] * 3)
    np.testing.assert_array_equal(gradient(f), NOTHING)


def test_rule_is_captured_under_autograph_as_it_is_elsewhere() -> None:
    def fresh(ctx: Any, grad_out: Tensor, tin: Tensor, s: float = 2.0) -> Tensor:
        return xg.xp.where(tin > 0, grad_out * max(s, 1.0), xg.xp.clip(tin, -1.0, 0.0))

    act = xg.activation("Linear")

    @tf.function
    def f(x: Tensor) -> Tensor:
        with xg.use(fresh):
            return act(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error", xg.NativeRuleWarning)
        np.testing.assert_array_equal(gradient(f), np.where(X > 0, 2.0, np.clip(X, -1.0, 0.0)))


@pytest.mark.parametrize("called_before", [False, True])
def test_module_with_an_activation_is_saved_and_loaded(
    step: Any, called_before: bool, tmp_path: Path
) -> None:
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x: Tensor) -> Tensor:
            return step(x)

    model = Model()
    with xg.use("triangular"):
        if called_before:
            gradient(model)
        tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    # What is loaded is data: it keeps the rule that it was saved under.
    np.testing.assert_array_equal(loaded(tf.constant(X)), X > 0)
    if called_before:
        np.testing.assert_allclose(gradient(loaded), triangle(X), rtol=1e-6)
    with xg.use("triangular"):
        np.testing.assert_allclose(gradient(model), triangle(X), rtol=1e-6)


def test_data_pipeline_applies_an_activation(step: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices(X).map(step)
    np.testing.assert_array_equal([float(x) for x in data], X > 0)


def test_rule_put_in_force_before_tensorflow_is_imported_is_refused_and_not_kept() -> None:
    script = """
        import multigrad as xg

        act = xg.activation("Heaviside")
        with xg.use("triangular"):
            import tensorflow as tf

            f = tf.function(lambda x: act(x))
            try:
                f(tf.constant([0.25]))
                raise SystemExit("kept")
            except xg.StaleTraceError as error:
                assert "import tensorflow before" in str(error)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_the_first_use_of_all_may_be_inside_a_function_that_xla_compiles() -> None:
    script = """
        import tensorflow as tf
        import multigrad as xg

        rule = xg.get("full_jam")
        f = tf.function(lambda g: rule(None, g, None, key=7), jit_compile=True)
        first = f(tf.ones(3)).numpy().tolist()
        assert first == rule(None, tf.ones(3), None, key=7).numpy().tolist(), first
    """
    fresh.check(script, "tensorflow")
