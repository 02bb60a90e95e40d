"""Gradients that torch's code takes itself, and where it says that none passes, mean in a graph
what they mean in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class
from ..values.test_asked_of_a_tensor import X, make

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
Tensor = Any
GRAD, FUNC = torch.autograd.grad, torch.func


# --- where no gradient passes ---------------------------------------------------------------------


def writes_without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        out = torch.zeros_like(x)
        out[x > 0] = 1
        out.view(-1)[0] = 5
        out.mul_(2)
        scale = x.abs().mean()
    return x * out * scale


def clips_a_clone(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.clone()
        y.clamp_(-1, 1)
    return x + (y - x).detach()


@torch.no_grad()
def largest(x: Tensor) -> Tensor:
    return x.abs().max() / 7


def rounds_by_a_helper(x: Tensor) -> Tensor:
    step = largest(x)
    return torch.round(x / step) * step + x


def switches(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    with torch.set_grad_enabled(False):
        z = x * 3
    return y * z * x


@torch_class(lambda ctx, grad: grad / 3)
def Third(ctx: Any, x: Tensor) -> Tensor:
    return x.round()


def applies_a_class(x: Tensor) -> Tensor:
    with torch.no_grad():
        factor = Third.apply(x)
    return factor * x + Third.apply(2 * x)


def makes_others(x: Tensor) -> Tensor:
    pair = torch.tensor([x.sum(), x.max()])
    return torch.tensor(x) * x + x.new_tensor(x) * x + pair.sum() * x


# --- gradients ------------------------------------------------------------------------------------


def penalty(x: Tensor) -> Tensor:
    (slope,) = GRAD((torch.sin(x) * x).sum(), x, create_graph=True)
    return (slope.norm() - 1) ** 2 + slope


def of_an_equal_tensor(x: Tensor) -> Tensor:
    y = x**1
    return GRAD((y * x).sum(), y, create_graph=True)[0]


def of_one_of_two_products(x: Tensor) -> Tensor:
    y, same = x * x, x * x
    return GRAD((y * same).sum(), y, create_graph=True)[0]


def beside_a_target(x: Tensor) -> Tensor:
    leaf, target = x.detach().requires_grad_(), x.detach()
    return GRAD(((leaf - target) ** 2 * leaf + leaf * target).sum(), leaf)[0] * x


def beside_a_mean_without_gradient(x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    with torch.no_grad():
        mean = leaf.mean()
    return GRAD(((leaf - mean) ** 2).sum(), leaf)[0] * x


def of_views(x: Tensor) -> Tensor:
    y = x * x
    flat = y.view(-1)
    part = flat[1:]
    a, b = GRAD((part * part).sum(), [flat, y], create_graph=True)
    return a.sum() + b


def after_updates(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 0
    y += x
    return GRAD((y * y).sum(), x, create_graph=True)[0]


def of_nothing(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    first, second = GRAD((2 * x).sum(), [x, y], allow_unused=True)
    assert second is None
    zero = GRAD((2 * x).sum(), y, materialize_grads=True)[0]
    return first * x + zero


def accumulates(x: Tensor) -> Tensor:
    leaf = x.detach()
    leaf.requires_grad = True
    (leaf * leaf).sum().backward()
    torch.autograd.backward([(3 * leaf).sum()])
    return x * leaf.grad


def by_func(x: Tensor) -> Tensor:
    a, b = FUNC.grad(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(x, x)
    return a + 3 * b


def of_a_dict(x: Tensor) -> Tensor:
    def total(params: Any) -> Tensor:
        return (params["a"] * params["b"] ** 2).sum()

    slopes, value = FUNC.grad_and_value(total)({"a": x, "b": 2 * x})
    return slopes["a"] + 2 * slopes["b"] + value


def along_a_direction(x: Tensor) -> Tensor:
    value, tangent = FUNC.jvp(lambda a, b: a * torch.sin(b), (x, x), (torch.ones_like(x), x))
    return value * tangent


def pulled_back(x: Tensor) -> Tensor:
    value, pull = FUNC.vjp(lambda a: {"y": a * a, "z": torch.cos(a)}, x)
    return pull(value)[0]


def recomputed(x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    def inner(y: Tensor, scale: float) -> Tensor:
        return torch.sin(y) * scale

    first = checkpoint(inner, x, 2.0, use_reentrant=False, preserve_rng_state=False)
    return first + checkpoint(lambda y: y * y, x, use_reentrant=False)


CASES: list[Callable[[Tensor], Tensor]] = [
    writes_without_gradient, clips_a_clone, rounds_by_a_helper, switches, applies_a_class,
    makes_others,
    penalty, of_an_equal_tensor, of_one_of_two_products, beside_a_target,
    beside_a_mean_without_gradient, of_views, after_updates, of_nothing, accumulates, by_func,
    of_a_dict, along_a_direction, pulled_back, recomputed,
    lambda x: x * GRAD((torch.sin(x) * x).sum(), x)[0],
    lambda x: GRAD(Third.apply(x), x, x * x, create_graph=True)[0],
    lambda x: FUNC.grad(lambda y: FUNC.grad(lambda z: (z**3).sum())(y).sum())(x),
    torch.no_grad()(lambda x: torch.sin(x)),
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_a_gradient_taken_inside_is_torch_s(function: Callable[[Tensor], Tensor]) -> None:
    assert_as_in("torch", function, X)


def test_the_dtypes_around_a_capture_are_not_the_function_s() -> None:
    def product(x: Tensor) -> Tensor:
        return x @ x.T

    function = xg.function(product, native=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        function(X)
    np.testing.assert_allclose(function(X), X @ X.T, rtol=1e-6)


def test_the_mode_around_a_capture_is_not_the_function_s() -> None:
    def sine(x: Tensor) -> Tensor:
        return torch.sin(x)

    function = xg.function(sine, native=False)
    with torch.no_grad():
        function(torch.tensor(X))
    assert torch.is_grad_enabled()
    x = torch.tensor(X, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(gradient, torch.cos(x))


# --- classes that differentiate in their backward -------------------------------------------------


def keep(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x)
    return torch.sin(x) * x


def by_grad(ctx: Any, grad: Tensor) -> Tensor:
    with torch.enable_grad():
        x = ctx.saved_tensors[0].detach().requires_grad_(True)
        return GRAD(torch.sin(x) * x, x, grad)[0]


def by_backward(ctx: Any, grad: Tensor) -> Tensor:
    x = ctx.saved_tensors[0].detach()
    x.requires_grad = True
    with torch.enable_grad():
        y = torch.sin(x) * x
    y.backward(grad)
    return x.grad


def keep_the_slope(ctx: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        y = torch.sin(leaf) * leaf
        (slope,) = GRAD(y.sum(), leaf)
    ctx.save_for_backward(slope)
    return y.detach()


def times_the_slope(ctx: Any, grad: Tensor) -> Tensor:
    return grad * ctx.saved_tensors[0]


PAIRS = [(keep, by_grad), (keep, by_backward), (keep_the_slope, times_the_slope)]


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_a_backward_that_differentiates_is_a_graph(
    forward: Any, backward: Any, backend: Any
) -> None:
    function, cls = make(forward, backward)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)


# --- what is refused ------------------------------------------------------------------------------


def updates_what_carries_a_gradient(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y * x


def adds_to_its_argument(x: Tensor) -> Tensor:
    (x * x).sum().backward()
    return x


def needs_a_cotangent(x: Tensor) -> Tensor:
    return GRAD(x * x, x)[0]


def depends_on_nothing(x: Tensor) -> Tensor:
    return GRAD((2 * x).sum(), x.detach().requires_grad_())[0]


def computes_in_other_dtypes(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.nn.functional.linear(x, x)


def calls_a_hooked_module(x: Tensor) -> Tensor:
    return HOOKED(x) * 2


def asks_whether_it_records(x: Tensor) -> Tensor:
    return 2 * x if torch.is_grad_enabled() else x


def watches_its_argument(x: Tensor) -> Tensor:
    return x.requires_grad_() * 3


def asks_whether_it_is_watched(x: Tensor) -> Tensor:
    y = 2 * x
    return y if y.requires_grad else 5 * y


HOOKED = torch.nn.Tanh()
HOOKED.register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * 5,))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (computes_in_other_dtypes, "under torch.autocast, whose dtypes a graph does not follow"),
        (calls_a_hooked_module, "a Tanh with a backward hook"),
        (updates_what_carries_a_gradient, "carries a gradient where none passes"),
        (adds_to_its_argument, r"adds to the .grad of a tensor that it did not make"),
        (needs_a_cotangent, "more than one element, without its cotangent"),
        (depends_on_nothing, "without allow_unused"),
        (asks_whether_it_records, "torch.is_grad_enabled, which gives another value"),
        (watches_its_argument, "of its argument"),
        (asks_whether_it_is_watched, "which is autograd's"),
    ],
)
def test_what_is_torch_s_alone_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(xg.TraceError, match=said):
        xg.function(function, dialect="torch", native=False)(X)


# Whether autograd records is known while a class runs; what its backward does for a second
# derivative is not taken for its first.


def tells_the_mode(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    with torch.enable_grad():
        factor = 2.0 if torch.is_grad_enabled() else 7.0
    return x * x * x * (factor if not torch.is_grad_enabled() else 5.0)


def backward_of_two_ways(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    if torch.is_grad_enabled():
        return 6 * grad * x * x
    with torch.no_grad():
        return 6 * grad * (x * x).detach()


def test_forward_does_not_record_and_backward_neither(backend: Any) -> None:
    function, cls = make(tells_the_mode, backward_of_two_ways)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)


@pytest.mark.needs("torch", "jax")
def test_a_second_derivative_is_the_original_s_or_refused(jax: Any) -> None:
    function, cls = make(tells_the_mode, backward_of_two_ways)
    for apply in (function, cls.apply, xg.function(cls.apply)):
        x = torch.tensor(X, requires_grad=True)
        (first,) = torch.autograd.grad(apply(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 12 * x.detach())
    for on_jax in (function, xg.function(cls.apply)):
        slope = jax.grad(lambda x, f=on_jax: f(x).sum())
        np.testing.assert_allclose(slope(X), 6 * X**2, rtol=1e-6)
        with pytest.raises(xg.GradientError, match="differentiated again"):
            jax.grad(lambda x, slope=slope: slope(x).sum())(X)


def test_what_is_cut_off_may_ask_for_a_gradient_of_its_own(backend: Any) -> None:
    def watched(ctx: Any, x: Any) -> Any:
        y = x.detach().requires_grad_()
        return y * 3 if y.requires_grad and not (y * 3).requires_grad else y

    function, cls = make(watched)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)

    def leaf(x: Any) -> Any:
        return x.detach().requires_grad_() * 3 + (2 * x).requires_grad_()

    _, (gradient,) = pull(backend, xg.function(leaf, dialect="torch"), (X,))
    np.testing.assert_array_equal(gradient, 2 * np.ones_like(X))
