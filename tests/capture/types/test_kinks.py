"""Of functions of a library, the derivative at a kink is the library's own: where operands are
equal, at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

A = np.array([[0.0, 0.0, 1.0, 2.0, -3.0, 0.0, 0.5]], np.float32)
B = np.array([[0.0, 1.0, 0.0, 2.0, -0.5, -2.0, 1.5]], np.float32)
IN_TENSORFLOW = """
    maximum minimum math.divide_no_nan math.multiply_no_nan math.xdivy math.xlogy math.xlog1py
    math.squared_difference
"""
OF_ONE = "nn.selu nn.elu nn.relu nn.relu6 abs math.reciprocal_no_nan"


def find(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", IN_TENSORFLOW.split())
def test_of_equal_operands_in_tensorflow(name: str, tf: Any) -> None:
    assert_as_in("tensorflow", lambda x, y: find(tf, name)(x, y), A, B)
    if "imum" in name:
        assert_as_in("tensorflow", lambda x: find(tf, name)(x, 0.0), A)


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", OF_ONE.split())
def test_at_zero_in_tensorflow(name: str, tf: Any) -> None:
    assert_as_in("tensorflow", lambda x: find(tf, name)(x), A)


@pytest.mark.needs("tensorflow")
def test_a_tensor_of_zeros_is_clipped_in_tensorflow(tf: Any) -> None:
    assert_as_in("tensorflow", lambda x: tf.clip_by_norm(x * 0, 1.0, axes=1) + x, A)
    assert_as_in("tensorflow", lambda x: tf.clip_by_norm(x, -1.0) + x, A)


C = np.array([[0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -0.5]], np.float32)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "logaddexp"])
def test_of_equal_operands_in_jax(name: str, jax: Any, jnp: Any) -> None:
    assert_as_in("jax", lambda x, y: getattr(jnp, name)(x, y), A, B)
    assert_as_in("jax", jax.vmap(lambda x, y: getattr(jnp, name)(x, y)), A, B)  # by its jaxpr


@pytest.mark.needs("jax")
def test_at_zero_beside_a_logarithm_in_jax(jax: Any) -> None:
    from jax.scipy import special

    both = jax.vmap(lambda x: special.xlogy(x, 3.0) + special.xlog1py(x, 3.0))
    assert_as_in("jax", both, C)  # by its jaxpr


@pytest.mark.needs("jax")
@pytest.mark.parametrize(
    "name",
    [
        *("lax.abs", "nn.relu", "nn.relu6", "nn.leaky_relu", "nn.hard_tanh", "nn.sparse_sigmoid"),
        *("nn.elu", "nn.softplus", "nn.log_sigmoid", "numpy.sinc"),
    ],
)
def test_at_a_kink_in_jax(name: str, jax: Any) -> None:
    assert_as_in("jax", lambda x: find(jax, name)(x), C)
    assert_as_in("jax", lambda x: jax.vmap(find(jax, name))(x), C)  # read by its jaxpr


@pytest.mark.needs("jax")
@pytest.mark.parametrize("limits", [(-1.0, 1.0), (None, 0.0), (0.0, None)])
def test_at_a_limit_in_jax(limits: tuple[float | None, float | None], jax: Any, jnp: Any) -> None:
    assert_as_in("jax", lambda x: jnp.clip(x, *limits), C)
    assert_as_in("jax", lambda x: abs(jnp.tanh(x)).clip(*limits), C)
    assert_as_in("jax", lambda x: jax.lax.clamp(-1.0, x, 1.0), C)


@pytest.mark.needs("jax")
def test_limits_that_have_crossed_in_jax(jax: Any) -> None:
    low, high = np.linspace(-1, 1, C.size), np.linspace(1, -1, C.size)
    limits = [each.reshape(C.shape).astype(C.dtype) for each in (low, high)]
    assert_as_in("jax", lambda x, low, high: jax.lax.clamp(low, x, high), C, *limits)
    assert_as_in("jax", lambda x: jax.lax.clamp(1.0, x, -1.0), C)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_of_equal_operands_in_torch(name: str, torch: Any) -> None:
    assert_as_in("torch", lambda x, y: getattr(torch, name)(x, y), A, B)


@pytest.mark.needs("torch")
def test_a_derivative_on_an_edge_disproves_nothing(torch: Any) -> None:
    def angle(x: Any, y: Any) -> Any:
        return torch.atan2(x, y)

    _, pull = xg.vjp(xg.function(angle, native=False), A, B)
    np.testing.assert_allclose(pull(np.ones_like(A))[0][0, 1:3], [1.0, 0.0], atol=1e-6)


@pytest.mark.needs("torch")
def test_a_derivative_beside_the_edges_disproves(torch: Any) -> None:

    from multigrad.errors import DisprovedError
    from multigrad.graph import ops

    def wrong(xp: Any, ct: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (xp.where(x > 100, 2.0, 1.0) * ct * xp.cos(x),)

    def sine(x: Any) -> Any:
        return torch.sin(x)

    right = ops.SIN.vjp
    object.__setattr__(ops.SIN, "vjp", wrong)  # an op is frozen
    try:
        with pytest.raises(DisprovedError, match=r"the gradient of x"):
            xg.function(sine, native=False)(100 + np.arange(4, dtype=np.float32))
    finally:
        object.__setattr__(ops.SIN, "vjp", right)


@pytest.mark.needs("torch")
def test_a_derivative_far_out_that_torch_can_hold_disproves(torch: Any) -> None:

    from multigrad.errors import DisprovedError
    from multigrad.graph import ops

    def wrong(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return ct * (a / y) * xp.where(abs(a) > 1e15, 2.0, 1.0), ct * (b / y)

    def length(x: Any, y: Any) -> Any:
        return torch.hypot(x, y)

    right = ops.HYPOT.vjp
    object.__setattr__(ops.HYPOT, "vjp", wrong)  # an op is frozen
    try:
        with pytest.raises(DisprovedError, match=r"the gradient of x"):
            xg.function(length, native=False)(np.ones(4, np.float32), np.ones(4, np.float32))
    finally:
        object.__setattr__(ops.HYPOT, "vjp", right)


X = np.array([0.0, 0.0, 5.0, 2.0, 3.0, 1.5], np.float32)
LOW = np.array([2.0, 2.0, 2.0, 2.0, 1.0, 2.0], np.float32)
HIGH = np.array([1.0, 3.0, 1.0, 4.0, 3.0, 2.0], np.float32)  # crossed, and equal


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["clamp", "clip"])
def test_limits_that_are_tensors_and_cross_in_torch(name: str, torch: Any) -> None:
    assert_as_in("torch", lambda x, low, high: getattr(torch, name)(x, low, high), X, LOW, HIGH)
    assert_as_in(
        "torch", lambda *given: torch.sin(getattr(given[0], name)(*given[1:])), X, LOW, HIGH
    )
    assert_as_in("torch", lambda x: torch.exp(getattr(x, name)(2.0)), X)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["fmax", "fmin"])
def test_a_method_of_equal_operands_in_torch(name: str, torch: Any) -> None:
    assert_as_in("torch", lambda x, y: torch.exp(getattr(x, name)(y)), X, LOW)
    assert_as_in("torch", lambda x, y: getattr(torch, name)(x, y), X, LOW)


@pytest.mark.needs("tensorflow")
def test_limits_that_are_tensors_and_cross_in_tensorflow(tf: Any) -> None:
    assert_as_in("tensorflow", lambda x, low, high: tf.clip_by_value(x, low, high), X, LOW, HIGH)


@pytest.mark.needs("jax")
def test_limits_that_are_tensors_and_cross_in_jax(jax: Any) -> None:
    assert_as_in("jax", lambda x, low, high: jax.numpy.clip(x, low, high), X, LOW, HIGH)
    assert_as_in("jax", lambda x, low, high: jax.lax.clamp(low, x, high), X, LOW, HIGH)


INF = np.array([np.inf, 1.0, -2.0, 0.5], np.float32)
PLACES = np.array([0.0, 2.0, 3.0, 7.0], np.float32)


@pytest.mark.needs("torch")
def test_the_ends_that_torch_takes_off_an_integral_are_infinite(torch: Any) -> None:
    assert_as_in("torch", lambda y: torch.trapezoid(y), INF)
    assert_as_in(
        "torch", lambda y, x: torch.trapezoid(y, x), INF, LOW[:4] * np.arange(4, dtype=np.float32)
    )


@pytest.mark.needs("torch")
def test_limits_of_logit_at_0_and_1_in_torch(torch: Any) -> None:
    x = np.array([-0.5, 0.25, 0.75, 2.0, np.nan], np.float32)
    assert_as_in("torch", lambda x: torch.logit(x, 0.0), x)
    assert_as_in("torch", lambda x: torch.special.logit(x, 0.125), x)


@pytest.mark.needs("tensorflow")
def test_batches_of_vectors_in_tensorflow(tf: Any) -> None:
    matrices = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    assert_as_in("tensorflow", tf.linalg.matvec, matrices, matrices[:, 0])
    assert_as_in("tensorflow", tf.linalg.matvec, matrices, matrices[0, 0])


@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_a_deviation_from_infinity_is_nan(name: str) -> None:
    x = np.array([[np.inf, 1.0, np.nan], [3.0, 1.0, np.nan]], np.float32)
    function = getattr(np, name)
    with np.errstate(invalid="ignore"):
        expected = function(x, axis=1)
        found = xg.function(lambda x: function(x, axis=1), native=False)(x)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.needs("torch")
def test_of_equal_operands_in_a_narrower_dtype_in_torch(torch: Any) -> None:
    def function(x: Any) -> Any:
        size = torch.linalg.vector_norm(x.float(), 1)
        return x / torch.maximum(size, torch.tensor(3.5)).to(x.dtype)

    x = np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(xg.function(function, native=False)(x), x / 3.5)
    assert_as_in("torch", function, x)


# At poles and between them a capture gives what its library gives.


POLES = np.array([-2.5, -2.0, -1.25, -1.0, -0.5, 0.0, 0.3, 1.0, 2.5, np.nan])


def library_of(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a library and what makes its tensors."""
    library = import_module({"jax": "jax.numpy"}.get(name, name))
    make = {"torch": "tensor", "jax": "asarray", "tensorflow": "constant"}[name]
    return library, getattr(library, make)


def polygamma(name: str, order: int) -> Callable[[Any], Any]:
    if name == "jax":
        special = import_module("jax.scipy.special")
        return lambda x: special.polygamma(order, x)
    if name == "torch":
        torch: Any = import_module("torch")
        return lambda x: torch.polygamma(order, x)
    tf: Any = import_module("tensorflow")
    return lambda x: tf.math.polygamma(order, x)


def captured(function: Callable[[Any], Any], name: str) -> Any:
    return xg.function(function, lambda g, x: None, native=False, dialect=name)


NAMES = [pytest.param(n, marks=pytest.mark.needs(n)) for n in ("torch", "jax", "tensorflow")]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_polygamma_is_that_of_the_library_at_its_poles_and_between_them(
    name: str, order: int
) -> None:
    _, make = library_of(name)
    # Torch's trigamma is finite at its poles, by how pi rounds.
    x = make((POLES if (name, order) != ("torch", 1) else POLES + 0.0625).astype(np.float32))
    function = polygamma(name, order)
    expected = np.asarray(function(x))
    np.testing.assert_allclose(captured(function, name)(x), expected, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_its_derivative_is_that_of_the_next_order(name: str) -> None:
    x = np.array([-2.7, -1.25, -0.4, 0.3, 2.5])
    special = import_module("scipy.special")
    _, make = library_of(name)
    given = make(x.astype(np.float32))
    _, pull = xg.vjp(xg.function(polygamma(name, 2), native=False, dialect=name), given)
    slope = np.asarray(pull(make(np.ones(5, np.float32)))[0])
    np.testing.assert_allclose(slope.reshape(5), special.polygamma(3, x), rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_digamma_is_that_of_the_library_at_zero(name: str) -> None:
    _, make = library_of(name)
    modules = {"jax": "jax.scipy.special", "torch": "torch.special", "tensorflow": "tensorflow"}
    room = import_module(modules[name])
    function = getattr(room, "math", room).digamma
    x = make(POLES.astype(np.float32))
    np.testing.assert_allclose(captured(function, name)(x), np.asarray(function(x)), rtol=1e-5)
