"""On torch a call remembers the constants of the last numbers, for those very numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..support.threads import on_threads

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
xp = xg.xp
TIMES = 2  # the constants are made at the first call, and taken from memory at the second


@pytest.fixture
def scaled() -> Any:
    @xg.custom_gradient
    def scaled(x: Any, width: Any, height: Any) -> Any:
        def pull(grad_out: Any) -> Any:
            return grad_out * height / (1.0 + xp.abs(x * width)), None, None

        return xp.tanh(x * width) * height, pull

    return scaled


def run(f: Any, x: Any, *numbers: Any) -> tuple[Any, Any]:
    """Return the output and the gradient, as numpy arrays."""
    x = x.clone().requires_grad_()
    y = f(x, *numbers)
    y.backward(x.detach() + 0.5)
    return y.detach().numpy(), x.grad.numpy()


def in_torch(x: Any, width: Any, height: Any) -> tuple[Any, Any]:
    y = torch.tanh(x * width) * height
    return y.numpy(), ((x + 0.5) * height / (1.0 + torch.abs(x * width))).numpy()


def assert_same_bits(found: Any, expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
        numbers = ~np.isnan(theirs)
        np.testing.assert_array_equal(np.signbit(mine)[numbers], np.signbit(theirs)[numbers])


@pytest.mark.parametrize(
    "height", [1e300, -1e39, 3.4028235677973366e38, 3.4e38, 1e-46, 1e-40, float("inf"), -1e-320]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_at_the_ends_of_a_dtype_are_rounded_as_torch_does(
    scaled: Any, dtype: str, height: float
) -> None:
    x = torch.linspace(-2, 2, 33, dtype=getattr(torch, dtype))
    for _ in range(TIMES):
        assert_same_bits(run(scaled, x, 0.3, height), in_torch(x, 0.3, height))


def test_a_literal_of_the_code_is_not_taken_for_a_number_that_equals_it() -> None:
    @xg.custom_gradient
    def shifted(x: Any, shift: Any) -> Any:
        def pull(grad_out: Any) -> Any:
            return grad_out * shift + 0.0 * xp.abs(x) * -0.0, None

        return (x + 0.0) * shift, pull

    x = torch.tensor([-1.0, -0.0, 0.0, 1.0])
    for shift in (-0.0, 0.0, 1.0, -0.0, 0.0):
        for _ in range(TIMES):
            y, slope = run(shifted, x, shift)
            expected = ((x + 0.0) * shift).numpy(), ((x + 0.5) * shift + 0.0 * x.abs() * -0.0)
            assert_same_bits((y, slope), (expected[0], expected[1].numpy()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_prepared_numbers_give_the_bits_of_numbers_as_they_are(scaled: Any, dtype: str) -> None:
    x = torch.linspace(-2, 2, 33, dtype=torch.float64).to(getattr(torch, dtype))
    first = [part.clone() for part in map(torch.as_tensor, _of(scaled, x, 0.3, 1.7))]
    for _ in range(TIMES):
        again = _of(scaled, x, 0.3, 1.7)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def _of(f: Any, x: Any, *numbers: Any) -> tuple[Any, Any]:
    x = x.clone().requires_grad_()
    y = f(x, *numbers)
    y.sum().backward()
    return y.detach(), x.grad


def test_numbers_that_are_equal_but_not_the_same_are_told_apart(scaled: Any) -> None:
    x = torch.linspace(-2, 2, 33)
    nan = float("nan")
    for height in (0.0, -0.0, 2.0, nan, -0.0, 0.0, nan, 1.0):
        for _ in range(TIMES):
            assert_same_bits(run(scaled, x, 0.3, height), in_torch(x, 0.3, height))


def test_constants_of_one_dtype_are_not_those_of_another(scaled: Any) -> None:
    for dtype in (torch.float32, torch.float64, torch.float32):
        x = torch.linspace(-2, 2, 33, dtype=dtype)
        for _ in range(TIMES):
            assert_same_bits(run(scaled, x, 0.3, 1.7), in_torch(x, 0.3, 1.7))


def test_numbers_beside_tensors_of_two_dtypes_keep_their_precision() -> None:
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


def test_the_same_numbers_are_prepared_once(scaled: Any, monkeypatch: Any) -> None:
    x = torch.linspace(-2, 2, 33)
    run(scaled, x, 0.3, 1.7)
    made: list[Any] = []
    make = torch.scalar_tensor

    def noting(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return make(*args, **kwargs)

    monkeypatch.setattr(torch, "scalar_tensor", noting)
    run(scaled, x, 0.3, 1.7)
    assert made == []
    for _ in range(TIMES):
        run(scaled, x, 0.5, 1.7)
    assert {args[0] for args in made} == {0.5, 1.7}  # the code's own 1.0 was made before
    once = len(made)
    for width in (1.0 / 2.0, 0.25 + 0.25):  # equal numbers that are other objects
        run(scaled, x, width, 1.7)
    assert len(made) == once


def test_a_number_that_comes_as_a_tensor_is_looked_at_again() -> None:
    spike = xg.get("triangular").under("Heaviside")
    x, width = torch.linspace(-2, 2, 33), torch.tensor(2.0)
    for value in (2.0, 0.5, 2.0):
        width.fill_(value)
        for _ in range(TIMES):
            found = run(spike, x, width)
            assert_same_bits(
                found, run(xg.activation("Heaviside", "triangular", params={"width": value}), x)
            )


def test_threads_with_numbers_of_their_own_do_not_see_each_others(scaled: Any) -> None:
    x = torch.linspace(-2, 2, 33)
    wrong: list[Any] = []

    def work(width: float) -> None:
        expected = in_torch(x, width, 1.7)
        for _ in range(200):
            found = run(scaled, x, width, 1.7)
            if not all(map(np.array_equal, found, expected)):
                wrong.append(width)

    on_threads(work, 0.3, 0.4, 0.5)
    assert wrong == []


def test_numbers_remembered_in_inference_mode_serve_gradients_too(scaled: Any) -> None:
    x = torch.linspace(-2, 2, 33)
    with torch.inference_mode():
        for _ in range(TIMES):
            scaled(x, 0.3, 1.7)
    for _ in range(TIMES):
        assert_same_bits(run(scaled, x, 0.3, 1.7), in_torch(x, 0.3, 1.7))
    x.requires_grad_()
    (slope,) = torch.autograd.grad(scaled(x, 0.3, 1.7).sum(), x, create_graph=True)
    assert slope.requires_grad
