"""Constant arrays in a rule: written out, closed over, global or a default; on every backend, in
the input's dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, 0.0]], np.float32)
G = np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)
WEIGHTS = np.array([0.1, 0.2, 0.3])  # float64
MASK = np.array([True, False, True])


def run(backend: Any, rule: xg.Rule, dtype: Any = np.float32, **params: Any) -> Any:
    with backend.precision(dtype):
        g, x = backend.array(G.astype(dtype)), backend.array(X.astype(dtype))
        return backend.numpy(rule(None, g, x, **params))


def a_list(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * np.array([0.1, 0.2, 0.3])


def a_global(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return WEIGHTS * grad_out


def a_default(ctx: Any, grad_out: Any, tin: Any, *, _weights: Any = (0.1, 0.2, 0.3)) -> Any:
    return np.multiply(grad_out, np.asarray(_weights))


def of_helper(grad_out: Any) -> Any:
    return grad_out * WEIGHTS


def in_a_helper(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return of_helper(grad_out)


def in_xp(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * xp.asarray([0.1, 0.2, 0.3])


def make_closure() -> Callable[..., Any]:
    weights = np.array([0.1, 0.2, 0.3], np.float16) * 0 + WEIGHTS

    def closed_over(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * weights

    return closed_over


WEIGHTED = [a_list, a_global, a_default, in_a_helper, in_xp, make_closure()]


@pytest.mark.parametrize("function", WEIGHTED, ids=lambda f: f.__name__)
def test_constant_takes_the_inputs_dtype(function: Any, backend: Any, captured: Any) -> None:
    rule = captured(function)
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        given = run(backend, rule, dtype)
        assert given.dtype == dtype
        np.testing.assert_array_equal(given, G.astype(dtype) * WEIGHTS.astype(dtype))


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("function", [a_list, a_global], ids=lambda f: f.__name__)
def test_constant_acts_in_backward_eager_and_compiled(
    function: Any, backend: Any, captured: Any
) -> None:
    act = xg.activation("ReLU", captured(function))
    options = {"torch": {"backend": "aot_eager", "fullgraph": True}}.get(backend.name, {})
    for f in (xg.jit(act, backend.name, **options), act):  # first captured by the compiler
        y, grad_in = backend.vjp(f, X, G)
        np.testing.assert_array_equal(y, np.maximum(X, 0))
        np.testing.assert_allclose(grad_in, G * WEIGHTS.astype(np.float32), rtol=1e-6)


@pytest.mark.needs("torch")
def test_constant_does_not_leak_out_of_a_transform(captured: Any, torch: Any) -> None:
    act, x = xg.activation("ReLU", captured(a_list)), torch.from_numpy(X)
    wanted = np.broadcast_to(WEIGHTS.astype(np.float32), X.shape)
    per_row = torch.func.vmap(torch.func.grad(lambda row: act(row).sum()))
    np.testing.assert_allclose(per_row(x), wanted)
    with torch.inference_mode():
        act(x)
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(act(leaf).sum(), leaf, create_graph=True)
    np.testing.assert_allclose(first.detach(), wanted)
    np.testing.assert_allclose(per_row(x), wanted)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dynamic", [None, True])
def test_constants_of_rules_in_turn_under_torch_compile(dynamic: bool | None, torch: Any) -> None:
    def make(weights: list[float]) -> Callable[..., Any]:
        return lambda ctx, grad_out, tin: grad_out * torch.tensor(weights)

    act = xg.activation("Linear")
    f = torch.compile(lambda x: act(x), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    rules = [make([1.0, 2.0, 3.0 + i]) for i in range(2)]
    for _ in range(2):
        for i, rule in enumerate(rules):
            for n in (2, 3):
                x = torch.ones(n, 3, requires_grad=True)
                with xg.use(rule):
                    f(x).sum().backward()
                assert x.grad is not None and x.grad[-1].tolist() == [1.0, 2.0, 3.0 + i]


@pytest.mark.needs("jax")
def test_tensor_of_a_trace_around_the_rule_is_refused(captured: Any, jax: Any) -> None:
    def scaled_by_a_tracer(factor: Any) -> Any:
        rule = captured(functools.partial(times, factor))
        return xg.activation("ReLU", rule)(X)

    with pytest.raises(xg.TraceError, match=r"known at run time only. Pass it as a param"):
        jax.jit(scaled_by_a_tracer)(WEIGHTS)


@pytest.mark.needs("jax")
@pytest.mark.usefixtures("quick_collections")
def test_constant_does_not_leak_out_of_a_trace(captured: Any, jax: Any) -> None:
    act = xg.activation("ReLU", captured(a_list))
    wanted = np.broadcast_to(WEIGHTS.astype(np.float32), X.shape)
    with jax.check_tracer_leaks():
        for f in (jax.jit(act), act, jax.jit(jax.vmap(act)), act):
            np.testing.assert_allclose(jax.grad(lambda x, f=f: f(x).sum())(X), wanted)


def bits(tensor: Any) -> Any:
    return xp.cast(tensor * 4, "int32")


EXACT: dict[str, tuple[Callable[..., Any], Any]] = {
    "bools are a mask": (
        lambda ctx, g, x: xp.where((x > 0) & MASK, g, 0.0) + g * ~MASK,
        np.where((X > 0) & MASK, G, 0) + G * ~MASK,
    ),
    "integers count in the input's dtype": (
        lambda ctx, g, x: g * np.arange(3) + (x > np.array([[0], [1]])),
        G * np.arange(3) + np.greater(X, np.array([[0], [1]])),
    ),
    "integers meet bits": (
        lambda ctx, g, x: g * (bits(x) & np.array([1, 2, 3]) | np.array([[0], [4]])),
        G * ((X * 4).astype(np.int32) & [1, 2, 3] | [[0], [4]]),
    ),
    "numbers without axes are numbers": (
        lambda ctx, g, x: g * np.float64(0.5) + x * np.array(2.0) + np.int64(3),
        G * 0.5 + X * 2 + 3,
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_constant_is_exact(name: str, backend: Any, captured: Any) -> None:
    function, wanted = EXACT[name]
    rule = captured(function)
    np.testing.assert_array_equal(run(backend, rule), wanted)
    assert "array(" not in xg.show(rule) or "without axes" not in name


def test_constant_meets_a_cast_tensor_unrounded(backend: Any, captured: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        wide = xp.cast(grad_out, "float32") * WEIGHTS
        return xp.cast(wide * 1024.0 - 1024.0 * 0.1, grad_out.dtype)

    wide = G.astype(np.float32) * WEIGHTS.astype(np.float32)
    wanted = (wide * np.float32(1024) - np.float32(102.4)).astype(np.float16)
    given = run(backend, captured(rule), np.float16)
    np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-3)


LENGTHS = {
    "a shape": lambda torch, x: x / torch.tensor(x.shape).prod().item(),
    "a list of lengths": lambda torch, x: x / torch.as_tensor([[x.shape[0], 3.0]]).prod().item(),
    "a list of lengths in NumPy": lambda torch, x: x / float(np.array([x.shape[0], 3]).prod()),
    "ones in NumPy": lambda torch, x: x * torch.ones(3).add(1).numpy(),
}


@pytest.mark.needs("torch")
@pytest.mark.backends("numpy")
@pytest.mark.parametrize("name", LENGTHS)
def test_a_tensor_of_lengths_or_numbers_alone_is_a_constant(name: str, torch: Any) -> None:
    def code(x: Any) -> Any:
        return LENGTHS[name](torch, x)

    function = xg.function(code, native=False)
    for x in (X, X[:1], X[:, :1]):
        np.testing.assert_allclose(function(x), code(x), rtol=1e-6)
        np.testing.assert_allclose(xg.vjp(code, x)[0], code(x), rtol=1e-6)


def test_captured_values_are_those_of_the_call(captured: Any) -> None:
    weights = np.ones(3)
    rule = captured(lambda ctx, grad_out, tin: grad_out * weights)
    np.testing.assert_array_equal(rule(None, G, X), G)
    weights[:] = 5.0
    np.testing.assert_array_equal(rule(None, G, X), 5 * G)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_constant_tensor_of_any_framework(backend: Any, captured: Any) -> None:
    weights = backend.array(WEIGHTS.astype(np.float32))
    rule = captured(lambda ctx, grad_out, tin: grad_out * weights)
    np.testing.assert_allclose(rule(None, G, X), G * WEIGHTS.astype(np.float32))
    np.testing.assert_allclose(run(backend, rule), G * WEIGHTS.astype(np.float32))
    assert xg.show(rule).count("<float32[3] ") == 1


@pytest.mark.needs("torch")
def test_tensor_written_out_in_torch(backend: Any, captured: Any, torch: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        bounds = torch.tensor([[0.5], [1.0]])
        steps = torch.arange(tin.shape[-1]) * tin.new_tensor([1, 2, 3])
        inside = torch.where(tin.abs() < bounds, torch.tensor(1.0), torch.tensor(0.0))
        return grad_out * inside * steps

    wanted = G * (np.abs(X) < [[0.5], [1.0]]) * (np.arange(3) * [1, 2, 3])
    np.testing.assert_array_equal(run(backend, captured(rule)), wanted)


@pytest.mark.needs("torch")
def test_tensors_made_from_a_shape(backend: Any, captured: Any, torch: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        result = torch.ones(tin.shape, dtype=tin.dtype, device=tin.device) + np.zeros(tin.shape)
        result = result + torch.full(tin.shape, 0.5) + np.full(tin.shape, 2.0)
        result = result + tin.new_ones(tin.shape) + tin.new_full(tin.shape, 3.0)
        nothing = torch.zeros(size=tin.shape, dtype=torch.bool) | tin.new_zeros(3).bool()
        return torch.where(nothing, tin, grad_out * result) + torch.zeros(3)

    rule_ = captured(rule)
    np.testing.assert_array_equal(run(backend, rule_), G * 7.5)
    assert "tin: T[...]" in xg.show(rule_)  # for every shape: the rule did not ask for one


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["expand_as", "view_as", "reshape_as", "type_as", "to"])
def test_methods_that_take_another_tensor_take_a_constant_on_either_side(
    name: str, torch: Any
) -> None:
    def of_constant(x: Any) -> Any:
        return getattr(torch.arange(6).view(2, 3), name)(x) + x

    def by_constant(x: Any) -> Any:
        return getattr(x, name)(torch.zeros(2, 3, dtype=torch.float64)) + x

    x = torch.tensor([[0.3, -0.7, 2.0], [1.5, 0.0, -2.0]])
    for function in (of_constant, by_constant):
        made = xg.function(function, lambda g, x: g, native=False, dialect="torch")
        assert made(x).dtype == function(x).dtype
        torch.testing.assert_close(made(x), function(x), rtol=0, atol=0)


@pytest.mark.needs("torch")
def test_a_tensor_made_of_numbers_alone_lists_them(torch: Any) -> None:
    def repeated(x: Any) -> Any:
        factor = (torch.full((2,), 0.1, dtype=x.dtype) * 3).tolist()[1]
        times = torch.ones(x.dim()).tolist()
        return x.repeat([*map(int, times), 2]) * factor

    made = xg.function(repeated, lambda g, x: None, native=False, dialect="torch")
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([[0.3, -0.7], [2.0, 1.5]], dtype=dtype)
        torch.testing.assert_close(made(x), repeated(x), rtol=0, atol=0)
    listing = xg.function(lambda x: x * x.tolist()[0][0], None, native=False, dialect="torch")
    with pytest.raises(xg.TraceError, match=r"calls \.tolist\(\): a symbolic tensor holds no numb"):
        listing(x)


@pytest.mark.needs("torch")
def test_tensor_of_a_known_shape_costs_a_capture_per_shape(
    backend: Any, captured: Any, torch: Any
) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * torch.ones(tin.shape[0], 1) + torch.zeros(*tin.shape)

    made = captured(rule)
    for n in (1, 2):
        given = made(None, backend.array(G[:n]), backend.array(X[:n]))
        np.testing.assert_array_equal(backend.numpy(given), G[:n])


@pytest.mark.needs("torch")
def test_conversion_of_a_tensor_is_no_constant(backend: Any, captured: Any, torch: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        doubled = np.array(grad_out)
        doubled *= 2
        same = torch.as_tensor(tin, dtype=grad_out.dtype) + np.asarray(tin)
        return doubled + grad_out * same + np.array([grad_out, tin]).sum(axis=0)

    np.testing.assert_allclose(run(backend, captured(rule)), 3 * G + G * 2 * X + X, rtol=1e-6)


@pytest.mark.needs("torch")
def test_draw_of_a_shape_follows_the_key(backend: Any, captured: Any, torch: Any) -> None:
    rule = captured(lambda ctx, g, x: g * 0 + torch.rand(x.shape) + torch.randn(x.shape) * 0)
    first, again, other = (run(backend, rule, key=key) for key in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert (first >= 0).all() and (first < 1).all()


# --- what is refused ------------------------------------------------------------------------------

BROADCASTS_UP = np.ones((4, 1, 1))
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "large": (lambda g: g * np.ones((257, 256)), (r"shape \(257, 256\), 65792 "
                                                 r"elements.*native=True")),
    "complex number": (lambda g: g * 1j, "uses a complex number.*real and the imaginary part"),
    "complex": (lambda g: g * np.array([1j, 2j, 3j]), "dtype complex128: rules compute in"),
    "words": (lambda g: g * np.array(["a", "b", "c"]), "dtype <U1"),
    "drawn": (lambda g: g * np.random.rand(3), "another graph each time.*rand_like"),
    "uneven": (lambda g: xp.multiply(g, [[1.0], [1.0, 2.0]]), ("no array of numbers|raised "
                                                              "ValueError")),
    "object": (lambda g: xp.multiply(g, object()), "uses a object, which is not captured"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_a_constant(what: str, captured: Any) -> None:
    call, message = REFUSED[what]
    rule = captured(lambda ctx, grad_out, tin: call(grad_out))
    with pytest.raises(xg.TraceError, match=f"rule 'under test'.*{message}"):
        rule(None, G, X)


def test_constant_larger_than_the_input_is_a_gradient_error(backend: Any, captured: Any) -> None:
    rule = captured(lambda ctx, grad_out, tin: grad_out * BROADCASTS_UP)
    with pytest.raises(xg.GradientError, match=r"returned shape \(4, 2, 3\) for an input of shape"):
        run(backend, rule)


def times(factor: Any, ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * factor


@pytest.mark.needs("torch")
def test_tensor_that_waits_for_a_gradient_is_refused(captured: Any, torch: Any) -> None:
    weight, number = torch.nn.Parameter(torch.ones(3)), torch.tensor(2.0, requires_grad=True)
    for learned in (weight, number):
        rule = captured(functools.partial(times, learned))
        with pytest.raises(xg.TraceError, match=r"waits for a gradient.*param.*detach"):
            rule(None, G, X)


def test_uncaptured_size_runs_as_it_is_where_native_is_true() -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * np.ones((70_000,), np.float32)

    made = xg.compose(rule)
    x = np.ones(70_000, np.float32)
    with pytest.warns(xg.NativeRuleWarning, match="70000 elements"):
        np.testing.assert_array_equal(made(None, x, x), x)


def test_an_array_that_xp_makes_has_the_kind_of_the_dtype_that_is_asked_for() -> None:
    assert xp.arange(6, step=2).tolist() == [0, 2, 4] == xp.arange(0, 6, 2).tolist()
    shapes = ((xp.ones, (2,)), (xp.zeros, (2,)), (xp.eye, 2), (xp.arange, 3), (xp.asarray, [1, 2]))
    for make, given in shapes:
        assert make(given, dtype=xp.int16).dtype == np.int16
        assert make(given, dtype=xp.float32).dtype.kind == "f"
        assert make(given, dtype=xp.bool).dtype == np.bool_
    assert xp.full((2,), 1, dtype=xp.float32).dtype.kind == "f"
    assert xp.linspace(0, 4, 3, dtype=xp.int32).tolist() == [0, 2, 4]
