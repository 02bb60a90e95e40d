"""Convolutions and windows as ops: what they mean, on every backend, in every layout of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

xp: Any = xg.xp
RNG = np.random.default_rng(2)


def array(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


# x, kernels, strides, dilations, groups
SHAPES: dict[str, tuple[Any, ...]] = {
    "one axis": ((2, 3, 9), (4, 3, 3), (2,), (1,), 1),
    "dilated": ((2, 3, 9), (4, 3, 2), (1,), (3,), 1),
    "dilated by strides": ((1, 2, 8, 9), (3, 2, 2, 3), (2, 3), (3, 2), 1),
    "groups": ((2, 4, 6, 5), (6, 2, 3, 2), (1, 2), (1, 1), 2),
    "each channel alone": ((1, 3, 5, 5), (6, 1, 2, 2), (2, 1), (1, 2), 3),
    "three axes": ((1, 2, 4, 5, 3), (2, 2, 2, 2, 1), (1, 2, 1), (2, 1, 1), 1),
    "three axes in groups": ((1, 4, 4, 3, 3), (2, 2, 2, 1, 2), (1, 1, 1), (1, 1, 1), 2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_convolution_and_its_gradients_are_numpys(backend: Any, name: str) -> None:
    shape, sizes, *steps = SHAPES[name]
    x, w = array(*shape), array(*sizes)
    meaning = xg.function(lambda x, w: xp.conv(x, w, *steps))
    expected, own_pull = xg.vjp(meaning, x, w)
    ct = array(*expected.shape)
    result, gradients = pull(backend, meaning, (x, w), ct)
    for got, own in zip([result, *gradients], [expected, *own_pull(ct)], strict=True):
        np.testing.assert_allclose(got, own, rtol=1e-5, atol=1e-5)


def test_a_convolution_is_scipys_correlation() -> None:
    from scipy import signal

    x, w = array(1, 1, 7, 6), array(1, 1, 3, 2)
    result = xp.conv(x, w, (1, 1), (1, 1), 1)
    np.testing.assert_allclose(result[0, 0], signal.correlate(x[0, 0], w[0, 0], "valid"), rtol=1e-5)


def test_windows_overlap_and_their_gradient_adds_up(backend: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    slide = xg.function(lambda x: xp.windows(x, (3,), (2,), (1,)))
    result, (gradient,) = pull(backend, slide, (x,))
    np.testing.assert_array_equal(result, np.stack([x[:, 0:3], x[:, 2:5]], 1))
    np.testing.assert_array_equal(gradient, [[1, 1, 2, 1, 1, 0]] * 2)


@pytest.mark.parametrize(
    ("steps", "message"),
    [(((1,), (1,), 2), "channels"), (((1,), (4,), 1), "window")],
)
def test_a_convolution_that_does_not_fit_says_what_does_not(steps: Any, message: str) -> None:
    with pytest.raises((ValueError, xg.MultigradError), match=message):
        xg.function(lambda x, w: xp.conv(x, w, *steps))(array(1, 2, 9), array(3, 2, 4))
