"""`jax.custom_vjp` and `jax.custom_jvp` functions, unchanged, on every framework; the oracle is
jax's own run of them.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.own_library import assert_as_in

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.needs("jax")

X = np.array([-2.5, -1.25, -0.5, 0.0, 0.5, 1.5, 3.25], np.float32)
Y = np.array([1.5, -0.25, 2.0, 0.75, -1.0, 0.5, -3.0], np.float32)
GRID = np.stack([X, Y, X * Y - 1])
COUNTS = np.array([3, 0, -1, 2, 5, 7, 1], np.int32)
BITS = np.random.default_rng(3).normal(scale=1.5, size=(4, 6)).astype(np.float32)
BITS[0, :3] = 0.0, 0.5, -0.5
POINT = {"x": X + 4, "y": Y}
CASES: dict[str, tuple[Any, ...]] = {
    "center": (X,),
    "with_pullback": (X, Y),
    "clip_gradient": (X, 0.5),
    "fake_int8": (BITS,),
    "float8": (BITS,),
    "lerp": (X, Y),
    "log1pexp": (X,),
    "multiply_perturbed": (X, Y),
    "polar": (POINT,),
    "power": (X, 3),
    "quantize": (X,),
    "reverse_gradient": (0.75, X),
    "round_through": (X,),
    "safe_norm": (X,),
    "saturated": (BITS,),
    "scale_and_shift": (GRID, Y, X),
    "scaled_sine": (X, Y),
    "softmax": (GRID,),
    "spike": (X,),
    "sum_of_rows": (GRID,),
    "take_weighted": (X, COUNTS),
}
# Frameworks' exp, sin and sqrt differ in the last places, and sums in their order.
ROUNDED = {"log1pexp", "polar", "quantize", "safe_norm", "scaled_sine", "softmax", "center"}
ROUNDED |= {"power", "sum_of_rows"}


def cases(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a function of functions_in_jax and its arguments."""
    from ..written import functions_in_jax

    return getattr(functions_in_jax, name), CASES[name]


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_unchanged_function_has_jaxs_outputs_and_gradients(backend: Any, name: str) -> None:
    function, args = cases(name)
    imported = xg.from_custom_vjp(function)
    imported.native = False  # captured, or not at all
    limit = 0.0 if backend.name == "jax" or name not in ROUNDED else 2e-6
    assert_as_in("jax", function, *args, of=imported, backend=backend, rtol=limit, atol=limit)


@pytest.mark.parametrize(
    "name", ["clip_gradient", "scale_and_shift", "softmax", "spike", "log1pexp"]
)
def test_the_original_is_captured_once_for_all_float_dtypes_and_ranks(name: str) -> None:
    function, args = cases(name)
    imported = xg.from_custom_vjp(function)
    imported(*args)
    imported(*[a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in args])
    imported(*[a[None] if isinstance(a, np.ndarray) else a for a in args])
    assert len(imported.captures.variants) == 1


def test_a_forward_that_keeps_the_pullback_of_jax_is_captured(backend: Any) -> None:
    def smooth(x: Any) -> Any:
        return jnp.tanh(x) * jnp.sum(x)

    def forward(x: Any) -> Any:
        return jax.vjp(smooth, x)  # which holds a jaxpr of one dtype

    doubled = jax.custom_vjp(smooth)
    doubled.defvjp(forward, lambda pull, g: (2 * pull(g)[0],))
    imported = xg.from_custom_vjp(doubled)
    imported.native = False
    x = np.linspace(-1, 2, 6, dtype=np.float32)
    assert_as_in("jax", doubled, x, of=imported, backend=backend, rtol=1e-6, atol=1e-6)


def test_a_jaxpr_of_many_steps_is_compared_for_two_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")

    def chained(x: Any) -> Any:
        for _ in range(300):
            x = jnp.sin(x * 0.9)
        return jnp.sum(x)

    function = xg.function(lambda x: jax.grad(chained)(x) * 1.0)
    function.native = False
    x = np.linspace(-1, 2, 6, dtype=np.float32)
    np.testing.assert_allclose(function(x), jax.grad(chained)(jnp.asarray(x)), rtol=1e-3)


def test_keywords_are_resolved_to_positions_as_jax_does(backend: Any) -> None:
    function, _ = cases("softmax")
    imported = xg.from_custom_vjp(function)
    own, of = lambda x: function(x, axis=0), lambda x: imported(axis=0, x=x)
    assert_as_in("jax", own, GRID, of=of, backend=backend, rtol=2e-6, atol=1e-6)


def test_unknown_keywords_are_a_type_error() -> None:
    function, (x,) = cases("softmax")
    with pytest.raises(TypeError, match="axes"):
        xg.from_custom_vjp(function)(jnp.asarray(x), axes=0)


def test_a_run_time_static_argument_does_not_capture_again() -> None:
    function, (x, _) = cases("clip_gradient")
    imported = xg.from_custom_vjp(function)
    for bound in (0.1, 0.2, 0.3):
        _, pullback = xg.vjp(lambda x, bound=bound: imported(x, bound), x)
        np.testing.assert_allclose(pullback(np.ones_like(x))[0], np.full_like(x, bound))
    assert len(imported.captures.variants) <= 1


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("is_inner", [False, True])
def test_an_index_into_known_lengths_leaves_others_open(is_inner: bool) -> None:
    import tensorflow as tf

    @jax.custom_vjp
    def above_second(x: Any) -> Any:
        return jnp.where(x >= jax.lax.top_k(x, 2)[0][..., -1:], x, 0.0)

    @jax.custom_vjp
    def sixth(x: Any) -> Any:
        return x[5]

    above_second.defvjp(lambda x: (above_second(x), None), lambda _, g: (2.0 * g,))
    sixth.defvjp(lambda x: (sixth(x), x), lambda x, g: (x * g,))
    above, row = map(xg.convert, (above_second, sixth))
    function = xg.function(lambda x: above(x)) if is_inner else above

    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = function(x)
        return outputs, tape.gradient(outputs, x)

    signature = [tf.TensorSpec([None, 7])]
    outputs, gradient = tf.function(run, input_signature=signature)(tf.constant(GRID))
    np.testing.assert_array_equal(outputs, above_second(GRID))
    np.testing.assert_array_equal(gradient, np.full_like(GRID, 2.0))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 7"), GRID.dtype)
    exported = jax.export.export(jax.jit(function))(shape)
    np.testing.assert_array_equal(exported.call(GRID), above_second(GRID))
    with pytest.raises(xg.TraceError, match=r"\(test_from_custom_vjp.py:\d+\) needs the shape"):
        tf.function(row, input_signature=signature)(tf.constant(GRID))


@pytest.mark.parametrize(
    "read",
    [lambda x: jnp.exp(x)[:, 2], lambda x: jnp.exp(x[:, -3]), lambda x: jnp.take(x, 2, axis=1)],
    ids=["behind", "before", "taken"],
)
@pytest.mark.parametrize("columns", [(3, 2, 3), (2, 3, 2)])
def test_an_index_outside_means_what_it_means_in_jax_whatever_was_called_first(
    read: Any, columns: tuple[int, ...]
) -> None:
    function = xg.function(read, native=False)
    for count in columns:
        x = jnp.arange(8.0 * count).reshape(8, count) / 10
        expected = *jax.vjp(read, x)[1](jnp.ones(8)), read(x)
        actual = *jax.vjp(function, x)[1](jnp.ones(8)), function(x)
        outputs, pull = xg.vjp(function, np.asarray(x))
        for given in (actual, (*pull(np.ones(8, np.float32)), outputs)):
            for a, e in zip(given, expected, strict=True):
                np.testing.assert_allclose(a, e, rtol=1e-6)


def test_an_imported_function_may_be_differentiated_twice_and_compiled_on_jax() -> None:
    function, (x,) = cases("safe_norm")
    imported = xg.from_custom_vjp(function)

    def loss(f: Any) -> Any:
        return lambda x: f(x) ** 2

    def twice(f: Any) -> Any:
        return jax.jacrev(jax.grad(f))

    x = jnp.asarray(x)
    for transform in (jax.grad, twice, lambda f: jax.jit(twice(f))):
        np.testing.assert_allclose(
            transform(loss(imported))(x), transform(loss(function))(x), rtol=1e-5, atol=1e-5
        )


def through_int8(x: Any) -> Any:
    q = jnp.clip(jnp.round(x * 10), -8, 7).astype(jnp.int8)
    return x + jax.lax.stop_gradient(q * jnp.asarray(0.1, x.dtype) - x)


USES: dict[str, Any] = {
    "by itself": lambda round_through, _: lambda x: round_through(x) * 1.5,
    "inside of vmap": lambda round_through, _: lambda x: jax.vmap(round_through)(x) * 1.5,
    "beside another": lambda round_through, other: lambda x: other(x) + round_through(x),
    "beside a stopped gradient": lambda round_through, _: lambda x: through_int8(round_through(x)),
}


@pytest.mark.parametrize("use", USES)
def test_derivatives_of_a_captured_function_pass_by_the_rules_inside_of_it(
    backend: Any, use: str
) -> None:
    (rounded, _), (quantize, _) = cases("round_through"), cases("quantize")
    own = USES[use](rounded, quantize)
    of = xg.function(USES[use](rounded, xg.from_custom_vjp(quantize)), native=False)
    assert_as_in("jax", own, X, of=of, backend=backend, rtol=2e-6, atol=1e-6)


def test_a_function_that_cannot_be_captured_runs_as_it_is_on_jax_and_says_so_elsewhere() -> None:
    @jax.custom_vjp
    def largest_first(x: Any) -> Any:
        return x * 2

    def forward(x: Any) -> Any:
        return x * 2, (x if float(np.asarray(x).sum()) > 0 else -x)

    largest_first.defvjp(forward, lambda kept, g: (g * kept,))
    imported = xg.from_custom_vjp(largest_first)
    gradient = jax.grad(lambda x: imported(x).sum())(jnp.asarray(-X - 4))
    np.testing.assert_array_equal(gradient, X + 4)
    strict = xg.from_custom_vjp(largest_first)
    strict.native = False
    with pytest.raises(
        xg.TraceError, match=r"'largest_first'.*turns a tensor into a Python number"
    ):
        strict(X)


def test_a_tangent_rule_that_is_not_linear_is_refused() -> None:
    @jax.custom_jvp
    def odd(x: Any) -> Any:
        return x

    odd.defjvp(lambda primals, tangents: (primals[0], tangents[0] * tangents[0]))
    with pytest.raises(xg.GradientError, match=r"'odd'.*not linear"):
        xg.vjp(xg.from_custom_vjp(odd), X)


def test_an_argument_of_integers_has_no_tangent() -> None:
    @jax.custom_jvp
    def product(x: Any, n: Any) -> Any:
        return x * n

    product.defjvp(lambda p, t: (p[0] * p[1], t[0] * p[1] + t[1] * p[0]))
    n = np.arange(X.size, dtype=np.int32).reshape(X.shape)
    _, pullback = xg.vjp(xg.from_custom_vjp(product), X, n)
    np.testing.assert_array_equal(pullback(np.ones_like(X))[0], n)


def test_the_wrong_number_of_cotangents_is_an_error_that_says_how_many() -> None:
    @jax.custom_vjp
    def product(x: Any, y: Any) -> Any:
        return x * y

    product.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, g: (g,))
    with pytest.raises(xg.GradientError, match="returned 1 for 2 arguments"):
        xg.vjp(xg.from_custom_vjp(product), X, Y)
    product.defvjp(lambda x, y: x * y, lambda kept, g: (g, g))
    with pytest.raises(xg.GradientError, match="its rule returned a tensor; expected a pair"):
        xg.vjp(xg.from_custom_vjp(product), X, Y)


def test_what_is_no_custom_function_is_refused_with_the_way_out() -> None:
    for other in (jnp.sin, jax.jit(jnp.sin), lambda x: (x, lambda g: g), 3):
        with pytest.raises(TypeError, match=r"xg\.custom_gradient"):
            xg.from_custom_vjp(other)


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_function_without_rules_is_refused(kind: str) -> None:
    @getattr(jax, kind)
    def unfinished(x: Any) -> Any:
        return x

    # Where a captured function calls it, too, as jax refuses each call.
    calls = (xg.from_custom_vjp, xg.convert, lambda f: xg.convert(lambda x: 2 * f(x))(np.ones(3)))
    for call in calls:
        with pytest.raises(TypeError, match=r"'unfinished' has no rule yet: call f\.def"):
            call(unfinished)


def of_two_forwards(scale: float, optimize_remat: bool = False) -> Any:
    """Return tanh by another formula where it is differentiated, times `scale` where it is not."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.tanh(x) * scale

    def fwd(x: Any) -> Any:
        return (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x)), x

    f.defvjp(fwd, lambda x, g: (g * (1 - jnp.tanh(x) ** 2),), optimize_remat=optimize_remat)
    return f


def test_a_rule_is_captured_whose_function_alone_cannot_be() -> None:
    from jax.scipy.special import zeta

    x, q = np.full(3, 2.5, np.float32), np.ones(3, np.float32)
    assert_as_in("jax", zeta, x, q, of=xg.from_custom_vjp(zeta), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimize_remat", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1.01])
def test_a_rule_that_computes_another_value_than_its_function_is_as_it_is_on_jax(
    scale: float, optimize_remat: bool
) -> None:
    original = of_two_forwards(scale, optimize_remat)
    ours, x = xg.from_custom_vjp(original), np.array([0.25, 0.5, -2.0], np.float32)

    def losses(f: Any) -> list[Any]:
        kept = jax.checkpoint(lambda x: (f(f(x)) ** 2).sum())
        return [
            f(jnp.asarray(x)),
            *jax.value_and_grad(lambda x: (f(x) ** 2).sum())(x),
            jax.grad(kept)(x),
        ]

    for found, expected in zip(losses(ours), losses(original), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_on_other_frameworks_it_is_refused_where_the_values_differ() -> None:
    x = np.array([0.25, 0.5, -2.0], np.float32)
    np.testing.assert_allclose(xg.from_custom_vjp(of_two_forwards(1.0))(x), np.tanh(x), rtol=1e-6)
    with pytest.raises(xg.TraceError, match="something else where it is differentiated"):
        xg.from_custom_vjp(of_two_forwards(1.01))(x)


def test_a_list_of_numbers_that_a_function_does_not_take_is_told() -> None:
    import jax

    scaled: Any = jax.custom_vjp(lambda x, factor: x - factor * 2.0)
    scaled.defvjp(lambda *given: (scaled(*given), None), lambda _, g: (g, -2.0 * g))
    with pytest.raises(TypeError, match=r"numbers in a list.*give numpy\.array\(x\)"):
        xg.convert(scaled)([1.0, 2.0], 2.0)


def test_numbers_alone_give_what_jax_gives_for_them() -> None:
    @jax.custom_vjp
    def scaled_sine(a: Any, n: Any) -> Any:
        return jnp.sin(a) * n

    scaled_sine.defvjp(
        lambda a, n: (scaled_sine(a, n), (a, n)), lambda kept, g: (g * jnp.cos(kept[0]), None)
    )
    function = xg.from_custom_vjp(scaled_sine)
    for given in ((2.0, 3.0), (2, 3), (True, 2.0)):
        result, expected = function(*given), scaled_sine(*given)
        assert (type(result), result.dtype, result.weak_type) == (
            (type(expected), expected.dtype, expected.weak_type)
        )
        assert result == expected
    assert jax.jit(lambda: function(2, 3))() == jax.jit(lambda: scaled_sine(2, 3))()


def test_a_backward_may_give_numbers_for_arguments_that_are_numbers() -> None:
    @jax.custom_vjp
    def product(a: Any, b: Any) -> Any:
        return a * b

    product.defvjp(lambda a, b: (a * b, None), lambda _, g: (1.5, np.float32(2)))
    gradient = jax.grad(xg.from_custom_vjp(product), (0, 1))(2.0, 3.0)
    assert [float(each) for each in gradient] == [1.5, 2.0]


def test_jax_itself_runs_what_only_jax_takes() -> None:
    @jax.custom_jvp
    def alone(x: Any) -> Any:
        return x**2

    @alone.defjvp
    def no_pair(primals: Any, tangents: Any) -> Any:
        return tangents[0]

    @jax.custom_jvp
    def noisy(seed: Any, x: Any) -> Any:
        return x + jax.random.normal(seed, x.shape)

    noisy.defjvp(lambda primals, tangents: (noisy(*primals), 3.0 * tangents[1]))
    applied = jax.custom_jvp(lambda f, x: f(x), nondiff_argnums=(0,))
    applied.defjvp(lambda f, primals, tangents: (f(*primals), 3.0 * tangents[0]))
    first = xg.from_custom_jvp(alone)
    assert first(jnp.float32(3.0)) == 9.0
    with pytest.raises(TypeError, match="must produce a pair"):
        jax.grad(first)(2.0)
    drawn = xg.from_custom_jvp(noisy)
    seed = jax.random.key(0)
    np.testing.assert_array_equal(drawn(seed, jnp.ones(3)), noisy(seed, jnp.ones(3)))
    assert jax.grad(lambda x: drawn(seed, x).sum())(jnp.ones(3)).tolist() == [3.0] * 3
    assert xg.from_custom_jvp(applied)(lambda x: 2 * x, 1) == 2


def test_a_pullback_takes_a_number_for_its_cotangent() -> None:
    flat = xg.function(lambda x: x * 2.0, lambda grad_out, x: xg.xp.zeros_like(grad_out))
    assert jax.vjp(flat, 1.0)[1](1.0)[0] == 0.0


def with_strength() -> Any:
    """Return a product whose first factor jax is told to have no gradient."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def strengthen(strength: Any, x: Any) -> Any:
        return strength * x

    def backward(strength: Any, cosine: Any, g: Any) -> Any:
        return (cosine * g,)

    strengthen.defvjp(lambda s, x: (strengthen(s, x), jnp.cos(x)), backward)
    return xg.from_custom_vjp(strengthen)


def test_a_derivative_by_an_argument_that_has_none_is_refused_by_name() -> None:
    function = with_strength()
    message = "'strengthen'.* 'strength', which is in nondiff_argnums"
    for take in (
        lambda: jax.grad(function)(2.0, 3.0),
        lambda: jax.grad(jax.jit(function))(2.0, 3.0),
        lambda: jax.grad(lambda s: function(s * s, 3.0))(2.0),
        lambda: jax.jvp(function, (2.0, 3.0), (1.0, 1.0)),
        lambda: jax.vmap(jax.grad(function))(X, X),
        lambda: xg.vjp(function, jnp.asarray(X), jnp.asarray(X)),
        lambda: jax.grad(pickle.loads(pickle.dumps(function)))(2.0, 3.0),
        lambda: jax.grad(xg.lower(function, "jax"))(2.0, 3.0),
    ):
        with pytest.raises(xg.GradientError, match=message):
            take()
    square = xg.function(lambda x: function(x * x, x))
    with pytest.raises(xg.MultigradError, match=message):
        jax.grad(lambda x: square(x).sum())(jnp.asarray(X))
    with pytest.raises(xg.MultigradError, match=message):
        xg.vjp(square, X)


def test_an_argument_that_has_no_gradient_may_be_traced_for_anything_else() -> None:
    function = with_strength()
    slope = jax.grad(function, 1)
    assert jax.jit(function)(2.0, 3.0) == 6.0
    np.testing.assert_allclose(jax.jit(slope)(2.0, X[1]), np.cos(X[1]), rtol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(slope)(jnp.asarray(Y), jnp.asarray(X)), np.cos(X), rtol=1e-6
    )
    np.testing.assert_array_equal(jax.vmap(function)(jnp.asarray(Y), jnp.asarray(X)), Y * X)
    assert jax.jvp(lambda x: function(2.0, x), (0.0,), (1.0,))[1] == 1.0
    stopped = jax.grad(lambda s: function(jax.lax.stop_gradient(s), 3.0) + s)
    assert stopped(2.0) == 1.0


@pytest.mark.parametrize("backward", ["by names", "by its jaxpr", "by jax.vjp"])
def test_zeros_of_no_bytes_are_no_gradient(backward: str) -> None:
    def pick(x: Any, places: Any) -> Any:
        return x[places] * 2.0

    def pull(kept: Any, g: Any) -> Any:
        x, places = kept
        if backward == "by jax.vjp":
            return jax.vjp(pick, x, places)[1](g)
        g = jax.vmap(lambda row: row * 2.0)(g) if backward == "by its jaxpr" else g * 2.0
        nothing = np.zeros(places.shape, jax.dtypes.float0)
        return jnp.zeros_like(x).at[places].add(g), nothing

    picked = jax.custom_vjp(pick)
    picked.defvjp(lambda x, places: (pick(x, places), (x, places)), pull)
    x, places = np.array([1.0, 2.0, 3.0], np.float32), np.array([0, 2], np.int32)
    given = jnp.asarray(x), jnp.asarray(places)
    converted = xg.convert(picked)
    gradient = jax.grad(lambda x: converted(x, given[1]).sum())(given[0])
    np.testing.assert_array_equal(gradient, [2.0, 0.0, 2.0])
    y, pullback = xg.vjp(converted, x, places)
    np.testing.assert_array_equal(y, x[places] * 2)
    first, second = pullback(np.ones(2, np.float32))
    np.testing.assert_array_equal(first, [2.0, 0.0, 2.0])
    assert second is None


def test_a_cotangent_of_no_bytes_is_zero() -> None:
    def both(x: Any) -> Any:
        return x * 2.0, x > 1

    x = jnp.asarray([1.0, 2.0])
    cotangent = np.zeros(2, jax.dtypes.float0)
    for function in (both, xg.function(both, lambda g, x: g[0] * 2.0)):
        (gradient,) = xg.vjp(function, x)[1]((x, cotangent))
        np.testing.assert_array_equal(gradient, 2 * x)


def test_a_tangent_that_is_indexed_by_values_is_transposed(backend: Any) -> None:
    @jax.custom_jvp
    def corners(x: Any) -> Any:
        order = jnp.argsort(x[0])
        return x[order, order]

    @corners.defjvp
    def tangent(primals: Any, tangents: Any) -> Any:
        order = jnp.argsort(primals[0][0])
        return corners(*primals), 2 * tangents[0][order, order]

    x, of = np.array([[0.5, -1.0], [2.0, 3.0]], np.float32), xg.from_custom_jvp(corners)
    assert_as_in("jax", corners, x, of=of, backend=backend, rtol=0, atol=0)


@pytest.mark.parametrize("order", [1, 2])
def test_a_choice_of_numbers_by_a_number_is_a_number(backend: Any, order: int) -> None:
    expn, x = jax.scipy.special.expn, np.array([[0.25, 0.5], [0.75, 2.5]], np.float32)
    assert_as_in("jax", expn, order, x, of=xg.convert(expn), backend=backend, atol=0)
