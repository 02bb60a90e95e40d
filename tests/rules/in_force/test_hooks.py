"""Hooks of torch: rules on parameter gradients, and checkpointed regions that run forward again."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.compat.hook import attach_param_hooks

from ...harness.models.surrogates import triangle
from ...support.threads import on_threads
from .test_hooks_by_themselves import chain

torch: Any = pytest.importorskip("torch")

checkpoint: Any = pytest.importorskip("torch.utils.checkpoint").checkpoint
nn = torch.nn

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)


def leaf(x: Array = X) -> Tensor:
    return torch.tensor(x, requires_grad=True)


@pytest.fixture
def model() -> Any:
    return chain()


def test_rule_around_backward_alone_acts_where_forward_had_none(model: Any) -> None:
    attach_param_hooks(model)
    loss = model(torch.ones(1)).sum()
    with xg.use("scale", {"s": 10.0}, "params"):
        loss.backward()
    assert [p.grad.item() for p in model.parameters()] == [30.0, 20.0]


def test_gradient_of_a_parameter_used_outside_of_its_module_follows_the_rule_in_force(
    model: Any,
) -> None:
    attach_param_hooks(model)
    with xg.use("scale", {"s": 10.0}, "params"):
        (model[0].weight * 2.0).sum().backward()
    assert model[0].weight.grad.item() == 20.0


# --- torch.utils.checkpoint, whose backward runs forward again ------------------------------------


def test_checkpoint_runs_again_on_another_thread_under_its_rule() -> None:
    act = xg.Activation("Heaviside")
    x = leaf()
    with xg.use("triangular"):
        y = checkpoint(act, x, use_reentrant=False).sum()
    on_threads(y.backward, None)
    np.testing.assert_allclose(x.grad, triangle(X), rtol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_repeated_backward_through_a_checkpoint_repeats_its_draws(reentrant: bool) -> None:
    act = xg.activation("Linear")
    x = leaf()
    with xg.use("full_jam", key=5):
        y = checkpoint(lambda x: act(act(x)), x, use_reentrant=reentrant).sum()
        after = act(x).sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    np.testing.assert_array_equal(x.grad, 2 * first)
    with xg.use("full_jam", key=5):
        act(act(x))
        expected = torch.autograd.grad(act(x).sum(), x)[0]
    np.testing.assert_array_equal(torch.autograd.grad(after, x)[0], expected)


def test_draws_without_a_key_are_repeated_by_checkpoints_own_seed() -> None:
    act = xg.activation("Linear")
    for reentrant in (False, True):
        grads = []
        for run in (act, lambda x, r=reentrant: checkpoint(act, x, use_reentrant=r)):
            torch.manual_seed(1)
            x = leaf()
            with xg.use("full_jam"):
                y = run(x).sum()
            torch.manual_seed(2)
            y.backward()
            grads.append(x.grad)
        np.testing.assert_array_equal(*grads)


def test_checkpoint_in_compiled_code_keeps_the_rule() -> None:
    torch._dynamo.reset()
    act = xg.activation("Heaviside")
    f = torch.compile(
        lambda x: checkpoint(lambda x: act(x) * 2.0, x, use_reentrant=False),
        backend="aot_eager",
        fullgraph=True,
    )
    for rule, expected in [("triangular", 2.0 * triangle(X)), ("straight_through", 0 * X + 2.0)]:
        x = leaf()
        with xg.use(rule):
            y = f(x).sum()
        y.backward()
        np.testing.assert_allclose(x.grad, expected, rtol=1e-6)
