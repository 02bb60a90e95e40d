"""torch's higher orders and torch.func, over rules of every kind; the oracle is each rule's own
formula in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from .formulas import RULES, Case, X

torch: Any = pytest.importorskip("torch")

pytestmark = [pytest.mark.needs("torch"), pytest.mark.usefixtures("own_rules")]

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

every_rule = pytest.mark.parametrize("rule", RULES)
forwards = pytest.mark.parametrize("forward", ["Heaviside", "Linear", "Tanh"])
LINEAR = [name for name in RULES if "clip_norm" not in name]


def hessian_of(case: Case) -> Tensor:
    return torch.autograd.functional.jacobian(case.expected, case.x)


def directional(f: Callable[[Tensor], Tensor], v: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the derivative of `v f(x)`, itself differentiable."""

    def derivative(x: Tensor) -> Tensor:
        value = (f(x) * v).sum()
        if not value.requires_grad:
            return 0.0 * x
        (grad,) = torch.autograd.grad(value, x, create_graph=True, allow_unused=True)
        return 0.0 * x if grad is None else grad + 0.0 * x

    return derivative


def close(got: Tensor, expected: Tensor) -> None:
    # Forward mode may give torch's symbolic zero, which only force=True makes an array of.
    arrays = (tensor.detach().numpy(force=True) for tensor in (got, expected))
    np.testing.assert_allclose(*arrays, rtol=1e-9, atol=1e-12)


# --- orders ---------------------------------------------------------------------------------------


@every_rule
@forwards
def test_first_three_orders_are_those_of_the_formula(rule: str, forward: str) -> None:
    case = Case("torch", rule, forward)

    def gradient(x: Tensor) -> Tensor:
        with xg.use(case.rule):
            y = case.loss(x)
        return torch.autograd.grad(y, x, create_graph=True)[0]

    got, expected = gradient, case.expected
    for _ in range(3):
        x, z = (case.x.clone().requires_grad_() for _ in range(2))
        close(got(x), expected(z))
        got, expected = directional(got, case.v), directional(expected, case.v)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "test norm", "test mean"])
def test_torchs_own_checkers_agree_with_the_formula_as_a_function(rule: str) -> None:
    case = Case("torch", rule, "Linear")

    def gradient(x: Tensor, w: Tensor) -> Tensor:
        with xg.use(case.rule):
            y = (case.act(x) * w).sum()
        return torch.autograd.grad(y, x, create_graph=True)[0] + 0.0 * x

    inputs = case.x.requires_grad_(), case.w.requires_grad_()
    assert torch.autograd.gradcheck(gradient, inputs)
    assert torch.autograd.gradgradcheck(gradient, inputs)


# --- Jacobians ------------------------------------------------------------------------------------


@every_rule
@forwards
def test_every_way_to_a_jacobian_gives_the_rules(rule: str, forward: str) -> None:
    from torch.autograd.functional import jacobian
    from torch.func import jacrev, vjp

    case = Case("torch", rule, forward)
    leaf = case.x.clone().requires_grad_()
    with xg.use(case.rule):
        ways = [
            jacrev(case.act)(case.x),
            jacobian(case.act, case.x),
            jacobian(case.act, case.x, vectorize=True),
        ]
        pulled = vjp(case.act, case.x)[1](case.w)[0]
        y = case.act(leaf)
    rows = torch.eye(len(X)).double()
    ways += torch.autograd.grad(y, leaf, rows, is_grads_batched=True)
    for way in ways:
        close(way, case.jacobian())
    close(pulled, case.expected(case.x))


@every_rule
@forwards
def test_every_reverse_way_to_a_hessian_gives_the_formulas(rule: str, forward: str) -> None:
    from torch.autograd.functional import hessian, hvp, vhp
    from torch.func import grad, jacrev, vmap

    case = Case("torch", rule, forward)
    with xg.use(case.rule):
        ways = [
            jacrev(jacrev(case.loss))(case.x),
            jacrev(grad(case.loss))(case.x),
            vmap(jacrev(grad(case.loss)))(case.x[None])[0],
            hessian(case.loss, case.x),
            hessian(case.loss, case.x, vectorize=True),
        ]
        products = hvp(case.loss, case.x, case.v)[1], vhp(case.loss, case.x, case.v)[1]
    expected = hessian_of(case)
    for way in ways:
        close(way, expected)
    close(products[0], expected @ case.v)
    close(products[1], case.v @ expected)


@pytest.mark.parametrize("rule", ["triangular", "clip_norm"])
def test_forward_mode_transforms_take_the_rule_or_are_refused_by_name(rule: str) -> None:
    from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
    from torch.autograd.functional import hessian, jacobian
    from torch.func import hessian as func_hessian
    from torch.func import jacfwd

    case = Case("torch", rule, "Tanh")

    def push() -> Tensor:
        with dual_level():
            case.act(case.x)  # which has no tangent
            return unpack_dual(case.act(make_dual(case.x, case.v))).tangent

    forward = {"vectorize": True, "strategy": "forward-mode"}
    outer = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
    ways: list[tuple[Any, Any]] = [
        (push, lambda: case.jacobian() @ case.v),
        (lambda: jacfwd(case.act)(case.x), case.jacobian),
        (lambda: jacobian(case.act, case.x, **forward), case.jacobian),
        (lambda: func_hessian(case.loss)(case.x), lambda: hessian_of(case)),
        (lambda: hessian(case.loss, case.x, **outer), lambda: hessian_of(case)),
    ]
    with xg.use(case.rule):
        for way, expected in ways:
            if rule == "triangular":
                close(way(), expected())
                continue
            with pytest.raises(xg.GradientError, match="'clip_norm' is not linear"):
                way()


# --- vmap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "stride"), [(2, 2), (3, 2), (2, 3), (4, 1)])
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_adds_windows_up_as_without(length: int, stride: int) -> None:
    from torch.func import grad, vmap

    f = xg.function(lambda x: x.unfold(-1, length, stride).square())
    x = torch.randn(5, 2, 11, requires_grad=True)
    (expected,) = torch.autograd.grad(f(x).sum(), x)  # by torch's own op
    assert torch.equal(vmap(grad(lambda x: f(x).sum()))(x.detach()), expected)


@every_rule
@forwards
def test_vmap_around_within_and_nested_maps_the_rule_over_examples(rule: str, forward: str) -> None:
    from torch.func import grad, vmap

    case = Case("torch", rule, forward)
    batch = torch.stack([case.x, 0.5 * case.x, -case.x])
    expected = torch.stack([case.expected(x) for x in batch])
    leaf = batch.clone().requires_grad_()
    with xg.use(case.rule):
        close(vmap(case.act)(batch), case.act(batch))
        close(vmap(grad(case.loss))(batch), expected)
        close(vmap(grad(case.loss), in_dims=1)(batch.T.contiguous()), expected)
        close(vmap(vmap(grad(case.loss)))(batch[None])[0], expected)
        close(grad(lambda x: vmap(case.loss)(x).sum())(batch), expected)
        y = vmap(case.loss)(leaf).sum()
    close(torch.autograd.grad(y, leaf)[0], expected)


@every_rule
def test_functional_call_gives_per_example_gradients_of_the_weights(rule: str) -> None:
    from torch.func import functional_call, grad, vmap

    case = Case("torch", rule, "Heaviside")
    model = torch.nn.Sequential(
        torch.nn.Linear(7, 7, bias=False), xg.Activation("Heaviside")
    ).double()
    weights = {"0.weight": torch.eye(7).double()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return (functional_call(model, weights, (x,)) * case.w).sum()

    batch = torch.stack([case.x, 0.5 * case.x])
    with xg.use(case.rule):
        got = vmap(grad(loss), in_dims=(None, 0))(weights, batch)["0.weight"]
    close(got, torch.stack([torch.outer(case.expected(x), x) for x in batch]))


# --- forward mode, asked for ----------------------------------------------------------------------


@pytest.mark.parametrize("rule", LINEAR)
@forwards
def test_forward_mode_composes_with_itself_and_with_reverse_mode(rule: str, forward: str) -> None:
    from torch.autograd import forward_ad
    from torch.func import hessian, jacfwd, jacrev, jvp, vmap

    case = Case("torch", rule, forward)
    f = xg.lower(case.rule, "torch", forward=forward, forward_mode=True).apply

    def loss(x: Tensor) -> Tensor:
        return (f(x) * case.w).sum()

    expected = hessian_of(case)
    for way in (
        hessian(loss),
        jacfwd(jacfwd(loss)),
        jacrev(jacfwd(loss)),
        jacrev(jacrev(loss)),
    ):
        close(way(case.x), expected)
    close(jacfwd(f)(case.x), case.jacobian())
    close(jacrev(f)(case.x), jacfwd(f)(case.x))
    _, tangent = vmap(lambda x, v: jvp(f, (x,), (v,)))(case.x[None], case.v[None])
    close(tangent[0], jacrev(f)(case.x) @ case.v)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(case.x.clone().requires_grad_(), case.v)
        (grad,) = torch.autograd.grad(loss(dual), dual, create_graph=True)
        second = forward_ad.unpack_dual(grad).tangent
    close(torch.zeros_like(case.x) if second is None else second, expected @ case.v)


def test_third_order_of_forward_mode_is_that_of_the_formula() -> None:
    from torch.func import jacfwd, jacrev

    @xg.register("test cube")
    def cube(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * tin * tin * tin

    f = xg.lower("test cube", "torch", forward="Tanh", forward_mode=True).apply
    x = torch.tensor(0.7, dtype=torch.float64)
    for outer in (jacfwd, jacrev):
        for inner in (jacfwd, jacrev):
            close(outer(inner(jacfwd(f)))(x), torch.tensor(6 * 0.7, dtype=torch.float64))


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_class_asks_about_gradients_is_open_under_vmap(compiled: bool) -> None:
    @xg.convert
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
            ctx.save_for_backward(scale)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Any:
            (scale,) = ctx.saved_tensors
            return -grad_out * scale if ctx.needs_input_grad[0] else None, None

    def f(x: Tensor, scale: Tensor) -> Tensor:
        return torch.vmap(Reversed)(x, scale)

    if compiled:
        torch._dynamo.reset()
        f = torch.compile(f, backend="aot_eager", fullgraph=True)
    x = torch.ones(2, 3, requires_grad=True)
    f(x, torch.tensor([2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [[-2.0] * 3, [-3.0] * 3]
