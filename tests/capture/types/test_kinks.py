"""Of functions of a library, the derivative at a kink is the library's own: where operands are
equal, at zero.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.errors import DisprovedError

from ...conftest import BACKENDS
from ...harness.own_library import assert_as_in


def array(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


A = array(0.0, 0.0, 1.0, 2.0, -3.0, 0.0, 0.5)[None]
B = array(0.0, 1.0, 0.0, 2.0, -0.5, -2.0, 1.5)[None]
C = array(0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -0.5)[None]
X = array(0.0, 0.0, 5.0, 2.0, 3.0, 1.5)
LOW = array(2.0, 2.0, 2.0, 2.0, 1.0, 2.0)
HIGH = array(1.0, 3.0, 1.0, 4.0, 3.0, 2.0)  # crossed, and equal
RISING = np.linspace(-1, 1, C.size, dtype=np.float32)[None]
INFINITE = array(np.inf, 1.0, -2.0, 0.5)
BEYOND = array(-0.5, 0.25, 0.75, 2.0, np.nan)
MATRICES = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
# An infinite slope of what follows meets the derivative 0 of these, which torch leaves out.
LIMITING: list[Any] = [
    lambda torch, x: torch.relu(x),
    lambda torch, x: x.clamp(min=0.25),
    lambda torch, x: x.clamp(-0.5, 0.0),
    lambda torch, x: torch.nn.functional.relu6(x),
    lambda torch, x: torch.nn.functional.hardtanh(x, 0.0, 1.0),
    lambda torch, x: torch.nn.functional.hardsigmoid(9 * x),
    lambda torch, x: torch.nn.functional.softshrink(x),
    lambda torch, x: torch.nn.functional.hardshrink(x),
    lambda torch, x: torch.nn.functional.threshold(x, 0.25, 0.0),
]
PAIRS = {
    "tensorflow": """
        maximum minimum math.divide_no_nan math.multiply_no_nan math.xdivy math.xlogy math.xlog1py
        math.squared_difference
    """,
    "jax": """
        numpy.maximum numpy.minimum numpy.fmax numpy.fmin numpy.logaddexp numpy.logaddexp2
    """,
    "torch": "maximum minimum fmax fmin",
}
OF_ONE = {
    "tensorflow": "nn.selu nn.elu nn.relu nn.relu6 abs math.reciprocal_no_nan",
    "jax": """
        lax.abs nn.relu nn.relu6 nn.leaky_relu nn.hard_tanh nn.sparse_sigmoid nn.elu nn.softplus
        nn.log_sigmoid numpy.sinc
    """,
}
# Functions of a library's module and of tensors, with these.
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "tensorflow": [
        (lambda tf, x: tf.maximum(x, 0.0), A),
        (lambda tf, x: tf.minimum(x, 0.0), A),
        (lambda tf, x: tf.clip_by_norm(x * 0, 1.0, axes=1) + x, A),
        (lambda tf, x: tf.clip_by_norm(x, -1.0) + x, A),
        (lambda tf, x, low, high: tf.clip_by_value(x, low, high), X, LOW, HIGH),
        (lambda tf, a, x: tf.linalg.matvec(a, x), MATRICES, MATRICES[:, 0]),
        (lambda tf, a, x: tf.linalg.matvec(a, x), MATRICES, MATRICES[0, 0]),
    ],
    "jax": [
        (lambda jax, x: jax.vmap(logarithms)(x), C),
        (lambda jax, x: jax.numpy.clip(x, -1.0, 1.0), C),
        (lambda jax, x: jax.numpy.clip(x, None, 0.0), C),
        (lambda jax, x: jax.numpy.clip(x, 0.0, None), C),
        (lambda jax, x: abs(jax.numpy.tanh(x)).clip(-1.0, 1.0), C),
        (lambda jax, x: abs(jax.numpy.tanh(x)).clip(None, 0.0), C),
        (lambda jax, x: abs(jax.numpy.tanh(x)).clip(0.0, None), C),
        (lambda jax, x: jax.lax.clamp(-1.0, x, 1.0), C),
        (lambda jax, x, low, high: jax.lax.clamp(low, x, high), C, RISING, -RISING),
        (lambda jax, x: jax.lax.clamp(1.0, x, -1.0), C),
        (lambda jax, x, low, high: jax.numpy.clip(x, low, high), X, LOW, HIGH),
        (lambda jax, x, low, high: jax.lax.clamp(low, x, high), X, LOW, HIGH),
    ],
    "torch": [
        (lambda torch, x, low, high: torch.clamp(x, low, high), X, LOW, HIGH),
        (lambda torch, x, low, high: torch.clip(x, low, high), X, LOW, HIGH),
        (lambda torch, x, low, high: torch.sin(x.clamp(low, high)), X, LOW, HIGH),
        (lambda torch, x, low, high: torch.sin(x.clip(low, high)), X, LOW, HIGH),
        (lambda torch, x: torch.exp(x.clamp(2.0)), X),
        (lambda torch, x: torch.exp(x.clip(2.0)), X),
        (lambda torch, x, y: torch.exp(x.fmax(y)), X, LOW),
        (lambda torch, x, y: torch.exp(x.fmin(y)), X, LOW),
        (lambda torch, x, y: torch.fmax(x, y), X, LOW),
        (lambda torch, x, y: torch.fmin(x, y), X, LOW),
        (lambda torch, y: torch.trapezoid(y), INFINITE),  # it takes its ends off
        (lambda torch, y, x: torch.trapezoid(y, x), INFINITE, LOW[:4] * array(0, 1, 2, 3)),
        (lambda torch, x: torch.logit(x, 0.0), BEYOND),
        (lambda torch, x: torch.special.logit(x, 0.125), BEYOND),
        *((lambda torch, x, f=f: torch.sqrt(f(torch, x).abs()), C) for f in LIMITING),
    ],
}


def logarithms(x: Any) -> Any:
    from jax.scipy import special

    return special.xlogy(x, 3.0) + special.xlog1py(x, 3.0)


def find(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def named(table: dict[str, str]) -> list[Any]:
    return [
        pytest.param(library, name, marks=pytest.mark.needs(library))
        for library, names in table.items()
        for name in names.split()
    ]


def rows(table: dict[str, list[tuple[Any, ...]]]) -> list[Any]:
    return [
        pytest.param(library, row, marks=pytest.mark.needs(library), id=f"{library}-{i}")
        for library, rows in table.items()
        for i, row in enumerate(rows)
    ]


def check(library: str, name: str, *arrays: Any) -> None:
    """Compare a function with its graph, one of jax by its jaxpr too."""
    module = import_module(library)
    assert_as_in(library, lambda *given: find(module, name)(*given), *arrays)
    if library == "jax":
        assert_as_in("jax", lambda *given: module.vmap(find(module, name))(*given), *arrays)


@pytest.mark.parametrize(("library", "name"), named(PAIRS))
def test_of_equal_operands(library: str, name: str) -> None:
    check(library, name, A, B)


@pytest.mark.parametrize(("library", "name"), named(OF_ONE))
def test_of_one_operand_at_its_kink(library: str, name: str) -> None:
    check(library, name, A if library == "tensorflow" else C)


@pytest.mark.parametrize(("library", "row"), rows(CALLS))
def test_at_limits_zeros_and_infinities(library: str, row: tuple[Any, ...]) -> None:
    module, (function, *arrays) = import_module(library), row
    assert_as_in(library, lambda *given: function(module, *given), *arrays)


@pytest.mark.needs("torch")
def test_a_derivative_on_an_edge_disproves_nothing(torch: Any) -> None:
    def angle(x: Any, y: Any) -> Any:
        return torch.atan2(x, y)

    _, pull = xg.vjp(xg.function(angle, native=False), A, B)
    np.testing.assert_allclose(pull(np.ones_like(A))[0][0, 1:3], [1.0, 0.0], atol=1e-6)


def wrong_sine(xp: Any, ct: Any, y: Any, x: Any) -> tuple[Any, ...]:
    return (xp.where(x > 100, 2.0, 1.0) * ct * xp.cos(x),)


def wrong_length(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
    return ct * (a / y) * xp.where(abs(a) > 1e15, 2.0, 1.0), ct * (b / y)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("op", "wrong", "arrays"),
    [
        (ops.SIN, wrong_sine, [array(100, 101, 102, 103)]),
        (ops.HYPOT, wrong_length, [array(1, 1, 1, 1)] * 2),
    ],
    ids=["beside the edges", "far out, where torch can hold it"],
)
def test_a_wrong_derivative_disproves(torch: Any, op: Any, wrong: Any, arrays: list[Any]) -> None:
    def sine(x: Any) -> Any:
        return torch.sin(x)

    def length(x: Any, y: Any) -> Any:
        return torch.hypot(x, y)

    right = op.vjp
    object.__setattr__(op, "vjp", wrong)  # an op is frozen
    try:
        with pytest.raises(DisprovedError, match=r"the gradient of x"):
            xg.function(sine if op is ops.SIN else length, native=False)(*arrays)
    finally:
        object.__setattr__(op, "vjp", right)


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


POLES = array(-2.5, -2.0, -1.25, -1.0, -0.5, 0.0, 0.3, 1.0, 2.5, np.nan)
BETWEEN = POLES + array(0.0625)
AT_POLES: dict[str, list[tuple[Any, ...]]] = {
    "torch": [
        (lambda torch, x: torch.special.digamma(x.detach()) + x, POLES),
        (lambda torch, x: torch.polygamma(1, x), BETWEEN),  # at poles finite, by how pi rounds
        (lambda torch, x: torch.polygamma(2, x.detach()) + x, POLES),
        (lambda torch, x: torch.polygamma(2, x), POLES),
        (lambda torch, x: torch.polygamma(3, x.detach()) + x, POLES),
    ],
    "jax": [
        (lambda jax, x: jax.scipy.special.digamma(jax.lax.stop_gradient(x)) + x, POLES),
        (lambda jax, x: jax.scipy.special.polygamma(1, jax.lax.stop_gradient(x)) + x, POLES),
        (lambda jax, x: jax.scipy.special.polygamma(2, jax.lax.stop_gradient(x)) + x, POLES),
        (lambda jax, x: jax.scipy.special.polygamma(2, x), POLES),
        (lambda jax, x: jax.scipy.special.polygamma(3, jax.lax.stop_gradient(x)) + x, POLES),
    ],
    "tensorflow": [
        (lambda tf, x: tf.math.digamma(tf.stop_gradient(x)) + x, POLES),
        (lambda tf, x: tf.math.polygamma(1, tf.stop_gradient(x)) + x, POLES),
        (lambda tf, x: tf.math.polygamma(2, tf.stop_gradient(x)) + x, POLES),
        (lambda tf, x: tf.math.polygamma(2, x), POLES),
        (lambda tf, x: tf.math.polygamma(3, tf.stop_gradient(x)) + x, POLES),
    ],
}


@pytest.mark.parametrize(("library", "row"), rows(AT_POLES))
def test_at_poles_and_between_them(library: str, row: tuple[Any, ...]) -> None:
    module, (function, *arrays) = import_module(library), row
    assert_as_in(
        library, lambda *given: function(module, *given), *arrays, backend=BACKENDS[library]
    )
