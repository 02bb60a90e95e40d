"""Regions that torch runs again in backward: the second run has the rules, numbers, names and draws
of the first, whatever has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
from torch.utils.checkpoint import checkpoint

from ..harness.models.attached import DOUBLES, named_rules  # noqa: F401 (a fixture)

pytestmark = pytest.mark.needs("torch")


@pytest.fixture(params=[True, False])
def reentrant(request: pytest.FixtureRequest) -> bool:
    """Whether torch runs the region again as a step of its own in backward."""
    return request.param


def attached(kind: Any, selector: str, rule: Any) -> Any:
    model = nn.Sequential(kind())
    xg.attach(model, {selector: rule})
    return model


by_operation = partial(attached, nn.ReLU, "relu")
WAYS = {
    "layer": partial(attached, nn.ReLU, "0"),
    "operation": by_operation,
    "any layer": partial(attached, nn.Softplus, "0"),
    "override": lambda rule: xg.override(torch.relu, {"relu": rule}),
    "activation": partial(xg.activation, "ReLU"),
    "module": partial(xg.Activation, "ReLU"),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def through(function: Callable[[Any], Any], x: Any, reentrant: bool) -> Any:
    return checkpoint(function, x, use_reentrant=reentrant).sum()


def stepped() -> tuple[Any, Callable[[], object]]:
    width = xg.schedule.linear(1.0, 2.0, steps=1)
    return xg.get("triangular").with_params(width=width), width.step


def registered_anew() -> tuple[Any, Callable[[], object]]:
    def times(factor: float) -> None:
        xg.register("replaced", override=True)(lambda ctx, grad_out, tin: factor * grad_out)

    times(0.5)
    return "replaced", partial(times, 0.75)


@EVERY_WAY
@pytest.mark.parametrize("make", [stepped, registered_anew])
def test_a_rule_that_changes_before_backward_acts_changed_at_the_next_forward(
    way: Any, make: Any, reentrant: bool
) -> None:
    rule, change = make()
    function = way(rule)
    x = torch.tensor([0.5], requires_grad=True)
    y = through(function, x, reentrant)
    change()
    y.backward()
    assert x.grad.item() == 0.5
    x.grad = None
    through(function, x, reentrant).backward()
    assert x.grad.item() == 0.75


def test_regions_of_several_steps_each_have_the_number_of_theirs(reentrant: bool) -> None:
    width = xg.schedule.piecewise({0: 1.0, 1: 2.0, 2: 4.0})
    function = by_operation(xg.get("triangular").with_params(width=width))
    xs = [torch.tensor([0.5], requires_grad=True) for _ in range(3)]
    ys = []
    for x in xs:
        ys.append(through(function, x, reentrant))
        if x is not xs[-1]:
            width.step()
    for y in reversed(ys):
        y.backward()
    assert [x.grad.item() for x in xs] == [0.5, 0.75, 0.875]


@EVERY_WAY
def test_a_random_rule_draws_anew_at_each_step(way: Any, reentrant: bool) -> None:
    function, found = way("noise"), []
    for _ in range(3):
        x = torch.ones(2, requires_grad=True)
        through(function, x, reentrant).backward()
        found.append(tuple(x.grad.tolist()))
    assert len(set(found)) == 3


def test_draws_of_a_reentrant_region_stay_with_the_calls_that_made_them() -> None:
    class Drawing(nn.Module):
        def forward(self, x: Any, mask: Any) -> Any:
            torch.relu(mask)  # no gradient passes this one, in the second run
            return self.noise(torch.relu(x))

    def run() -> Any:
        torch.manual_seed(7)
        x = torch.ones(3, requires_grad=True)
        checkpoint(model, x, torch.ones(2), use_reentrant=True).sum().backward()
        return x.grad

    model = Drawing()
    model.noise = xg.Activation("Linear", "noise")
    with xg.attach(model, {"relu": "noise"}):
        assert torch.equal(run(), run())


@pytest.mark.parametrize(
    ("selector", "rule"),
    [("0", DOUBLES), ("relu", DOUBLES), ("1", xg.attribution.epsilon(0.5)), ("1", DOUBLES)],
)
def test_a_handle_that_is_detached_before_backward_acts_in_the_second_run(
    selector: str, rule: Any, reentrant: bool
) -> None:
    def run(keeps: bool) -> tuple[Any, Any]:
        torch.manual_seed(3)
        layers = [nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]  # the last has no rule
        model = nn.Sequential(*layers)
        x = torch.linspace(-1.0, 2.0, 8).reshape(2, 4).requires_grad_()
        handle = xg.attach(model, {selector: rule})
        if keeps:
            y = model(x).sum()
        else:
            y = through(model, x, reentrant)
            handle.detach()
        y.backward()
        assert keeps or type(model[0]) is nn.ReLU
        return x.grad, model[1].weight.grad

    for mine, its in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("is_function", [False, True])
def test_code_beside_a_model_in_a_region_keeps_its_gradient_in_the_second_run(
    is_function: bool, reentrant: bool
) -> None:
    class Gate(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x)

    def run(keeps: bool) -> list[float]:
        model = Gate()
        gate = xg.override(torch.relu, {"relu": DOUBLES}) if is_function else model
        x = torch.ones(3, requires_grad=True)
        handle = None if is_function else xg.attach(model, {"relu": DOUBLES})
        for _ in range(2):  # the first call notes what is called
            x.grad = None
            beside = lambda x: torch.relu(gate(x) + 1)
            y = beside(x) if keeps else through(beside, x, reentrant)
            y.sum().backward()
        if handle is not None:
            y = beside(x) if keeps else through(beside, x, reentrant)
            handle.detach()
            y.sum().backward()
        return x.grad.tolist()

    assert run(False) == run(True)


def test_a_composite_that_is_detached_before_backward_acts_in_the_second_run() -> None:
    def run(reentrant: bool | None) -> Any:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
        x = torch.linspace(-1.0, 2.0, 8).reshape(2, 4).requires_grad_()
        with xg.attach(model, xg.composites.epsilon_plus_flat(canonize=True)):
            y = model(x).sum() if reentrant is None else through(model, x, reentrant)
        y.backward()
        return x.grad

    torch.testing.assert_close(run(True), run(None))
    torch.testing.assert_close(run(False), run(None))


@pytest.mark.parametrize("selector", ["0", "relu"])
@pytest.mark.parametrize("has_other", [True, False])
def test_a_rule_that_is_attached_before_backward_acts_at_the_next_forward(
    selector: str, reentrant: bool, has_other: bool
) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 3.0

    model = nn.Sequential(nn.ReLU(), Scaled())
    if has_other:
        xg.attach(model, {"mul": DOUBLES})
    x = torch.ones(2, requires_grad=True)
    y = through(model, x, reentrant)
    own = 2.0 if has_other else 3.0
    with xg.attach(model, {selector: "zero_all"}):
        y.backward()
        assert x.grad.tolist() == [own, own]
        x.grad = None
        through(model, x, reentrant).backward()
        assert x.grad.tolist() == [0.0, 0.0]


@pytest.fixture(scope="module", autouse=True)
def zero_all() -> Iterator[None]:
    xg.register("zero_all")(lambda ctx, grad_out, tin: grad_out * 0.0)
    yield
    xg.unregister("zero_all")


@pytest.mark.parametrize("outer_reentrant", [True, False])
def test_a_region_within_a_region_has_what_stood_at_the_first_run_of_both(
    outer_reentrant: bool, reentrant: bool
) -> None:
    width = xg.schedule.linear(1.0, 2.0, steps=1)
    model = by_operation(xg.get("triangular").with_params(width=width))
    x = torch.tensor([0.5], requires_grad=True)
    y = through(lambda x: checkpoint(model, x, use_reentrant=reentrant), x, outer_reentrant)
    width.step()
    y.backward()
    assert x.grad.item() == 0.5


@EVERY_WAY
def test_a_tensor_that_is_a_rules_number_is_read_at_each_forward(way: Any) -> None:
    width, x = torch.tensor(1.0), torch.tensor([0.5], requires_grad=True)
    function = way(xg.get("triangular").with_params(width=width))
    for called in (function, torch.compile(function, backend="eager")):
        for number, expected in ((1.0, 0.5), (2.0, 0.75)):
            width.fill_(number)
            assert torch.autograd.grad(called(x).sum(), x)[0].item() == expected
