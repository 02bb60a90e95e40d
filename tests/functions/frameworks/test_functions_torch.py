"""Functions on torch: autograd, torch.func, checkpoints and compiled code see one and the same
custom gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.torch_class import torch_class
from ..test_functions_everywhere import make_dropout

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
xp = xg.xp
ROUTES = pytest.mark.parametrize("native", [None, True], ids=["captured", "as it is"])


def randn(*shape: int, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(len(shape))
    options = {"dtype": torch.float64, "requires_grad": True, **options}
    return torch.randn(*shape, generator=generator, **options)


def compiled(f: Any) -> Any:
    return torch.compile(f, fullgraph=True, backend="aot_eager")


def make_product(native: bool | None) -> Any:
    """A function of two matrices and a number with three outputs, one of them of bools."""

    @xg.custom_gradient(native=native)
    def scaled_product(x: Any, w: Any, scale: Any) -> Any:
        def grad(upstream: Any) -> Any:
            product, _, total = upstream
            return (product @ w.T) * scale + total, (x.T @ product) * scale, None

        return ((x @ w) * scale, x > 0, x.sum()), grad

    return scaled_product


def floats_of(f: Any) -> Any:
    def call(x: Any, w: Any) -> Any:
        product, _, total = f(x, w, 1.5)
        return product, total

    return call


@ROUTES
def test_torch_func_transforms_take_the_own_backward(native: bool | None) -> None:
    f = make_product(native)
    x, w = randn(3, 4, requires_grad=False), randn(4, 2, requires_grad=False)

    def loss(x: Any, w: Any) -> Any:
        product, _, total = f(x, w, 1.5)
        return (product**2).sum() + total

    def plain(x: Any, w: Any) -> Any:
        return ((x @ w) * 1.5).pow(2).sum() + x.sum()

    for transform in (
        torch.func.grad,
        functools.partial(torch.func.grad, argnums=1),
        lambda g: torch.func.jacrev(torch.func.grad(g)),
        lambda g: torch.func.grad(lambda x, w: torch.func.grad(g)(x, w).pow(2).sum()),
    ):
        torch.testing.assert_close(transform(loss)(x, w), transform(plain)(x, w))
    batch = torch.stack([x, 2 * x])
    per_example = torch.func.vmap(torch.func.grad(loss), (0, None))
    torch.testing.assert_close(
        per_example(batch, w), torch.stack([torch.func.grad(plain)(each, w) for each in batch])
    )


def test_compiled_code_has_the_numbers_of_eager_code() -> None:
    f = make_product(None)

    def loss(x: Any, w: Any, scale: float) -> Any:
        product, positive, total = f(x, w, scale)
        return (product.tanh() * positive.any()).sum() + total

    x, w = randn(3, 4), randn(4, 2)
    fast = compiled(loss)
    for scale in (1.5, 2.5, -1.0):
        ours = torch.autograd.grad(fast(x, w, scale), (x, w))
        torch.testing.assert_close(
            ours, torch.autograd.grad(loss(x, w, scale), (x, w)), rtol=1e-14, atol=0
        )
    slope = torch.func.grad(loss)
    slopes = torch.func.vmap(slope, (0, None, None))
    for step, given in ((slope, x.detach()), (slopes, torch.stack([x, 2 * x]).detach())):
        expected = step(given, w.detach(), 1.5)
        torch.testing.assert_close(compiled(step)(given, w.detach(), 1.5), expected)


def test_compiled_code_follows_a_shape_that_the_function_looks_at() -> None:
    @xg.custom_gradient
    def weighted(x: Any) -> Any:
        weight = 0
        for i in range(x.shape[0]):
            weight += i
        return x * weight, lambda upstream: upstream * weight

    fast = compiled(lambda x: weighted(x))
    for n, weight in ((2, 1), (3, 3), (5, 10)):
        assert fast(torch.ones(n)).tolist() == [weight] * n


def test_a_function_that_runs_as_it_is_breaks_the_graph_and_no_more() -> None:
    @xg.custom_gradient(native=True)
    def doubled(x: Any) -> Any:
        return x * 2, lambda upstream: upstream * 5

    x = torch.ones(2, requires_grad=True)
    y = torch.compile(lambda x: doubled(x + 1) * 3, backend="aot_eager")(x)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [15, 15]


def test_compiled_code_raises_the_error_of_a_wrong_gradient() -> None:
    @xg.custom_gradient
    def broken(x: Any, w: Any) -> Any:
        return x * w, lambda upstream: (upstream, upstream, upstream)

    with pytest.raises(xg.GradientError, match="3 gradients for 2 arguments"):
        torch.compile(lambda x: broken(x, x), backend="aot_eager")(torch.ones(2))


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_backward_drops_what_forward_dropped(compiles: bool) -> None:
    dropout, x = make_dropout(), torch.ones(64, requires_grad=True)
    run = compiled(lambda x: dropout(x, 0.5)) if compiles else lambda x: dropout(x, 0.5)
    torch.manual_seed(0)
    first = run(x)
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(first, gradient)
    assert not torch.equal(run(x), first)
    torch.manual_seed(0)
    assert torch.equal(run(x), first)


def test_a_checkpoint_computes_the_same_again() -> None:
    from torch.utils.checkpoint import checkpoint

    dropout, x = make_dropout(), torch.linspace(1, 2, 64, requires_grad=True)
    torch.manual_seed(3)
    plain = torch.autograd.grad(dropout(x.sin(), 0.5).sum(), x)
    torch.manual_seed(3)
    y = checkpoint(lambda x: dropout(x.sin(), 0.5), x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), plain, rtol=0, atol=0)


@pytest.mark.parametrize("made_inside", [False, True])
def test_inference_mode_changes_no_derivative(made_inside: bool) -> None:
    tripled = xg.function(lambda x: x * x, lambda upstream, x: 3.0 * x * upstream)
    with torch.inference_mode(made_inside):
        x, v = torch.tensor([1.0, 2.0]), torch.ones(2)
    for is_inside in (True, False):
        for function, factor in ((tripled, 3.0), (torch.square, 2.0)):
            with torch.inference_mode(is_inside):
                (gradient,) = xg.vjp(function, x)[1](v)
                tangent = xg.jvp(function, (x,), (v,))[1]
            assert gradient.tolist() == tangent.tolist() == [factor, 2.0 * factor]


@ROUTES
def test_what_is_closed_over_gets_no_gradient_and_a_warning(native: bool | None) -> None:
    weight = torch.nn.Parameter(torch.full((3,), 2.0))

    @xg.custom_gradient(native=native)
    def scaled(x: Any) -> Any:
        return x * weight, lambda upstream: upstream * weight

    x = torch.ones(3, requires_grad=True)
    for given in (x, torch.ones(3)):  # of a first layer, too, whose input asks for none
        with pytest.warns(xg.NativeRuleWarning, match="'scaled' reads besides its arguments"):
            scaled(given).sum().backward()
    assert x.grad is not None and (x.grad.tolist(), weight.grad) == ([2, 2, 2], None)
    torch.autograd.grad(scaled(x).sum(), x)  # nobody asks for the weight's
    with pytest.warns(xg.NativeRuleWarning, match="'scaled' reads besides its arguments"):
        assert torch.autograd.grad(scaled(x).sum(), weight, allow_unused=True) == (None,)

    @xg.custom_gradient(native=native)
    def frozen(x: Any) -> Any:
        return x * weight.detach(), lambda upstream: upstream * weight.detach()

    frozen(x).sum().backward()
    assert not frozen(torch.ones(3)).requires_grad
    with torch.no_grad():
        weight.mul_(3)
    assert scaled(x).tolist() == [6, 6, 6]


def test_where_its_input_was_changed_is_said() -> None:
    @xg.custom_gradient(native=True)
    def squared(x: Any) -> Any:
        return x * x, lambda upstream: 2 * x * upstream

    held = torch.ones(3, requires_grad=True) * 1
    y = squared(held)
    held.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@ROUTES
def test_an_output_that_is_an_input_and_one_given_twice(native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def outputs(x: Any, w: Any) -> Any:
        y = x * w
        return (x, y, y, w, w), lambda upstream: (
            upstream[0] + w * upstream[1],
            x * upstream[2] + upstream[4],
        )

    x, w = randn(3), randn(3)
    given = [torch.full((3,), float(10**i), dtype=torch.float64) for i in range(5)]
    for call in (outputs, lambda x, w: torch.func.vmap(outputs)(x, w)):
        gradients = torch.autograd.grad(call(x, w), (x, w), given)
        torch.testing.assert_close(gradients, (1 + w * 10, x * 100 + 10000))


@ROUTES
def test_tensors_without_gradients_alone(native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def parity(n: Any) -> Any:
        return n & 1, lambda upstream: None

    n = torch.arange(4)
    assert parity(n).tolist() == [0, 1, 0, 1]
    assert torch.func.vmap(parity)(n).tolist() == [0, 1, 0, 1]
    assert not parity(n).requires_grad


@ROUTES
def test_no_gradients_at_all(native: bool | None) -> None:
    @xg.custom_gradient(native=native)
    def opaque(x: Any, w: Any) -> Any:
        return x * w, lambda upstream: (None, None)

    x, w = randn(3), randn(3)
    assert torch.autograd.grad(opaque(x, w).sum(), (x, w), allow_unused=True) == (None, None)


def test_names_of_the_generated_code_are_free_for_arguments() -> None:
    @xg.custom_gradient
    def odd(tin: Any, grad_out: Any, ctx: Any, key: Any, output: Any, kept: Any) -> Any:
        total = tin * grad_out + ctx * key + output * kept
        return total.sum(), lambda u: tuple(u * t for t in (grad_out, tin, key, ctx, kept, output))

    args = [randn(2) * i for i in range(1, 7)]
    assert torch.autograd.gradcheck(odd, args)
    assert torch.autograd.gradgradcheck(odd, args)


def test_a_gradient_that_nobody_asks_for_is_not_computed() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    f = floats_of(make_product(None))
    x, w = randn(3, 4), randn(4, 2, requires_grad=False)
    product, _ = f(x, w)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        product.sum().backward()
    assert sum("mm" in name for name in seen) == 1
    assert w.grad is None


def test_forward_keeps_a_byte_per_element_for_a_mask() -> None:
    clipped = xg.function(
        lambda x, limit: xp.clip(x, 0.0, limit),
        lambda grad_out, x, limit: (grad_out * ((x > 0) & (x < limit)), None),
    )
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        clipped(torch.randn(100, requires_grad=True), 1.0)
    assert [(t.dtype, t.nbytes) for t in kept] == [(torch.bool, 100)]


def test_tensors_on_two_devices_are_named() -> None:
    product = xg.function(lambda x, w: x * w)
    with pytest.raises(xg.MultigradError, match=r"'x' on cpu and 'w' on meta"):
        product(torch.ones(2), torch.ones(2, device="meta"))


def test_a_float_output_without_a_gradient_stays_so_under_transforms() -> None:
    @torch_class(lambda ctx, grad_output, grad_largest: grad_output * 2 + grad_largest)
    def Largest(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        largest = x.max()
        ctx.mark_non_differentiable(largest)
        return x * 2, largest

    f = xg.from_autograd_function(Largest)
    x = torch.linspace(0, 1, 4, requires_grad=True)
    doubled, largest = f(x)
    assert (doubled.requires_grad, largest.requires_grad) == (True, False)
    assert torch.func.grad(lambda x: f(x)[1])(x).tolist() == [0, 0, 0, 0]
    (gradient,) = torch.autograd.grad(compiled(lambda x: sum(t.sum() for t in f(x)))(x), x)
    np.testing.assert_array_equal(gradient, 2)
