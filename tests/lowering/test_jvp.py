"""`xg.jvp`: outputs and tangents by one call, the same on every framework and on NumPy. What holds
of all is that forward and reverse mode are transposes: `sum(u * jvp(v)) == sum(vjp(u) * v)`.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..golden.graphs import NAMES
from ..harness.estimator_cases import CASES
from ..harness.estimator_cases import X as SPREAD
from ..harness.torch_class import torch_class

xp = xg.xp
EPS = np.finfo(np.float64).eps
generator = np.random.default_rng(7)
X, W, B = (generator.normal(size=shape) for shape in ((3, 4), (4, 2), (2,)))
U, V = generator.normal(size=(3, 2)), generator.normal(size=(3, 4))


@xg.custom_gradient
def layer(x: Any, w: Any, b: Any) -> Any:
    """Twice the true gradient, of the output as forward gave it."""
    y = xp.tanh(x @ w + b)

    def grad(upstream: Any) -> Any:
        inner = 2.0 * upstream * (1.0 - y * y)
        return inner @ w.T, x.T @ inner, xp.sum(inner, axis=0)

    return y, grad


@xg.custom_gradient
def both(x: Any, scale: float = 2.0) -> Any:
    """Two outputs, of which one has no gradient."""
    return (x * scale, x > 0), lambda upstream, _: (3.0 * scale * upstream, None)


def products(
    backend: Any, f: Any, inputs: Any, tangents: Any, within: Any = nullcontext
) -> tuple[float, float, float]:
    """Return the product of a cotangent of the first output with its tangent, that of the gradients
    with the tangents given, and the sizes of their terms together.
    """
    own = tuple(backend.array(x) if isinstance(x, np.ndarray) else x for x in inputs)
    moves = tuple(None if t is None else backend.array(t) for t in tangents)
    with within():
        outputs, found = xg.jvp(f, own, moves)
    with within():
        again, pull = xg.vjp(f, *own)
    several = isinstance(outputs, tuple)
    output, other, tangent = (each[0] if several else each for each in (outputs, again, found))
    output, other, tangent = map(backend.numpy, (output, other, tangent))
    np.testing.assert_array_equal(output, other)
    assert (tangent.dtype, tangent.shape) == (output.dtype, output.shape)
    u = generator.normal(size=tangent.shape)
    given = backend.array(u)
    gradients = pull((given, *(None for _ in outputs[1:])) if several else given)
    pairs = [(g, t) for g, t in zip(gradients, tangents, strict=True) if t is not None]
    left, right = u * tangent, [backend.numpy(g) * t for g, t in pairs]
    size = sum(np.abs(each).sum() for each in (left, *right))
    return float(left.sum()), float(sum(each.sum() for each in right)), float(size)


def assert_transposes(
    backend: Any, f: Any, inputs: Any, tangents: Any, within: Any = nullcontext
) -> None:
    with backend.precision(np.float64):
        left, right, size = products(backend, f, inputs, tangents, within)
    elements = sum(x.size for x in inputs if isinstance(x, np.ndarray))
    assert abs(left - right) <= 4 * EPS * elements * size


@pytest.mark.parametrize("tangents", [(V, W, B), (V, None, None), (None, W, None), (None, None, B)])
def test_a_function_is_pushed_by_the_transpose_of_its_backward(backend: Any, tangents: Any) -> None:
    assert_transposes(backend, layer, (X, W, B), tangents)


def test_the_tangent_is_that_of_the_own_gradient_and_not_of_the_forward(backend: Any) -> None:
    with backend.precision(np.float64):
        given = tuple(map(backend.array, (X, W, B)))
        y, tangent = xg.jvp(layer, given, (backend.array(V), None, None))
    expected = np.tanh(X @ W + B)
    np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-12)
    np.testing.assert_allclose(
        backend.numpy(tangent), 2.0 * (1.0 - expected**2) * (V @ W), rtol=1e-12
    )


@xg.custom_gradient
def with_zeros(x: Any, w: Any) -> Any:
    """The true gradient, added to zeros, beside zeros, and halfway from zeros."""

    def grad(upstream: Any) -> Any:
        zeros = xp.reshape(xp.zeros_like(w), (2, 4))
        halfway = xp.lerp(-zeros, upstream.T @ x, 0.5)
        whole = xp.concatenate([halfway, zeros * 1.0 + zeros])[:2] * 2.0
        return xp.zeros_like(x) + upstream @ w.T, whole.T

    return x @ w, grad


def test_zero_is_linear_in_the_cotangent_wherever_it_stands(backend: Any) -> None:
    assert_transposes(backend, with_zeros, (X, W), (V, W))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("form", ["index_add", "index_add_", "scatter_add", "index_put_"])
def test_a_lookup_that_adds_its_cotangents_to_zeros_has_forward_mode(form: str) -> None:
    import torch

    def backward(ctx: Any, g: Any) -> Any:
        places, table = ctx.saved_tensors
        zeros = torch.zeros_like(table)
        if form == "scatter_add":
            return None, zeros.scatter_add(0, places[:, None].expand(-1, table.shape[1]), g)
        if form == "index_put_":
            return None, zeros.index_put_((places,), g, accumulate=True)
        return None, getattr(zeros, form)(0, places, g)

    @torch_class(backward)
    def lookup(ctx: Any, x: Any, table: Any) -> Any:
        places = ((x[:, None] - table) ** 2).sum(-1).argmin(1)
        ctx.save_for_backward(places, table)
        return table[places]

    f = xg.convert(lookup)
    x, table, move = (torch.tensor(generator.normal(size=(n, 3))) for n in (5, 4, 4))
    _, tangent = torch.func.jvp(lambda t: f(x, t), (table,), (move,))
    differences = (f(x, table + 1e-6 * move) - f(x, table - 1e-6 * move)) / 2e-6
    torch.testing.assert_close(tangent, differences, rtol=1e-8, atol=1e-8)
    jacobian = torch.func.jacfwd(f, 1)(x, table)
    torch.testing.assert_close(jacobian, torch.func.jacrev(f, 1)(x, table))
    hessian = torch.func.hessian(lambda t: (f(x, t) ** 2).sum())(table)
    counts = jacobian.flatten(0, 1).flatten(1).sum(0)  # how often each number is looked up
    torch.testing.assert_close(hessian.reshape(12, 12), torch.diag(2.0 * counts))


def test_a_function_of_code_is_pushed_through_the_functions_in_it(backend: Any) -> None:
    act = xg.activation("Heaviside", "triangular", {"width": 2.0})

    def block(x: Any, w: Any, b: Any) -> Any:
        return act(layer(x, w, b) * 3.0) + (x @ w) * 0.5

    assert_transposes(backend, block, (X, W, B), (V, W, None))


def test_an_output_without_gradient_has_no_tangent(backend: Any) -> None:
    with backend.precision(np.float64):
        (y, mask), (tangent, nothing) = xg.jvp(
            both, (backend.array(X), 0.5), (backend.array(V), None)
        )
    np.testing.assert_array_equal(backend.numpy(mask), X > 0)
    np.testing.assert_allclose(backend.numpy(tangent), 1.5 * V, rtol=1e-15)
    np.testing.assert_allclose(backend.numpy(y), 0.5 * X, rtol=1e-15)
    assert nothing is None


def test_what_no_tangent_reaches_is_zero(backend: Any) -> None:
    with backend.precision(np.float64):
        x, w = backend.array(X), backend.array(W)
        _, found = xg.jvp(lambda x, w: (x * 2.0, w * 3.0), (x, w), (backend.array(V), None))
    np.testing.assert_array_equal(backend.numpy(found[0]), 2.0 * V)
    np.testing.assert_array_equal(backend.numpy(found[1]), np.zeros_like(W))


def test_every_rule_is_pushed_or_refused_by_name(backend: Any) -> None:
    refused = set()
    for name in NAMES:
        act = xg.activation("Tanh")
        try:
            assert_transposes(backend, act, (X,), (V,), lambda n=name: xg.use(n, key=7))
        except (xg.UnsupportedOp, xg.GradientError) as error:
            if "ForwardAccumulator gives None" in str(error):  # TensorFlow's zero, and its unknown
                assert not xg.get(name)(None, V, X).any()
                continue
            assert name in str(error)
            assert "linear" in str(error)
            refused.add(name)
        except AssertionError as error:
            raise AssertionError(f"rule {name!r}") from error
    assert {"clip_norm", "sign", "noise", "guided"} <= refused
    assert len(refused) < 30


@pytest.mark.parametrize(("name", "rest"), CASES, ids=lambda each: str(each)[:20])
def test_every_estimator_is_pushed_or_refused_by_name(backend: Any, name: str, rest: Any) -> None:
    x = np.abs(np.tanh(SPREAD)) if name == "bernoulli_straight_through" else SPREAD
    moves = [generator.normal(size=a.shape) if isinstance(a, np.ndarray) else None for a in rest]
    tangents = (generator.normal(size=x.shape), *moves)
    function = getattr(xg.estimators, name)
    if name == "clamp_with_grad":
        with pytest.raises((xg.UnsupportedOp, xg.GradientError), match=rf"{name}.*linear"):
            assert_transposes(backend, function, (x, *rest), tangents)
        return
    assert_transposes(backend, function, (x, *rest), tangents)


def test_a_function_that_is_not_linear_in_its_cotangents_is_refused_by_name(backend: Any) -> None:
    @xg.custom_gradient
    def clipped(x: Any) -> Any:
        return x * 2.0, lambda upstream: xp.clip(upstream, -1.0, 1.0)

    x = backend.array(X.astype(np.float32))
    with pytest.raises((xg.UnsupportedOp, xg.GradientError), match=r"clipped.*linear"):
        xg.jvp(clipped, (x,), (x,))
    _, tangent = xg.jvp(lambda a: a + clipped(x), (x,), (x,))  # none reaches it
    np.testing.assert_array_equal(backend.numpy(tangent), X.astype(np.float32))


@pytest.mark.parametrize(
    ("tangents", "message"),
    [
        ((V, V), "nested alike"),
        (((V,),), "nested alike"),
        ((V[:2],), r"shape \(2, 4\) for input 0 of shape \(3, 4\)"),
    ],
)
def test_tangents_that_do_not_fit_are_refused(backend: Any, tangents: Any, message: str) -> None:
    with backend.precision(np.float64), pytest.raises(xg.RuleError, match=message):
        xg.jvp(layer, (backend.array(X),), tangents)


def test_a_tangent_of_an_integer_is_refused(backend: Any) -> None:
    x = backend.array(np.arange(3, dtype=np.int32))
    with pytest.raises(xg.RuleError, match="input 0, which is no float tensor"):
        xg.jvp(lambda x: x * 2, (x,), (x,))


def test_arguments_are_nested(backend: Any) -> None:
    with backend.precision(np.float64):
        x, w, v = map(backend.array, (X, W, V))
        _, tangent = xg.jvp(
            lambda both: {"y": both["x"] @ both["w"]}, ({"x": x, "w": w},), ({"x": v, "w": None},)
        )
    np.testing.assert_allclose(backend.numpy(tangent["y"]), V @ W, rtol=1e-14)


# --- tangent rules of authors' own ----------------------------------------------------------------
def steep() -> Any:
    """Three times the true tangent, in two arguments, of which the rule calls its function."""
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def steep(x: Any, w: Any) -> Any:
        return jnp.tanh(x) * w

    @steep.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, w), (dx, dw) = primals, tangents
        y = steep(x, w)
        return y, 3.0 * dx * (1.0 - jnp.tanh(x) ** 2) * w + dw * y

    return steep


@pytest.mark.needs("jax")
def test_the_rule_of_a_custom_jvp_is_its_tangent_everywhere(backend: Any) -> None:
    f = xg.from_custom_jvp(steep())
    w, v = X * 0.5 + 1.0, V[:, ::-1].copy()
    with backend.precision(np.float64):
        y, tangent = xg.jvp(f, tuple(map(backend.array, (X, w))), tuple(map(backend.array, (V, v))))
    y, tangent = backend.numpy(y), backend.numpy(tangent)
    np.testing.assert_allclose(y, np.tanh(X) * w, rtol=1e-14)
    expected = 3.0 * V * (1.0 - np.tanh(X) ** 2) * w + v * np.tanh(X) * w
    np.testing.assert_allclose(tangent, expected, rtol=1e-12)
    assert_transposes(backend, f, (X, w), (V, v))


@pytest.mark.needs("jax")
def test_a_rule_may_call_the_imported_function_by_the_name_that_both_have(backend: Any) -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def softly(x: Any) -> Any:
        return jnp.tanh(x)

    @softly.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        y = softly(*primals)
        return y, 2.0 * (1.0 - y * y) * tangents[0]

    softly = xg.from_custom_jvp(softly)
    with backend.precision(np.float64):
        _, tangent = xg.jvp(softly, (backend.array(X),), (backend.array(V),))
    np.testing.assert_allclose(
        backend.numpy(tangent), 2.0 * (1.0 - np.tanh(X) ** 2) * V, rtol=1e-12
    )


@pytest.mark.needs("jax")
def test_indices_out_of_range_in_a_custom_jvp_get_the_gradient_that_jax_gives() -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def rows(table: Any, ids: Any) -> Any:
        return table[ids]

    @rows.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (table, ids), (slope, _) = primals, tangents
        return rows(table, ids), 2.0 * slope[ids]

    table, ids = jnp.arange(4.0).reshape(2, 2), jnp.array([0, 1, 1, 7, -1, -9])

    def slope_of(f: Any) -> Any:
        return jax.grad(lambda x: (f(x, ids) ** 2).sum())(table)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a capture that were disproven would run as written
        found = slope_of(xg.from_custom_jvp(rows))
    np.testing.assert_array_equal(found, slope_of(rows))


@pytest.mark.needs("jax")
def test_several_indices_in_a_custom_jvp_are_those_of_jax_also_out_of_range(backend: Any) -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def cells(table: Any, i: Any, j: Any) -> Any:
        return table[i, j]

    @cells.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (table, i, j), (slope, *_) = primals, tangents
        return cells(table, i, j), 2.0 * slope[i, j]

    table = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    i, j = np.array([[0, 1, 7, -9], [1, 1, 0, 1]], np.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a capture that were disproven would run as written
        f = xg.from_custom_jvp(cells)
        y, pull = xg.vjp(lambda x: f(x, backend.array(i), backend.array(j)), backend.array(table))
        gradient = pull(y)[0]
    own, own_pull = jax.vjp(lambda x: cells(x, i, j), jnp.asarray(table))
    np.testing.assert_array_equal(backend.numpy(y), own)
    np.testing.assert_array_equal(backend.numpy(gradient), own_pull(own)[0])
    if backend.name == "jax":
        given = (*map(jnp.asarray, (table, i, j)),)
        moves = (given[0], *(np.zeros(i.shape, jax.dtypes.float0),) * 2)
        np.testing.assert_array_equal(jax.jvp(f, given, moves), jax.jvp(cells, given, moves))


@pytest.mark.needs("jax")
def test_jaxs_own_forward_mode_takes_an_imported_custom_jvp() -> None:
    import jax
    import jax.numpy as jnp

    original = steep()
    f, x, w = xg.from_custom_jvp(original), jnp.asarray(X[0], "float32"), jnp.float32(2.0)

    def of(f: Any) -> Any:
        return [
            jax.jvp(f, (x, x), (x, x)),
            jax.jit(lambda x: jax.jvp(f, (x, w), (x, w)))(x),
            jax.jvp(jax.jit(f), (x, x), (x, x)),
            jax.jacfwd(f)(x, x),
            jax.jacrev(f, 1)(x, x),
            jax.linearize(f, x, x)[1](x, x),
            jax.hessian(lambda x: f(x, x).sum())(x),
            jax.vmap(lambda t: jax.jvp(f, (x, x), (t, t))[1])(jnp.eye(4)),
            jax.grad(lambda x: jax.checkpoint(f)(x, x).sum())(x),
            jax.jvp(lambda x: jax.lax.scan(lambda c, _: (f(c, w), c), x, None, 3), (x,), (x,)),
        ]

    for found, expected in zip(of(f), of(original), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@pytest.mark.needs("torch")
def test_a_classs_own_jvp_is_preferred_to_the_transpose_of_its_backward(backend: Any) -> None:
    import torch

    class TwoMinds(torch.autograd.Function):
        """Its jvp is twice what its backward says."""

        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            ctx.save_for_forward(w, x)
            return x * w

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            x, w = ctx.saved_tensors
            return grad_out * w, grad_out * x

        @staticmethod
        def jvp(ctx: Any, dx: Any, dw: Any) -> Any:
            w, x = ctx.saved_tensors
            return 2.0 * (dx * w + dw * x)

    f = xg.from_custom_jvp(TwoMinds)
    own = np.float32 if backend.name == "torch" else np.float64
    x, w, v = (a.astype(own) for a in (X, X + 1.0, V))
    with backend.precision(own):
        given = backend.array(x), backend.array(w)
        _, tangent = xg.jvp(f, given, (backend.array(v), backend.array(v)))
        _, pull = xg.vjp(f, *given)
        gradient = backend.numpy(pull(backend.array(v))[0])
    np.testing.assert_allclose(gradient, v * w, rtol=1e-6)
    # TensorFlow's accumulator transposes backward, and asks nobody.
    slope = 1.0 if backend.name == "tensorflow" else 2.0
    np.testing.assert_allclose(backend.numpy(tangent), slope * (v * w + v * x), rtol=1e-5)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("reads", ["nothing", "a mask"])
def test_a_classs_own_jvp_reads_what_its_backward_does_not(backend: Any, reads: str) -> None:
    import torch

    class Apart(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * 2.0

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            return grad_out * (ctx.saved_tensors[0] > 0) if reads == "a mask" else grad_out * 2.0

        @staticmethod
        def jvp(ctx: Any, dx: Any) -> Any:
            return dx * ctx.saved_tensors[0].cos()

    f, x = xg.convert(Apart), backend.array(X.astype(np.float32))
    _, tangent = xg.jvp(f, (x,), (backend.array(V.astype(np.float32)),))
    slope = np.where(X > 0, 1.0, 0.0) if reads == "a mask" else 2.0
    # TensorFlow's accumulator transposes backward, and asks nobody.
    slope = slope if backend.name == "tensorflow" else np.cos(X)
    np.testing.assert_allclose(backend.numpy(tangent), V * slope, rtol=1e-5)


@pytest.mark.needs("jax", "torch")
def test_what_has_no_tangent_rule_is_no_custom_jvp() -> None:
    import jax

    square = jax.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, g: (2.0 * g * x,))

    @torch_class(lambda ctx, grad_out: 2.0 * grad_out)
    def Doubled(ctx: Any, x: Any) -> Any:
        return 2.0 * x

    for given in (square, Doubled):
        with pytest.raises(TypeError, match="no tangent rule of its own"):
            xg.from_custom_jvp(given)
    with pytest.raises(TypeError, match="has no rule yet"):
        xg.from_custom_jvp(jax.custom_jvp(lambda x: x))
    with pytest.raises(TypeError, match="expected a jax"):
        xg.from_custom_jvp(lambda x: x)


@pytest.mark.needs("jax")
def test_what_forward_mode_costs_reverse_mode_on_jax_is_nothing() -> None:
    """The same residuals, and the same instructions, as without forward mode."""
    import re

    import jax
    import jax.numpy as jnp

    x, w, b = (jnp.asarray(a, "float32") for a in (X, W, B))
    y = layer(x, w, b)
    alone = xg.lower(layer, "jax")
    assert isinstance(alone, jax.custom_vjp)

    def of(f: Any) -> tuple[list[str], int]:
        def loss(*given: Any) -> Any:
            return f(*given).sum()

        text = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, w, b).compile().as_text()
        kept = jax.tree.leaves(jax.vjp(f, x, w, b)[1])
        return sorted(re.findall(r" = \S+ ([a-z-]+)\(", text)), sum(each.nbytes for each in kept)

    found, expected = of(layer), of(alone)
    assert found == expected
    assert found[1] <= sum(each.nbytes for each in (x, w, y))
