"""What the tests of spiking packages for PyTorch share."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def pulled(spike: Any, x: Any) -> tuple[Any, Any]:
    """Return the spikes, and what cotangents from -1 to 2 become."""
    x = x.detach().clone().requires_grad_()
    y = spike(x)
    return y.detach(), torch.autograd.grad(y, x, torch.linspace(-1, 2, x.numel()))[0]


def train(net: Any, rate: float, loss: Callable[[], Any]) -> list[float]:
    """Return the losses of five steps of gradient descent."""
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=rate), []
    for _ in range(5):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def copies(net: Any) -> list[Any]:
    """Return the network as `copy`, `pickle` and `torch.save` give it back."""
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    copied, pickled = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    return [copied, pickled, torch.load(buffer, weights_only=False)]


def assert_same_compiled(function: Callable[..., Any], args: tuple[Any, ...], inputs: Any) -> None:
    """Hold the gradients that the inputs get to those when the function is compiled."""
    pairs = [
        torch.autograd.grad(each(*args).sum(), inputs)
        for each in (function, torch.compile(function, backend="aot_eager"))
    ]
    for given, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(given, expected)
    torch._dynamo.reset()
