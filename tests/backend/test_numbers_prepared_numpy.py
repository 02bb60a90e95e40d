"""On NumPy a lowered function remembers its last numbers, for those very numbers, without
warnings."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg

from ..support.threads import on_threads

X = np.linspace(-2.0, 2.0, 33)
TIMES = 2  # the constants are made at the first call, and taken from memory at the second
DTYPES = ("float16", "bfloat16", "float32", "float64")


def run(f: Any, x: Any, *values: Any) -> tuple[Any, Any]:
    """Return the output and the gradient; params come in the order of their names."""
    y, pull = f.vjp(x, *values)
    return y, pull(x)


def assert_same_bits(found: Any, expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes()


def by_ops(x: Any, width: Any, height: Any) -> Any:
    """The gradient of `scaled`, each number cast first and each step rounded."""
    number = x.dtype.type
    with np.errstate(all="ignore"):
        return x * (number(height) / (number(1.0) + np.abs(x * number(width))))


@pytest.fixture
def scaled() -> Any:
    def scaled(ctx: Any, grad_out: Any, tin: Any, width: float = 0.3, height: float = 1.7) -> Any:
        return grad_out * (height / (1.0 + abs(tin * width)))

    return xg.lower(scaled, "numpy", forward="Linear")


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_equal_but_not_the_same_are_told_apart(scaled: Any, dtype: str) -> None:
    x = X.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    nan = float("nan")
    for height in (0.0, -0.0, 0, 2.0, nan, -0.0, 1, True, 1.0, 1e300, np.float32(0.3), 0.3):
        for _ in range(TIMES):
            assert_same_bits(run(scaled, x, height, 0.3), (x, by_ops(x, 0.3, height)))


def test_constants_of_one_dtype_are_not_those_of_another(scaled: Any) -> None:
    for dtype in ("float32", "float64", "float16", "float32"):
        x = X.astype(dtype)
        for _ in range(TIMES):
            assert_same_bits(run(scaled, x), (x, by_ops(x, 0.3, 1.7)))


def test_a_number_that_comes_as_an_array_is_looked_at_again(scaled: Any) -> None:
    height = np.array(2.0)
    for value in (2.0, 0.5, 2.0):
        height.fill(value)
        for _ in range(TIMES):
            assert_same_bits(run(scaled, X, height, 0.3), (X, by_ops(X, 0.3, value)))


def test_the_same_numbers_are_prepared_once(scaled: Any, monkeypatch: Any) -> None:
    made: list[Any] = []
    remembering = scaled._prepare
    cell = remembering.__closure__[remembering.__code__.co_freevars.index("prepare")]
    prepare = cell.cell_contents

    def noting(*args: Any) -> Any:
        made.append(args)
        return prepare(*args)

    monkeypatch.setattr(cell, "cell_contents", noting)
    for width in (0.5, 1.0 / 2.0, 0.25 + 0.25):  # equal numbers that are other objects
        run(scaled, X, 1.7, width)
    assert len(made) == 1


def test_a_pullback_keeps_the_numbers_of_its_own_call(scaled: Any) -> None:
    pulls = [(height, scaled.vjp(X, height, 0.3)[1]) for height in (0.5, 1.5, 2.5)]
    for height, pull in reversed(pulls):
        assert_same_bits([pull(X)], [by_ops(X, 0.3, height)])


def test_threads_with_numbers_of_their_own_do_not_see_each_others(scaled: Any) -> None:
    wrong: list[Any] = []

    def work(width: float) -> None:
        expected = by_ops(X, width, 1.7)
        for _ in range(200):
            if run(scaled, X, 1.7, width)[1].tobytes() != expected.tobytes():
                wrong.append(width)

    on_threads(work, 0.3, 0.4, 0.5)
    assert wrong == []


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 11)])
def test_every_shape_and_layout_gives_the_bits_of_the_ops(scaled: Any, shape: Any) -> None:
    x = np.float32(0.7) * np.ones(shape, np.float32)
    for each in (x, x.T, np.asfortranarray(x), np.stack([x, x], -1)[..., 0]):
        y, gradient = run(scaled, each)
        assert type(y) is type(gradient) is np.ndarray
        assert_same_bits([gradient], [np.asarray(by_ops(each, 0.3, 1.7))])


def test_warnings_are_off_inside_and_as_they_were_outside() -> None:
    def risky(ctx: Any, grad_out: Any, tin: Any, width: float = 1e300) -> Any:
        return xg.xp.log(tin) / (grad_out * width) + xg.xp.exp(tin * 1e30)

    f = xg.lower(risky, "numpy", forward="Logistic")
    x = np.array([-1.0, 0.0, np.inf, np.nan, 3e38], np.float32)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        y, pull = f.vjp(x)
        pull(x)
        pull(None)
        f(x)
        assert set(np.geterr().values()) == {"raise"}
        with pytest.raises(FloatingPointError):
            np.log(x)
    assert y.dtype == np.float32
