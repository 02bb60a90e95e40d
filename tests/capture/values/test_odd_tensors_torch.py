"""Tensors of other classes, and tensors that a mode records: they take the plain kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any


def gradient(act: Callable[[Tensor], Tensor], x: Tensor, rule: str | None) -> Tensor:
    import torch

    if rule is None:
        y = act(x)
    else:
        with xg.use(rule, key=3):
            y = act(x)
    return torch.autograd.grad(y, x, torch.ones_like(y))[0]


@pytest.mark.parametrize("rule", [None, "triangular", "rectangular", "full_jam", "noise"])
@pytest.mark.parametrize("forward", ["Heaviside", "ReLU", "Softplus"])
def test_jagged_tensors_get_what_their_values_would(rule: str | None, forward: str) -> None:
    import torch

    rows = [torch.tensor([-0.5, 0.25, 2.0]), torch.tensor([-2.0, 0.75])]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    values = torch.cat(rows).requires_grad_()
    found = gradient(xg.activation(forward), x, rule)
    expected = gradient(xg.activation(forward), values, rule)
    np.testing.assert_allclose(found.values(), expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("forward", ["Heaviside", "Linear"])
@pytest.mark.parametrize("rule", ["triangular", "arctan", "clip_norm"])
def test_a_recorded_gradient_is_a_graph_that_may_be_differentiated(
    mode: str, forward: str, rule: str
) -> None:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    act, values = xg.activation(forward), torch.linspace(-1.2, 1.3, 7)
    with xg.use(rule):
        recorded = make_fx(torch.func.grad(lambda x: act(x).sum()), tracing_mode=mode)(values)
        traced = make_fx(lambda x: torch.autograd.grad(act(x).sum(), x)[0], tracing_mode=mode)(
            values.clone().requires_grad_()
        )
    expected = gradient(act, values.clone().requires_grad_(), rule)
    for graph in (recorded, traced):
        x = values.clone().requires_grad_()
        np.testing.assert_allclose(graph(x).detach(), expected, rtol=1e-6)
        assert not [node for node in graph.graph.nodes if "_out" in str(node.target)]


@pytest.mark.parametrize("kind", ["rule", "function"])
def test_what_is_new_is_captured_and_proven_where_lengths_are_symbols(kind: str) -> None:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def slope(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * torch.clamp(1 - tin.abs(), min=0)

    if kind == "rule":
        f = xg.activation("Heaviside", rule=slope)
    else:
        f = xg.function(lambda x: x * 1.0, lambda upstream, x: slope(None, upstream, x))
    values = torch.linspace(-1.2, 1.3, 7)
    recorded = make_fx(torch.func.grad(lambda x: f(x).sum()), tracing_mode="symbolic")(values)
    np.testing.assert_allclose(recorded(values), torch.clamp(1 - values.abs(), min=0), rtol=1e-6)
