"""Libraries that are helped where code that is audited imports them: Triton, on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from multigrad.command import targets
from multigrad.command.targets import find_targets
from multigrad.errors import MultigradError
from multigrad.graph.support.lazy_modules import load_alone

pytest.importorskip("typer")
HELPER = """
STEPS, NAME, NOTE = [], "a model", "runs in a model"


def prepare():
    STEPS.append("prepare")


def mend():
    import kernels_of_a_test

    STEPS.extend([*kernels_of_a_test.SEEN, "mend"])


def is_interpreted():
    return True


has_run = is_interpreted
"""


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The hooks of imports as they are in a process that was just started; a folder to import."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(targets, "_used", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("kernels_of_a_test", "helper_of_a_test", "uses_")):
            del sys.modules[name]


def test_a_helper_is_there_before_the_import_and_after(
    hooks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = hooks / "helper_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it may import the library')")
    (package / "inner.py").write_text(HELPER)
    (hooks / "kernels_of_a_test.py").write_text("SEEN = ['import']")
    monkeypatch.setattr(targets, "HELPERS", {"kernels_of_a_test": "helper_of_a_test.inner"})
    targets.help_imports()
    targets.help_imports()
    assert (targets.read_notes(), targets.place_of("torch")) == ([], "torch")
    import_module("kernels_of_a_test")
    assert targets._used[0].STEPS == ["prepare", "import", "mend"]
    assert targets.read_notes() == ["runs in a model"]
    assert targets.place_of("torch") == "torch in a model"
    assert len(targets._used) == 1


def test_where_the_library_is_absent_it_is_named(
    hooks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    (hooks / "uses_kernels.py").write_text("import triton")
    for target in ("uses_kernels", str(hooks / "uses_kernels.py")):
        with pytest.raises(MultigradError, match=r"pip install 'triton>="):
            find_targets(target)


def test_kernels_are_interpreted_where_there_is_no_gpu_unless_that_was_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch: Any = pytest.importorskip("torch")
    helper: Any = load_alone(targets.HELPERS["triton"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv(helper.SWITCH, raising=False)
    helper.prepare()
    assert helper.os.environ[helper.SWITCH] == "1"
    monkeypatch.setenv(helper.SWITCH, "0")
    helper.prepare()
    assert helper.os.environ[helper.SWITCH] == "0"


def test_bits_of_bfloat16_are_numbers_to_the_nearest() -> None:
    pytest.importorskip("torch")
    np: Any = import_module("numpy")
    helper: Any = load_alone(targets.HELPERS["triton"])
    numbers = np.array([1.0, -2.5, 1 + 2.0**-9, 1 + 3 * 2.0**-9, np.inf], np.float32)
    assert helper.widen(helper.narrow(numbers)).tolist() == [1.0, -2.5, 1.0, 1 + 2.0**-7, np.inf]
