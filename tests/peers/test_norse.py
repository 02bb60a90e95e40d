"""Activations of ours as `method=` of norse's neurons; rules with its names have its gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
norse = pytest.importorskip("norse.torch")
from norse.torch.functional.threshold import threshold

from multigrad.compat.norse import methods

from .spikes import assert_same_compiled, pulled, train

pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]

METHODS = [
    ("super", 1.0),
    ("triangle", 0.3),
    ("triangle", 2.0),
    ("tanh", 1.0),
    ("tanh", 5.0),
    ("circ", 0.5),
    ("circ", 100.0),
    ("heavi_erfc", 1.0),
    ("heavi_erfc", 3.0),
]
X = torch.cat([torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5]), torch.linspace(-2, 2, 101)])


@pytest.mark.parametrize(("name", "alpha"), METHODS)
def test_a_rule_of_norses_name_has_its_spikes_and_gradients(name: str, alpha: float) -> None:
    expected = pulled(lambda x: threshold(x, name, torch.as_tensor(alpha)), X)
    given = pulled(xg.Activation("Heaviside", f"norse.{name}", {"alpha": alpha}), X)
    assert torch.equal(given[0], expected[0])
    torch.testing.assert_close(given[1], expected[1], rtol=4e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "param"), [("Logistic", "k"), ("CircDist", "alpha")])
@pytest.mark.parametrize("number", [0.5, 3.0])
def test_a_rule_has_the_gradient_of_norses_random_spikes(
    name: str, param: str, number: float
) -> None:
    from norse.torch.functional import threshold as functions

    theirs = getattr(functions, name)
    _, expected = pulled(lambda x: theirs.apply(x, torch.as_tensor(number)), X)
    _, given = pulled(xg.Activation("Heaviside", f"norse.{name}", {param: number}), X)
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=4e-6)


def test_super_of_norse_1_1_0_ignores_its_alpha() -> None:
    expected = pulled(lambda x: threshold(x, "super", torch.as_tensor(100.0)), X)
    given = pulled(xg.Activation("Heaviside", "norse.super", {"alpha": 1.0}), X)
    torch.testing.assert_close(given[1], expected[1], rtol=4e-6, atol=1e-6)


def run(method: str) -> tuple[Any, ...]:
    torch.manual_seed(0)
    net = norse.SequentialState(
        torch.nn.Linear(6, 8),
        norse.LIF(p=norse.LIFParameters(method=method, alpha=torch.as_tensor(2.0))),
        torch.nn.Linear(8, 3),
        norse.LIF(),
    )
    x = torch.rand(12, 4, 6) * 10
    return train(net, 0.05, lambda: (net(x)[0].mean(0) - 0.3).square().mean()), net, x


@pytest.mark.parametrize("kind", ["module", "function"])
def test_a_network_trains_with_it_as_with_norses_own(kind: str) -> None:
    expected, *_ = run("tanh")
    make = xg.Activation if kind == "module" else xg.activation
    with methods({"ours": make("Heaviside", "norse.tanh", {"alpha": 2.0})}):
        losses, net, x = run("ours")
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
        assert torch.equal(copy.deepcopy(net)(x)[0], net(x)[0])  # norse's parameters do not pickle
    with pytest.raises(ValueError, match="ours"):
        net(x)
    assert run("tanh")[0] == expected


def test_a_compiled_step_has_the_same_gradients() -> None:
    cell = norse.LIFCell(p=norse.LIFParameters(method="ours"))
    x = (torch.rand(4, 6) * 20).requires_grad_()

    def step(x: Any) -> Any:
        z, state = cell(x)
        return cell(x, state)[0].sum() + z.sum() + state.v.sum()

    with methods({"ours": xg.Activation("Heaviside", "norse.super")}):
        assert_same_compiled(step, (x,), x)
