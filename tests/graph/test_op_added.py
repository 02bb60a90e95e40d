"""An op that an author adds is tested by its declaration and its kernel: nothing else names it.

A process of its own declares throw-away ops in a family, as an author would, and runs the
conformance suite and random programs on NumPy. An op that is made of others is added to a copy of
the package, in one file, and every backend has it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import multigrad as xg

from ..harness.hidden import python, run_python

CONFORMANCE = Path(__file__).parents[1] / "conformance" / "multigrad_conformance"
AUTHOR = """
import json
import sys

import numpy as np
import pytest

from multigrad.backend.discovery import load_backend
from multigrad.core import ops
from multigrad.core.ir.op import AXIS, flag, number
from multigrad.engine.ops.ordering import cumulative
from multigrad.core.ops.properties import ABOVE_ONE
from multigrad.core.ops.table import function


def total(x, *, axis, halved):
    sums = np.cumsum(np.atleast_1d(x), axis=axis).reshape(np.shape(x)).astype(x.dtype)
    return sums / x.dtype.type(2) if halved else sums


def total_vjp(xp, ct, y, x, *, axis, halved):
    return (xp.cumsum(ct / 2 if halved else ct, axis=axis, reverse=True),)


def total_without_its_attribute(xp, ct, y, x, *, axis, halved):
    return (xp.cumsum(ct, axis=axis, reverse=True),)


def depth(x, *, floor):
    return np.sqrt(x - x.dtype.type(floor))


def depth_vjp(xp, ct, y, x, *, floor):
    return (0.5 * ct / y,)


def add(family, row, kernel):
    setattr(family, row.name.upper(), row)
    ops.OPS[row.name] = row
    ops.CALLABLE_OPS = (*ops.CALLABLE_OPS, row)
    load_backend("numpy").kernels.rows[row] = kernel


def total_forward(x, *, axis, halved):
    return total(x, axis=axis, halved=False)


attrs = {"halved": flag(False)}
doc = "A throw-away op."
for name, vjp, kernel in (
    ("half_total", total_vjp, total),
    ("total_of_a_wrong_vjp", total_without_its_attribute, total),
    ("total_of_a_wrong_kernel", total_vjp, total_forward),
):
    add(ops.ordering, cumulative(name, total, vjp, doc, **attrs), kernel)
row = function(
    "depth", depth, depth_vjp, doc, floor=number(0.5, 0.0), domain=ABOVE_ONE
)
add(ops.arithmetic, row, depth)

from multigrad_conformance.programs.attributes import TAKING_PART
from multigrad_conformance.programs.running import Mismatch, check_random
from multigrad_conformance.under_test import BackendUnderTest

results = []


class Results:
    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            results.append((report.nodeid.split("/")[-1], report.outcome))


options = ["-p", "multigrad_conformance.plugin", "-p", "no:cacheprovider", "-q", "--backends=numpy"]
# No vectors are written for what is thrown away.
chosen = "(half_total or total_of_a_wrong or depth) and not exact_vectors"
pytest.main([*options, "--pyargs", "multigrad_conformance", "-k", chosen], [Results()])
for row in ops.CALLABLE_OPS[-4:]:
    assert row in TAKING_PART
    try:
        table = (row, ops.MUL, ops.EXP)
        tally = check_random([BackendUnderTest("numpy")], 0, 60, table=table)
        outcome = "passed" if tally.ops[row.name] > 5 else "unused"
    except Mismatch:
        outcome = "failed"
    results.append((f"programs::[{row.name}]", outcome))
print("RESULTS " + json.dumps(results))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """What each test said of each op."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(CONFORMANCE, folder / CONFORMANCE.name)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    run = run_python("-c", AUTHOR, timeout=300, cwd=folder, PYTHONPATH=path)
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULTS ")]
    assert lines, run.stdout[-2000:] + run.stderr[-2000:]
    return [(test, outcome) for test, outcome in json.loads(lines[0].removeprefix("RESULTS "))]


def of(outcomes: list[tuple[str, str]], name: str) -> dict[str, set[str]]:
    """The outcomes of one op by test, without its cases."""
    found: dict[str, set[str]] = {}
    for test, outcome in outcomes:
        if name in test:
            found.setdefault(test.partition("::")[2].partition("[")[0], set()).add(outcome)
    return found


ASPECTS = {
    "test_every_op_is_lowered_or_listed_with_a_reason",
    "test_every_row_of_the_table_is_documented_and_has_a_derivative",
    "test_every_op_gives_what_its_row_means",
    "test_every_op_that_no_table_has_takes_every_shape",
    "test_every_op_that_no_table_has_is_right_at_edges",
    "test_the_vjp_is_the_slope",
    "test_the_vjp_can_be_differentiated_again",
    "test_the_vjp_is_the_slope_in_every_narrower_dtype",
    "test_vjps_of_ops_over_whole_arrays_take_every_shape",
    "test_vjps_of_ops_over_whole_arrays_do_not_mind_the_strides",
    "",
}


@pytest.mark.parametrize("name", ["half_total", "depth"])
def test_op_has_its_cases_and_its_programs_by_its_declaration_alone(
    outcomes: list[tuple[str, str]], name: str
) -> None:
    assert of(outcomes, name) == {test: {"passed"} for test in ASPECTS}
    cases = Counter(test.partition("[")[0] for test, _ in outcomes if name in test)
    assert cases["test_vjps.py::test_the_vjp_is_the_slope"] == 2  # one for each sample


def test_wrong_vjp_of_a_new_op_is_found(outcomes: list[tuple[str, str]]) -> None:
    found = of(outcomes, "total_of_a_wrong_vjp")
    wrong = {test for test, results in found.items() if "failed" in results}
    assert wrong == {test for test in ASPECTS if test.startswith("test_the_vjp_")}


def test_wrong_kernel_of_a_new_op_is_found(outcomes: list[tuple[str, str]]) -> None:
    found = of(outcomes, "total_of_a_wrong_kernel")
    wrong = {test for test, results in found.items() if "failed" in results}
    assert wrong >= {"", "test_every_op_gives_what_its_row_means"}


# --- an op that is made of others -----------------------------------------------------------------
FAMILY = Path("core", "ops", "activations.py")
ROW = """

def bent(xp: Any, x: Any, *, width: float) -> Any:
    return x / (width + xp.abs(x))


BENT = composite(bent, None, "x / (width + |x|).", width=number(1.0, 2.0))
"""
USER = """
import sys

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import BackendUnderTest

name = sys.argv[1]
backend = BackendUnderTest(name)
x = np.array([-1.0, 0.5, 3.0], np.float32)
y, pullback = xg.vjp(xg.function(lambda x: xg.xp.bent(x, width=2.0)), backend.array(x))
np.testing.assert_allclose(backend.numpy(y), x / (2 + abs(x)), rtol=1e-6)
slope = backend.numpy(pullback(backend.array(np.ones_like(x)))[0])
np.testing.assert_allclose(slope, 2 / (2 + abs(x)) ** 2, rtol=1e-6)

options = ["-p", "multigrad_conformance.plugin", "-p", "no:cacheprovider", "-q"]
options += [f"--backends={name}", "--compiling=jax", "-k", "bent and not exact_vectors"]
sys.exit(pytest.main([*options, "--pyargs", "multigrad_conformance"]))
"""


def test_op_made_of_others_is_one_file_and_every_backend_has_it(
    backend: Any, tmp_path: Path
) -> None:
    package = Path(xg.__file__).parent
    copy = shutil.copytree(package, tmp_path / "multigrad")  # with what was compiled of it
    shutil.copytree(CONFORMANCE, tmp_path / CONFORMANCE.name)
    with (copy / FAMILY).open("a", encoding="utf-8") as family:
        family.write(ROW)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    said = python("-c", USER, backend.name, cwd=tmp_path, timeout=300, PYTHONPATH=path)
    assert " passed" in said
    changed = [
        file.relative_to(copy)
        for file in copy.rglob("*.py")
        if file.read_bytes() != (package / file.relative_to(copy)).read_bytes()
    ]
    assert changed == [FAMILY]
