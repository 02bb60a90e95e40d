"""`torch.distributed.checkpoint`: a training goes on, on another number of processes, as if nothing
had been: parameters of rules and estimators, the optimizer, schedules.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

from ...harness.distributed.ranks import Ranks, names_in, run_ranks

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

CHECKS = Path(__file__).parents[2] / "ranks" / "torch_checkpoints.py"
Found: TypeAlias = dict[str, Any]


class Runs(NamedTuple):
    """The folder of checkpoints, what training without an interruption gives, and the ranks."""

    folder: Path
    expected: Found
    ranks: Ranks


def resumed() -> Any:
    """Return the module, which imports torch."""
    return importlib.import_module("...harness.distributed.resumed_torch", __package__)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder, made = tmp_path_factory.mktemp("checkpoints"), resumed()
    training = made.Training()
    training.run(0, made.FIRST)
    training.save(folder / "plain")
    training.run(made.FIRST, made.STEPS)
    env = {"CHECKPOINTS": str(folder)}
    return Runs(folder, training.found(), run_ranks([CHECKS], world=2, timeout=100, env=env))


def assert_same(found: Found, expected: Found) -> None:
    assert found.keys() == expected.keys()
    assert expected["counts"] == found["counts"] == [10, 10]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", [name for name in names_in(CHECKS) if "goes_on" in name])
def test_two_ranks_go_on_with_the_training_of_one(runs: Runs, name: str) -> None:
    for found in runs.ranks.values(name):
        assert_same(found, runs.expected)


@pytest.mark.parametrize(("kind", "wrapped"), [("ddp", "compiled"), ("fsdp", "plain")])
def test_one_process_goes_on_with_the_training_of_two(runs: Runs, kind: str, wrapped: str) -> None:
    runs.ranks.assert_passed(f"saves[{kind}]")
    training = resumed().Training(wrapped, first=False)
    training.load(runs.folder / kind)
    training.run(5, 10)
    assert_same(training.found(), runs.expected)


def test_a_schedule_that_a_checkpoint_lacks_is_named_and_all_else_can_be_loaded(
    tmp_path: Path,
) -> None:
    from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner

    plain = resumed().Training(width=2.5)
    plain.run(0, 5)
    plain.save(tmp_path)
    training = resumed().Training(first=False)
    training.width.step(2)
    with pytest.raises(CheckpointException, match=r"Missing key.*spikes\.width_count"):
        training.load(tmp_path)
    training.load(tmp_path, DefaultLoadPlanner(allow_partial_load=True))
    assert [training.width.count, training.attached.count] == [2, 5]
    np.testing.assert_array_equal(training.found()["step"], plain.found()["step"])


def test_the_steps_of_schedules_are_no_buffers_that_processes_send_each_other() -> None:
    training = resumed().Training()
    assert not list(training.model.named_buffers())
    assert int(training.model.spikes.width_count) == 0
    assert [name for name, _ in training.model.spikes.named_buffers(recurse=False)] == [
        "width_count"
    ]
