"""The bench as people run it: tables, files, comparisons, pictures, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import multigrad as xg

from ...harness.hidden import run_python, run_without

ROOT = Path(__file__).parents[3]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
CASES = [
    ("Heaviside", "triangular"),
    ("ReLU", "rectangular"),
    ("Heaviside", "rectangular"),
    ("Heaviside", "arctan"),
    ("ReLU", "d(ReLU)"),
    ("Linear", "clip_norm"),
]
FAST = ("--quick", "--backends", "numpy", "--rules", "triangular", "--sizes", "1e2,1e3")
ALONE = (*FAST, "--no-overheads")

pytestmark = pytest.mark.needs("typer", "rich")


def invoke_bench(*words: object) -> Any:
    """Run the command in this process, which saves its start; for NumPy alone."""
    from typer.testing import CliRunner

    from bench.command import app

    # The command chooses threads and devices in the environment; that must not outlive it here.
    with patch.dict(os.environ, COLUMNS="120"):
        return CliRunner().invoke(app, list(map(str, words)))


BENCH = ROOT / "tools" / "bench"


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


# --- the command ----------------------------------------------------------------------------------


def test_numpy_has_a_row_for_every_case_size_and_rival(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "bench.json"
    words = ("--quick", "--backends", "numpy", "--sizes", "1e3,100", "--no-overheads")
    result = invoke_bench(*words, "--json", path)
    assert result.exit_code == 0, result.output
    document = read_json(path)
    cells = document["cells"]
    rows = [(cell["forward"], cell["rule"], cell["size"]) for cell in cells]
    assert rows == [(*case, size) for case in CASES for size in (100, 1000)]
    for cell in cells:
        assert set(cell["timings"]) == {"plain", "hand-written", "multigrad"}
        for timing in (cell["copy"], *cell["timings"].values()):
            assert 0 < timing["minimum"] <= timing["first_quartile"] <= timing["median"]
            assert timing["median"] <= timing["third_quartile"]
            assert timing["rounds"] >= 5
    assert document["overheads"] == []
    assert document["versions"]["numpy"] == f"NumPy {np.__version__}"
    for forward, rule in CASES:
        assert f"numpy, {forward} + {rule}, 1 thread" in result.stdout
    assert str(path) in result.stdout


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
def test_each_framework_runs_each_of_its_rivals(backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = ("--quick", "--backends", backend.name, "--rules", "d(ReLU)", "--sizes", 1000)
    result = run_python(BENCH, *words, "--no-overheads", "--json", path)
    assert result.returncode == 0, result.stderr
    (cell,) = read_json(path)["cells"]
    assert cell["backend"] == backend.name
    assert set(cell["timings"]) >= {"plain", "hand-written", "multigrad"}
    assert set(cell["kept_bytes"]) == set(cell["timings"])
    assert all(name in result.stdout for name in cell["timings"])
    assert f"{backend.name}: ReLU + d(ReLU), 1,000 elements" in result.stderr


def test_overheads_are_measured_and_leave_no_rule_behind(tmp_path: Path) -> None:
    before = xg.rules()
    path = tmp_path / "bench.json"
    result = invoke_bench(*FAST, "--json", path)
    assert result.exit_code == 0, result.output
    assert xg.rules() == before
    rows = read_json(path)["overheads"]
    assert [row["name"] for row in rows] == ["first use", "many rules", "nested use", "many values"]
    for row in rows:
        assert 0 < row["first_quartile"] <= row["value"] <= row["third_quartile"]
        assert row["met"] == (row["value"] <= row["target"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--rules", "triangluar"), "did you mean 'triangular'"),
        (("--backends", "numpy,torhc"), "did you mean 'torch'"),
        (("--sizes", "1e3,many"), "'many'"),
        (("--sizes", "0"), "'0'"),
        (("--sizes", "1e12"), "'1e12'"),
        (("--threads", "bth"), "did you mean 'both'"),
        (("--only", "bridge"), "did you mean 'bridges'"),
        (("--only", "gpu,rules"), "measured alone"),
        (("--only", "keras", "--rules", "arctan"), "--rules triangular"),
        (("--compare", "{folder}"), "is not a checkout of multigrad"),
        (("--compare", "{folder}/absent.json"), "absent.json"),
        (("--compare", "{folder}/foreign.json"), "foreign.json"),
        (("--json", "{folder}"), "{folder}"),
        (("--plot", "{folder}/bench.txt"), ".png"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_measured(
    tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    foreign, path = tmp_path / "foreign.json", tmp_path / "bench.json"
    foreign.write_text('{"format": "multigrad-bench", "version": 99}')
    result = invoke_bench("--quick", "--json", path, *(w.format(folder=tmp_path) for w in words))
    assert result.exit_code == 2
    assert text.format(folder=tmp_path) in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_framework_that_is_not_installed_names_its_install_line() -> None:
    result = run_without(["jax"], "tools/bench", "--quick", "--backends", "jax")
    assert result.returncode == 2
    assert "pip install 'jax>=" in result.stderr


def test_show_prints_every_rival_without_a_framework() -> None:
    result = run_without(["torch", "jax", "tensorflow"], "tools/bench", "--show")
    assert result.returncode == 0, result.stderr
    for name in ("numpy", "torch", "jax", "tensorflow"):
        text = (ROOT / "tools/bench/rivals" / f"in_{name}.py").read_text()
        assert text in result.stdout
        assert text.count('"hand-written":') == len(CASES)
    assert result.stderr == ""


# --- a GPU ----------------------------------------------------------------------------------------


@pytest.mark.needs("torch")
def test_a_gpu_is_measured_by_one_command_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from bench import cases
    from bench.runners import on_cuda

    waits = []
    monkeypatch.setattr(cases, "check_gpu", lambda parts: None)
    monkeypatch.setattr(on_cuda, "DEVICE", torch.device("cpu"))  # in the place of one
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU that is none")
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    path = tmp_path / "bench.json"
    words = ("--only", "gpu", "--quick", "--rules", "triangular,clip_norm", "--sizes", "1e3")
    result = invoke_bench(*words, "--json", path)
    assert result.exit_code == 0, result.output
    document = read_json(path)
    (cell,) = document["cells"]
    assert (cell["backend"], cell["rule"], cell["size"]) == ("cuda", "triangular", 1000)
    assert {"plain", "hand-written", "unfused", "fused", "multigrad"} <= set(cell["timings"])
    figures = [*cell["timings"].values(), cell["copy"]]
    assert len(waits) >= sum(timing["rounds"] for timing in figures)
    assert "a GPU that is none" in document["versions"]["cuda"]
    rivals = on_cuda.list_rivals(cases.CASES[0])
    x, grad = on_cuda.make_inputs(*np.random.default_rng(0).normal(size=(2, 99)).astype("f4"))
    found = {name: on_cuda.build_step(rival, x, grad)() for name, rival in rivals.items()}
    for pair in found.values():
        for one, ours in zip(pair, found["multigrad"], strict=True):
            np.testing.assert_allclose(on_cuda.to_numpy(one), on_cuda.to_numpy(ours), atol=1e-6)


# --- the files ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that an earlier run wrote."""
    path = tmp_path_factory.mktemp("earlier") / "bench.json"
    result = invoke_bench(*FAST, "--json", path)
    assert result.exit_code == 0, result.output
    return path


def test_a_file_is_read_back_as_it_was_written(earlier: Path, tmp_path: Path) -> None:
    from bench import results

    again = tmp_path / "again.json"
    results.write(results.read(earlier), again)
    assert again.read_text() == earlier.read_text()
    assert list(tmp_path.iterdir()) == [again]


@pytest.mark.parametrize(("factor", "word"), [(1e-4, "slower"), (1e4, "faster")])
def test_compare_marks_what_changed_by_more_than_noise_and_names_another_machine(
    earlier: Path, tmp_path: Path, factor: float, word: str
) -> None:
    document = read_json(earlier)
    document["machine"]["cpus"] = 977
    cell = document["cells"][0]
    for name in ("minimum", "median", "first_quartile", "third_quartile"):
        cell["timings"]["multigrad"][name] *= factor
    cell["relative"]["multigrad"] = [factor * x for x in cell["relative"]["multigrad"]]
    path = tmp_path / "then.json"
    path.write_text(json.dumps(document))
    result = invoke_bench(*ALONE, "--compare", path)
    assert result.exit_code == 0, result.output
    assert f"cpus: 977 then, {os.cpu_count()} now" in result.stdout
    table = result.stdout[result.stdout.index(f"Against {path}") :]
    rows = [line for line in table.splitlines() if "multigrad" in line]
    assert len(rows) == 2
    assert word in rows[0]


def test_neither_the_spread_nor_a_slower_machine_is_a_change_of_the_code(
    earlier: Path, tmp_path: Path
) -> None:
    from bench import results
    from bench.compare import compare

    found = results.read(earlier)
    changes = compare(found, found)
    assert [change.rival for change in changes] == ["plain", "hand-written", "multigrad"] * 2
    assert {change.verdict for change in changes} == {"no difference"}
    assert all(change.of_medians == 1 for change in changes)
    document = read_json(earlier)
    for timing in (each for cell in document["cells"] for each in cell["timings"].values()):
        for name in ("minimum", "median", "first_quartile", "third_quartile"):
            timing[name] *= 100
    path = tmp_path / "now.json"
    path.write_text(json.dumps(document))
    words = {change.rival: change.verdict for change in compare(found, results.read(path))}
    assert words.pop("hand-written") == "the machine"
    assert set(words.values()) == {"no difference"}


def test_two_checkouts_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import processes

    run, places = processes.run_process, []

    def noted(words: list[str], place: Path | None = None) -> bool:
        places.append(place)
        return run(words, place)

    monkeypatch.setattr(processes, "TURNS", 2)
    monkeypatch.setattr(processes, "run_process", noted)
    words = ("--quick", "--backend", "numpy", "--rules", "triangular", "--sizes", "1e3")
    result = invoke_bench(*words, "--only", "rules", "--no-overheads", "--compare", ROOT)
    assert result.exit_code == 0, result.output
    assert len(places) == 2 * 2
    rows = result.stdout[result.stdout.index("Against ") :].splitlines()
    assert sum("multigrad" in row and row.lstrip().startswith("1e3") for row in rows) == 1


def test_the_share_of_a_copys_bandwidth_counts_what_has_to_be_moved() -> None:
    from dataclasses import replace
    from types import SimpleNamespace

    from bench.measure import Timing
    from bench.report import share_of_bandwidth

    # A copy of 1,000 floats moves 8,000 bytes; forward and backward move 16,000, and 4,000 kept.
    copy = Timing(1.0, 1.0, 1.0, 1.0, rounds=1, calls=1)
    cell: Any = SimpleNamespace(size=1000, copy=copy)
    assert share_of_bandwidth(cell, replace(copy, median=2.5), 4000) == pytest.approx(1.0)
    assert share_of_bandwidth(cell, replace(copy, median=4.0), 0) == pytest.approx(0.5)


@pytest.mark.needs("matplotlib")
def test_plot_draws_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "pictures" / "bench.png"
    result = invoke_bench(*ALONE, "--plot", path)
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(PNG_SIGNATURE)
    assert str(path) in result.stdout


# --- threads and interrupts -----------------------------------------------------------------------


def test_both_numbers_of_threads_are_measured_in_their_own_processes(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result = run_python(BENCH, *ALONE, "--threads", "both", "--json", path)
    assert result.returncode == 0, result.stderr
    threads = [cell["threads"] for cell in read_json(path)["cells"]]
    count = os.cpu_count() or 1
    assert threads == ([1, 1, count, count] if count > 1 else [1, 1])


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent in another way on Windows")
@pytest.mark.parametrize("threads", ["one", "both"])
def test_an_interrupt_keeps_what_is_measured(threads: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = ("--backends", "numpy", "--sizes", "10,1e3", "--threads", threads, "--json", path)
    command = [sys.executable, str(BENCH), *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        heard = []
        for line in process.stderr:
            heard.append(line)
            if "1,000 elements" in line:
                process.send_signal(signal.SIGINT)
                break
        heard.append(process.stderr.read())
        printed = process.stdout.read()
        code = process.wait()
    assert code == 130, "".join(heard)
    assert "Traceback" not in "".join(heard)
    document = read_json(path)
    assert document["interrupted"]
    assert [(cell["rule"], cell["size"]) for cell in document["cells"]] == [("triangular", 10)]
    assert "numpy, Heaviside + triangular, 1 thread" in printed
    assert "Interrupted" in printed
