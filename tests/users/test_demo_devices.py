"""`--devices` of the demo: the same training on one device and on two, in processes that end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .test_demo import PNG_SIGNATURE, demo_command, invoke_demo, read_results, run_demo

pytestmark = [pytest.mark.anywhere, pytest.mark.needs("typer", "rich", "sklearn", "matplotlib")]
FRAMEWORKS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("jax", marks=pytest.mark.needs("jax")),
]
RULES = ("triangular", "dorefa_weights")


def run_devices(framework: str, *words: object) -> subprocess.CompletedProcess[str]:
    return run_demo("--devices", 2, "--frameworks", framework, *words)


def read_document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "devices.json").read_text())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_devices_train_to_the_weights_of_one(framework: str, tmp_path: Path) -> None:
    rules = ",".join(RULES)
    words = ("--rules", rules, "--quick", "--epochs", 2, "--out", tmp_path)
    result = run_devices(framework, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    document = read_document(tmp_path)
    pairs = document["pairs"]
    forwards = ("Logistic", "Heaviside")
    assert [(p["forward"], p["rule"]) for p in pairs] == [(f, r) for f in forwards for r in RULES]
    for pair in pairs:
        one, several = pair["runs"]
        assert [one["devices"], several["devices"]] == [1, 2]
        assert several["processes"] == (2 if framework == "torch" else 1)
        assert pair["weights"] < 1e-6
        assert several["losses"] == pytest.approx(one["losses"], rel=1e-6)
        assert one["losses"][-1] < one["losses"][0]
        assert f"{one['losses'][-1]:.6f}" in result.stdout
    assert len({pair["runs"][0]["losses"][0] for pair in pairs}) == len(pairs)
    # The same task as without --devices, the rate of --quick included.
    assert document["settings"]["learning_rate"] == 0.3
    assert invoke_demo(*words).exit_code == 0
    in_numpy = {
        (run["forward"], run["rule"]): run["losses"] for run in read_results(tmp_path)["runs"]
    }
    for pair in pairs:
        expected = in_numpy[pair["forward"], pair["rule"]]
        assert pair["runs"][0]["losses"] == pytest.approx(expected, rel=1e-4)
    assert (tmp_path / "devices.png").read_bytes().startswith(PNG_SIGNATURE)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--devices", 1), "2 to 64"),
        (("--devices", 65), "2 to 64"),
        (("--devices", "two"), "--devices"),
        (("--devices", 2, "--frameworks", "jaxx"), "did you mean 'jax'"),
        (("--devices", 2, "--frameworks", "numpy"), "torch and jax, not 'numpy'"),
        (("--devices", 2, "--rules", "triangluar"), "did you mean 'triangular'"),
    ],
)
def test_devices_that_there_cannot_be_are_an_error_before_anything_is_started(
    words: tuple[object, ...], text: str, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    result = invoke_demo("--frameworks", "torch", *words, "--out", folder)
    assert result.exit_code == 2
    assert text in result.stderr
    assert not folder.exists()


def find_processes(folder: Path) -> list[int]:
    """Return the processes whose command line names a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc lists the processes")
@pytest.mark.needs("torch")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_process_is_left_behind(number: signal.Signals, code: int, tmp_path: Path) -> None:
    temporary = tmp_path / "processes"
    temporary.mkdir()
    words = ("--devices", 2, "--frameworks", "torch", "--rules", "triangular", "--epochs", 5000)
    with subprocess.Popen(
        demo_command(*words, "--out", tmp_path / "out"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        wait_until(lambda: any(temporary.glob("*/progress.txt")))
        assert find_processes(temporary)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == code, printed.decode()
    wait_until(lambda: not find_processes(temporary))
    if number == signal.SIGINT:
        assert not list(temporary.glob("multigrad-demo-*"))
        assert b"Interrupted" in printed
        assert b"Traceback" not in printed


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
