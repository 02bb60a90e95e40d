"""Torch as a host: its compiler, its in-place writes, its derivatives of derivatives."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.engine.rules.opaque import call_function

from ...written.hosts_and_guests import bridged, every_guest_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
Tensor: TypeAlias = Any
every_guest = every_guest_of("torch")


@every_guest
def test_a_second_derivative_of_what_is_around_it_is_taken(guest: str) -> None:
    w = torch.tensor(2.0, requires_grad=True)
    x = torch.randn(4)
    (first,) = torch.autograd.grad((bridged(guest, "ReLU")(x) * w**3).sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(first, w)
    torch.testing.assert_close(second, torch.relu(x).sum() * 12)


@every_guest
def test_an_input_written_to_before_backward_is_noticed(guest: str) -> None:
    x = torch.randn(4, requires_grad=True) * 1
    y = bridged(guest, "Heaviside", "triangular")(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_guest
def test_an_output_that_the_guest_keeps_and_is_written_to_is_noticed(guest: str) -> None:
    x = torch.randn(4, requires_grad=True)
    y = bridged(guest, "Tanh")(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_guest
def test_an_output_that_nobody_keeps_may_be_written_to(guest: str) -> None:
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    y = bridged(guest, "Heaviside", "triangular")(x)
    y.add_(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 - x.detach().abs())


@every_guest
def test_what_passes_unchanged_is_memory_of_its_own(guest: str) -> None:
    x = torch.ones(1000, requires_grad=True)
    leaf = x.detach()
    cotangent = torch.ones(1000)
    y = bridged(guest, "Linear")(x)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    with torch.no_grad():
        y.mul_(5)
        gradient.mul_(7)
    assert bool((leaf == 1).all())
    assert bool((cotangent == 1).all())


@every_guest
def test_a_retained_graph_is_pulled_twice(guest: str) -> None:
    x = torch.randn(6, requires_grad=True)
    y = bridged(guest, "ReLU", "triangular")(x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


@every_guest
def test_compiled_code_calls_the_guest(guest: str) -> None:
    unread = load_backend("torch").compiler.opaque
    assert unread is not None
    act = unread(bridged(guest, "Heaviside", "triangular"))
    linear = torch.nn.Linear(3, 5)

    def model(x: Tensor) -> Tensor:
        return act(linear(x)).sum() * 2

    x = torch.randn(4, 3)
    model(x).backward()
    assert linear.weight.grad is not None
    expected, linear.weight.grad = linear.weight.grad, None
    torch.compile(model, backend="aot_eager")(x).backward()
    torch.testing.assert_close(linear.weight.grad, expected)


@every_guest
def test_without_gradients_forward_alone_runs(guest: str) -> None:
    with torch.no_grad():
        y = bridged(guest, "Tanh")(torch.ones(3, requires_grad=True))
    assert not y.requires_grad
    torch.testing.assert_close(y, torch.tanh(torch.ones(3)))


@every_guest
def test_meta_tensors_show_the_shape(guest: str) -> None:
    function = xg.function(lambda x: x.sum(-1), lambda g, x: g[..., None] + x * 0)
    y = call_function(function, (torch.empty(4, 3, device="meta"),), {}, guest)
    assert y.is_meta
    assert y.shape == (4,)


@every_guest
def test_transforms_of_torch_func_see_through_a_bridge(guest: str) -> None:
    f, x = bridged(guest, "Tanh"), torch.randn(4, 3)
    gradients = torch.func.vmap(torch.func.grad(lambda row: f(row).sum()))(x)
    torch.testing.assert_close(gradients, 1 - torch.tanh(x) ** 2)


@pytest.mark.needs("jax")
def test_a_write_to_the_output_does_not_reach_the_guests_constants() -> None:
    table = np.arange(3.0, dtype=np.float32)
    function = xg.function(lambda x: (x * 2, x * 0 + table), lambda g, x: g[0] * 2)
    for _ in range(2):
        _, y = call_function(function, (torch.ones(3),), {}, "jax")
        assert y.tolist() == [0.0, 1.0, 2.0]
        y.add_(1)
