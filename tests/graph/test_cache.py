"""The directory that is kept across processes: where it is, who may write into it, whole files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from multigrad.graph.support.files import cache_root, check_private, open_folder, write_file

POSIX = pytest.mark.skipif(os.name == "nt", reason="modes of files say nothing on Windows")


def test_the_variable_names_the_directory_or_switches_it_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.setenv("MULTIGRAD_CACHE", "off")
    assert cache_root() is None
    assert open_folder("native") is None


@POSIX
def test_without_the_variable_it_is_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MULTIGRAD_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification has it ignored
    assert cache_root() == tmp_path / ".cache" / "multigrad"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "multigrad"
    assert not any(tmp_path.iterdir())


@POSIX
def test_a_folder_is_the_users_own_and_one_that_others_can_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "a" / "b"))
    folder = open_folder("native")
    assert folder is not None
    assert folder == tmp_path / "a" / "b" / "native"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match=r"others may write into .*native: type"):
        open_folder("native")


@POSIX
def test_what_belongs_to_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    with pytest.raises(PermissionError, match="does not belong to you"):
        check_private(Path(__file__))


def test_a_file_that_cannot_be_written_leaves_the_one_before_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    write_file(path, b"before")
    with pytest.raises(TypeError):
        write_file(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["graph.json"]
