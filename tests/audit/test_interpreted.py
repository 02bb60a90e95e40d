"""Kernels in Triton: where the inputs of an audit are made, and the interpreter that tests run."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from multigrad.command.targets import find_targets
from multigrad.errors import MultigradError

pytest.importorskip("typer")


def test_where_the_library_is_absent_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "triton", None)
    (tmp_path / "uses_kernels.py").write_text("import triton")
    for target in ("uses_kernels", str(tmp_path / "uses_kernels.py")):
        with pytest.raises(MultigradError, match=r"pip install 'triton>="):
            find_targets(target)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_inputs_of_code_that_uses_triton_are_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_gpu: bool
) -> None:
    torch: Any = pytest.importorskip("torch")
    own, file = torch.from_numpy, tmp_path / "code_with_kernels.py"
    file.write_text("")
    monkeypatch.setattr(torch, "from_numpy", own)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    find_targets(str(file))
    assert torch.from_numpy is own  # it does not use Triton
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    for _ in range(2):
        find_targets(str(file))
    assert (torch.from_numpy is not own) is has_gpu
    assert getattr(torch.from_numpy, "__wrapped__", own) is own


def test_kernels_are_interpreted_where_there_is_no_gpu_unless_that_was_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch: Any = pytest.importorskip("torch")
    interpreter: Any = import_module("..support.triton_interpreter", __package__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv(interpreter.SWITCH, raising=False)
    interpreter.prepare()
    assert interpreter.os.environ[interpreter.SWITCH] == "1"
    monkeypatch.setenv(interpreter.SWITCH, "0")
    interpreter.prepare()
    assert interpreter.os.environ[interpreter.SWITCH] == "0"


def test_bits_of_bfloat16_are_numbers_to_the_nearest() -> None:
    pytest.importorskip("torch")
    np: Any = import_module("numpy")
    interpreter: Any = import_module("..support.triton_interpreter", __package__)
    numbers = np.array([1.0, -2.5, 1 + 2.0**-9, 1 + 3 * 2.0**-9, np.inf], np.float32)
    rounded = interpreter.widen(interpreter.narrow(numbers))
    assert rounded.tolist() == [1.0, -2.5, 1.0, 1 + 2.0**-7, np.inf]
