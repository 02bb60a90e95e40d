"""Loops that values end, read from jax: on every backend, as text, in files, without derivative."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

jax: Any = pytest.importorskip("jax")
pytestmark = pytest.mark.needs("jax")
jnp, lax = jax.numpy, jax.lax
X = np.array([[0.5, 9.0, -3.0], [100.0, 1.0, 2.5]])


def with_sign(function: Callable[..., Any]) -> Any:
    """The function with a gradient of its own, which a loop has not."""
    return xg.function(function, lambda g, x: g * jnp.sign(x), native=False)


def halve(x: Any) -> Any:
    """Halve what is above one; an integer counts the turns."""

    def turn(carry: Any) -> Any:
        y, n = carry
        return jnp.where(y > 1, y / 2, y), n + 1

    y, n = lax.while_loop(lambda carry: jnp.any(carry[0] > 1), turn, (x, 0))
    return y * n


def each_halved(x: Any) -> Any:
    """Every element by a loop of its own."""

    def one(x: Any) -> Any:
        start = (x, jnp.zeros((2,), x.dtype))
        y, n = lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2, c[1] + x), start)
        return y + n[0] - n[1] / 4

    return jax.vmap(jax.vmap(one))(x)


def nested(x: Any) -> Any:
    """A loop in a turn of another, which reads what the outer one carries and what is around."""
    total = jnp.sum(jnp.abs(x))

    def turn(y: Any) -> Any:
        z, _ = lax.while_loop(
            lambda c: c[1] < y[0, 1], lambda c: (c[0] * 0.5, c[1] + 3.5), (y, 0.0)
        )
        return z * jnp.where(total > 10, 0.5, 2.0)

    return lax.while_loop(lambda y: jnp.max(y) > 1.0, turn, x)


def by_integers(x: Any) -> Any:
    """Bools and integers are carried; the number of turns is an integer of the values."""
    most = jnp.sum(x > 0)
    start = (jnp.int32(0), jnp.array(False), x)
    turn = lambda c: (c[0] + 1, ~c[1], jnp.where(c[1], c[2] - 1, c[2] * 2))
    n, odd, y = lax.while_loop(lambda c: c[0] < most, turn, start)
    return y + n + odd


FUNCTIONS = (halve, each_halved, nested, by_integers)


def original(function: Any, x: Any) -> Any:
    with jax.enable_x64(True):
        return np.asarray(function(jnp.asarray(x)))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_loop_gives_what_it_gives_in_jax(backend: Any, function: Any) -> None:
    own = with_sign(function)
    for dtype in ("float32", "float64", "float16"):
        x = X.astype(dtype)
        result, gradient = backend.vjp(own, x, np.ones_like(x))
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, original(function, x))
        np.testing.assert_array_equal(gradient, np.sign(x))


@pytest.mark.parametrize(
    "x",
    [np.full((2, 3), 0.5), np.array([np.nan, 9.0]), np.array([-np.inf, -0.0]), np.zeros((0, 2))],
    ids=["no turn", "nan", "infinity", "empty"],
)
def test_no_turn_nan_and_nothing_to_turn(backend: Any, x: Any) -> None:
    x = x.astype("float32")
    own = with_sign(halve)
    np.testing.assert_array_equal(backend.numpy(own(backend.array(x))), original(halve, x))


def integral_of_sine(x: Any) -> Any:
    """Si(x), by its series: as many terms as each element needs, as jax writes such functions."""
    tiny = jnp.finfo(x.dtype).eps

    def turn(carry: Any) -> Any:
        total, k, term = carry
        term = -term * x * x / ((2 * k) * (2 * k + 1))
        return total + term / (2 * k + 1), k + 1, term

    start = (x, 1, x)
    return lax.while_loop(lambda c: jnp.abs(c[2]) > tiny * jnp.abs(c[0]), turn, start)[0]


sine_integral = jax.custom_jvp(jax.jit(jnp.vectorize(integral_of_sine)))


@sine_integral.defjvp
def sine_integral_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (x_dot,) = primals, tangents
    return sine_integral(x), x_dot * jnp.sin(x) / x


def test_a_series_with_a_derivative_of_its_own(backend: Any) -> None:
    from scipy.special import sici

    own = xg.from_custom_vjp(sine_integral)
    for dtype, eps in (("float32", 1e-6), ("float64", 1e-14)):
        x = np.array([0.5, -2.0, 3.0, 1e-3], dtype)
        result, gradient = backend.vjp(own, x, np.ones_like(x))
        assert result.dtype == dtype  # and how many terms it takes is that dtype's
        np.testing.assert_allclose(result, sici(x)[0], rtol=eps)
        np.testing.assert_allclose(gradient, np.sin(x) / x, rtol=eps)


@pytest.mark.backends("torch")
def test_jaxs_own_function_with_a_loop_keeps_its_gradient(backend: Any) -> None:
    def around(x: Any) -> Any:
        return jax.scipy.special.hyp1f1(0.5, 1.5, x) * x

    x = np.array([0.5, -2.0, 3.0], "float32")
    assert_as_in("jax", around, x, backend=backend, atol=0)


def test_one_loop_runs_for_all_that_is_read_of_it() -> None:
    own = with_sign(halve)
    own(X)
    source = xg.source(own, "numpy")
    assert source.count("while_loop(") == 1
    assert source.startswith("def condition(")
    assert "while_loop(" in xg.show(own) and "condition(carry_0" in xg.show(own)


def test_a_loop_is_saved_and_read_as_data(backend: Any) -> None:
    own = with_sign(nested)
    x = X.astype("float32")
    expected = own(x)
    document = json.loads(json.dumps(own.to_dict(), allow_nan=False))
    loaded = xg.from_dict(document)
    assert loaded.to_dict() == document
    np.testing.assert_array_equal(backend.numpy(loaded(backend.array(x))), expected)


def loops_in(data: Any) -> list[dict[str, Any]]:
    """The nodes of loops anywhere in a document."""
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    own = [data] if isinstance(data, dict) and data.get("op") == "while_loop" else []
    return own + [loop for item in items for loop in loops_in(item)]


def drop_a_result(loop: Any) -> None:
    loop["attrs"]["body"]["graph"]["outputs"].pop()


def take_no_bool(loop: Any) -> None:
    loop["attrs"]["condition"]["graph"]["outputs"] = [0]


def swap_what_is_carried(loop: Any) -> None:
    loop["attrs"]["body"]["graph"]["outputs"].reverse()


def nest_without_end(loop: Any) -> None:
    for _ in range(6):
        inner = json.loads(json.dumps(loop))
        loop["attrs"]["body"]["graph"]["nodes"] = [inner]


@pytest.mark.parametrize(
    "damage", [drop_a_result, take_no_bool, swap_what_is_carried, nest_without_end]
)
def test_a_damaged_loop_is_not_read(damage: Any) -> None:
    own = with_sign(halve)
    own(X)
    document = own.to_dict()
    damage(loops_in(document)[-1])
    with pytest.raises(xg.FormatError):
        xg.from_dict(json.loads(json.dumps(document)))


def test_the_derivative_of_a_loop_is_refused_where_it_is_written() -> None:
    def without_a_gradient(x: Any) -> Any:
        return jnp.sin(halve(x))

    with pytest.raises(xg.TraceError, match="derivative of a loop that goes on by values"):
        xg.function(without_a_gradient, native=False)(X)
    x = X.astype("float32")  # where jax runs it as it is, it has what jax gives it
    np.testing.assert_array_equal(
        xg.function(without_a_gradient)(jnp.asarray(x)), without_a_gradient(jnp.asarray(x))
    )


@jax.custom_vjp
def steep(x: Any) -> Any:
    return x * x


def steep_backward(x: Any, g: Any) -> Any:
    grown = lax.while_loop(lambda s: jnp.all(s < 10), lambda s: s * 1.5, jnp.abs(x) + 1)
    return (g * grown,)


steep.defvjp(lambda x: (x * x, x), steep_backward)


@pytest.mark.needs("torch")
def test_a_loop_in_a_backward_has_no_derivative_but_where_jax_has_one() -> None:
    torch: Any = pytest.importorskip("torch")
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    own = xg.from_custom_vjp(steep)
    (gradient,) = torch.autograd.grad(own(x).sum(), x, create_graph=True)
    np.testing.assert_array_equal(gradient.detach(), [10.125, 13.5])
    with pytest.raises(xg.GradientError, match="derivative of a loop"):
        gradient.sum().backward()

    def slope(x: Any) -> Any:
        return jax.grad(lambda x: own(x).sum())(x)

    array = jnp.array([2.0, 3.0])
    np.testing.assert_array_equal(jax.jvp(slope, (array,), (array,))[1], 3.375 * array)


@pytest.mark.beside_numpy
def test_compiled_code_has_the_loop_in_it(backend: Any) -> None:
    own = with_sign(halve)
    options = {"torch": {"backend": "aot_eager", "fullgraph": True}}.get(backend.name, {})
    x = X.astype("float32")
    compiled = xg.jit(lambda x: own(x) + 1, backend.name, **options)
    np.testing.assert_array_equal(backend.numpy(compiled(backend.array(x))), original(halve, x) + 1)


def test_jax_maps_over_a_loop() -> None:
    own = with_sign(halve)
    x = jnp.asarray(X, "float32")
    np.testing.assert_array_equal(jax.vmap(own)(x), jnp.stack([halve(row) for row in x]))


@pytest.mark.needs("torch")
def test_torch_exports_the_loop_and_not_its_turns() -> None:
    torch: Any = pytest.importorskip("torch")
    own = with_sign(halve)

    class Halving(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return own(x) + 1

    exported = torch.export.export(Halving(), (torch.tensor([3.0, 0.5]),)).module()
    x = np.array([300.0, 0.5], "float32")  # more turns than the example takes
    np.testing.assert_array_equal(exported(torch.tensor(x)), original(halve, x) + 1)


@pytest.mark.needs("torch")
def test_vmap_of_torch_turns_each_row_until_it_is_done() -> None:
    torch: Any = pytest.importorskip("torch")
    own = with_sign(halve)
    rows = [own(torch.tensor(row)) for row in X]
    found = torch.func.vmap(own)(torch.tensor(X))
    np.testing.assert_array_equal(found, torch.stack(rows))
    nested_rows = torch.func.vmap(torch.func.vmap(own))(torch.tensor(X))
    np.testing.assert_array_equal(nested_rows[1, 0], own(torch.tensor(X[1, 0])))
