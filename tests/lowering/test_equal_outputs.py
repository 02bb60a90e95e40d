"""Outputs of equal values stay outputs of their own, each with its gradient or without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")
X = np.array([-1.0, 2.0, 3.0], np.float32)
ONES = np.ones(3, np.float32)


def classes() -> dict[str, Any]:
    import torch

    class Apart(torch.autograd.Function):
        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            return 2 * first + 20 * second

    class CastAndCopied(Apart):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * 2
            return y.float().to(x.dtype).clone(), y

    class Cast(Apart):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * 2
            return y, y.float().clone()

    class OfInput(Apart):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.float().clone(), x.clone()

    class Summed(Apart):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * 2
            return y.sum_to_size(x.shape).clone(), y

    class Same(Apart):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x * 2

    found = (CastAndCopied, Cast, OfInput, Summed, Same)
    return {kind.__name__: kind for kind in found}


NAMES = ("CastAndCopied", "Cast", "OfInput", "Summed", "Same")


def pulled(backend: Any, f: Any, position: int) -> Any:
    cotangents: list[Any] = [None, None]
    cotangents[position] = backend.array(ONES)
    _, pull = xg.vjp(f, backend.array(X))
    return backend.numpy(pull(tuple(cotangents))[0])


@pytest.mark.parametrize("name", NAMES)
def test_equal_outputs_have_their_own_gradients(name: str, backend: Any) -> None:
    f = xg.from_autograd_function(classes()[name])
    np.testing.assert_array_equal(pulled(backend, f, 0), 2 * ONES)
    np.testing.assert_array_equal(pulled(backend, f, 1), 20 * ONES)


@pytest.mark.parametrize("name", NAMES)
def test_they_have_them_in_eager_torch_under_transforms_and_compiled(name: str) -> None:
    import torch

    torch._dynamo.reset()  # it stops after eight functions of one code
    f, x = xg.from_autograd_function(classes()[name]), torch.tensor(X)
    for position, expected in enumerate((2.0, 20.0)):

        def loss(x: Any, position: int = position) -> Any:
            return f(x)[position].sum()

        leaf = x.clone().requires_grad_()
        (eager,) = torch.autograd.grad(loss(leaf), leaf)
        compiled = torch.compile(torch.func.grad(loss), fullgraph=True, backend="aot_eager")
        for found in (eager, torch.func.grad(loss)(x), compiled(x)):
            np.testing.assert_array_equal(found.numpy(), expected * ONES)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("way", ["clone", "again", "view"])
def test_a_mark_of_one_output_leaves_an_equal_one_its_gradient(
    which: int, way: str, backend: Any
) -> None:
    import torch

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * 2
            z = {"clone": y.clone(), "again": x * 2, "view": y.view_as(y)}[way]
            ctx.mark_non_differentiable((y, z)[which])
            return y, z

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            return (2 * first, 20 * second)[1 - which]

    f = xg.from_autograd_function(Marked)
    expected = (20.0, 2.0)[which] * ONES
    np.testing.assert_array_equal(pulled(backend, f, 1 - which), expected)
    x = torch.tensor(X, requires_grad=True)
    assert [y.requires_grad for y in f(x)] == [which == 1, which == 0]
    if way != "view":  # a view of an output that carries one seems to carry one in torch (2.13)
        assert [y.requires_grad for y in Marked.apply(x)] == [which == 1, which == 0]
