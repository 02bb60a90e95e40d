"""The command line: what each command prints, also about a mistake and a missing extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.command import SELDOM

from ..harness.commands import invoke
from ..harness.hidden import run_python

pytestmark = [pytest.mark.anywhere, pytest.mark.needs("typer", "rich")]

COMMANDS = [
    "backends", "rules", "show", "source", "check", "parity", "convert", "eject",
    "plot", "lock", "verify", "cache",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_of_the_command(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert result.output == invoke(command, "-h").output
    assert f"Example: multigrad {command}" in result.output


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_without_a_command_names_them_all(option: str) -> None:
    output = invoke(option).output
    assert all(command in output for command in COMMANDS)


@pytest.mark.parametrize("command", ["backends", "rules", "show"])
def test_the_example_in_the_help_runs(command: str) -> None:
    example = invoke(command, "--help").output.partition("Example: multigrad ")[2]
    result = invoke(*example.splitlines()[0].strip(" │").split())
    assert result.exit_code == 0, result.output


def test_backends_lists_each_backend_with_its_version_or_the_reason_why_not() -> None:
    lines = invoke("backends").output.splitlines()
    for row in xg.backends():
        (line,) = [line for line in lines if row.name in line.split()]
        assert (row.version or "no") in line
        assert ("yes" in line.split()) == row.installed
    assert any("numpy" in line and np.__version__ in line for line in lines)


def test_cache_shows_what_is_kept_and_clears_what_is_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "MULTIGRAD_CACHE is off, so nothing is kept" in invoke("cache").output
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "kept"))
    assert "compiled libraries: 0 (0 bytes)" in invoke("cache").output
    (tmp_path / "kept" / "native").mkdir(mode=0o700, parents=True)
    (tmp_path / "kept" / "native" / "one.so").write_bytes(b"12345")
    (tmp_path / "kept" / "mine.txt").touch()
    lines = f"{tmp_path / 'kept'}\n  compiled libraries: 1 (5 bytes)\n"
    assert lines in invoke("cache").output
    assert lines in invoke("cache", "--clear").output
    assert "compiled libraries: 0 (0 bytes)" in invoke("cache").output
    assert (tmp_path / "kept" / "mine.txt").exists()


def test_show_prints_the_graph_of_a_rule_with_its_forward() -> None:
    assert invoke("show", "triangular").output.strip() == xg.show("triangular").strip()
    assert "arctan(tin" in invoke("show", "triangular", "--forward", "numpy:arctan").output


def test_show_with_memory_says_what_is_kept_and_in_how_many_bytes() -> None:
    words = ("show", "rectangular", "--forward", "Heaviside")
    graph, kept = invoke(*words).output, invoke(*words, "--memory").output
    act = xg.activation("Heaviside", rule="rectangular")
    assert graph.strip() == xg.show(act).strip()
    assert kept.startswith(graph.strip())
    assert kept.strip() == xg.show(act, memory=True).strip()
    last = kept.partition("kept for backward")[2]
    assert "kept = and(ge(tin, a), le(tin, b))" in last
    assert "1 byte per element" in last


def test_a_backend_is_named_by_one_option_in_every_command() -> None:
    words = ("triangular", "--forward", "Heaviside")
    expected = xg.source("triangular", "numpy", forward="Heaviside").strip()
    for given in (words, (*words, "numpy"), ("numpy", *words), (*words, "--backend", "numpy")):
        assert invoke("source", *given).output.strip() == expected
    (several,) = {
        invoke("parity", *words, name, "numpy").output for name in ("--backend", "--backends")
    }
    assert "numpy" in several
    for command in ("source", "eject", "check", "parity", "convert"):
        assert "--backend" in invoke(command, "--help").output


# As the installed script does it.
COMPLETING = {"_MULTIGRAD_COMPLETE": "complete_bash"}
COMPLETED = "import sys; sys.argv[0] = 'multigrad'; import multigrad.cli as c; c.main()"


@pytest.mark.parametrize(
    ("words", "completed"),
    [("par", ["parity"]), ("show triang", ["triangular"]), ("lock ./mi", ["./mine.py"])],
)
def test_a_shell_completes_commands_and_targets(
    words: str, completed: list[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").touch()
    typed = {"COMP_WORDS": f"multigrad {words}", "COMP_CWORD": str(len(words.split()))}
    run = run_python("-c", COMPLETED, cwd=tmp_path, **COMPLETING, **typed)
    assert run.stdout.split() == completed, run.stderr


@pytest.mark.parametrize("words", [["demo", "--quick"], ["bench", "gpu"], ["demo", "-h"]])
def test_what_needs_a_clone_says_where_it_is(words: list[str]) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert f"type: python -m tox run -e {words[0]}" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_names_the_install_line(missing: str) -> None:
    result = run_python(
        "-c", f"import sys; sys.modules[{missing!r}] = None; from multigrad.cli import main; main()"
    )
    assert result.returncode == 2
    assert all(f"'{package}>=" in result.stderr for package in ("typer", "rich"))
    assert missing in result.stderr
    assert "Traceback" not in result.stderr


def test_the_module_runs_as_the_command() -> None:
    result = run_python("-m", "multigrad.cli", "show", "no_such_rule")
    assert result.returncode == 2
    assert "no_such_rule" in result.stderr
    assert "Traceback" not in result.stderr


# --- check and parity -----------------------------------------------------------------------------

MODULE = """
import multigrad as xg
from multigrad import xp

clipped = xg.function(
    lambda x, limit: xp.clip(x, 0.0, limit),
    lambda grad_out, x, limit: (grad_out * ((x > 0) & (x < limit)), None),
)
forgotten = xg.function(
    lambda x, limit: xp.clip(x, 0.0, limit), lambda grad_out, x, limit: (3.0 * grad_out, None)
)


scaled = xg.function(
    lambda x, scale: x * scale,
    lambda grad_out, x, scale: (grad_out * scale, xp.sum(grad_out * x)),
)


def window(ctx, grad_out, tin):
    return grad_out * (abs(tin) < 1)


product = xg.function(lambda x, y: x[:7] @ y[:9, 8:], lambda g, x, y: (g, g))
"""


@pytest.fixture
def module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    (tmp_path / "functions_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "functions_of_mine", raising=False)
    return "functions_of_mine"


def test_check_tells_a_right_gradient_from_a_wrong_one(module: str) -> None:
    right = invoke("check", f"{module}:clipped", "--input", "3x4", "--input", "1.5")
    assert right.exit_code == 0
    assert "the gradient is the true one" in right.output
    wrong = invoke("check", f"{module}:forgotten", "--input", "3x4", "--input", "1.5")
    assert wrong.exit_code == 1
    assert "THE GRADIENT IS WRONG" in wrong.output


def test_check_of_a_rule_under_an_activation_describes_it(module: str) -> None:
    result = invoke("check", f"{module}:window", "--forward", "Heaviside")
    assert result.exit_code == 0
    assert "the surrogate differs from the true derivative by at most 1" in result.output


@pytest.mark.parametrize(
    "words", [("rule.json", "--forward", "Heaviside"), ("functions_of_mine.py:clipped",)]
)
@pytest.mark.usefixtures("module")
def test_parity_of_a_saved_rule_and_of_a_function_in_sixteen_bits(words: tuple[str, ...]) -> None:
    xg.save(xg.get("triangular"), "rule.json")
    result = invoke("parity", *words, "--backends", "numpy", "--dtype", "float16")
    assert result.exit_code == 0, result.output
    assert "the same numbers everywhere" in result.output
    assert "float16" in result.output and "float32" not in result.output


@pytest.mark.usefixtures("module")
def test_rules_are_found_by_a_word_that_is_nearly_in_their_names() -> None:
    for word in ("triangl", "triangle", "triangular"):
        rows = json.loads(invoke("rules", word, "--json").output)
        assert {"triangular", "spyx.triangular"} <= {row["name"] for row in rows}


MISTAKES = [
    ("shwo", "Did you mean 'show'"),
    ("show triangluar", "did you mean 'triangular'"),
    ("show triangular --forward Heavyside", "did you mean 'Heaviside'"),
    ("source triangluar numpy", "did you mean 'triangular'"),
    ("source triangular nunpy", "did you mean 'numpy'"),
    ("source triangular numpy --forward Heavyside", "did you mean 'Heaviside'"),
    ("check functions_of_mine:cliped", "no 'cliped'; did you mean 'clipped'?"),
    ("check no_such_module:f", "there is no module 'no_such_module' here"),
    ("check triangluar", "no rule named 'triangluar'; did you mean 'triangular'?"),
    ("check functions_of_mine:clipped --input 3by4", "--input '3by4' is not a value; write 4x6"),
    ("check functions_of_mine:clipped --input 12", "; 12 is a number, 12:float32 is a tensor"),
    ("show triangular --input 3x4", "is a rule, which takes --input only with --forward"),
    ("show functions_of_mine.py", "has 5 targets; name one of functions_of_mine.py:clipped, "),
    ("source nowhere.py", "there is no file nowhere.py"),
    ("plot --all", "type there: python tools/write_gallery.py"),
    ("triangl", "No such command 'triangl'. Did you mean: multigrad show triangular"),
    ("check functions_of_mine:clipped --forward ReLU", "has a forward of its own"),
    ("check nowhere.json", "No such file"),
    ("parity triangular --backends torhc", "no backend named 'torhc'"),
    ("check functions_of_mine:product", "; give what fits x, y, an --input for each: 4x6 (a"),
    ("lock functions_of_mine:product", "; state what fits x, y in the module: GRADIENT_INPUTS"),
    ("convert functions_of_mine:scaled --input 4x6 --input 4x5", "fits x, scale: --input 4x6 --i"),
    ("parity triangular --dtype float31", "'float31' is not one of 'float16', 'bfloat16'"),
    ("rules zqxwv", "no rule like 'zqxwv' among"),
    ("rules arxyv", "did you mean 'arxiv'?"),
    ("lock multigrad:clmp", "multigrad has no multigrad.xp.clmp; did you mean"),
    ("eject triangulr --backend numpy", "did you mean 'triangular'"),
    ("eject triangular --backend tinygrad", "no backend named 'tinygrad'"),
    ("eject triangular --backend numpy --param width", "write it as width=2.0"),
    ("eject triangular --backend numpy --param widht=2", "width"),
]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_told_with_what_was_meant(line: str, message: str) -> None:
    result = invoke(*line.split())
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


CLASS = """
import torch


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * ctx.factor, None
"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize("target", ["{}.py", "{}.py:Scaled", "{}:Scaled", "{}"])
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("show", "mul(grad_out, factor)"),
        ("source", "def backward(grad_out, factor"),
        ("check", "the gradient is the true one"),
        ("eject --backend numpy", "Scaled.vjp = Scaled_vjp"),
    ],
)
def test_commands_convert_a_custom_gradient_of_a_file_or_a_module(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    shown: str,
    target: str,
) -> None:
    (tmp_path / "scaled_kernels.py").write_text(CLASS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "scaled_kernels", raising=False)
    result = invoke(
        *command.split(), target.format("scaled_kernels"), "--input", "3x4", "--input", "2.0"
    )
    assert result.exit_code == 0, result.output
    assert shown in result.output


# --- eject ----------------------------------------------------------------------------------------


def test_eject_prints_a_file_with_the_params_that_are_given() -> None:
    words = ["eject", "triangular", "--backend", "numpy", "--forward", "heaviside"]
    result = invoke(*words, "--param", "width=2.0")
    assert result.exit_code == 0, result.output
    bound = xg.get("triangular").with_params(width=2.0)
    text = xg.source(bound, "numpy", forward="Heaviside", standalone=True)
    assert result.stdout == text
    assert "def triangular(tin, width=2.0):" in text


@pytest.mark.usefixtures("module")
def test_eject_says_which_shapes_a_file_is_for() -> None:
    code = "\n\ndef rows(x):\n    return xp.stack([x[i] * i for i in range(x.shape[0])])\n"
    Path("rows_of_mine.py").write_text(f"{MODULE}{code}\n\nrows = xg.function(rows, None)\n")
    result = invoke("eject", "rows_of_mine.py:rows", "--backend", "numpy", "--out", "rows.py")
    assert "note: For x of shape (4, any): its code asks for that." in result.stderr
    assert "For x of shape (4, any)" in Path("rows.py").read_text()


def test_eject_writes_over_no_file_unless_it_is_told_to(tmp_path: Path) -> None:
    xg.save(xg.get("rectangular").with_params(a=-0.25), tmp_path / "saved.json")
    out = tmp_path / "spike.py"
    words = ["eject", str(tmp_path / "saved.json"), "--backend", "numpy", "--out", str(out)]
    assert invoke(*words).exit_code == 0
    first = out.read_text()
    assert "a=-0.25" in first
    out.write_text("mine")
    refused = invoke(*words)
    assert refused.exit_code == 2 and "--force" in refused.output
    assert out.read_text() == "mine"
    assert invoke(*words, "--force").exit_code == 0
    assert out.read_text() == first


SEARCHED = """
import gc, sys

def note(phase, told):
    if phase == "start" and "multigrad.command.app" in sys.modules:
        searched.append(len(gc.get_objects()))

searched = []
gc.callbacks.append(note)
sys.argv = ["multigrad", "rules"]
from multigrad.cli import main
try:
    main()
except SystemExit:
    print("\\n", max(searched, default=0), gc.isenabled())
"""


def test_a_command_searches_for_garbage_only_once_it_is_at_work() -> None:
    """Among what it has made, not in 100,000 objects that the libraries are made of."""
    most, is_on = run_python("-c", SEARCHED).stdout.split()[-2:]
    assert int(most) < SELDOM[0]  # what was imported before a command began is frozen
    assert is_on == "True"


def test_the_version_is_printed() -> None:
    assert invoke("--version").output.strip() == f"multigrad {xg.__version__}"


@pytest.mark.parametrize("where", ["multigrad.command.app.app", "multigrad.command._run"])
def test_an_interrupt_ends_in_one_line(where: str) -> None:
    module, _, name = where.rpartition(".")
    result = run_python(
        "-c",
        f"import multigrad.cli, {module} as module\n"
        f"def stop(): raise KeyboardInterrupt\nmodule.{name} = stop\nmultigrad.cli.main()",
    )
    assert (result.returncode, result.stderr) == (130, "stopped\n")


def test_inputs_of_a_saved_function_are_guessed_without_any_framework(tmp_path: Path) -> None:
    xg.save(xg.get("triangular").under("Heaviside"), file := str(tmp_path / "act.json"))
    done = run_python("-m", "multigrad.cli", "check", file)
    assert "the surrogate differs from the true derivative by at most" in done.stdout, done


def test_a_reader_that_has_gone_is_no_error_of_the_command() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "multigrad.cli", "check", "triangular"]
    done = subprocess.run(command, check=False, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
