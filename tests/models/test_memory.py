"""`xg.memory`: the bytes that are kept for backward, as the frameworks count them themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.rule_names import OWN
from multigrad.errors import RuleTypeError, RuleValueError, TraceError

from ..harness.torch_class import torch_class
from ..harness.traced import kept_by_torch

LIBRARY = [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]
SHAPE = (6, 5)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_torch_saves_as_many_bytes_as_are_told(dtype: str, subtests: pytest.Subtests) -> None:
    import torch

    of_torch = getattr(torch, dtype)
    for name in LIBRARY:
        with subtests.test(name):
            act = xg.activation("Heaviside", rule=name)
            x = torch.randn(SHAPE).to(of_torch).requires_grad_()
            assert xg.memory(act, SHAPE, of_torch).total == kept_by_torch(act, x)


@pytest.mark.needs("jax")
def test_jax_keeps_as_many_bytes_as_are_told(subtests: pytest.Subtests) -> None:
    import jax
    import jax.numpy as jnp

    for name in LIBRARY[::4]:
        with subtests.test(name):
            act = xg.activation("Heaviside", rule=name)
            with xg.use(name, key=7):
                _, pull = jax.vjp(act, jnp.ones(SHAPE))
            leaves = [x for x in jax.tree_util.tree_leaves(pull) if x.ndim and x.dtype != "uint32"]
            told = xg.memory(act, SHAPE, jnp.float32)  # a key of draws aside
            assert told.backend == "jax"
            assert sum(r.bytes for r in told.residuals if r.shape) == sum(x.nbytes for x in leaves)


def test_residuals_are_inputs_outputs_masks_or_intermediates() -> None:
    def what(obj: Any) -> list[tuple[str, tuple[int, ...], int]]:
        kept = xg.memory(obj, (4, 8)).residuals
        return [(each.what, each.shape, each.bytes) for each in kept]

    @xg.register("loudness", first_order=True)
    def loudness(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * tin.norm()

    assert what("rectangular") == [("mask", (4, 8), 32)]
    assert what(xg.activation("Tanh")) == [("output", (4, 8), 128)]
    assert what("triangular") == [("input", (4, 8), 128)]
    assert what("loudness") == [("intermediate", (), 4)]
    assert what("scale") == []
    assert str(xg.memory("scale", (4, 8))).endswith("keeps 0 bytes for backward")


def test_function_of_several_tensors_takes_a_list_of_shapes() -> None:
    product = xg.function(lambda x, w: x @ w, lambda g, x, w: (g @ w.T, x.T @ g))
    kept = xg.memory(product, [(8, 4), (4, 3)])
    assert {each.name: each.bytes for each in kept.residuals} == {"x": 8 * 4 * 4, "w": 4 * 3 * 4}
    assert xg.memory(product, [(8, 4), (4, 3)], "float16").total == kept.total // 2


def test_nothing_of_the_size_is_made() -> None:
    assert xg.memory("rectangular", (1 << 20, 1 << 20)).total == 1 << 40


def test_what_cannot_be_told_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(RuleTypeError, match="expected a tuple of ints"):
        xg.memory("rectangular", 3)  # type: ignore[arg-type]
    with pytest.raises(RuleTypeError, match="expected the name of one"):
        xg.memory("rectangular", (3,), "float31")
    with pytest.raises(RuleValueError, match="takes one tensor, and got 2 shapes"):
        xg.memory("rectangular", [(3,), (4,)])
    with pytest.raises(RuleValueError, match="missing a required argument: 'w'"):
        xg.memory(xg.function(lambda x, w: x * w), (3,))
    native = xg.register("as_it_is", native=True)(lambda ctx, grad_out, tin: grad_out)
    with pytest.raises(TraceError, match="may read its whole input"):
        xg.memory(native, (3,))
    with pytest.raises(RuleTypeError, match="expected a custom gradient"):
        xg.memory(3, (3,))


@pytest.mark.needs("torch")
def test_layers_of_a_model_keep_what_torch_saves() -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.BatchNorm1d(30), nn.Linear(30, 5))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    plain = xg.memory(model, (8, 20))
    assert plain.layers["0"] == 8 * 20 * 4  # its input
    assert plain.layers["1"] == 8 * 30 * 4  # its output
    assert plain.layers["3"] == 8 * 30 * 4
    assert plain.total == sum(plain.layers.values())
    with xg.attach(model, {nn.ReLU: "rectangular"}):
        ruled = xg.memory(model, (8, 20))
        assert ruled.layers["1"] == 8 * 30  # a mask; its output is what the next layer keeps
        for name, each in model.state_dict().items():
            torch.testing.assert_close(each, before[name])  # running means, too
        counted = kept_by_torch(model, torch.zeros(8, 20), besides=model.parameters())
    per_feature = 30 * 4  # weights and statistics
    assert 0 <= counted - ruled.total <= 4 * per_feature
    rows = str(ruled).splitlines()
    assert rows[0] == f"Sequential on torch keeps {ruled.total:,} bytes for backward:"
    assert rows[1].split() == ["layer", "name", "what", "shape", "dtype", "bytes"]


@pytest.mark.needs("torch")
def test_parts_of_one_memory_count_each_and_repetitions_once() -> None:
    from torch import nn

    class Gated(nn.Module):
        def forward(self, x: Any) -> Any:
            a, b = x.sin().chunk(2, dim=-1)
            return a * b * a[:, :1].expand_as(a).T.contiguous().T

    class Repeated(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.expand(50, *x.shape).square().sum(0)

    size = 8 * 10 * 4
    assert [each.bytes for each in xg.memory(Gated(), (8, 20)).residuals] == [
        2 * size,  # the input, of which there is the sine
        *[size] * 4,  # its halves; their product, and the column, which is copied
    ]
    assert xg.memory(Repeated(), (8, 10)).total == size


@pytest.mark.needs("torch")
def test_converted_class_is_asked_as_a_function_is() -> None:
    import torch

    @torch_class(lambda ctx, grad: grad * (ctx.saved_tensors[0] > 0))
    def Clamped(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    x = torch.randn(SHAPE, requires_grad=True)
    converted = xg.convert(Clamped)
    assert (
        xg.memory(converted, SHAPE).total == kept_by_torch(xg.function(converted), x) == x.numel()
    )
    assert kept_by_torch(Clamped.apply, x) == 4 * x.numel()
    np.testing.assert_array_equal(converted(x).detach(), Clamped.apply(x).detach())


@pytest.mark.needs("torch", "jax")
def test_of_zeros_like_a_tensor_torch_keeps_nothing_and_jax_the_tensor() -> None:
    import jax.numpy as jnp
    import torch

    @torch_class(lambda ctx, grad: (grad, torch.zeros_like(ctx.saved_tensors[0])))
    def Below(ctx: Any, x: Any, top: Any) -> Any:
        ctx.save_for_backward(top)
        return torch.minimum(x, top)

    below = xg.convert(Below)
    x, top = (torch.randn(SHAPE, requires_grad=True) for _ in range(2))
    assert (
        xg.memory(below, [SHAPE, SHAPE], torch.float32).total == kept_by_torch(below, x, top) == 0
    )
    below(x, top).sum().backward()
    assert top.grad is not None
    assert top.grad.eq(0).all()
    assert xg.memory(below, [SHAPE, SHAPE], jnp.float32).residuals


@pytest.mark.needs("torch")
def test_a_mask_and_its_complement_are_kept_once() -> None:
    import torch

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        inside = torch.where(x == 0, 0.0, grad)
        return torch.where(x != 0, inside - 1, inside)

    @torch_class(backward)
    def Support(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    x = torch.tensor([0.0, 1.0, float("nan"), -0.0], requires_grad=True)
    converted = xg.convert(Support)
    assert kept_by_torch(converted, x) == 4
    converted(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 0.0, 0.0]
    y = x.detach().clone().requires_grad_()
    Support.apply(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
