"""Two threads that change one torch model at the same moment: as if one came after the other."""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg
from multigrad.compat.hook import attach_param_hooks

from ..support.threads import race

torch = pytest.importorskip("torch")
nn: Any = torch.nn

pytestmark = pytest.mark.needs("torch")
ROUNDS = 20  # some of five had two winners where no lock was held


def make_model() -> Any:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU())


RULES = {
    "a layer": {"1": "guided"},
    "an operation": {"relu": "guided"},
    "a composite": xg.composites.epsilon_plus(),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_place_gets_one_rule_and_the_error_has_its_handle(rules: Any) -> None:
    for _ in range(ROUNDS):
        model = make_model()
        handles, errors = race(lambda model=model: xg.attach(model, rules))
        assert len(handles) == 1
        assert [error.handle for error in errors] == handles
        handles[0].detach()
        assert [type(each) for each in model.modules()] == [nn.Sequential, nn.Linear, nn.ReLU]


def test_rules_that_exclude_no_other_all_act_and_are_all_detached() -> None:
    for _ in range(ROUNDS):
        model = make_model()
        waiting = [{"1": "guided"}, {"0": "guided"}, {"relu": "guided"}, {"tanh": "guided"}]
        handles, errors = race(
            lambda model=model, waiting=waiting: [xg.attach(model, waiting.pop()) for _ in range(2)]
        )
        assert not errors
        assert type(model) is not nn.Sequential
        _, errors = race(
            lambda handles=handles: [handle.detach() for pair in handles for handle in pair]
        )
        assert not errors
        assert [type(each) for each in model.modules()] == [nn.Sequential, nn.Linear, nn.ReLU]


def test_a_module_is_quantized_once() -> None:
    for _ in range(ROUNDS):
        model = make_model()
        results, errors = race(lambda model=model: xg.quantize(model, bits=3))
        assert results == [model]
        assert len(errors) == 1
        assert len(model[0].parametrizations.weight) == 1


def test_hooks_that_were_removed_do_not_come_back() -> None:
    for _ in range(ROUNDS):
        model = nn.Linear(2, 2)
        hooks, _ = race(lambda model=model: attach_param_hooks(model))
        race(lambda hooks=hooks: [each.remove() for each in hooks])
        with xg.use("scale", {"s": 0.5}):
            model(torch.ones(1, 2)).sum().backward()
        assert model.bias.grad.tolist() == [1.0, 1.0]
