"""A call remembers the constants of its last numbers, for those very numbers alone."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad_conformance.under_test import pull

from ..support.threads import on_threads

pytestmark = pytest.mark.backends("numpy", "torch")
xp = xg.xp
X = np.linspace(-2.0, 2.0, 33)
TIMES = 2  # the constants are made at the first call, and taken from memory at the second
DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture
def scaled() -> Any:
    @xg.custom_gradient
    def scaled(x: Any, width: Any, height: Any) -> Any:
        def pull(grad_out: Any) -> Any:
            return grad_out * height / (1.0 + xp.abs(x * width)), None, None

        return (x * width - 1.0) * height, pull

    return scaled


def run(backend: Any, f: Any, x: Any, *numbers: Any) -> list[Any]:
    """Return the output and the gradient for x itself."""
    y, gradients = pull(backend, f, (x, *numbers), x)
    return [y, gradients[0]]


def by_ops(x: Any, width: Any, height: Any) -> list[Any]:
    """Return what `scaled` gives, each number cast first and each step rounded."""
    number = x.dtype.type
    with np.errstate(all="ignore"):
        width, height, one = (number(each) for each in (width, height, 1.0))
        return [(x * width - one) * height, x * height / (one + np.abs(x * width))]


def assert_same_bits(found: Any, expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        mine, theirs = (each.astype(np.float64) for each in (mine, theirs))
        np.testing.assert_array_equal(mine, theirs)
        numbers = ~np.isnan(theirs)
        np.testing.assert_array_equal(np.signbit(mine)[numbers], np.signbit(theirs)[numbers])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_equal_but_not_the_same_are_told_apart(
    backend: Any, scaled: Any, dtype: str
) -> None:
    x = X.astype(getattr(ml_dtypes, dtype, dtype))
    nan, narrow = float("nan"), (np.float32(0.3), 0.3) if dtype == "float64" else ()
    for height in (0.0, -0.0, 0, 2.0, nan, -0.0, 1, True, nan, 1.0, *narrow):
        for _ in range(TIMES):
            assert_same_bits(run(backend, scaled, x, 0.25, height), by_ops(x, 0.25, height))


@pytest.mark.parametrize("height", [1e300, -1e39, 3.4028235677973366e38, 1e-46, 1e-40, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_at_the_ends_of_a_dtype_are_rounded_to_it(
    backend: Any, scaled: Any, dtype: str, height: float
) -> None:
    x = X.astype(dtype)
    for _ in range(TIMES):
        assert_same_bits(run(backend, scaled, x, 0.3, height), by_ops(x, 0.3, height))


def test_constants_of_one_dtype_are_not_those_of_another(backend: Any, scaled: Any) -> None:
    for dtype in ("float32", "float64", "float16", "float32", "bfloat16"):
        x = X.astype(getattr(ml_dtypes, dtype, dtype))
        first, again = (run(backend, scaled, x, 0.3, 1.7) for _ in range(TIMES))
        # Of 16 bits, torch keeps more of a number within an op.
        assert_same_bits(again, first if x.itemsize == 2 else by_ops(x, 0.3, 1.7))


def test_a_literal_of_the_code_is_not_taken_for_a_number_that_equals_it(backend: Any) -> None:
    @xg.custom_gradient
    def shifted(x: Any, shift: Any) -> Any:
        def pull(grad_out: Any) -> Any:
            return grad_out * shift + 0.0 * xp.abs(x) * -0.0, None

        return (x + 0.0) * shift, pull

    x = np.array([-1.0, -0.0, 0.0, 1.0])
    for shift in (-0.0, 0.0, 1.0, -0.0, 0.0):
        for _ in range(TIMES):
            expected = (x + 0.0) * shift, x * shift + 0.0 * np.abs(x) * -0.0
            assert_same_bits(run(backend, shifted, x, shift), expected)


def test_a_number_that_comes_as_a_tensor_is_looked_at_again(backend: Any) -> None:
    spike, width = xg.get("triangular").under("Heaviside"), backend.array(np.array(2.0))
    for value in (2.0, 0.5, 2.0):
        width[...] = value
        expected = run(backend, lambda x, w=value: spike(x, w), X)
        for _ in range(TIMES):
            assert_same_bits(run(backend, lambda x: spike(x, width), X), expected)


def test_an_array_among_the_numbers_is_not_remembered() -> None:
    native, width = xg.lower("triangular", "numpy", forward="Heaviside"), np.array(2.0)
    expected = native.vjp(X, 0.5)[1](X)
    native.vjp(X, width)
    width[...] = 0.5
    assert_same_bits([native.vjp(X, 0.5)[1](X)], [expected])


@pytest.mark.backends("torch")
def test_a_number_that_stays_a_tensor_is_looked_at_again(backend: Any) -> None:
    # As one on a GPU does, for which nobody waits.
    native, width = xg.lower("triangular", "torch", forward="Heaviside"), backend.array(2.0)
    spike = load_backend("torch").autodiff.call(native, native.emitted)
    expected = {value: run(backend, lambda x, w=value: spike(x, w), X) for value in (2.0, 0.5)}
    for value in (2.0, 0.5, 2.0):
        width.fill_(value)
        assert_same_bits(run(backend, lambda x: spike(x, width), X), expected[value])


def test_a_pullback_keeps_the_numbers_of_its_own_call(backend: Any, scaled: Any) -> None:
    x = backend.array(X)
    pulls = [(height, xg.vjp(scaled, x, 0.3, height)[1]) for height in (0.5, 1.5, 2.5)]
    for height, pull_back in reversed(pulls):
        assert_same_bits([backend.numpy(pull_back(x)[0])], by_ops(X, 0.3, height)[1:])


def test_threads_with_numbers_of_their_own_do_not_see_each_others(
    backend: Any, scaled: Any
) -> None:
    wrong: list[Any] = []

    def work(width: float) -> None:
        expected = by_ops(X, width, 1.7)
        for _ in range(60):
            if not all(map(np.array_equal, run(backend, scaled, X, width, 1.7), expected)):
                wrong.append(width)

    on_threads(work, 0.3, 0.4, 0.5)
    assert wrong == []


@pytest.mark.backends("numpy")
def test_numpy_prepares_the_same_numbers_once(
    backend: Any, scaled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = xg.lower("triangular", "numpy", forward="Heaviside")
    prepare = lowered._prepare
    cell = prepare.__closure__[prepare.__code__.co_freevars.index("prepare")]
    make, made = cell.cell_contents, []
    monkeypatch.setattr(cell, "cell_contents", lambda *given: made.append(given) or make(*given))
    for width in (0.5, 1.0 / 2.0, 0.25 + 0.25):  # equal numbers that are other objects
        lowered.vjp(X, width)
    assert len(made) == 1


@pytest.mark.backends("torch")
def test_torch_prepares_the_same_numbers_once(
    backend: Any, scaled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    run(backend, scaled, X, 0.3, 1.7)
    make, made = torch.scalar_tensor, []
    monkeypatch.setattr(
        torch, "scalar_tensor", lambda *given, **kw: made.append(given[0]) or make(*given, **kw)
    )
    run(backend, scaled, X, 0.3, 1.7)
    assert made == []
    for width in (0.5, 1.0 / 2.0, 0.25 + 0.25):  # equal numbers that are other objects
        run(backend, scaled, X, width, 1.7)
    assert sorted(made) == [0.5, 1.7]  # the code's own 1.0 was made before


@pytest.mark.backends("torch")
def test_numbers_beside_tensors_of_two_dtypes_keep_their_precision(backend: Any) -> None:
    import torch

    @xg.custom_gradient
    def mixed(n: Any, x: Any, y: Any, c: Any) -> Any:
        def pull(grad_out: Any) -> Any:
            return None, (grad_out * c).to(x.dtype), grad_out * c, None

        return x * c + y * c + n, pull

    n = torch.arange(5)
    x = torch.linspace(-2, 2, 5).requires_grad_()
    y = torch.linspace(-1, 3, 5, dtype=torch.float64).requires_grad_()
    for _ in range(TIMES):
        assert torch.equal(mixed(n, x, y, 0.3), x * 0.3 + y * 0.3 + n)
        slope = torch.autograd.grad(mixed(n, x, y, 0.3).sum(), y)[0]
        assert torch.equal(slope, torch.full_like(y, 0.3))


@pytest.mark.backends("torch")
def test_numbers_remembered_in_inference_mode_serve_gradients_too(
    backend: Any, scaled: Any
) -> None:
    import torch

    x = torch.tensor(X)
    with torch.inference_mode():
        for _ in range(TIMES):
            scaled(x, 0.3, 1.7)
    for _ in range(TIMES):
        assert_same_bits(run(backend, scaled, X, 0.3, 1.7), by_ops(X, 0.3, 1.7))
    x.requires_grad_()
    (slope,) = torch.autograd.grad(scaled(x, 0.3, 1.7).sum(), x, create_graph=True)
    assert slope.requires_grad


@pytest.mark.backends("numpy")
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 11)])
def test_every_shape_and_layout_gives_the_bits_of_the_ops(
    backend: Any, scaled: Any, shape: Any
) -> None:
    x = np.float32(0.7) * np.ones(shape, np.float32)
    for each in (x, x.T, np.asfortranarray(x), np.stack([x, x], -1)[..., 0]):
        found = run(backend, scaled, np.asarray(each), 0.3, 1.7)
        assert {type(array) for array in found} == {np.ndarray}
        assert_same_bits(found, map(np.asarray, by_ops(each, 0.3, 1.7)))


@pytest.mark.backends("numpy")
def test_warnings_are_off_inside_and_as_they_were_outside(backend: Any) -> None:
    def risky(ctx: Any, grad_out: Any, tin: Any, width: float = 1e300) -> Any:
        return xp.log(tin) / (grad_out * width) + xp.exp(tin * 1e30)

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
