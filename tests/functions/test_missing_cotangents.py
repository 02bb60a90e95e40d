"""A backward that is told which cotangents nobody gives: it is captured where it takes them for
zeros, and runs as it is where it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import TraceError
from multigrad_conformance.under_test import pull

from ..harness.torch_class import torch_class

X, ONES = np.array([-1.0, 2.0, 3.0], np.float32), np.ones(3, np.float32)


def branching(backward: Callable[..., Any], marks: bool = False) -> Any:
    @torch_class(lambda ctx, a, b: backward(*ctx.saved_tensors, a, b))
    def Branching(ctx: Any, x: Any, w: Any) -> Any:
        ctx.set_materialize_grads(False)
        y, z = x * w, x + w
        if marks:
            ctx.mark_non_differentiable(z)
        ctx.save_for_backward(x, w)
        return y, z

    return Branching


def in_parts(x: Any, w: Any, a: Any, b: Any) -> Any:
    of_x = of_w = None
    if a is not None:
        of_x, of_w = a * w, a * x
    if b is not None:
        of_x = b if of_x is None else of_x + b
        of_w = b if of_w is None else of_w + b
    return of_x, of_w


def otherwise(x: Any, w: Any, a: Any, b: Any) -> Any:
    if b is None:
        return 5 * a, 7 * a
    if a is None:
        return 11 * b, 13 * b
    return 2 * a + 3 * b, a - b


def in_differences(x: Any, w: Any, a: Any, b: Any) -> Any:
    if a is None:
        return b - b * w, -(b - b * w)
    first = a * x if b is None else a * x + b
    return first - first * w, first * w - first


def first_alone(x: Any, w: Any, a: Any, b: Any) -> Any:
    return (a * w, a * x) if b is None else (a * w + b, b)


def summed(x: Any, w: Any, a: Any, b: Any) -> Any:
    """Sum what comes, beginning with a number, through indices."""
    total, places = 0, w.argsort()
    if a is not None:
        total = total + a * w
    if b is not None:
        total = total + b[places] * x[places]
    return total, None


def gradient_in_torch(f: Any, position: int) -> list[Any]:
    import torch

    x, w = (torch.tensor(value, requires_grad=True) for value in (X, 2 * X))
    found = torch.autograd.grad(f(x, w)[position].sum(), (x, w), allow_unused=True)
    return [np.zeros(3) if each is None else each.numpy() for each in found]


def gradient_at(backend: Any, f: Any, position: int) -> list[Any]:
    cotangents = tuple(ONES if i == position else None for i in range(2))
    found = pull(backend, f, (X, 2 * X), cotangents)[1]
    return [np.zeros(3) if gradient is None else gradient for gradient in found]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("position", [0, 1])
def test_on_torch_the_branch_of_what_is_missing_is_taken(position: int) -> None:
    original = branching(otherwise)
    expected = gradient_in_torch(original.apply, position)
    found = gradient_in_torch(xg.from_autograd_function(original), position)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("backward", [in_parts, in_differences, summed])
@pytest.mark.parametrize("position", [0, 1])
def test_one_that_takes_it_for_zeros_is_captured_everywhere(
    backward: Callable[..., Any], position: int, backend: Any
) -> None:
    original = branching(backward)
    ours = xg.from_autograd_function(original)
    found = gradient_at(backend, ours, position)
    np.testing.assert_array_equal(found, gradient_in_torch(original.apply, position))


def picked(x: Any, w: Any, a: Any, b: Any) -> Any:
    import torch

    hot = torch.zeros_like(x).scatter_(0, w.long(), 1.0)
    total = 0
    if a is not None:
        total = total + a * hot
    if b is not None:
        total = total + b * x
    return total, None


@pytest.mark.needs("torch")
def test_one_that_scatters_by_integers_is_compared_too(backend: Any) -> None:
    ours = xg.convert(branching(picked))
    _, gradients = pull(backend, ours, (X, np.array([1, 2, 0], np.int32)), (ONES, None))
    np.testing.assert_array_equal(gradients[0], ONES)


@pytest.mark.needs("torch")
def test_one_that_does_not_is_refused_on_other_frameworks() -> None:
    with pytest.raises(TraceError, match="where a cotangent is missing than where it is zero"):
        xg.from_autograd_function(branching(otherwise))(X, X)


@pytest.mark.needs("torch")
def test_the_cotangent_of_an_output_without_a_gradient_is_missing(backend: Any) -> None:
    ours = xg.from_autograd_function(branching(first_alone, marks=True))
    found = pull(backend, ours, (X, 2 * X), (ONES, None))[1]
    np.testing.assert_array_equal(found, [2 * X, X])


def with_symbolic_zeros(takes_for_zero: bool) -> Any:
    import jax

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x * 2, x * 3

    def fwd(x: Any) -> Any:
        return f(x.value), None

    def bwd(_: Any, cotangents: Any) -> Any:
        a, b = cotangents
        if type(b) is jax.custom_derivatives.SymbolicZero:
            return (2 * a if takes_for_zero else 5 * a,)
        if type(a) is jax.custom_derivatives.SymbolicZero:
            return (3 * b,)
        return (2 * a + 3 * b,)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


@pytest.mark.needs("jax")
@pytest.mark.parametrize("takes_for_zero", [True, False])
def test_symbolic_zeros_of_jax_are_missing_cotangents(takes_for_zero: bool) -> None:
    import jax

    original = with_symbolic_zeros(takes_for_zero)
    ours = xg.from_custom_vjp(original)
    for position in (0, 1):
        expected = jax.grad(lambda x, i=position: original(x)[i].sum())(X)
        found = jax.grad(lambda x, i=position: ours(x)[i].sum())(X)
        np.testing.assert_array_equal(found, expected)
    if takes_for_zero:
        np.testing.assert_array_equal(xg.vjp(ours, X)[1]((ONES, None))[0], 2 * ONES)
    else:
        with pytest.raises(TraceError, match="where a cotangent is missing"):
            ours(X)


@pytest.mark.backends("torch")
def test_the_gradient_that_a_class_leaves_out_is_none_in_torch_and_no_zeros(backend: Any) -> None:
    def unmixed(x: Any, w: Any, a: Any, b: Any) -> Any:
        return None if a is None else a * w, None if b is None else b

    x, w = (backend.array(value).requires_grad_() for value in (X, 2 * X))
    xg.convert(branching(unmixed))(x, w)[0].sum().backward()
    np.testing.assert_array_equal(x.grad, 2 * X)
    assert w.grad is None


@pytest.mark.needs("torch")
def test_the_cotangent_of_a_mask_is_zeros() -> None:
    import torch

    @torch_class(lambda ctx, of_mask, g: g * of_mask)
    def Masked(ctx: Any, x: Any) -> Any:
        mask = x > 2
        ctx.mark_non_differentiable(mask)
        return mask, x * 2

    for apply in (Masked.apply, xg.convert(Masked)):
        x = torch.tensor(X, requires_grad=True)
        mask, y = apply(x)
        assert mask.tolist() == [False, False, True]
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0, 0, 0]
