"""Tensors without axes: torch takes the dims 0 and -1 for them. A class that does gives torch's
result, or a TraceError; no other library's error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = torch.tensor(0.7)
AS_TORCH = """
    x.transpose(0, 0); x.transpose(0, -1); x.transpose(dim0=0, dim1=-1); torch.transpose(x, 0, -1)
    x.swapaxes(0, 0); torch.swapdims(x, 0, -1); x.movedim(0, -1); torch.moveaxis(x, 0, 0)
    x.flip(0); x.softmax(-1); x.cumsum(0); x.logsumexp(0); x.sum(0); x.mean(-1, keepdim=True)
    x.max(0)[0]; x.max(-1, keepdim=True)[1]; x.sort(0)[1]; x.std(0, unbiased=False)
    x.squeeze(0); x.unsqueeze(-1); torch.nn.functional.pad(x, ()); x.any(0); x.all()
""".replace("\n", ";").split(";")
REFUSED = """
    x.topk(1)[0]; x.index_select(0, torch.tensor([0])); x.index_add(0, torch.tensor([0]), x)
    x.index_fill(0, torch.tensor([0]), 1.0); x.unfold(0, 1, 1)
""".replace("\n", ";").split(";")


def function_of(expression: str) -> Any:
    """Return the Function of a class whose forward is an expression of x."""

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return eval(expression, {"torch": torch, "x": x})

    return xg.from_autograd_function(
        torch_class(lambda ctx, *grads: ctx.saved_tensors[0] * 2)(forward)
    )


@pytest.mark.parametrize("expression", [e.strip() for e in AS_TORCH if e.strip()])
def test_a_dim_of_a_tensor_without_axes_means_what_it_means_to_torch(expression: str) -> None:
    expected = eval(expression, {"torch": torch, "x": X}).numpy()
    found = function_of(expression)(X.numpy())
    assert np.shape(found) == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("expression", [e.strip() for e in REFUSED if e.strip()])
def test_what_is_not_captured_of_a_tensor_without_axes_is_refused(expression: str) -> None:
    with pytest.raises(xg.TraceError, match=r"without axes|not captured"):
        function_of(expression)(X.numpy())


def test_a_dtype_given_to_a_tensor_that_is_no_symbol_is_a_fact(backend: Any) -> None:
    @torch_class(lambda ctx, grad: grad)
    def Ranked(ctx: Any, x: Any) -> Any:
        return x * (torch.arange(3) + 1).type(x.dtype)

    x = np.ones((2, 3), np.float32)
    found = backend.numpy(xg.from_autograd_function(Ranked)(backend.array(x)))
    np.testing.assert_array_equal(found, x * [1, 2, 3])
    assert found.dtype == np.float32


# What torch's code asks of shapes and complex numbers, and its old name of tensors, `Variable`.


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
    assert_as_in("torch", a_variable_is_the_same_memory, A, backend=backend, rtol=0, atol=0)


def test_variables_of_torch_are_as_before() -> None:
    xg.function(a_variable_is_the_same_memory, native=False)(A)
    assert "__new__" not in vars(torch.autograd.Variable)
    assert torch.autograd.Variable(torch.ones(2), requires_grad=True).requires_grad
