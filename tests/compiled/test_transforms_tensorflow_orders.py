"""TensorFlow's higher orders, Jacobians, loops and mixed precision, over rules of every kind.

`F(x)` has the rule's gradient `r(w, x)` for the loss `sum(w F(x))`. So its derivatives are those
that TensorFlow itself finds for the plain expression `r(w, x)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9])
W = np.array([0.5, -1.0, 2.0, 0.7, 0.3, -0.2, 1.1])
V = np.array([1.5, -0.3, 0.2, 0.9, -0.3, 1.2, 0.1])


# --- the rules, as TensorFlow expressions ---------------------------------------------------------


def triangular(g: Tensor, x: Tensor) -> Tensor:
    import tensorflow as tf

    return g * tf.nn.relu(1.0 - tf.abs(x))


def rectangular(g: Tensor, x: Tensor) -> Tensor:
    import tensorflow as tf

    return g * tf.cast((x >= -0.5) & (x <= 0.5), x.dtype)


def clip_norm(g: Tensor, x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.clip_by_norm(g, 1.0)


def identity(g: Tensor, x: Tensor) -> Tensor:
    return g


def times_norm(g: Tensor, x: Tensor) -> Tensor:
    import tensorflow as tf

    return g * tf.sqrt(tf.reduce_sum(x * x))


def times_mean(g: Tensor, x: Tensor) -> Tensor:
    import tensorflow as tf

    return x * tf.reduce_mean(g, -1, keepdims=True)


def clipped_triangle(g: Tensor, x: Tensor) -> Tensor:
    return clip_norm(triangular(g, x), x)


FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "triangular": triangular,
    "rectangular": rectangular,
    "clip_norm": clip_norm,
    "d(Linear)": identity,
    "test norm": times_norm,
    "test mean": times_mean,
    "triangular then clip_norm": clipped_triangle,
}
FORWARDS = ["Heaviside", "Tanh", "Linear", "ReLU"]
every_rule = pytest.mark.parametrize(
    ("rule", "forward"), [(rule, FORWARDS[i % 4]) for i, rule in enumerate(FORMULAS)]
)
modes = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])


@pytest.fixture(autouse=True)
def own_rules() -> Iterator[None]:
    """Register a rule with a norm of the input, and one that is no factor."""

    @xg.register("test norm")
    def norm(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * xg.xp.norm(tin)

    @xg.register("test mean")
    def mean(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return tin * xg.xp.mean(grad_out, axis=-1, keepdims=True)

    yield
    xg.unregister("test norm")
    xg.unregister("test mean")


class Case:
    """A rule under a forward, its formula, and the loss `sum(w F(x))`."""

    def __init__(self, rule: str, forward: str) -> None:
        import tensorflow as tf

        self.rule: Any = xg.compose("triangular", "clip_norm") if " then " in rule else rule
        self.act = xg.activation(forward)
        self.x, self.w, self.v = (tf.constant(values) for values in (X, W, V))
        self.formula = FORMULAS[rule]

    def loss(self, x: Tensor) -> Tensor:
        import tensorflow as tf

        return tf.reduce_sum(self.act(x) * self.w)

    def expected(self, x: Tensor) -> Tensor:
        """Return the gradient that the rule gives; zero times x ties it to x where it does not
        depend.
        """
        return self.formula(self.w, x) + 0.0 * x

    def jacobian(self) -> Array:
        """Return the matrix of the rule: row i is what output i sends back."""
        return np.stack([self.formula(row, self.x) for row in np.eye(len(X))])


def compiled(f: Callable[..., Any], mode: str) -> Callable[..., Any]:
    import tensorflow as tf

    if mode == "eager":
        return f
    return tf.function(f, jit_compile=mode == "xla", autograph=False)


def grad(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function that gives the gradient of `sum(f(x))`."""
    import tensorflow as tf

    def gradient(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return gradient


def directional(f: Callable[[Tensor], Tensor], v: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the derivative of `v f(x)`."""
    return grad(lambda x: f(x) * v)


def jacobian(
    f: Callable[[Tensor], Tensor], vectorized: bool, batch: bool = False
) -> Callable[[Tensor], Tensor]:
    """Return what `tape.jacobian`, or `tape.batch_jacobian`, gives of `f`."""
    import tensorflow as tf

    def compute(x: Tensor) -> Tensor:
        with tf.GradientTape(persistent=not vectorized) as tape:
            tape.watch(x)
            y = f(x)
        take = tape.batch_jacobian if batch else tape.jacobian
        return take(y, x, experimental_use_pfor=vectorized)

    return compute


def close(got: Tensor, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@every_rule
@modes
def test_first_three_orders_are_those_of_the_formula(rule: str, forward: str, mode: str) -> None:
    case = Case(rule, forward)
    got, expected = grad(case.loss), case.expected
    for _ in range(3):
        with xg.use(case.rule):
            close(compiled(got, mode)(case.x), expected(case.x))
        got, expected = directional(got, case.v), directional(expected, case.v)


@every_rule
@pytest.mark.parametrize(
    ("mode", "vectorized"), [("eager", False), ("eager", True), ("graph", True), ("xla", True)]
)
def test_jacobian_of_a_tape_is_the_rules(
    rule: str, forward: str, mode: str, vectorized: bool
) -> None:
    case = Case(rule, forward)
    with xg.use(case.rule):
        close(compiled(jacobian(case.act, vectorized), mode)(case.x), case.jacobian())


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "test mean"])
@pytest.mark.parametrize("vectorized", [False, True])
def test_batch_jacobian_of_a_tape_is_the_rules_for_each_example(
    rule: str, vectorized: bool
) -> None:
    import tensorflow as tf

    case = Case(rule, "Tanh")
    batch = tf.stack([case.x, 0.5 * case.x])
    with xg.use(case.rule):
        got = compiled(jacobian(case.act, vectorized, batch=True), "graph")(batch)
    for row, x in zip(got, batch, strict=True):
        close(row, np.stack([case.formula(each, x) for each in np.eye(7)]))


def run_mapped(case: Case, x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.map_fn(case.act, x[None])[0] * case.w


def run_loop(case: Case, x: Tensor) -> Tensor:
    import tensorflow as tf

    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, case.act(y) * case.w

    return tf.while_loop(lambda i, y: i < 1, body, (tf.constant(0), x), maximum_iterations=1)[1]


def run_branch(case: Case, x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.cond(tf.reduce_sum(x) < 100.0, lambda: case.act(x) * case.w, lambda: x)


def run_again(case: Case, x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.recompute_grad(lambda x: case.act(x) * case.w)(x)


@pytest.mark.parametrize("rule", ["rectangular", "test norm", "triangular then clip_norm"])
@pytest.mark.parametrize("route", [run_mapped, run_loop, run_branch, run_again])
@modes
def test_loops_branches_and_recomputation_keep_the_rule(
    rule: str, route: Callable[[Case, Tensor], Tensor], mode: str
) -> None:
    case = Case(rule, "Tanh")
    with xg.use(case.rule):
        got = compiled(grad(lambda x: route(case, x)), mode)(case.x)
    close(got, case.expected(case.x))


@pytest.mark.parametrize("rule", ["rectangular", "test norm", "clip_norm"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_gradients_inside_of_vectorized_map_are_of_each_example(rule: str, mode: str) -> None:
    import tensorflow as tf

    case = Case(rule, "Tanh")
    batch = tf.stack([case.x, 0.5 * case.x])
    with xg.use(case.rule):
        got = compiled(lambda x: tf.vectorized_map(grad(case.loss), x), mode)(batch)
    close(got, np.stack([case.formula(case.w, x) for x in batch]))


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "test norm", "test mean"])
def test_accumulated_tangent_is_the_rules_jacobian_times_the_vector(rule: str) -> None:
    import tensorflow as tf

    case = Case(rule, "Tanh")
    with xg.use(case.rule):
        with tf.autodiff.ForwardAccumulator(case.x, case.v) as accumulator:
            y = case.act(case.x)
        close(accumulator.jvp(y), case.jacobian() @ V)
        with tf.autodiff.ForwardAccumulator(case.x, case.v) as accumulator:
            first = grad(case.loss)(case.x)
        product = accumulator.jvp(first, unconnected_gradients="zero")
    close(product, np.asarray(jacobian(case.expected, vectorized=True)(case.x)) @ V)


@pytest.mark.parametrize("rule", ["clip_norm", "noise", "triangular then clip_norm"])
def test_tangent_of_a_rule_that_is_not_linear_is_refused(rule: str) -> None:
    import tensorflow as tf

    chosen = xg.compose("triangular", "clip_norm") if " then " in rule else rule
    act, x = xg.activation("Tanh"), tf.constant(X)
    with (
        xg.use(chosen),
        tf.autodiff.ForwardAccumulator(x, tf.constant(V)),
        pytest.raises(xg.GradientError, match="linear in grad_out"),
    ):
        act(x)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@modes
def test_sixteen_bits_keep_dtype_and_rule(rule: str, dtype: str, mode: str) -> None:
    import tensorflow as tf

    act = xg.activation("Heaviside")
    x, w = (tf.cast(values, dtype) for values in (X, W))
    with xg.use(rule):
        got = compiled(grad(lambda x: act(x) * w), mode)(x)
    assert got.dtype == x.dtype
    expected = FORMULAS[rule](*(tf.cast(values, tf.float32) for values in (w, x)))
    np.testing.assert_allclose(tf.cast(got, tf.float32), expected, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
def test_mixed_precision_chain_gives_float32_gradients_of_the_rule(rule: str) -> None:
    import tensorflow as tf

    act = xg.activation("Tanh")
    kernel, scale = tf.Variable(tf.eye(7)), 1024.0

    @tf.function
    def step(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            hidden = tf.linalg.matvec(tf.cast(kernel, tf.float16), tf.cast(x, tf.float16))
            y = tf.cast(act(hidden), tf.float32)
            loss = tf.reduce_sum(y * tf.constant(W, tf.float32)) * scale
        return tape.gradient(loss, kernel)

    with xg.use(rule):
        got = step(tf.constant(X, tf.float32))
    assert got.dtype == tf.float32
    formula = FORMULAS[rule](*(tf.constant(v, tf.float32) for v in (W * scale, X)))
    expected = np.outer(formula, X)
    np.testing.assert_allclose(got, expected, rtol=0.02, atol=0.005 * np.abs(expected).max())
