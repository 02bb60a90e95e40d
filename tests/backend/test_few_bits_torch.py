"""Quantizers of torch that go through int8, uint8, int16 or float8 are the same everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.few_bits import COTANGENT, X, assert_equals
from ..harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
Tensor = Any


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class FakeInt8(StraightThrough):
    """The scale of the largest magnitude; int8 and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = x.abs().max() / 127
        q = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
        return q.to(x.dtype) * scale


class Affine(torch.autograd.Function):
    """A zero point, uint8, and a mask of what was not clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, zero_point: int) -> Tensor:
        unbounded = torch.round(x / scale) + zero_point
        q = unbounded.clamp(0, 255).byte()
        ctx.save_for_backward((unbounded == q).to(torch.uint8))
        return (q.int() - zero_point) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None


class Wrapping(StraightThrough):
    """What is beyond int8 wraps around, as torch casts it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 100).to(torch.int8).float() + (x * 100).type(torch.uint8).float()


class Packed4Bit(StraightThrough):
    """Two numbers of four bits in a byte, packed and unpacked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        q = (x * 2).round().clamp(-8, 7).char() + 8
        q = q.to(torch.uint8)
        packed = q[:, ::2] << 4 | q[:, 1::2]
        whole = torch.stack([packed >> 4, packed & 15], dim=-1).reshape(x.shape)
        return (whole.to(torch.int8) - 8).to(x.dtype) / 2


class Short(StraightThrough):
    """Fixed point of 16 bits, with an arithmetic shift."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        q = (x * 4096).short()
        return (q >> 4).float() / 256 + q.sum() / 4096


@torch_class(lambda ctx, grad: (grad * 1e4).to(torch.float8_e5m2).to(grad.dtype) / 1e4)
def Float8(ctx: Any, x: Tensor) -> Tensor:
    """float8_e4m3fn forward, float8_e5m2 for the gradient, as in training in 8 bits."""
    return (x * 400).to(torch.float8_e4m3fn).to(x.dtype) / 400


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "FakeInt8": (FakeInt8, ()), "Affine": (Affine, (0.02, 120)), "Wrapping": (Wrapping, ()),
    "Packed4Bit": (Packed4Bit, ()), "Short": (Short, ()), "Float8": (Float8, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_quantizer_of_torch_is_the_same_everywhere(name: str, backend: Any) -> None:
    cls, more = CASES[name]
    x = torch.tensor(X, requires_grad=True)
    expected = cls.apply(x, *more)
    expected.backward(torch.tensor(COTANGENT))
    graph = xg.from_autograd_function(cls)
    assert_equals(lambda x: graph(x, *more), expected.detach().numpy(), x.grad.numpy(), backend)


def test_the_detach_trick_goes_through_int8(backend: Any) -> None:
    def fake(x: Tensor) -> Tensor:
        q = (x / 0.05).round().clamp(-128, 127).to(torch.int8)
        return x + (q * 0.05 - x).detach()

    x = torch.tensor(X, requires_grad=True)
    expected = fake(x)
    expected.backward(torch.tensor(COTANGENT))
    graph = xg.function(fake, native=False)
    assert_equals(graph, expected.detach().numpy(), x.grad.numpy(), backend)


def test_a_constant_of_more_bits_makes_more_bits_of_few() -> None:
    weights = torch.tensor([1, 2, 4, 8, 16, 300])

    def packed(x: Tensor) -> Tensor:
        return x * ((x > 0).to(torch.uint8) * weights).sum(1, keepdim=True)

    x = torch.tensor(X)
    result = xg.function(packed, native=False)(np.asarray(X))
    np.testing.assert_array_equal(result, packed(x).numpy())
