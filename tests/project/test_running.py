"""How the tests run: one that hangs is ended and named, and the others go on."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .. import mutation, turns
from ..harness.hidden import run_python
from ..support.sampling import IN_TURN, turn_of

ROOT = Path(__file__).parents[2]
LONGEST = 120  # seconds of one test
LIMIT = 2  # here
HANGING = """
import os, signal, time

def test_first(): ...

def test_loop():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def test_wait_outside_of_python():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.read(os.pipe()[0], 1)

def test_last(): ...
"""


def test_one_that_hangs_is_ended_and_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    settings = f"-c{ROOT / 'pyproject.toml'}"
    short = ("-o", f"faulthandler_timeout={LIMIT}", "--rootdir", str(tmp_path))
    words = ("-m", "pytest", "-n1", "-p", "no:cacheprovider", settings, *short, tmp_path)
    done = run_python(*words, timeout=100)
    said = done.stdout + done.stderr
    for name in ("test_loop", "test_wait_outside_of_python"):
        assert f"in {name}" in said  # the stack
        assert f"crashed while running 'test_hanging.py::{name}'" in said
    assert "2 failed, 2 passed" in said, said[-3000:]


def test_no_test_may_take_longer_than_two_minutes(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("faulthandler_timeout")) <= LONGEST


def test_groups_of_processes_are_begun_in_processes_of_their_own() -> None:
    """One that ends in the tests' process can hang it: see `ranks/torch_alone.py`."""
    begins = "init_process_group"
    for path in (ROOT / "tests").rglob("*.py"):
        if "ranks" in path.parts or begins not in (text := path.read_text()):
            continue
        nodes = ast.walk(ast.parse(text))
        names = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
        assert begins not in names, f"{path.relative_to(ROOT)}: make it a check in tests/ranks"


def test_each_case_has_its_turn_on_one_of_three_frameworks_and_none_is_without() -> None:
    for count in (1, 2, 3, 50):
        turns = {
            name: turn_of(name, [f"test_of[{name}-{n}]" for n in range(count)], str)
            for name in IN_TURN
        }
        assert all(turns.values())
        cases = [case.replace(f"{name}-", "") for name in IN_TURN for case in turns[name]]
        assert {*cases} == {f"test_of[{n}]" for n in range(count)}
        assert count < 50 or len(cases) == count


def test_of_a_function_run_as_many_cases_as_its_seconds_suffice_for(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    seconds = {("many", "jax"): turns.MOST / 2.6, ("long", "core"): 2.1 * turns.MOST}
    seconds |= {("slow", name): turns.MOST for name in IN_TURN}
    monkeypatch.setattr(turns, "read", lambda: seconds)

    def count(function: str, *environments: str, takes_turns: bool = True) -> int:
        cases = [request.node] * 9
        return sum(len(turns.affordable(function, e, cases, takes_turns)) for e in environments)

    assert count("many", "jax") == 3
    assert count("long", "core") == 0
    assert count("unknown", "core") == 9
    assert count("slow", *IN_TURN) == 1
    assert count("slow", *IN_TURN, takes_turns=False) == 3
    request.node.add_marker(pytest.mark.always)
    assert count("long", "core") == 9


def test_what_the_table_of_seconds_names_is_there() -> None:
    for function, _ in turns.read():
        path, _, name = function.partition("::")
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), function


# The harness of mutants, which takes hours and is run by hand, still fits the sources.


def test_what_is_left_out_and_the_library_stand_where_the_harness_looks_for_them() -> None:
    folders = [*mutation.LEFT_OUT, *mutation.SOURCES, mutation.LIBRARY]
    assert [each for each in folders if not (mutation.ROOT / each).exists()] == []
    assert mutation.draw(0, 1, "multigrad/command/") == []


def test_a_fault_is_drawn_of_each_kind_and_its_place_can_be_probed() -> None:
    mutants = mutation.draw(0, 40, mutation.LIBRARY)
    assert {mutant.kind for mutant in mutants} >= {"operator", "condition", "constant", "dropped"}
    for mutant in mutants:
        source = (mutation.ROOT / mutant.file).read_bytes()
        assert source[mutant.start : mutant.end].decode() == mutant.text != mutant.instead
        faulty = source[: mutant.start] + mutant.instead.encode() + source[mutant.end :]
        compile(faulty, mutant.file, "exec")
        assert mutation.probed(source, mutant.file, mutants) != source


# Faults of packages: each file of tests/foreign/*faults says what it shows, in a few lines.


FAULTS = sorted((Path(__file__).parents[1] / "foreign").glob("*faults/*/*.py"))
FIRST = re.compile(r"# [\w.-]+==[\w.]+, [\w ]+: .+\.")
MOST_LINES = 20


def test_each_reproducer_names_its_package_and_law_and_is_short() -> None:
    assert len(FAULTS) >= 40
    for path in FAULTS:
        text = path.read_text(encoding="utf-8")
        assert FIRST.fullmatch(text.partition("\n")[0]), path.name
        assert text.count("\n") <= MOST_LINES, path.name
        assert "assert" in text or "AssertionError" in text, path.name
        assert "multigrad" not in text, path.name
