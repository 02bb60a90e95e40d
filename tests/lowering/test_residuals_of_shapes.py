"""Of a tensor whose shape and dtype alone backward reads, PyTorch keeps no bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.backend.finding.discovery import load_backend
from multigrad.graph.passes.residuals import reads_shape_alone
from multigrad_conformance.declared import cases

pytestmark = pytest.mark.needs("torch")

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

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
            return forward(x, y)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Any:
            return backward(grad_out)

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
    from multigrad_torch.attach.attach import Like

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
