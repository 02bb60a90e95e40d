"""`multigrad audit` and `assert_gradient`: what they print and write, and what they outlive."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import multigrad as xg
from multigrad.audit.audit import choose_laws
from multigrad.audit.sizes import lines_to_copy
from multigrad.command.audit import AuditRequest, audit_targets, summarize
from multigrad.errors import MultigradError
from multigrad.testing import assert_gradient

pytest.importorskip("typer")
LAWS = ("derivative", "zero", "linear")
X = np.array([[0.3, -1.2, 2.2], [0.7, 1.4, -0.6]], np.float32)
GUESSED = "guessed: --input 4x6; give others so, or by GRADIENT_INPUTS"
OURS = """
import numpy as np

import multigrad as xg

square = xg.function(lambda x: x * x, lambda grad_out, x: 2.0 * x * grad_out)
halved = xg.function(lambda x: x * x, lambda grad_out, x: x * grad_out)
scaled = xg.function(lambda x, by: x * by, lambda grad_out, x, by: (grad_out * by, None))
doubled = xg.implicit(lambda y, x: y - 2.0 * x, lambda x: 2.0 * x)
GRADIENT_INPUTS = {"scaled": lambda: [np.array([1.0, 2.0]), 3.0]}
"""
TORCHS = """
import os
import time

import torch


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, power: int):
        print("printed by the kernel")
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power

    @staticmethod
    def backward(ctx, grad_out):
        return 0.5 * grad_out * ctx.power * ctx.saved_tensors[0] ** (ctx.power - 1), None


class Aborts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        os.abort()

    backward = forward


class Hangs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(600)

    backward = forward


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * ctx.saved_tensors[0].cos()
"""


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    file = tmp_path / "ours.py"
    file.write_text(OURS)
    return file


def run(*targets: str, asked: AuditRequest | None = None, **options: Any) -> tuple[int, str]:
    lines: list[str] = []
    code = audit_targets(targets, asked or AuditRequest(laws=LAWS), echo=lines.append, **options)
    return code, "\n".join(lines)


def test_functions_of_a_file_are_audited_and_the_broken_law_is_told(ours: Path) -> None:
    code, said = run(f"{ours}:square", f"{ours}:halved")
    assert code == 1
    assert f"{ours}:square on numpy with float32[4, 6]: 3 laws kept, 0 broken" in said
    assert (
        f"{ours}:halved on numpy with float32[4, 6]: 2 laws kept, 1 broken\n  inputs: {GUESSED}\n"
        "  derivative: broken: " in said
    )
    assert "2 audited: 1 keep every law, 0 could not be run\n  derivative: 1 broken" in said


def test_the_summary_counts_what_is_not_compared_and_the_report_says_what_to_write() -> None:
    def steps(x: Any) -> Any:
        return xg.xp.round(x)

    doubled = xg.function(steps, lambda g, x: 2 * g)
    report = xg.audit(doubled, np.linspace(-2, 2, 9), laws=["derivative"])
    assert 'SURROGATE = {"steps": f} in its module' in str(report)
    remark = "1 without the derivative's, 1 with gradients that are not compared"
    assert summarize([report]) == f"1 audited: 1 keep every law ({remark}), 0 could not be run"


def test_a_saved_function_has_a_positive_bound_guessed_and_is_loaded_by_the_lines_to_copy(
    tmp_path: Path,
) -> None:
    def huber(x: Any, delta: Any) -> Any:
        size = xg.xp.abs(x)
        return xg.xp.where(size <= delta, 0.5 * x * x, delta * (size - 0.5 * delta))

    for factor in (1.0, 1.1):

        def backward(grad_out: Any, x: Any, delta: Any, factor: float = factor) -> Any:
            of_delta = xg.xp.sum(grad_out * xg.xp.maximum(xg.xp.abs(x) - delta, 0.0))
            return factor * grad_out * xg.xp.clip(x, -delta, delta), of_delta

        function = xg.function(huber, backward)
        function(np.ones(3), np.array(2.0))
        xg.save(function, tmp_path / "huber.json")
        code, said = run(file := str(tmp_path / "huber.json"))
        assert code == (factor != 1.0), said
        assert (f"\nfn = xg.load({file!r})\n" in said) is (factor != 1.0)


def test_a_file_is_searched_for_functions_of_ours(ours: Path) -> None:
    code, said = run(str(ours))
    assert code == 1
    assert "4 audited: 3 keep every law" in said


def test_where_no_guess_fits_the_line_to_type_is_told(ours: Path) -> None:
    ours.write_text(
        "import numpy as np\nimport multigrad as xg\n"
        "wide = xg.function(lambda x, y: (x @ np.ones((7, 9))) + y, lambda g, x, y: (g, g))\n"
    )
    code, said = run(f"{ours}:wide")
    assert code == 1
    assert "; give what fits x, y, an --input for each: 4x6 (a float32 tensor), " in said
    assert "; others, such as a dict, in the module: GRADIENT_INPUTS = {NAME: [...]}" in said
    _, said = run(f"{ours}:wide", asked=AuditRequest(("12", "4x9"), LAWS))
    assert said.splitlines()[0].endswith("; 12 is a number, 12:float32 is a tensor")


def test_reports_are_written_for_machines_and_for_people(ours: Path, tmp_path: Path) -> None:
    junit, html = tmp_path / "audit.xml", tmp_path / "audit.html"
    code, said = run(f"{ours}:halved", as_json=True, junit=junit, html=html)
    (row,) = map(json.loads, said.splitlines())
    assert (code, row["target"], row["ok"]) == (1, f"{ours}:halved", False)
    assert (row["inputs"], row["source"]) == ("float32[4, 6]", GUESSED)
    (suite,) = ElementTree.parse(junit).getroot()
    assert suite.attrib["failures"] == "1" and suite.attrib["tests"] == "3"
    assert [case.attrib["name"] for case in suite if case.find("failure") is not None] == [
        "derivative"
    ]
    (given,) = suite.iterfind("properties/property")
    assert given.attrib["value"] == f"float32[4, 6] ({GUESSED})"
    page = html.read_text(encoding="utf-8")
    assert f"{ours}:halved on numpy with float32[4, 6]: " in page and f"inputs: {GUESSED}" in page
    assert "  derivative: broken: " in page
    assert "http" not in page.replace("<!doctype html>", "")  # it asks nobody for anything


def test_a_module_that_cannot_be_imported_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import no_such_module")
    with pytest.raises(MultigradError, match=r"wrong.py cannot be imported: ModuleNotFoundError"):
        run(str(file))
    with pytest.raises(MultigradError, match=r"there is no file .*none.py"):
        run(str(tmp_path / "none.py"))


def test_what_cannot_be_imported_is_reported_and_the_rest_goes_on(ours: Path) -> None:
    package = ours.parent / "crashing"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "ends.py").write_text("import os; os._exit(3)")
    (package / "good.py").write_text(OURS)
    wrong = ours.parent / "wrong.py"
    wrong.write_text("import no_such_module")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ours.parent))
        code, said = run("crashing", str(wrong), f"{ours}:square")
    assert code == 1
    assert "crashing.ends cannot be imported: it ends its process: exit code 3" in said
    assert "crashing.good:square on numpy" in said
    assert f"{wrong} does not run: {wrong} cannot be imported: ModuleNotFoundError" in said
    assert f"{ours}:square on numpy" in said and "5 audited: 3 keep every law" in said


def test_a_law_of_another_name_is_told() -> None:
    assert {law.name for law in choose_laws(None)} - {"vmap"} == {
        law.name for law in choose_laws(None, ["vmap"])
    }
    with pytest.raises(MultigradError, match=r"no law 'linaer'; did you mean 'linear'\? \(type, "):
        choose_laws(["linaer"], [])


@pytest.mark.needs("torch")
def test_what_crashes_or_does_not_end_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(TORCHS)
    code, said = run(str(file), asked=AuditRequest(laws=LAWS, limit=20.0))
    assert code == 1
    assert f"{file}:Aborts does not run: it ends its process: SIGABRT" in said
    assert f"{file}:Hangs does not run: it does not end within 20 s; --limit sets" in said
    assert f"{file}:Right on torch with float32[4, 6]: 3 laws kept, 0 broken" in said
    assert (
        f"{file}:Halved on torch with float32[4, 6], 2: 2 laws kept, 1 broken" in said
    )  # its number was guessed
    assert "printed by the kernel" not in said
    assert "4 audited: 1 keep every law, 2 could not be run" in said


def test_a_function_is_audited_within_its_domain(ours: Path) -> None:
    ours.write_text(
        "import multigrad as xg\n"
        "tail = xg.function(lambda x: xg.xp.log(x - 4.5), lambda g, x: 2.0 * g / (x - 4.5))\n"
    )
    code, said = run(f"{ours}:tail")
    assert code == 1 and "no output is finite at these inputs: give others" in said
    code, said = run(f"{ours}:tail", asked=AuditRequest(("6:9..5",), LAWS))
    assert code == 1 and "it is 2 times that everywhere" in said
    ours.write_text(
        "import multigrad as xg\n"
        "warm = xg.function(lambda x, temperature: x * temperature,\n"
        "    lambda g, x, temperature: (g * temperature, xg.xp.sum(g * x)))\n"
    )
    code, said = run(f"{ours}:warm")
    assert code == 0 and "inputs: guessed: --input 4x6 --input scalar:uniform; give" in said


@pytest.mark.needs("torch")
def test_a_number_is_guessed_for_what_has_no_gradient_and_a_maker_of_gradients_left_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "scaling.py"
    file.write_text(
        "import torch\n\n\nclass Scaled(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x, factor):\n"
        "        ctx.factor = factor\n        return x * factor\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * ctx.factor, None\n\n\n"
        "class Limited(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x, hi, lo: x.clamp(lo, hi))\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g, None, None\n\n\n"
        "def sine(x):\n    class Sine(torch.autograd.Function):\n"
        "        forward = staticmethod(lambda ctx, x: x.sin())\n"
        "        @staticmethod\n        def backward(ctx, g):\n            return g\n"
        "    return Sine.apply(x)\n"
    )
    code, said = run(str(file), asked=AuditRequest(laws=LAWS))
    assert code == 1 and f"{file}:Scaled on torch with float32[4, 6], 0.5: 3 laws kept" in said
    # Equal bounds would hide that it forgets its mask.
    assert f"{file}:Limited on torch with float32[4, 6], 0.5, -0.5: 2 laws kept, 1 broken" in said
    what = f"which makes its custom gradient when called: name {file}:sine"
    assert said.startswith(f"left out: sine, {what}\n")


halved = xg.function(lambda x: x * x, lambda g, x: g * x)


of_first = xg.function(lambda pair, options: halved(pair[0]) * options["factor"])


def audit_again(report: Any, **own: Any) -> Any:
    """Run the lines to copy, with what the reader puts in for what they cannot write."""
    lines = [each for each in report.reproducer if each.partition(" = ...")[0] not in own]
    exec("\n".join(lines).replace("print(", "again = ("), names := own)  # noqa: S102
    return names["again"]


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
def test_the_lines_to_copy_run_and_show_the_finding(backend: Any) -> None:
    x, alike = backend.array(X), backend.array(np.full((3, 6), 0.5))
    report = xg.audit(halved, backend.array(np.tile(X, (5, 1))), laws=["derivative", "edges"])
    assert len(report.reproducer) <= 6
    again = audit_again(report)
    assert [each.law for each in again.findings] == ["derivative"]
    # Broken laws come first, those that do not apply in one line, and the lines unindented.
    lines = str(report).splitlines()
    assert "derivative: broken" in lines[1]
    assert sum("does not apply" in line for line in lines) == 1
    assert tuple(lines[-len(report.reproducer) :]) == report.reproducer

    options = {"factor": 2.0, 3: (float("nan"), [None, "it's", max], X.dtype.type), "no": ()}
    report = xg.audit(of_first, (x, alike), options, laws=["derivative"])
    assert report.findings[0].reason.startswith("pair[0][0][")
    again = audit_again(report)
    assert again.findings[0].reason == report.findings[0].reason
    assert again.inputs == report.inputs


def test_the_lines_to_copy_have_a_variable_for_what_no_text_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = X, np.linspace(0.1, 2.0, 60, dtype=np.float32)
    own = {
        "fn": xg.function(lambda pair, f: halved(f(pair[0])) + pair[1].sum()),
        "x1": lambda x: x,
        "surrogate": xg.function(lambda pair, f: f(pair[0]) ** 2 + pair[1].sum()),
    }
    fn, change, surrogate = own.values()
    report = xg.audit(fn, pair, change, laws=["derivative"], surrogate=surrogate)
    variables = [each for each in report.reproducer if " = ...  # " in each]
    assert [each.partition(" = ")[0] for each in variables] == ["fn", "x0_1", "x1", "surrogate"]
    assert variables[1].endswith("# put your own here: float32[60]")
    assert variables[3].partition(":")[2].startswith(" <Function <lambda>(pair, f)>")
    again = audit_again(report, **own, x0_1=pair[1])
    assert again.findings[0].reason == report.findings[0].reason
    # A name of a script, which a new process lacks, is a variable, too.
    monkeypatch.setattr(sys.modules["__main__"], "of_script", change, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    lines = lines_to_copy(change, "numpy", "derivative", [1.0], None)
    assert lines[1].startswith(
        "of_script = ...  # put your own here: <lambda> at test_audit_command"
    )


@pytest.mark.needs("torch")
def test_the_lines_to_copy_convert_a_class_again() -> None:
    from ..written.autograd_classes import ForgetsToSum

    lines = lines_to_copy(xg.convert(ForgetsToSum), "torch", "derivative", [1.0], None)
    assert lines[1:] == (
        f"from {ForgetsToSum.__module__} import ForgetsToSum",
        'print(xg.audit(xg.convert(ForgetsToSum), 1.0, laws=["derivative"]))',
    )


# --- in a test suite ------------------------------------------------------------------------------
def test_assert_gradient_shows_the_smallest_inputs_that_break_a_law() -> None:
    def backward(grad_out: Any, x: Any) -> Any:  # wrong beyond 2
        return xg.xp.where(x > 2, 3.0, 2.0) * x * grad_out

    function = xg.function(lambda x: x * x, backward)
    x = np.array([[0.3, 2.51], [-1.2, 0.7]])
    with pytest.raises(AssertionError, match="derivative is broken by inputs as small as") as told:
        assert_gradient(function, x, laws=["derivative"])
    assert "as small as these: array([[0., 3.]])\n" in str(told.value)


def test_assert_gradient_shows_numbers_among_the_smallest_inputs_as_they_are() -> None:
    function = xg.function(lambda x, n: x * n, lambda grad_out, x, n: (grad_out, None))
    with pytest.raises(AssertionError, match="derivative is broken by inputs as small as") as told:
        assert_gradient(function, np.array([0.3, 2.51]), 2.0, laws=["derivative"])
    assert "as small as these: array([1.]), 2.0\n" in str(told.value)


def test_assert_gradient_returns_the_report_of_what_keeps_the_laws() -> None:
    report = assert_gradient(xg.activation("Tanh"), np.linspace(-1, 1, 5), laws=LAWS)
    assert {each.law for each in report.laws} == {*LAWS}
