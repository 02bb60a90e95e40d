"""Commands that take seconds, at a terminal: what is at work, and what Ctrl-C leaves."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..harness.hidden import run_python

pytestmark = [
    pytest.mark.needs("typer", "rich"),
    pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals"),
]
CLASS = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {first}
        return x.clone()

    @staticmethod
    def backward(ctx, grad_out):
        return 2 * grad_out

"""
WAITS = "time.sleep(600)"
SOME = r"[1-9]\d*/\d"  # parts that are done


def run_at_a_terminal(folder: Path, words: list[str], until: str) -> tuple[int, str, str]:
    """Send Ctrl-C when the terminal shows what a pattern finds; return the exit code, what is
    printed into a pipe, and what the terminal showed.
    """
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "multigrad", *words]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
        text=True,
        env={**os.environ, "COLUMNS": "120", "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = ""
        with contextlib.suppress(OSError):  # Linux's answer where the other end is closed
            while part := os.read(ours, 4096).decode(errors="replace"):
                if not re.search(until, shown) and re.search(until, shown + part):
                    time.sleep(0.3)
                    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                shown += part
        os.close(ours)
        assert process.stdout is not None
        printed = process.stdout.read()
    return process.returncode, printed, shown


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a package of three classes, the second of which does not end."""
    (tmp_path / "theirs").mkdir()
    classes = [("Doubled", "pass"), ("Endless", WAITS), ("Then", "pass")]
    text = "".join(CLASS.format(name=name, first=first) for name, first in classes)
    (tmp_path / "theirs" / "__init__.py").write_text(f"import time\nimport torch\n\n{text}")
    return tmp_path


SCRIPT = """
import sys
from multigrad.cli import main

print("once")
sys.argv = ["multigrad", "audit", "theirs:Doubled", "--input", "2x3", "--law", "linear"]
main()
"""


@pytest.mark.needs("torch")
def test_a_script_without_a_guard_audits_and_runs_once(package: Path) -> None:
    (package / "script.py").write_text(SCRIPT)
    result = run_python("script.py", cwd=package)
    assert result.stdout.count("once") == 1, result.stderr
    assert "cannot be imported" not in result.stdout + result.stderr
    assert "1 audited: 1 keep every law" in result.stdout


@pytest.mark.needs("torch")
def test_what_ends_after_ctrl_c_says_nothing(package: Path) -> None:
    code, printed, shown = run_at_a_terminal(package, ["audit", "theirs"], "theirs:Endless")
    assert code == 130
    assert "theirs:Doubled on torch" in printed
    assert "1 audited" in printed
    assert "Traceback" not in shown


def test_an_answer_that_nobody_waits_for_raises_nothing() -> None:
    import multiprocessing

    from multigrad.command.messages import pack
    from multigrad.command.worker import _serve

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    ours.send_bytes(pack(("time:sleep", pack((0.0,)))))
    ours.close()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    theirs.close()
    process.join()
    assert process.exitcode == 0


ON_NUMPY = ["--backend", "numpy", "--compiled", ""]


@pytest.mark.needs("torch")
def test_convert_names_the_item_at_work_and_keeps_the_rows_above_it(package: Path) -> None:
    words = ["convert", "theirs", *ON_NUMPY]
    code, printed, shown = run_at_a_terminal(package, words, "theirs:Endless")
    assert code == 130
    assert "theirs:Doubled  equal" in printed
    assert "1 of 3 custom gradients: 1 converted, equal" in printed
    assert "1/3" in shown
    assert shown.rstrip().endswith("stopped")
    assert "Traceback" not in shown


@pytest.mark.needs("torch")
def test_convert_gives_up_what_does_not_end_and_goes_on(package: Path) -> None:
    words = ["convert", "theirs", "--limit", "8", *ON_NUMPY]
    result = run_python("-m", "multigrad", *words, cwd=package)
    assert result.returncode == 1
    dashes = "-         " * 3
    assert f"theirs:Endless  {dashes}given up: it does not end within 8 s; --limit" in result.stdout
    assert "theirs:Then     equal" in result.stdout
    assert "2 converted, equal, 1 given up" in result.stdout
    assert result.stderr == ""  # no line of progress where there is no terminal


@pytest.mark.needs("torch")
def test_probes_that_are_answered_are_written_beside_the_lock(tmp_path: Path) -> None:
    from multigrad.audit.lock.lockfile import read_lock

    words = ["lock", "--frameworks", "torch"]
    code, printed, shown = run_at_a_terminal(tmp_path, words, SOME)
    assert code == 130
    assert "Traceback" not in shown
    lock = read_lock(tmp_path / "gradients.lock.partial")
    assert lock.answers["torch"].outcomes
    assert f"gradients.lock.partial: {len(lock.answers['torch'].outcomes)} probes" in printed
    assert not (tmp_path / "gradients.lock").exists()
    words = ["verify", "gradients.lock.partial"]
    code, printed, _ = run_at_a_terminal(tmp_path, words, "importing")
    assert code == 130
    assert printed.endswith("stopped: the rest was not compared\n")  # and no verdict


SLOW = """
import sys, time
print("importing", file=sys.stderr, flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    raise ImportError("as libraries in C turn it into one") from None
"""


def test_a_command_that_imports_is_stopped_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    code, printed, shown = run_at_a_terminal(tmp_path, ["source", "slow.py"], "importing")
    assert (code, printed) == (130, "")
    assert shown.split() == ["importing", "stopped"]
