"""Outputs of equal values stay outputs of their own, each with its gradient or without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.passes.residuals import reads_shape_alone
from multigrad_conformance.declared import cases
from multigrad_conformance.under_test import pull

from ..harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
X = np.array([-1.0, 2.0, 3.0], np.float32)
ONES = np.ones(3, np.float32)


FORWARDS: dict[str, Callable[[Any, Any], Any]] = {  # of x and its double
    "CastAndCopied": lambda x, y: (y.float().to(x.dtype).clone(), y),
    "Cast": lambda x, y: (y, y.float().clone()),
    "OfInput": lambda x, y: (x.float().clone(), x.clone()),
    "Summed": lambda x, y: (y.sum_to_size(x.shape).clone(), y),
    "Same": lambda x, y: (y, x * 2),
}


def convert(name: str) -> Any:
    @torch_class(lambda ctx, first, second: 2 * first + 20 * second)
    def Apart(ctx: Any, x: Any) -> Any:
        if name == "OfInput":
            ctx.save_for_backward(x)
        return FORWARDS[name](x, x * 2)

    return xg.from_autograd_function(Apart)


def pulled(backend: Any, f: Any, position: int) -> Any:
    cotangents = tuple(ONES if i == position else None for i in range(2))
    return pull(backend, f, (X,), cotangents)[1][0]


@pytest.mark.parametrize("name", FORWARDS)
def test_equal_outputs_have_their_own_gradients(name: str, backend: Any) -> None:
    f = convert(name)
    np.testing.assert_array_equal(pulled(backend, f, 0), 2 * ONES)
    np.testing.assert_array_equal(pulled(backend, f, 1), 20 * ONES)


@pytest.mark.parametrize("name", FORWARDS)
def test_they_have_them_in_eager_torch_under_transforms_and_compiled(name: str) -> None:
    torch._dynamo.reset()  # it stops after eight functions of one code
    f, x = convert(name), torch.tensor(X)
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
    @torch_class(lambda ctx, first, second: (2 * first, 20 * second)[1 - which])
    def Marked(ctx: Any, x: Any) -> Any:
        y = x * 2
        z = {"clone": y.clone(), "again": x * 2, "view": y.view_as(y)}[way]
        ctx.mark_non_differentiable((y, z)[which])
        return y, z

    f = xg.from_autograd_function(Marked)
    expected = (20.0, 2.0)[which] * ONES
    if (way, which, backend.name) == ("view", 1, "torch"):  # seems to carry one, as the class's
        with pytest.raises(RuntimeError, match="element 1 of tensors does not require grad"):
            pulled(backend, f, 1 - which)
    else:
        np.testing.assert_array_equal(pulled(backend, f, 1 - which), expected)
    x = torch.tensor(X, requires_grad=True)
    as_class = [y.requires_grad for y in Marked.apply(x)]
    assert [y.requires_grad for y in f(x)] == as_class
    if way != "view":  # a view of an output that carries one seems to carry one in torch (2.13)
        assert as_class == [which == 1, which == 0]


# Of a tensor whose shape and dtype alone backward reads, PyTorch keeps no bytes.


Tensor = Any
CASES = {
    name: case
    for name, case in cases().items()
    if any(reads_shape_alone(case.row, i) for i in case.row.shape_only)
}


def hard(g: Tensor) -> Tensor:
    return g.clip(-1, 1)


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        pytest.param(lambda x, y: (x > 0).float() + y.float(), lambda g: (hard(g), g), id="dtype"),
        pytest.param(lambda x, y: x + y, lambda g: (hard(g), g.sum(0)), id="shape"),
    ],
)
def test_a_shape_or_dtype_keeps_no_tensor(forward: Callable[..., Any], backward: Any) -> None:
    import torch

    @torch_class(lambda ctx, grad_out: backward(grad_out))
    def Given(ctx: Any, x: Tensor, y: Tensor) -> Any:
        return forward(x, y)

    f = xg.convert(Given)
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-2, 2, 6, dtype=dtype).reshape(2, 3).requires_grad_()
        y = torch.ones(3, dtype=dtype, requires_grad=True)
        out = f(x, y)
        assert out.grad_fn.saved_tensors == ()
        with torch.no_grad():
            x += 1  # nothing of it is read
        found = torch.autograd.grad(out, (x, y), 2 * torch.ones_like(out))
        wanted = torch.autograd.grad(Given.apply(x, y), (x, y), 2 * torch.ones_like(out))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_kernels_take_a_shape_and_dtype_for_a_tensor(name: str) -> None:
    from multigrad_torch.core.attach.attach import Like

    case, torch = CASES[name], load_backend("torch")
    x = np.linspace(-1.7, 2.1, 6, dtype=np.float32).reshape(2, 3)
    given = [
        torch.tensors.from_numpy(o.copy()) if isinstance(o, np.ndarray) else o
        for o in case.arrays(x, np.float32)
    ]
    alike = [Like(o) if reads_shape_alone(case.row, i) else o for i, o in enumerate(given)]
    kernel = torch.kernels.rows[case.row]
    wanted = torch.tensors.to_numpy(kernel(*given, **case.attrs))
    np.testing.assert_array_equal(torch.tensors.to_numpy(kernel(*alike, **case.attrs)), wanted)
