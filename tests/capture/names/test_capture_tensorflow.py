"""Rules written in TensorFlow: captured as they stand, they give TensorFlow's numbers on every
backend.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.capturing import inputs, rules_in
from ...written.unseen import Unseen

pytestmark = pytest.mark.needs("tensorflow")

RULES = rules_in("rules_in_tensorflow")
# These are written for single precision: they name float32, or a constant in it.
SINGLE = (
    "activations",
    "clip_by_value",
    "constants",
    "helpers",
    "made_from_a_shape",
    "number_of_elements",
    "piecewise_leaky",
    "quantized_to_four_bits",
    "rectangular_in_single",
)


def find_rule(name: str) -> Callable[..., Any]:
    from ...written import rules_in_tensorflow

    return getattr(rules_in_tensorflow, name)


def as_written(function: Callable[..., Any], grad_out: Any, tin: Any) -> Any:
    """Run the user's function in TensorFlow, without us."""
    import tensorflow as tf

    return function(None, tf.constant(grad_out), tf.constant(tin)).numpy()


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_tensorflows_numbers(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float32)
    wanted = as_written(function, grad_out, tin)
    rule = captured(function)
    given = backend.numpy(rule(None, backend.array(grad_out), backend.array(tin)))
    assert given.dtype == np.float32 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", [name for name in RULES if name not in SINGLE])
def test_rule_gives_tensorflows_numbers_in_float64(
    name: str, captured: Callable[..., xg.Rule]
) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float64)
    wanted = as_written(function, grad_out, tin)
    given = captured(function)(None, grad_out, tin)
    assert given.dtype == np.float64 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=1e-13, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("name", RULES[::5])
def test_rule_acts_under_an_activation(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float32)
    wanted = as_written(function, grad_out, tin)
    y, grad_in = backend.vjp(xg.activation("ReLU", captured(function)), tin, grad_out)
    np.testing.assert_array_equal(y, np.maximum(tin, 0))
    np.testing.assert_allclose(grad_in, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.usefixtures("unproven")
def test_one_capture_serves_every_rank_and_dtype(
    shape: tuple[int, ...], dtype: Any, captured: Callable[..., xg.Rule]
) -> None:
    import tensorflow as tf

    captures = Unseen()

    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 2.0) -> Any:
        captures.append(1)
        inside = tf.cast(tf.abs(tin) <= 1.0, grad_out.dtype)
        count = tf.cast(tf.size(tin), tin.dtype)
        return grad_out * inside * tf.exp(-tf.square(tin) / width) / count

    made = captured(rule)
    made(None, np.ones(3, np.float32), np.ones(3, np.float32))
    x = np.full(shape, 0.5, dtype)
    given = made(None, x, x)
    assert given.dtype == dtype and given.shape == shape
    if x.size:
        np.testing.assert_allclose(given, 0.5 * np.exp(-0.125) / x.size, rtol=1e-3)
    assert len(captures) == 1


def test_show_says_that_a_rule_is_written_in_tensorflow(captured: Callable[..., xg.Rule]) -> None:
    assert "# written in tf; captured by substitution" in xg.show(captured(find_rule("triangular")))


def test_draws_of_tensorflow_become_draws_by_key(
    backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    import tensorflow as tf

    def draws(ctx: Any, grad_out: Any, tin: Any) -> Any:
        noise = tf.random.normal(tf.shape(tin), 0.0, 0.1, dtype=tin.dtype)
        jam = tf.random.uniform(tin.shape, minval=-1.0, maxval=1.0)
        return tf.nn.dropout(grad_out, rate=0.25) * jam + noise

    tin, grad_out = inputs(np.float32)
    rule = captured(draws)
    first, again, other = (
        backend.numpy(rule(None, backend.array(grad_out), backend.array(tin), key=key))
        for key in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    np.testing.assert_allclose(first, rule(None, grad_out, tin, key=3), rtol=1e-6, atol=1e-6)


def test_draws_of_tensorflow_have_its_distributions(captured: Callable[..., xg.Rule]) -> None:
    import tensorflow as tf

    def dropped(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.nn.dropout(grad_out, 0.25)

    def shifted(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.random.uniform(tf.shape(grad_out), 2.0, 4.0)

    def spread(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.random.normal(tf.shape(grad_out), mean=1.0, stddev=0.5)

    ones = np.ones(20_000, np.float32)
    given = captured(dropped)(None, ones, ones, key=1)
    assert np.unique(given) == pytest.approx([0.0, 4 / 3])
    assert (given > 0).mean() == pytest.approx(0.75, abs=0.02)
    given = captured(shifted)(None, ones, ones, key=1)
    assert 2 <= given.min() < 2.01 and 3.99 < given.max() < 4
    given = captured(spread)(None, ones, ones, key=1)
    assert given.mean() == pytest.approx(1.0, abs=0.02)
    assert given.std() == pytest.approx(0.5, abs=0.02)


def test_functions_that_a_foreign_object_holds_come_through_tensorflows_dispatcher(
    backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    import tensorflow as tf

    held = types.SimpleNamespace(
        soften=tf.nn.softplus,
        mean=tf.reduce_mean,
        where=tf.where,
        norm=tf.norm,
        turn=tf.transpose,
        scale=tf.constant(0.5),
        join=tf.concat,
    )

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        mean = held.mean(tin, axis=-1, keepdims=True) * held.scale * held.norm(tensor=tin)
        soft = held.soften(held.turn(held.turn(tin))) * mean
        return grad_out * held.where(tin > 0, soft, 1.0) + held.join([tin[1:], tin[:1]], axis=0)

    tin, grad_out = inputs(np.float32)
    wanted = as_written(rule, grad_out, tin)
    made = captured(rule)
    given = backend.numpy(made(None, backend.array(grad_out), backend.array(tin)))
    np.testing.assert_allclose(given, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


def test_first_capture_inside_a_tf_function_takes_constants_as_they_are(
    captured: Callable[..., xg.Rule],
) -> None:
    import tensorflow as tf

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        weights = tf.constant([0.5, 1.0, 1.5, 2.0]) * tf.cast(tf.range(4), tf.float32)
        return grad_out * weights

    act = xg.activation("ReLU", captured(rule))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = act(x)
        return tape.gradient(y, x)

    given = step(tf.ones((2, 4))).numpy()
    np.testing.assert_array_equal(given, [[0.0, 1.0, 3.0, 6.0]] * 2)


def test_compiled_function_is_a_rule(backend: Any, captured: Callable[..., xg.Rule]) -> None:
    import tensorflow as tf

    @tf.function
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.nn.relu(tin) * grad_out

    tin, grad_out = inputs(np.float32)
    given = backend.numpy(captured(rule)(None, backend.array(grad_out), backend.array(tin)))
    np.testing.assert_array_equal(given, np.maximum(tin, 0) * grad_out)


def test_update_of_an_immutable_tensor_does_not_reach_its_other_names(
    captured: Callable[..., xg.Rule],
) -> None:
    import tensorflow as tf

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        total = tf.identity(grad_out)
        before = total
        total += tin
        return total * before

    tin, grad_out = inputs(np.float32)
    given = captured(rule)(None, grad_out, tin)
    np.testing.assert_allclose(given, (grad_out + tin) * grad_out, rtol=1e-6)


REFUSED = {
    "case": "branches on a tensor. Use tf.where",
    "vectorized_map": "in a loop of TensorFlow's",
    "py_function": "hides what it computes. Call the function itself",
    "boolean_mask": "Use tf.where.mask, tensor, 0.0",
    "debugging.assert_positive": "Check them outside of the rule",
    "random.stateless_normal": "follow the key of xg.use",
    "signal.dct": "not captured. Write it with xg.xp, or register the rule with native=True",
    "math.bessel_i0": "not captured. Write it with xg.xp, or register the rule with native=True",
}


@pytest.mark.parametrize("name", REFUSED)
def test_name_without_an_op_is_refused_by_its_name_with_the_line_and_what_to_do(
    name: str, captured: Callable[..., xg.Rule]
) -> None:
    import tensorflow as tf

    arguments = {
        "case": lambda x: ([(tf.reduce_sum(x) > 0, lambda: x)],),
        "vectorized_map": lambda x: (abs, x),
        "py_function": lambda x: (abs, [x], tf.float32),
        "boolean_mask": lambda x: (x, x > 0),
        "random.stateless_normal": lambda x: (tf.shape(x), [1, 2]),
    }.get(name, lambda x: (x,))
    first, _, second = name.partition(".")

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        holder = getattr(tf, first)
        return (getattr(holder, second) if second else holder)(*arguments(tin))

    tin, grad_out = inputs(np.float32)
    with pytest.raises(
        xg.TraceError,
        match=rf"test_capture_tensorflow.py:\d+\) calls tensorflow.{name}.*{REFUSED[name]}",
    ):
        captured(rule)(None, grad_out, tin)


def test_call_in_a_way_that_is_not_captured_says_why(captured: Callable[..., xg.Rule]) -> None:
    import tensorflow as tf

    def indices(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.where(tin > 0)

    def seeded(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.random.normal(tf.shape(tin), seed=3)

    def spectral(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / tf.norm(tin, ord=2, axis=[0, 1])

    def taped(ctx: Any, grad_out: Any, tin: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tin)
        return tape.gradient(tin * tin, tin)

    tin, grad_out = inputs(np.float32)
    for rule, message in (
        (indices, "tensorflow.where .*use tf.where.condition, x, y"),
        (seeded, "a draw with a seed; draws follow the key of xg.use"),
        (spectral, "order 2 over two axes, a matrix norm"),
        (taped, "uses tf.GradientTape, but a rule is the backward pass"),
    ):
        with pytest.raises(xg.TraceError, match=message):
            captured(rule)(None, grad_out, tin)
