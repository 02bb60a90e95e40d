"""An argument that a handler of ours takes in another sense than the library, or would drop, is
refused or has the library's meaning: no graph computes something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

Tensor = Any
X = np.array([[3.0, 1.0, 2.0], [5.0, 4.0, 9.0]])


def into(take: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        place = np.zeros((2, 2))
        take(x, place)
        return place * x[:, :2]

    return function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.std(0, np.float64), "unbiased is True or False"),
        (lambda x: x.var(0, np.float64), "unbiased is True or False"),
        (lambda x: x.argsort(1, "stable"), "descending is True or False"),
        (lambda x: x.argmax(0, np.zeros(3, int)), "keepdim is True or False"),
        (into(lambda x, place: np.take(x, [0, 1], 1, place)), "write out="),
        (lambda x: np.sum(np.fft.fft(x), initial=2.0).imag + x, "complex numbers"),
        (lambda x: np.fft.fft(x).sum(initial=2.0).imag + x, "complex numbers"),
    ],
)
def test_what_stands_in_the_place_of_another_argument_is_refused(
    function: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(xg.TraceError, match=message):
        xg.function(function, capture=xg.Capture(native=False, dialect="numpy", prove=False))(X)


def test_constants_beside_complex_numbers_have_no_imaginary_part() -> None:
    ones = np.ones((2, 3))

    def joined(x: Tensor) -> Tensor:
        return np.stack([np.fft.fft(x), ones]).imag

    captured = xg.function(joined, capture=xg.Capture(native=False, dialect="numpy", prove=False))
    np.testing.assert_allclose(captured(X), joined(X), atol=1e-12)


@pytest.mark.needs("torch")
def test_a_part_that_begins_at_the_end(torch: Any) -> None:
    x = torch.tensor(X)
    captured = xg.function(
        lambda x: x.narrow(1, -2, 2), capture=xg.Capture(native=False, prove=False, dialect="torch")
    )
    assert torch.equal(captured(x), x[:, 1:])


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.std(0, correction=None),
        lambda x: x.double().new_full(x.shape, 3.7),
        lambda x: (x > 2).new_full(x.shape, 3.7, dtype=x.dtype) * x,
    ],
)
def test_what_torch_means_where_nothing_is_said(torch: Any, function: Any) -> None:
    x = torch.tensor(X, dtype=torch.float32)
    captured = xg.function(function, capture=xg.Capture(native=False, dialect="torch"))
    assert captured(x).dtype == function(x).dtype
    torch.testing.assert_close(captured(x), function(x))


def test_what_memory_held_before_is_in_no_graph() -> None:
    def total(x: Tensor) -> Tensor:
        np.ones(()).fill(7.0)  # `empty` gets this memory, and what is in it
        return np.sum(x, out=np.empty(()))

    function = xg.function(total, lambda grad_out, x: x * 0 + grad_out, native=False)
    assert function(X) == 24.0
    (variant,) = function.captures.variants.values()
    (array,) = [node for node in variant.graphs.forward.nodes if node.op.name == "array"]
    assert not any(dict(array.attrs)["value"].data)


def test_numbers_that_xp_makes_have_the_kind_of_the_dtype() -> None:
    filled = xg.function(
        lambda x: x + xp.full(x.shape, 2.7, dtype=xp.int32),
        capture=xg.Capture(native=False, prove=False),
    )
    np.testing.assert_array_equal(filled(X), X + 2)
    assert xp.asarray(2.7, dtype=xp.int32) == 2
    assert xp.asarray(2.7, dtype=xp.bool) is True


def test_a_scan_has_as_many_steps_as_rows() -> None:
    with pytest.raises(TypeError, match="length=1"):
        xp.scan(lambda carry, row: (carry + row, None), 0.0, X[0], length=1)
    assert xp.scan(lambda carry, row: (carry + row, None), 0.0, X[0], length=3)[0] == 6.0
