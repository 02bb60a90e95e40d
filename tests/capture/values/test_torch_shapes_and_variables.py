"""What torch's code asks of shapes and complex numbers, and its old name of tensors, `Variable`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")

A = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)


def rest_of_a_shape(x: Any) -> Any:
    rest = x.shape[1:]
    return x * rest.numel() * (x.shape[:1] + rest).numel()


def no_complex_numbers(x: Any) -> Any:
    if x.is_complex() or torch.is_complex(x.bool()):
        return torch.view_as_real(x)
    return x.contiguous() * 2


def a_variable_is_the_same_memory(x: Any) -> Any:
    twice = x * 2
    variable = torch.autograd.Variable(twice, requires_grad=False)
    twice.add_(1)
    return variable + x


CASES = (rest_of_a_shape, no_complex_numbers, a_variable_is_the_same_memory)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_it_answers_as_torch_does(function: Any) -> None:
    wanted = function(torch.tensor(A)).numpy()
    np.testing.assert_array_equal(xg.function(function, native=False)(A), wanted)


def test_no_gradient_goes_through_a_variable(backend: Any) -> None:
    x = torch.tensor(A, requires_grad=True)
    a_variable_is_the_same_memory(x).backward(torch.tensor(A))
    function = xg.function(a_variable_is_the_same_memory, native=False)
    _, gradient = backend.vjp(function, A, A)
    np.testing.assert_array_equal(gradient, x.grad.numpy())


def test_variables_of_torch_are_as_before() -> None:
    xg.function(a_variable_is_the_same_memory, native=False)(A)
    assert "__new__" not in vars(torch.autograd.Variable)
    assert torch.autograd.Variable(torch.ones(2), requires_grad=True).requires_grad
