"""Schedules in torch's modules: checkpoints, copies, recomputed regions, hooks, other models."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.models.surrogates import triangle

torch: Any = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.needs("torch")

X = np.array([-1.5, -0.5, 0.25, 0.75], np.float32)


@pytest.fixture
def width() -> Any:
    return xg.schedule.linear(2.0, 0.5, steps=6)


def network(width: Any) -> Any:
    return nn.Sequential(
        nn.Linear(4, 4), xg.Activation("Heaviside", "triangular", {"width": width})
    )


def test_a_checkpoint_brings_a_modules_schedule_back(width: Any) -> None:
    model, file = network(width), io.BytesIO()
    width.step(3)
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = xg.schedule.linear(2.0, 0.5, steps=6)
    network(other).load_state_dict(torch.load(file, weights_only=True))
    assert (other.count, other.value) == (3, width.value)


def test_a_state_dict_has_a_step_only_where_there_is_a_schedule(width: Any) -> None:
    with_number, with_schedule = network(1.0), network(width)
    assert set(with_schedule.state_dict()) - set(with_number.state_dict()) == {"1.width_count"}
    with pytest.raises(RuntimeError, match=r"Missing key.*1\.width_count"):
        with_schedule.load_state_dict(with_number.state_dict())
    found = with_schedule.load_state_dict(with_number.state_dict(), strict=False)
    assert found.missing_keys == ["1.width_count"]


def test_a_copy_of_a_model_counts_by_itself(width: Any) -> None:
    model = network(width)
    other = copy.deepcopy(model)
    width.step(2)
    assert (model[1].width.count, other[1].width.count) == (2, 0)
    assert "at step 2: 1.5" in repr(model)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_region_runs_again_under_the_number_in_force_at_its_forward(
    reentrant: bool, width: Any
) -> None:
    act = xg.activation("Heaviside")
    x = torch.tensor(X, requires_grad=True)
    with xg.use("triangular", {"width": width}):
        y = torch.utils.checkpoint.checkpoint(lambda x: act(x) * 1.0, x, use_reentrant=reentrant)
        width.step(5)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), triangle(X, 2.0), rtol=1e-6)


def test_hooks_on_params_take_the_number_of_the_forward() -> None:
    norm = xg.schedule.linear(1.0, 0.1, steps=9)
    layer, x = torch.nn.Linear(4, 1), 100.0 * torch.tensor(X)
    with xg.use("clip_norm", {"max_norm": norm}, scope="params"):
        for expected in (1.0, 0.1):
            layer.zero_grad()
            y = layer(x)
            norm.step(9)
            y.sum().backward()
            assert float(layer.weight.grad.norm()) == pytest.approx(expected, rel=1e-5)


def test_rules_put_on_what_exists_follow_a_schedule(width: Any) -> None:
    rule = xg.get("triangular").with_params(width=width)
    model = nn.Sequential(nn.ReLU())
    xg.attach(model, {nn.ReLU: rule})
    function = xg.override(lambda x: torch.relu(x), {torch.relu: rule})
    for _ in range(2):
        for f in (model, function):
            x = torch.tensor(X, requires_grad=True)
            f(x).sum().backward()
            np.testing.assert_allclose(x.grad.numpy(), triangle(X, width.value), rtol=1e-6)
        width.step(2)


def test_a_tensor_that_asks_for_a_gradient_is_refused() -> None:
    with pytest.raises(xg.RuleError, match="detach"):
        xg.activation("Heaviside", "triangular", {"width": torch.tensor(2.0, requires_grad=True)})
