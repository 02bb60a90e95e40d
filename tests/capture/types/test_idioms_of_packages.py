"""Idioms met in published classes: room made by `.new()` and `.resize_as_()`, tensors among the
defaults of a class, a tensor compared with None, a rounded number as an index.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in
from ..values.test_asked_of_a_tensor import X, make

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")


class Parameters(NamedTuple):
    """Parameters as a package holds them."""

    threshold: Any = torch.as_tensor(0.5)
    slope: Any = torch.as_tensor(3.0)


def test_room_is_made_for_what_is_empty(backend: Any) -> None:
    def squares(ctx: Any, x: Any) -> Any:
        out, same = x.new(), x.new(x)
        torch.pow(same, 2, out=out.resize_as_(x))
        out.select(1, 0).add_(1.0)
        return out

    function, cls = make(squares)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)


def test_what_has_elements_is_not_resized() -> None:
    def resized(ctx: Any, x: Any) -> Any:
        return x.clone().resize_(2)

    with pytest.raises(xg.TraceError, match=r"resizes a tensor that has elements"):
        make(resized)[0](X)


def test_tensors_among_the_defaults_of_a_class_are_read_at_each_call(backend: Any) -> None:
    def spike(x: Any) -> Any:
        p = Parameters()
        return torch.where(x > p.threshold, x * p.slope, x)

    function = xg.function(spike)
    for slope in (3.0, 5.0):
        Parameters._field_defaults["slope"].fill_(slope)
        assert_as_in("torch", spike, X, of=function, backend=backend)
    Parameters._field_defaults["slope"].fill_(3.0)


def test_a_tensor_is_not_none(backend: Any) -> None:
    def chosen(ctx: Any, x: Any) -> Any:
        nothing = x == None
        return x * 3 if x != None and nothing is False else x

    function, cls = make(chosen)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)


def test_a_rounded_number_is_an_index_and_another_one_is_none(backend: Any) -> None:
    def percentile(ctx: Any, x: Any) -> Any:
        k = 1 + round(0.01 * 60.0 * (x.numel() - 1))
        return x - x.reshape(-1).kthvalue(k).values

    y = make(percentile)[0](backend.array(X))
    np.testing.assert_allclose(backend.numpy(y), X - np.sort(X.ravel())[3], rtol=1e-6)

    def broken(ctx: Any, x: Any) -> Any:
        return x - x.reshape(-1).kthvalue(x.numel() / 4).values

    with pytest.raises((TypeError, xg.TraceError), match="float"):
        make(broken)[0](backend.array(X))


def test_a_constant_asks_for_no_gradient_of_a_class_inside(backend: Any) -> None:
    def scaled(ctx: Any, points: Any, x: Any) -> Any:
        if any(ctx.needs_input_grad[:1]):
            raise RuntimeError("no gradient for points")
        return x * points

    def to_x(ctx: Any, grad: Any) -> Any:
        return None, 2 * grad

    _, cls = make(scaled, to_x)

    def around(x: Any) -> Any:
        return cls.apply(torch.linspace(-1.0, 1.0, 3), x) + cls.apply(x.detach(), x)

    assert_as_in("torch", around, X, backend=backend)
