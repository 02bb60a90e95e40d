"""Fused kernels reduce over the first axes and over several of the last: a step for each output
channel of a convolution, weights that are scaled by channels, the gradients of a weight and a bias.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import GradientError

from .test_reductions import (
    assert_near,
    both,
    cotangent,
    draw,
    is_bits,
    lsq_by_hand,
    number,
    place,
    run,
)

Tensor: TypeAlias = Any
pytestmark = pytest.mark.needs("torch")
__all__ = ["place"]  # a fixture


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(8, 3, 5, 5), (16, 12, 1, 1), (4, 6, 1), (1, 3, 3, 3)])
def test_steps_of_output_channels_get_numpys_gradients(dtype: str, shape: tuple[int, ...]) -> None:
    x = draw(*shape, dtype=dtype)
    steps = number(0.25, shape[0], *[1 for _ in shape[1:]], dtype=dtype)
    found = run(both(xg.estimators.lsq)[0], x, steps)  # a warning of plain code would be an error
    for a, b in zip(found, lsq_by_hand(x, steps), strict=True):
        assert_near(a, b, scale=4.0)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((8, 3, 5, 5), (1, 2, 3)), ((8, 6, 1, 1), (-1, -2, -3)), ((8, 3, 5), (2,)), ((8, 30), 1)],
)
def test_weights_that_are_standardized_or_scaled_by_channels_give_numpys_numbers(
    shape: tuple[int, ...], axes: Any
) -> None:
    def standardized(x: Tensor, gain: Tensor) -> Tensor:
        centered = x - xp.mean(x, axis=axes, keepdims=True)
        return gain * centered / xp.std(x, axis=axes, keepdims=True)

    def to_levels(x: Tensor, gain: Tensor) -> Tensor:
        size = xp.max(xp.abs(x), axis=axes, keepdims=True) / 7
        return gain * size * xp.round(x / size)

    def backward(grad: Tensor, x: Tensor, gain: Tensor) -> Any:
        size = xp.norm(x, axis=axes, keepdims=True)
        return grad * size, xp.sum_to(grad * x, gain)

    x = draw(*shape)
    over = axes if isinstance(axes, tuple) else (axes,)
    a, grad = x.detach().double().cpu().numpy(), cotangent(*shape)
    size = np.abs(a).max(axis=over, keepdims=True) / 7
    gain = number(1.5, *size.shape)
    products = grad * a
    slopes = (
        grad * np.sqrt((a * a).sum(axis=over, keepdims=True)),
        products.sum(axis=over, keepdims=True),
    )
    mean, deviation = a.mean(axis=over, keepdims=True), a.std(axis=over, keepdims=True)
    for forward, y in (
        (standardized, 1.5 * (a - mean) / deviation),
        (to_levels, 1.5 * size * np.round(a / size)),
    ):
        for ours, right in zip(
            run(both((forward, backward))[0], x, gain), (y, *slopes), strict=True
        ):
            assert_near(ours, right, scale=float(np.abs(products).sum(axis=over).max()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((33, 70), 0), ((2000, 3), (-2,)), ((2, 3, 40), (0, 1)), ((2, 5, 9), (-2, -3))],
)
def test_gradients_that_are_summed_over_the_first_axes_are_in_the_kernels(
    dtype: str, shape: tuple[int, ...], axes: Any
) -> None:
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], seed=1, dtype=dtype)
    bias = draw(shape[-1], seed=2, dtype=dtype)

    def backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return grad * weight, xp.sum(grad * x, axis=axes), xp.sum(grad, axis=axes)

    fused, plain = both((lambda x, weight, bias: x * weight + bias, backward))
    found = run(fused, x, weight, bias)
    if dtype == "float32":  # 16 bits are rounded once
        assert all(map(is_bits, found[:2], run(plain, x, weight, bias)))
    grad = cotangent(*shape, dtype=dtype)
    assert_near(found[1], grad * weight.detach().double().cpu().numpy())
    products = grad * x.detach().double().cpu().numpy()
    first = tuple(range(len(shape) - 1))
    for ours, each in zip(found[2:], (products, grad), strict=True):
        assert_near(ours, each.sum(axis=first), scale=float(np.abs(each).sum(axis=first).max()))


def test_a_sum_over_the_first_axes_of_more_axes_is_refused_as_in_plain_code() -> None:
    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return grad * weight, xp.sum(grad * x, axis=0)

    fused, plain = both((lambda x, weight: x * weight, backward))
    weight = draw(3, seed=1)
    expected = run(plain, draw(4, 3), weight)
    assert_near(run(fused, draw(4, 3), weight)[2], expected[2].double().cpu().numpy(), scale=10.0)
    with pytest.warns(RuntimeWarning, match="fused=True.*3 axes, where it reduces 2"):
        y = fused(draw(2, 4, 3), weight)
    for output in (y, plain(draw(2, 4, 3), weight)):
        with pytest.raises(GradientError, match=r"\(4, 3\).*\(3,\)"):
            output.sum().backward()
