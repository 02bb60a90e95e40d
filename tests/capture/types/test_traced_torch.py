"""Functions of torch that no row knows are captured by torch's own trace of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness import fresh

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.needs("torch")


def class_of(function: Callable[[Any], Any]) -> type:
    """Return a class that computes a function, and its gradient by torch's autograd."""

    class Called(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                return torch.autograd.grad(function(again), again, grad_out)[0]

    return Called


def calls() -> dict[str, Callable[[Any], Any]]:
    return {
        "mvlgamma": lambda x: torch.mvlgamma(x + 2.0, 2),
        "renorm": lambda x: (x * 1.0).renorm_(2, 0, 1.0),
        "gradient": lambda x: torch.gradient(x, dim=1)[0],
        "vander": lambda x: torch.linalg.vander(x),
        "local_response_norm": lambda x: F.local_response_norm(x[None], 2)[0],
        "channel_shuffle": lambda x: F.channel_shuffle(x[None, :, :, None], 2)[0, :, :, 0],
        "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :1] * 3.0, dim=1, start=1, end=2),
        "index_put": lambda x: torch.index_put(x, (torch.tensor([0, 1]),), x[:1] * 2.0),
        "accumulated": lambda x: torch.index_put(x, (torch.tensor([1, 1]),), x * 2.0, True),
        "put": lambda x: torch.put(x, torch.tensor([4, -1, 4]), x[1] * 2.0, True),
        "tensorsolve": lambda x: torch.linalg.tensorsolve(x[:, :2], x[:, 2]),
        "i0": lambda x: torch.i0(x) + torch.special.i1(x),
    }


# As a mark they are wanted before torch is imported.
NAMES = "mvlgamma renorm gradient vander local_response_norm channel_shuffle slice_scatter"
MORE = "index_put accumulated put tensorsolve i0"


@pytest.mark.parametrize("name", [*NAMES.split(), *MORE.split()])
def test_a_function_without_a_row_has_torchs_numbers_and_gradient(name: str, backend: Any) -> None:
    call = calls()[name]
    x = np.array([[1.5, 0.25, 0.7], [0.5, 2.0, 1.1]], "float32")
    if name == "channel_shuffle":
        x = x.T.repeat(2, 0)[:4].copy()
    own = torch.tensor(x, requires_grad=True)
    wanted = call(own)
    cotangent = np.linspace(0.5, 1.5, wanted.numel(), dtype="float32").reshape(tuple(wanted.shape))
    (gradient,) = torch.autograd.grad(wanted, own, torch.tensor(cotangent))
    function = xg.from_autograd_function(class_of(call))
    y, pull = xg.vjp(function, backend.array(x))
    (found,) = pull(backend.array(cotangent))
    np.testing.assert_allclose(backend.numpy(y), wanted.detach(), rtol=3e-6, atol=1e-6)
    np.testing.assert_allclose(backend.numpy(found), gradient, rtol=2e-5, atol=1e-6)
    assert "by torch's own trace of" in str(xg.show(function))


def test_what_torch_cannot_trace_is_refused_with_torchs_reason() -> None:
    x = np.array([[1.5, -0.25], [0.5, 2.0]], "float32")
    refused = {
        "masked_select": lambda x: torch.combinations(x[0])[:, 0],
        "draws random numbers": lambda x: F.fractional_max_pool2d(x[None, None], 1, 1)[0, 0],
        "which is not captured": lambda x: torch.special.airy_ai(x),
        "gives floats of integers": lambda x: x * torch.mvlgamma((x > 0).int() + 2, 2),
    }
    for reason, call in refused.items():
        with pytest.raises(xg.errors.TraceError, match=reason):
            xg.vjp(xg.from_autograd_function(class_of(call)), x)


IMPORTS_DYNAMO = """
import multigrad as xg, torch
assert "torch._dynamo" not in __import__("sys").modules
aten = torch.ops.aten
rule = xg.register("traced", native=False)(lambda ctx, g, x: aten.silu_backward(g, x))
rule(None, torch.ones(3), torch.ones(3))
act = xg.activation("relu", rule)
print(torch.compile(lambda x: act(x), fullgraph=True, backend="aot_eager")(torch.ones(3)))
"""


def test_what_is_traced_first_leaves_dynamo_and_operators_as_they_are() -> None:
    done = fresh.run(["-c", IMPORTS_DYNAMO], ("torch",))
    assert done.returncode == 0, done.stderr[-2000:]
