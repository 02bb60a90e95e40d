"""A backward that reads an output as forward gave it is differentiated through it by the function's
own gradient, as where it was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import FormatError, xp

from ..harness.torch_class import torch_class

X = np.array([-1.0, 2.0, 3.0], np.float32)
FIRST, SECOND = np.array([1.0, 1.0, 2.0], np.float32), np.array([1.0, 1.0, 3.0], np.float32)
MASK = [0.0, 9.0, 54.0]  # 3 * FIRST * y, and of that by the own gradient again


def mask() -> Any:
    """Return a Function whose forward has no slope, and whose backward reads its output."""
    return xg.function(
        lambda x: xp.where(x > 0, xp.ones_like(x), 0.0),
        lambda grad_out, y: 3 * grad_out * y,
        residuals=lambda y, x: y,
    )


def torch_classes() -> dict[str, Any]:
    import torch

    @torch_class(lambda ctx, g: 3 * g * ctx.saved_tensors[0])
    def Mask(ctx: Any, x: Any) -> Any:
        y = (x > 0).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @torch_class(lambda ctx, g: 3 * g * ctx.y.exp())
    def Attribute(ctx: Any, x: Any) -> Any:
        ctx.y = (x > 0).to(x.dtype)
        return ctx.y

    @torch_class(lambda ctx, g: 3 * g * ctx.saved_tensors[0])
    def Copied(ctx: Any, x: Any) -> Any:
        y = x.clone()
        ctx.save_for_backward(y)
        return y

    def of_both(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * (x * y + x.round())

    @torch_class(of_both)
    def Both(ctx: Any, x: Any) -> Any:
        y = x.round()
        ctx.save_for_backward(x, y)
        return y

    class SetUp(torch.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x.round(), x.sign()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs, *output)

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            x, y, z = ctx.saved_tensors
            return g * y * z + h * x

    @torch_class(lambda ctx, g: g / (3 * ctx.saved_tensors[0] ** 2))
    def Root(ctx: Any, x: Any) -> Any:
        """y**3 = x by bisection, of which the ops have no slope."""
        low, high = torch.zeros_like(x), torch.full_like(x, 2.0)
        for _ in range(24):
            middle = (low + high) / 2
            low = torch.where(middle**3 < x.abs(), middle, low)
            high = torch.where(middle**3 < x.abs(), high, middle)
        y = x.sign() * middle
        ctx.save_for_backward(y)
        return y

    def of_within(ctx: Any, g: Any) -> Any:
        y, is_one = ctx.saved_tensors
        return torch.where(is_one, 3 * g * y, 0)

    @torch_class(of_within)
    def Within(ctx: Any, x: Any) -> Any:
        """Of another class it keeps what no derivative passes through: its output, and bools."""
        y = Mask.apply(x)
        ctx.save_for_backward(y, y > 0.5)
        return y

    return {kind.__name__: kind for kind in (Mask, Attribute, Copied, Both, SetUp, Root, Within)}


def jax_functions() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    def value(x: Any) -> Any:
        return jnp.where(x > 0, 1.0, 0.0)

    applied, derived, pushed, listed = (
        jax.custom_vjp(value),
        *map(jax.custom_vjp, (value,)),
        *(jax.custom_jvp(value) for _ in range(2)),
    )
    computed, again = jax.custom_vjp(value), jax.custom_vjp(value)

    def apply(x: Any) -> Any:
        y = applied(x)
        return y, y

    def derive(x: Any) -> Any:
        y = derived(x)
        return y, jnp.exp(y)

    @pushed.defjvp
    def push(primals: Any, tangents: Any) -> Any:
        y = pushed(*primals)
        return y, 3 * y * tangents[0]

    applied.defvjp(apply, lambda y, g: (3 * g * y,))
    derived.defvjp(derive, lambda y, g: (3 * g * y,))
    computed.defvjp(lambda x: (value(x), value(x)), lambda y, g: (3 * g * y,))
    again.defvjp(lambda x: (value(x), x), lambda x, g: (3 * g * again(x),))
    listed.defjvps(lambda t, y, x: 3 * y * t)
    return {
        "applied": applied, "derived": derived, "computed": computed, "again": again,
        "pushed": pushed, "listed": listed,
    }  # fmt: skip


def second(
    f: Callable[..., Any], x: Any, first: Any = FIRST, last: Any = SECOND, vjp: Any = xg.vjp
) -> Any:
    """Return the gradient by `last` of the gradient of f by `first`, twice that for output 1."""

    def slope(x: Any) -> Any:
        y, pull = vjp(f, x)
        return pull((first, 2 * first) if isinstance(y, tuple) else first)[0]

    return vjp(slope, x)[1](last)[0]


def in_torch(f: Callable[..., Any]) -> Any:
    import torch

    return second(f, torch.tensor(X)).numpy()


def in_jax(f: Callable[..., Any], jit: bool = False) -> Any:
    import jax

    take = partial(second, f)
    return np.asarray((jax.jit(take) if jit else take)(jax.numpy.asarray(X)))


def in_tensorflow(f: Callable[..., Any], graph: bool = False) -> Any:
    import tensorflow as tf

    take = partial(second, f)
    return (tf.function(take) if graph else take)(tf.constant(X)).numpy()


CLASSES = ("Mask", "Attribute", "Copied", "Both", "SetUp", "Root", "Within")
FUNCTIONS = ("applied", "derived", "computed", "again", "pushed", "listed")
SECOND_DERIVATIVES = {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}
COMPILED = {
    "jax": [partial(in_jax, jit=True)],
    "tensorflow": [partial(in_tensorflow, graph=True)],
}
differentiating = pytest.mark.backends(*SECOND_DERIVATIVES)


def assert_second(backend: Any, f: Any, expected: Any) -> None:
    """Compare the second derivative on a framework, and in its compiled code if it has such."""
    for take in (SECOND_DERIVATIVES[backend.name], *COMPILED.get(backend.name, ())):
        np.testing.assert_allclose(take(f), expected, rtol=1e-5)


@differentiating
@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_saves_its_output_has_the_second_derivative_of_the_class_everywhere(
    backend: Any, name: str
) -> None:
    original = torch_classes()[name]
    expected = in_torch(original.apply)
    assert expected.any()
    assert_second(backend, xg.from_autograd_function(original), expected)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["Mask", "Copied", "SetUp"])
def test_it_has_it_under_torch_func_and_vmap(name: str) -> None:
    import torch

    original = torch_classes()[name]
    expected, ours = in_torch(original.apply), xg.from_autograd_function(original)
    upstreams = torch.tensor(FIRST), torch.tensor(SECOND)

    def twice(x: Any) -> Any:
        return second(ours, x, *upstreams, torch.func.vjp)

    found = torch.func.vmap(twice)(torch.tensor(np.stack([X, X])))
    np.testing.assert_allclose(found.numpy(), np.stack([expected] * 2), rtol=1e-5)


@pytest.mark.backends("torch", "jax")
@pytest.mark.needs("jax")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_custom_rule_of_jax_keeps_its_second_derivative_on_torch_too(
    backend: Any, name: str
) -> None:
    original = jax_functions()[name]
    expected = in_jax(original)
    assert expected.any() == (name != "computed")
    assert_second(backend, xg.from_custom_vjp(original), expected)


@differentiating
def test_residuals_of_an_output_are_differentiated_by_the_own_gradient(backend: Any) -> None:
    np.testing.assert_allclose(SECOND_DERIVATIVES[backend.name](mask()), MASK)


@differentiating
def test_what_backward_computes_again_keeps_the_derivative_of_its_ops(backend: Any) -> None:
    f = xg.function(xp.round, lambda g, x: g * x * xp.sum(xp.round(x)))
    # By its ops the sum of rounded numbers has no slope: 4 * FIRST is left.
    np.testing.assert_allclose(SECOND_DERIVATIVES[backend.name](f), 4 * FIRST * SECOND)


@differentiating
def test_a_saved_function_keeps_it(backend: Any) -> None:
    f = mask()
    f(X)
    again = xg.from_dict(json.loads(json.dumps(f.to_dict())))
    np.testing.assert_allclose(SECOND_DERIVATIVES[backend.name](again), MASK)


def test_a_document_that_reads_another_output_than_forward_gives_is_refused() -> None:
    f = mask()
    f(X)
    text = json.dumps(f.to_dict())
    assert '"position": 0' in text
    with pytest.raises(FormatError, match="output 7"):
        xg.from_dict(json.loads(text.replace('"position": 0', '"position": 7')))


@pytest.mark.needs("torch")
def test_a_derivative_taken_in_captured_code_goes_by_the_own_gradient() -> None:
    import torch

    original = torch_classes()["Mask"]

    def slope_of_slope(x: Any) -> Any:
        (slope,) = torch.autograd.grad(original.apply(x).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.sum(), x)[0]

    x = torch.tensor(X, requires_grad=True)
    expected = slope_of_slope(x)
    ours = xg.function(slope_of_slope)
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=0)
    np.testing.assert_array_equal(ours(X), expected.numpy())
