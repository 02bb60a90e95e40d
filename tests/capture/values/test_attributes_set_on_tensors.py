"""Attributes that code sets on tensors: read later in the same capture, kept for the caller on the
code's own framework, and never silently missed.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = np.array([[0.3, -1.2, 0.6], [1.5, 0.25, -0.75]], np.float32)


@torch_class(lambda ctx, grad: grad)
def Hardened(ctx: Any, soft: Any) -> Any:
    """Rounds; what was rounded, and what it computed, are attributes of the result."""
    hard = soft.round()
    hard.soft, hard.tripled, hard.tag = soft, soft * 3, "hard"
    return hard


class Scaling(torch.autograd.Function):
    """Sets an attribute on its argument, which its backward reads."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.scale = 2.0
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.scale


def reads_its_result(x: Any) -> Any:
    hard = Hardened.apply(x)
    return torch.sin(hard.soft) * hard.tripled if hard.tag == "hard" else hard


def reads_its_argument(x: Any) -> Any:
    return Scaling.apply(x) * x.scale


def reads_what_it_set(x: Any) -> Any:
    y = x * 2
    y.sine, y.count = torch.sin(x), 3
    y += 1  # the same tensor still
    return y * y.sine * y.count


def reads_none_of_a_view(x: Any) -> Any:
    y = x * 2
    y.times = 3.0
    views = (y.view(2, 3), y.view_as(x), y.reshape(x.shape), y[...], y.detach())
    return y * y.times + sum(view * getattr(view, "times", 1.0) for view in views)


def soft_of(y: Any) -> Any:
    return torch.sin(getattr(y, "soft", y))


@pytest.mark.parametrize(
    "function",
    [reads_its_result, reads_its_argument, reads_what_it_set, reads_none_of_a_view],
)
def test_an_attribute_is_read_in_the_capture_that_it_was_set_in(
    backend: Any, function: Any
) -> None:
    of = xg.function(function)
    assert_as_in("torch", function, X, of=of, backend=backend, rtol=1e-6, atol=1e-6)


def test_the_attributes_of_a_result_are_kept_on_torch_and_left_out_elsewhere(backend: Any) -> None:
    hard = xg.from_autograd_function(Hardened)(backend.array(X))
    np.testing.assert_array_equal(backend.numpy(hard), X.round())
    if backend.name == "torch":
        assert hard.tag == "hard"
        assert torch.equal(hard.soft, torch.tensor(X))
    else:
        with pytest.raises(AttributeError):
            _ = hard.soft


def test_the_attribute_of_an_argument_is_read_by_its_backward(backend: Any) -> None:
    of = xg.from_autograd_function(Scaling)
    assert_as_in("torch", Scaling.apply, X, of=of, backend=backend, rtol=1e-6, atol=0)


def test_no_default_stands_for_an_attribute_that_was_left_out(backend: Any) -> None:
    function = xg.function(soft_of)
    hard = xg.from_autograd_function(Hardened)(backend.array(X))
    if backend.name == "torch":
        np.testing.assert_allclose(function(hard), np.sin(X), rtol=1e-6)
    else:
        with pytest.raises(xg.TraceError, match=r"'soft_of' looks for .soft of an argument"):
            function(hard)


def test_what_the_caller_has_set_is_seen_at_each_call() -> None:
    function = xg.function(soft_of)
    x = torch.tensor(X)
    assert torch.equal(function(x), torch.sin(x))
    x.soft = torch.ones(2, 3)
    assert torch.equal(function(x), torch.sin(torch.ones(2, 3)))
    del x.soft
    assert torch.equal(function(x), torch.sin(x))


def test_an_attribute_that_is_no_value_is_refused_off_torch() -> None:
    @torch_class(lambda ctx, grad: grad * 3)
    def Listed(ctx: Any, x: Any) -> Any:
        y = x * 3
        y.parts = [x, y]
        return y

    function = xg.from_autograd_function(Listed)
    assert len(function(torch.tensor(X)).parts) == 2
    with pytest.raises(xg.TraceError, match=r"py:\d+\) sets an attribute 'parts'.*to a list"):
        function(X)


# What a class makes from numbers alone and then writes into: labels, masks, ranges, unit matrices.
# Such a tensor is the library's own until a symbol is written into one; the capture is repeated
# then, and all of them are symbols.


def labels(x: Any) -> Any:
    places = torch.zeros(4, dtype=torch.long)
    places[1:] = x[0].argsort()
    return x[0][places[1:]]


def masks(x: Any) -> Any:
    mask = torch.ones(2, 3, dtype=torch.bool).triu(1)
    mask[0, 1:] = x[0, 1:] > 0
    return torch.where(mask, x, torch.zeros(2, 3))


def unit_matrices(x: Any) -> Any:
    unit = torch.eye(3).view(1, 3, 3).repeat(2, 1, 1).type(x.dtype)
    unit[:, 0] = x
    return unit


def ranges(x: Any) -> Any:
    line, steps = torch.linspace(0, 1, 3), torch.arange(3).float()
    line += x[0]
    steps.mul_(x[1])
    return line + steps


def listed(x: Any) -> Any:
    given = torch.tensor([1.0, 2.0, 3.0])
    given[0] = x[0, 0]
    return torch.mul(given, x, out=torch.empty(2, 3))


def integers(x: Any) -> Any:
    counts, small = torch.full((3,), 2), torch.zeros(3, dtype=torch.uint8)
    counts[0], small[1:] = x[1, 0] * 3, x[:, 0].argsort()
    return counts * 1.0 + small


def make(forward: Any) -> Any:
    """Return the Function of a class with this forward."""
    spread = torch_class(lambda ctx, grad: torch.zeros(2, 3) + grad.sum())
    return xg.from_autograd_function(spread(lambda ctx, x: forward(x)))


@pytest.mark.parametrize("forward", [labels, masks, unit_matrices, ranges, listed, integers])
def test_what_a_class_has_made_takes_what_is_written_into_it(backend: Any, forward: Any) -> None:
    expected = forward(torch.tensor(X)).numpy()
    y, (gradient,) = pull(backend, make(forward), (X,), np.ones_like(expected))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(gradient, np.full_like(X, expected.size))


def test_a_tensor_from_outside_is_not_written_into(backend: Any) -> None:
    outside = torch.zeros(2, 3)

    def counted(x: Any) -> Any:
        outside[0] = x[0]
        return x * 2

    if backend.name == "torch":
        make(counted)(backend.array(X))
        assert torch.equal(outside[0], torch.tensor(X[0]))
    else:
        with pytest.raises(xg.TraceError, match="__setitem__"):
            make(counted)(backend.array(X))


def test_a_function_of_a_class_has_the_signature_of_its_apply() -> None:
    @torch_class(lambda ctx, grad: (grad * 2, None))
    def Scaled(ctx: Any, x: Any, scale: float = 2.0) -> Any:
        return x * scale

    signature = inspect.signature(xg.from_autograd_function(Scaled))
    assert list(signature.parameters) == ["x", "scale"]
