"""Rules written in keras.ops: captured as they stand, they give Keras's numbers on every
backend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...dtypes.names import assert_as_the_librarys
from ...harness.capturing import rules_in

keras: Any = pytest.importorskip("keras")

RULES = rules_in("rules_in_keras")
pytestmark = pytest.mark.needs("keras")


@cache
def written() -> ModuleType:
    """The rules, imported when a test first needs Keras."""
    from ...written import rules_in_keras

    return rules_in_keras


def inputs(dtype: Any = np.float32) -> tuple[Any, Any]:
    tin = np.linspace(-2.3, 2.9, 12).reshape(3, 4).astype(dtype)
    tin[1] = [0.0, -0.0, 1.0, -1.0]
    return np.linspace(-1.3, 1.9, 12).reshape(3, 4).astype(dtype), tin


def in_keras(function: Callable[..., Any]) -> Any:
    """What a rule gives on the tensors of Keras's own backend."""
    grad_out, tin = map(keras.ops.convert_to_tensor, inputs())
    return keras.ops.convert_to_numpy(function(None, grad_out, tin))


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_kerass_numbers(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = getattr(written(), name)
    wanted = in_keras(function)
    grad_out, tin = map(backend.array, inputs())
    given = backend.numpy(captured(function)(None, grad_out, tin))
    assert given.dtype == np.float32 and given.shape == wanted.shape
    np.testing.assert_allclose(given, wanted, rtol=4e-6, atol=4e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", RULES[::4])
def test_rule_of_keras_keeps_float64(name: str, captured: Callable[..., xg.Rule]) -> None:
    rule = captured(getattr(written(), name))
    given = rule(None, *inputs(np.float64))
    assert given.dtype == np.float64
    np.testing.assert_allclose(given, rule(None, *inputs()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["by_package", "by_closure", "clipped_by_norm"])
@pytest.mark.backends("torch", "jax", "tensorflow")
def test_rule_of_keras_acts_under_an_activation(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = getattr(written(), name)
    grad_out, tin = inputs()
    y, grad_in = backend.vjp(xg.activation("Heaviside", captured(function)), tin, grad_out)
    np.testing.assert_array_equal(y, np.heaviside(tin, 0.0))
    np.testing.assert_allclose(grad_in, in_keras(function), rtol=4e-6, atol=4e-6)


@pytest.mark.backends("jax", "tensorflow")
def test_rule_of_keras_is_captured_inside_a_compiler(
    backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    """What Keras makes of numbers, meanwhile, is computed and not traced."""
    function = written().made_from_numbers
    f = xg.jit(captured(function), backend.name)
    grad_out, tin = map(backend.array, inputs())
    np.testing.assert_allclose(backend.numpy(f(None, grad_out, tin)), in_keras(function), rtol=4e-6)


def test_keras_draws_follow_the_key_of_the_application(
    backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    draws = {"_noisy": "noise", "_jammed": "full_jam"}
    grad_out, tin = map(backend.array, inputs())

    def run(rule: Any) -> Any:
        return backend.numpy(rule(None, grad_out, tin, key=3))

    uniform = run(xg.get("full_jam")) / inputs()[0]
    for name in draws:
        given = run(captured(getattr(written(), name)))
        np.testing.assert_array_equal(given, run(captured(getattr(written(), name))))
        if name == "_noisy":
            np.testing.assert_allclose(given, run(xg.get("noise")), rtol=1e-6)
        else:
            np.testing.assert_allclose(given, 4.0 * uniform - 1.0, rtol=1e-4, atol=1e-5)
    kept = run(captured(written()._dropped))
    np.testing.assert_allclose(kept, np.where(uniform >= 0.25, inputs()[0] / 0.75, 0.0), rtol=1e-5)


def test_show_says_that_a_rule_is_written_in_keras_ops(captured: Callable[..., xg.Rule]) -> None:
    text = xg.show(captured(written().by_package))
    assert "keras.ops" in text and "substitution" in text


def refused() -> dict[str, Callable[..., Any]]:
    """Rules that cannot be captured, by what the error must name."""
    from keras import ops

    def branches(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return ops.switch(ops.sum(tin) > 0, [lambda: grad_out, lambda: -grad_out])

    def takes_indices(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * ops.argpartition(tin, 1, axis=-1)

    def unknown(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return ops.bincount(ops.cast(tin, "int32"))

    def seeded(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return keras.random.normal(ops.shape(tin), seed=1)

    def indices_of_a_condition(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * ops.where(tin > 0)

    def to_numpy(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * np.sum(ops.convert_to_numpy(tin))

    return {
        "switch.*where": branches,
        "argpartition.*argmax_mask": takes_indices,
        "bincount.*not captured": unknown,
        "normal.*seed.*key": seeded,
        "where.*condition alone": indices_of_a_condition,
        "convert_to_numpy.*keras.ops": to_numpy,
    }


@pytest.mark.parametrize("case", range(6))
def test_what_keras_rules_may_not_do_is_said_with_its_line(
    case: int, captured: Callable[..., xg.Rule]
) -> None:
    message, function = list(refused().items())[case]
    with pytest.raises(xg.TraceError, match=rf"(?s)test_capture_keras\.py:\d+.*{message}"):
        captured(function)(None, *inputs())


def test_losses_and_extremes_cast_as_keras_casts() -> None:
    if keras.backend.backend() != "torch":
        pytest.skip("the dtypes are those of Keras on torch")
    torch = pytest.importorskip("torch")
    halves = torch.tensor([[3.0], [1000.0]], dtype=torch.float16)
    numbers = torch.tensor([[2**24 + 1], [7]], dtype=torch.int32)
    large = torch.tensor([[2**53 + 1], [9]])
    doubles = torch.tensor([[3.14], [1e-300]], dtype=torch.float64)
    cases: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (keras.losses.mean_squared_logarithmic_error, (numbers, halves)),
        (keras.losses.mean_absolute_percentage_error, (halves, -halves)),
        (keras.losses.huber, (halves, 8 * halves)),
        (keras.ops.maximum, (numbers, large)),
        (keras.ops.floor_divide, (doubles, torch.tensor([[0], [0]]))),
        (keras.ops.add, (torch.tensor([3], dtype=torch.int8), torch.tensor(5))),
        (lambda x: keras.ops.moments(x, (0,)), (halves * 60,)),
        (lambda x, y: keras.ops.std([x, y]), (halves, numbers)),
    ]
    for function, given in cases:
        graph = xg.function(
            lambda *args, f=function: f(*args), lambda g, *args: (None,) * len(args), native=False
        )
        results, expected = graph(*given), function(*given)
        whole = [each if isinstance(each, tuple) else (each,) for each in (results, expected)]
        for own, theirs in zip(*whole, strict=True):
            assert own.dtype == theirs.dtype
            np.testing.assert_allclose(own, theirs, rtol=2e-3)


def test_losses_of_integers_are_refused() -> None:
    loss = xg.function(lambda x, y: keras.losses.huber(x, y), native=False)
    with pytest.raises(xg.TraceError, match="cast to a float first"):
        loss(np.array([[1.0]], np.float32), np.array([[1]], np.int32))


LARGE = np.float16([300.5, 260, 2000])
WHERE_BACKENDS_PART: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cross-entropy of 1 in 16 bits": (
        lambda ops, p, y: ops.binary_crossentropy(y, p),
        (np.float16([0.25, 1, 1]), np.float16([0.5, 0, 1])),
    ),
    "one_hot of parts": (lambda ops, x: ops.one_hot(x, 3), (np.float32([0.5, 1, 2.75, -0.5]),)),
    "nancumsum of inf": (
        lambda ops, x: ops.nancumsum(x, axis=0),
        (np.float32([1, np.nan, np.inf, 2]),),
    ),
    "nancumprod of inf": (
        lambda ops, x: ops.nancumprod(x, axis=0),
        (np.float32([0.5, np.nan, np.inf, 0.5]),),
    ),
    "cross of large halves": (lambda ops, x, y: ops.cross(x, y), (LARGE, LARGE[::-1])),
    "trapezoid of inf": (lambda ops, x: ops.trapezoid(x), (np.float32([np.inf, 1, 2]),)),
    "nanvar of inf": (lambda ops, x: ops.nanvar(x), (np.float32([np.inf, 1, np.nan]),)),
    "unit vectors of large halves": (
        lambda ops, x: ops.normalize(x, axis=0),
        (np.float16([300, 2000]),),
    ),
    "clip between limits that cross": (
        lambda ops, x, low: ops.clip(x, low, low - 1),
        (np.float32([0, 1.5, 5]), np.float32([1, 2, 3])),
    ),
    "floor of infinite quotients": (
        lambda ops, x, y: ops.floor_divide(x, y),
        (np.float32([np.inf, 1, 7]), np.float32([2, 0.1, -2])),
    ),
    "where of a small number": (
        lambda ops, x, y: ops.where(x, y, -y),
        (np.float32([1e-8, 0, 1, 2]), np.float16([1, 2, 3, 4])),
    ),
}


@pytest.mark.parametrize("name", WHERE_BACKENDS_PART)
def test_where_the_backends_of_keras_part_it_is_as_the_one_in_use(name: str) -> None:
    row, arrays = WHERE_BACKENDS_PART[name]

    def function(*given: Any) -> Any:
        return row(keras.ops, *given)

    given = [keras.ops.convert_to_tensor(each) for each in arrays]
    graph = xg.function(function, lambda g, *args: (None,) * len(args), native=False)
    found, expected = (keras.ops.convert_to_numpy(f(*given)) for f in (graph, function))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "bool"])
@pytest.mark.parametrize("more", [(), (0.0, 1.0), 3])
def test_whole_numbers_are_close_as_the_backend_says(dtype: str, more: Any) -> None:
    def close(x: Any, y: Any) -> Any:
        return keras.ops.isclose(x, *((more,) if more == 3 else (y, *more)))

    largest = {"bool": 1, "int8": 127}.get(dtype, 2**24)
    x, y = np.array([1, 0, 1, largest], dtype), np.array([1, 1, 0, largest - 1], dtype)
    assert_as_the_librarys("keras", "isclose", close, (x, y))


def test_loops_of_keras_are_scans() -> None:
    from keras import ops

    programs: dict[str, Callable[..., Any]] = {
        "scan": lambda x: ops.scan(lambda h, r: (ops.tanh(h * 0.5 + r), h), x[0] * 0, x)[1],
        "fori_loop": lambda x: ops.fori_loop(0, 3, lambda i, c: ops.sin(c) + x, x),
        "map": lambda x: ops.map(lambda r: ops.exp(r) * r, x),
        "associative_scan": lambda x: ops.associative_scan(ops.multiply, x, reverse=True),
        "cond": lambda x: ops.cond(ops.sum(x) > 0, lambda: x * 2, lambda: -x),
    }
    for name, program in programs.items():
        assert_as_the_librarys("keras", f"{name}()", program, inputs()[1:])
