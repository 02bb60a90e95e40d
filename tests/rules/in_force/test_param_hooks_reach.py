"""Rules of scope "params" reach every parameter that gets a gradient, or say which they cannot."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.compat.hook import attach_param_hooks

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional
nn = torch.nn

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
TEN = {"rule": "scale", "params": {"s": 10.0}, "scope": "params"}


def borrowing() -> Any:
    """Return a module that computes w0 * w1 * s * x without calling the layers of w0 and w1."""

    class Borrowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(5.0))
            self.near = nn.Linear(1, 1, bias=False)
            self.far = nn.Sequential(nn.Sequential(nn.Linear(1, 1, bias=False)))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.near.weight) * self.far[0][0].weight * self.scale

    model = Borrowing()
    with torch.no_grad():
        model.near.weight.fill_(2.0)
        model.far[0][0].weight.fill_(3.0)
    return model


SLOPES = [6.0, 15.0, 10.0]  # of scale, near and far at x = 1


def loss_of(model: Any) -> Tensor:
    return model(torch.ones(1)).sum()


def backward(model: Any, loss: Tensor) -> list[float]:
    model.zero_grad()
    loss.backward()
    return [p.grad.item() for p in model.parameters()]


def times(factor: float) -> list[float]:
    return [factor * slope for slope in SLOPES]


def test_parameters_of_layers_that_are_never_called_are_reached() -> None:
    model = borrowing()
    with xg.use(**TEN):
        loss = loss_of(model)
    assert backward(model, loss) == times(10.0)
    assert backward(model, loss_of(model)) == SLOPES


def test_a_layers_own_forward_counts_where_it_came_last() -> None:
    model = borrowing()
    with xg.use(**TEN):
        loss_of(model)
    with xg.use("scale", {"s": 7.0}, scope="params"):
        model.near(torch.ones(1)).sum().backward()
        assert model.near.weight.grad.item() == 7.0
        assert backward(model, loss_of(model)) == times(7.0)


@pytest.mark.parametrize("asked", [False, True])
def test_the_rule_is_that_of_the_forward_that_backward_belongs_to(asked: bool) -> None:
    model = borrowing()
    if asked:
        attach_param_hooks(model)
    with xg.use(**TEN):
        ten = loss_of(model)
    plain = loss_of(model)
    with xg.use("scale", {"s": 7.0}, scope="params"):
        seven = loss_of(model)
    assert backward(model, ten) == times(10.0)
    assert backward(model, plain) == SLOPES
    assert backward(model, seven) == times(7.0)


def test_parameters_made_in_the_first_forward_are_reached() -> None:
    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "weight"):
                self.weight = nn.Parameter(torch.tensor(2.0))
            return x * self.weight

    lazy = nn.Sequential(nn.LazyLinear(1, bias=False), Late())
    with xg.use(**TEN):
        loss = lazy(torch.ones(1, 3)).sum()
    loss.backward()
    assert lazy[0].weight.grad.tolist() == [[20.0] * 3]
    assert lazy[1].weight.grad.item() == pytest.approx(10 * lazy[0].weight.sum().item())


def test_a_forward_that_fails_leaves_hooks_in_order() -> None:
    model = borrowing()
    failing = nn.Sequential(model, nn.Linear(3, 3))
    with xg.use(**TEN):
        with pytest.raises(RuntimeError):
            failing(torch.ones(1))
        assert backward(model, loss_of(model)) == times(10.0)


def test_tensors_that_stand_for_parameters_are_reached_where_they_are_leaves() -> None:
    model = borrowing()
    others = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    with xg.use(**TEN):
        torch.func.functional_call(model, others, torch.ones(1)).sum().backward()
    assert [p.grad.item() for p in others.values()] == times(10.0)


def test_gradients_of_torch_func_with_respect_to_parameters_are_refused() -> None:
    model = borrowing()
    values = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, x).sum()

    with xg.use(**TEN):
        for transformed in (
            torch.func.grad(loss),
            torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0)),
        ):
            with pytest.raises(xg.GradientError, match=r"Borrowing\.scale.*apply_to_gradients"):
                transformed(values, torch.ones(2, 1))
        # Parameters get no gradient here, and these are hooked.
        assert torch.func.grad(lambda x: model(x).sum())(torch.ones(1)).item() == 30.0
        batch = torch.func.vmap(model)(torch.ones(2, 1)).sum()
    assert backward(model, batch) == times(20.0)


# --- gradients that are sparse or scaled ----------------------------------------------------------


def embedding() -> Any:
    model = torch.nn.Embedding(5, 2, sparse=True)
    return model, torch.tensor([1, 1, 3])


@pytest.mark.parametrize(("rule", "params"), [("clip_norm", {}), ("scale", {"s": 3.0})])
def test_sparse_gradients_get_what_dense_ones_would(rule: str, params: Any) -> None:
    model, words = embedding()

    def gradient() -> Tensor:
        model.zero_grad()
        with xg.use(rule, params, scope="params"):
            (100 * model(words)).sum().backward()
        return model.weight.grad

    found = gradient()
    assert found.is_sparse
    model.sparse = False
    np.testing.assert_allclose(found.to_dense(), gradient(), rtol=1e-6)


def test_rules_that_zeros_count_for_refuse_sparse_gradients() -> None:
    def less_mean(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out - grad_out.mean()

    def by_size(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out / grad_out.std()

    model, words = embedding()
    for rule in (less_mean, by_size, "full_jam"):
        with (
            xg.use(rule, scope="params", key=3),
            pytest.raises(xg.GradientError, match=r"Embedding\.weight.*sparse"),
        ):
            model(words).sum().backward()


@pytest.mark.parametrize("wanted", ["clip_norm", "scale"])
def test_a_grad_scaler_that_is_given_is_taken_out_of_what_rules_see(wanted: str) -> None:
    def step(scaler: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with attach_param_hooks(model, unscale=scaler), xg.use(wanted, scope="params"):
            scaler.scale((100 * model(torch.ones(2, 4))).sum()).backward()
        scaler.unscale_(optimizer)
        found = [p.grad.clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        return found

    found = step(torch.amp.GradScaler("cpu"))
    expected = step(torch.amp.GradScaler("cpu", enabled=False))
    for ours, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-6)
    if wanted == "clip_norm":
        np.testing.assert_allclose([g.norm() for g in found], 1.0, rtol=1e-5)


def test_a_scaled_gradient_that_overflows_stays_so_for_the_scaler_to_see() -> None:
    def bounded(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out.clamp(-1.0, 1.0)

    model = torch.nn.Linear(2, 1, bias=False)
    scaler = torch.amp.GradScaler("cpu")
    with attach_param_hooks(model, unscale=scaler), xg.use(bounded, scope="params"):
        scaler.scale((3e38 * model(torch.ones(2))).sum()).backward()
    assert model.weight.grad.tolist() == [[float("inf")] * 2]


def test_autocast_to_float16_without_a_scaler_is_warned_of() -> None:
    model = torch.nn.Linear(2, 1)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype), xg.use("clip_norm", scope="params"):
            loss = model(torch.ones(1, 2)).sum()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            loss.backward()
        words = [str(each.message) for each in found]
        assert bool(words) == (dtype is torch.float16)
        assert all("unscale=scaler" in word and "'clip_norm'" in word for word in words)


# --- an inner use ---------------------------------------------------------------------------------


def test_a_use_without_a_scope_leaves_the_rule_that_an_outer_one_named_for_params() -> None:
    model = borrowing()

    def factor(**inner: Any) -> float:
        with xg.use(**TEN), xg.use("scale", {"s": 7.0}, **inner):
            loss = loss_of(model)
        return backward(model, loss)[0] / SLOPES[0]

    assert factor() == 10.0
    assert factor(scope="activations") == 10.0
    assert factor(scope="params") == factor(scope="all") == 7.0
    assert factor(scope=("all", "params")) == 7.0


@pytest.mark.backends("torch", "jax", "tensorflow", "numpy")
def test_what_an_outer_use_named_stays_for_apply_to_gradients_too(backend: Any) -> None:
    def factor() -> float:
        grads = [backend.array(np.ones(2, np.float32))]
        return float(backend.numpy(xg.apply_to_gradients(grads)[0])[0])

    @xg.use("scale", {"s": 5.0})
    def decorated() -> float:
        return factor()

    with xg.use("scale", {"s": 2.0}):
        with xg.use("scale", {"s": 3.0}):
            assert factor() == 3.0  # the outer one named nothing
        with xg.use(**TEN):
            assert decorated() == 10.0
            with xg.use("scale", {"s": 3.0}), xg.use("scale", {"s": 4.0}):
                assert factor() == 10.0
            with xg.use("scale", {"s": 3.0}, scope="all"):
                assert factor() == 3.0
                assert decorated() == 5.0
        assert decorated() == 5.0
