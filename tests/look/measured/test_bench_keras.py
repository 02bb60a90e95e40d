"""What the bench says of bridges and of Keras layers: the right rows, rivals with the right
numbers, files.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ...harness.hidden import run_python
from ...written.hosts_and_guests import every_host

PATH = {"PYTHONPATH": os.pathsep.join(sys.path)}
BENCH = str(Path(__file__).parents[3] / "tools" / "bench")
pytestmark = pytest.mark.needs("typer", "rich")

FEW = {"seconds": 0.0, "fewest": 3, "most": 3, "block": 0.0}
SMALL = {"features": 4, "units": 8, "batch": 5, "batches": 2}

ORACLE = """
import sys
import numpy as np
import keras
from bench.rivals.in_keras import Step

generator = np.random.default_rng(0)
x = generator.normal(size=(6, 4)).astype("float32")
weights = generator.normal(size=(4, 5)).astype("float32")
targets = generator.normal(size=(6, 5)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, use_bias=False), Step()])
model.set_weights([weights])
model.compile(keras.optimizers.SGD(1.0), "mse")
model.fit(x, targets, batch_size=6, epochs=1, verbose=0)
pre = x.astype("float64") @ weights.astype("float64")
grad_out = 2 * ((pre > 0) - targets) / targets.size
grad = x.T @ (grad_out * np.maximum(1 - np.abs(pre), 0))
np.testing.assert_allclose(weights - model.get_weights()[0], grad, rtol=1e-5, atol=1e-6)
assert np.abs(grad).max() > 0.01
"""


def make_contest(part: str = "bridges", size: int = 1_000_000) -> Any:
    """Return what a measurement gives: the guest took twice the native time."""
    from bench.cases import STEP
    from bench.measure import Race
    from bench.results import Contest

    race = Race(
        {"native": [1.0, 2.0, 3.0], "multigrad": [2.0, 4.0, 6.0]}, {"native": 1, "multigrad": 1}
    )
    timings = {name: race.summarize(name) for name in race.figures}
    ratios = {"multigrad": race.compare("multigrad", "native")}
    return Contest(part, "torch", STEP, size, 1, timings, ratios)


# --- bridges --------------------------------------------------------------------------------------


@every_host
def test_a_host_has_a_row_for_each_other_framework_that_is_installed(
    host: str, tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    words = ("--only", "bridges", "--backends", f"{host},numpy", "--sizes", "64,100")
    result = run_python(BENCH, "--quick", *words, "--json", path, **PATH)
    assert result.returncode == 0, result.stderr
    document = json.loads(path.read_text())
    assert document["cells"] == document["overheads"] == document["failures"] == []
    rows = [(row["part"], row["backend"], row["size"]) for row in document["contests"]]
    assert rows == [("bridges", host, 64), ("bridges", host, 100)]
    for contest in document["contests"]:
        assert (contest["forward"], contest["rule"]) == ("Heaviside", "triangular")
        assert list(contest["timings"]) == ["native", "numpy"]
        assert all(timing["minimum"] > 0 for timing in contest["timings"].values())
        assert list(contest["ratios"]) == ["numpy"]
    assert "Bridges" in result.stdout


@every_host
def test_a_bridged_contender_gives_the_numbers_of_the_native_one(host: str) -> None:
    from functools import partial

    from bench.benchmark import run_in
    from bench.harness import load, make_values
    from multigrad.core.rules.activation import Activation

    harness = load(host)
    x, grad_out = make_values(500)
    tensors = harness.make_inputs(x, grad_out)
    bridged = partial(run_in, "numpy", Activation("Heaviside", rule="triangular"))
    output, gradient = harness.build_step(bridged, *tensors)()
    np.testing.assert_array_equal(harness.to_numpy(output), x > 0)
    expected = grad_out * np.maximum(1 - np.abs(x), 0)
    np.testing.assert_allclose(harness.to_numpy(gradient), expected, rtol=1e-6, atol=1e-7)


# --- Keras ----------------------------------------------------------------------------------------


@pytest.mark.needs("keras")
@every_host
def test_keras_has_a_row_for_our_layer_and_for_each_framework_it_can_run_in(host: str) -> None:
    from bench.cases import Effort
    from bench.fits import Workload, measure_fits

    versions: dict[str, str] = {}
    few, small = Effort(**FEW), Workload(**SMALL)
    contest = measure_fits(host, ["numpy"], 1, few, versions, small)
    assert (contest.part, contest.backend, contest.size) == ("keras", host, 40)
    assert list(contest.timings) == ["native", "multigrad", "multigrad in numpy"]
    assert list(contest.ratios) == ["multigrad", "multigrad in numpy"]
    assert all(timing.minimum > 0 for timing in contest.timings.values())
    assert all(timing.rounds == 3 for timing in contest.timings.values())
    assert versions["keras"].startswith("Keras 3")


@pytest.mark.needs("keras")
@every_host
def test_the_hand_written_layer_trains_by_the_formula(host: str) -> None:
    result = run_python("-c", ORACLE, **PATH, KERAS_BACKEND=host)
    assert result.returncode == 0, result.stderr


def test_other_rules_are_measured_without_bridges_and_keras() -> None:
    from bench.cases import choose_cases, choose_parts

    assert choose_parts([], choose_cases(["arctan"])) == ["rules"]
    assert choose_parts([], choose_cases([])) == ["rules", "bridges", "keras", "packages"]


# --- tables and files -----------------------------------------------------------------------------


def test_tables_show_native_time_ratio_and_target() -> None:
    from rich.console import Console

    from bench.report import show
    from bench.results import Results

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    show(console, Results(contests=[make_contest(), make_contest("keras", 45)]))
    rows = [line.split() for line in console.export_text().splitlines()]
    bridge = ["torch", "multigrad", "1e6", "2.00", "4.00", "2.00", "2.00,", "2.00", "2.00", "2"]
    fit = ["torch", "multigrad", "45", "0.00", "0.00", "2.00", "2.00,", "2.00", "2.00", "1.05"]
    assert bridge in rows
    assert fit in rows


def test_contests_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    from bench import results

    path = tmp_path / "bench.json"
    found = results.Results(contests=[make_contest(), make_contest("keras")], absences=["no jax"])
    results.write(found, path)
    again = results.read(path)
    assert again.contests == found.contests
    assert again.absences == ["no jax"]


def test_contests_are_compared_with_those_of_the_same_part() -> None:
    from bench.compare import compare
    from bench.report import format_title
    from bench.results import Results

    then = Results(contests=[make_contest("bridges"), make_contest("keras")])
    now = Results(contests=[make_contest("keras")])
    changes = compare(then, now)
    assert [change.rival for change in changes] == ["native", "multigrad"]
    assert format_title(changes[0].cell) == "keras, torch, Heaviside + triangular, 1 thread"
    assert all(change.of_medians == 1 for change in changes)
