"""Files: written whole or not at all, stable text, and every problem with one told as such."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.linspace(-2.0, 2.5, 12, dtype=np.float32)


def test_a_file_is_readable_text_that_begins_with_format_and_version(tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    xg.save("triangular", file)
    text = file.read_bytes().decode("utf-8")
    assert text.startswith('{\n  "format": "multigrad",\n  "version": 2,\n')
    assert text.endswith("}\n")
    nodes = [line for line in text.splitlines() if '"op": ' in line]
    assert len(nodes) == 9
    assert all(json.loads(line.rstrip(",")) for line in nodes)


def test_the_same_rule_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        xg.save(xg.compose("clip_norm", "noise"), tmp_path / name)
    xg.save(xg.load(tmp_path / "b.json"), tmp_path / "c.json")
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("kind", [str, Path, os.fspath], ids=["str", "Path", "fspath"])
def test_a_path_is_a_string_or_a_path(tmp_path: Path, kind: Any) -> None:
    path = kind(tmp_path / "rülé \N{SNOWMAN}.json")
    xg.save("arctan", path)
    assert xg.load(path).name == "arctan"


def test_names_and_functions_can_be_saved_too(tmp_path: Path) -> None:
    def halved(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / 2

    xg.save(halved, tmp_path / "rule.json")
    np.testing.assert_array_equal(xg.load(tmp_path / "rule.json")(None, X, X), X / 2)
    with pytest.raises(xg.RuleError, match="did you mean 'triangular'"):
        xg.save("triangluar", tmp_path / "rule.json")
    with pytest.raises(xg.RuleError, match="a name, a Rule or a function"):
        xg.save(3, tmp_path / "rule.json")
    (tmp_path / "net.pt").write_bytes(b"PK\x03\x04\x80")
    with pytest.raises(xg.FormatError, match=r"net\.pt: .*no multigrad document.*torch\.load"):
        xg.load(tmp_path / "net.pt")


class Disk(Exception):
    """Stands for a disk that is full."""


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = tmp_path / "rule.json"
    xg.save("arctan", file)
    before = file.read_bytes()

    def fail(*args: Any) -> None:
        raise Disk

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(Disk):
            xg.save("scale", file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_an_object_that_cannot_be_saved_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    xg.save("arctan", file)

    def reads_numbers(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * float(tin[0])

    with pytest.raises(xg.TraceError):
        xg.save(reads_numbers, file)
    assert xg.load(file).name == "arctan"


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        xg.save("arctan", tmp_path / "nowhere" / "rule.json")
    assert raised.value.filename == str((tmp_path / "nowhere").resolve())
    with pytest.raises(FileNotFoundError):
        xg.load(tmp_path / "nowhere.json")
    for act in (xg.load, lambda path: xg.save("arctan", path)):
        with pytest.raises(OSError):
            act(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions and links")
def test_permissions_and_links_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "rule.json", tmp_path / "link.json"
    xg.save("arctan", file)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask
    file.chmod(0o640)
    link.symlink_to(file)
    xg.save("scale", link)
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert xg.load(file).name == "scale"


@pytest.mark.skipif(not Path(os.devnull).is_char_device(), reason="there is no such device")
def test_a_device_is_never_replaced() -> None:
    with pytest.raises(OSError, match="no regular file"):
        xg.save("arctan", os.devnull)
    assert Path(os.devnull).is_char_device()


def test_format_errors_are_value_errors_and_multigrads() -> None:
    assert issubclass(xg.FormatError, ValueError)
    assert issubclass(xg.FormatError, xg.MultigradError)
