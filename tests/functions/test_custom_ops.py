"""An operator of `torch.library.custom_op` keeps the gradient that it registers."""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg

from ..capture.values.test_asked_of_a_tensor import X
from ..harness.own_library import assert_as_in

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")


# Before torch 2.5 annotations that are text give no schema.
@torch.library.custom_op(
    "multigrad_tests::spike", mutates_args=(), schema="(Tensor x, float width=1.0) -> Tensor"
)
def spike(x: torch.Tensor, width: float = 1.0) -> torch.Tensor:
    """Return spikes."""
    return (x > 0).to(x.dtype)


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, width = inputs
    ctx.save_for_backward(x)
    ctx.width = width


def pull_spike(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return halve(grad) * (x.abs() < ctx.width), None


@torch.library.custom_op("multigrad_tests::halve", mutates_args=(), schema="(Tensor x) -> Tensor")
def halve(x: torch.Tensor) -> torch.Tensor:
    """Return a half, of which no gradient is registered."""
    return 0.5 * x


spike.register_autograd(pull_spike, setup_context=keep)


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_its_gradient_is_the_registered_one(backend: Any, width: float) -> None:
    def net(x: Any) -> Any:
        return 3 * spike(2 * x, width) + torch.ops.multigrad_tests.spike(x)

    assert_as_in("torch", net, X, backend=backend)


def test_without_a_registered_gradient_a_function_is_refused() -> None:
    def net(x: Any) -> Any:
        return halve(x) + x

    with pytest.raises(xg.TraceError, match=r"multigrad_tests::halve.*registers no gradient"):
        xg.function(net, native=False)(X)


@torch.library.custom_op(
    "multigrad_tests::stretch",
    mutates_args=(),
    schema="(Tensor x, int times=2, *, float factor=1.5, bool twice=False) -> Tensor",
)
def stretch(x: Any, times: int = 2, *, factor: float = 1.5, twice: bool = False) -> Any:
    return x * (times * factor)


def keep_keywords(ctx: Any, keyword_only_inputs: Any, inputs: Any, output: Any) -> None:
    """Keep what torch passes by these names, in whatever order."""
    ctx.times = inputs[1]
    ctx.factor = keyword_only_inputs["factor"] * (2 if keyword_only_inputs["twice"] else 1)


def pull_stretch(ctx: Any, grad: Any) -> Any:
    return grad * (10 * ctx.times * ctx.factor), None


stretch.register_autograd(pull_stretch, setup_context=keep_keywords)


@pytest.mark.parametrize("options", [{}, {"factor": 0.5}, {"twice": True, "factor": 2.0}])
def test_arguments_by_keyword_alone_reach_its_setup_context(
    backend: Any, options: dict[str, Any]
) -> None:
    def net(x: Any) -> Any:
        return stretch(x, 3, **options) + torch.ops.multigrad_tests.stretch(x, **options)

    assert_as_in("torch", net, X, backend=backend)
