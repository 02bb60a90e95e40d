"""Compiled C code is kept by its content, and whatever fails is the reason why there is none."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from multigrad.engine.support.c_libraries import CLibrary, NoLibraryError, find_command
from multigrad.errors import RuleValueError

POSIX = pytest.mark.skipif(os.name == "nt", reason="there is no compiled code on Windows")


def answer(source: str = "int answer(void) { return 42; }") -> int:
    return CLibrary("answers", source).load().answer()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory for libraries, where there is a compiler."""
    monkeypatch.delenv("MULTIGRAD_NATIVE", raising=False)
    try:
        find_command()
    except NoLibraryError as error:
        pytest.skip(f"needs a C compiler: {error}")
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path))
    return tmp_path


def test_a_library_is_kept_for_its_user_alone_and_found_without_a_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer() == 42
    (path,) = cache.rglob("*.so")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    monkeypatch.setattr(CLibrary, "make", lambda library: pytest.fail("it is compiled again"))
    assert answer() == 42


def test_a_damaged_file_is_made_again(cache: Path) -> None:
    assert answer() == 42
    (path,) = cache.rglob("*.so")
    content = path.read_bytes()
    path.unlink()  # this process runs it
    path.write_bytes(content[: len(content) // 2])
    assert answer() == 42
    (again,) = cache.rglob("*.so")
    assert again.stat().st_size > len(content) // 2


def test_a_file_that_others_can_write_is_not_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer() == 42
    (path,) = cache.rglob("*.so")
    path.chmod(0o666)
    assert CLibrary("answers", "int answer(void) { return 42; }").find() is None


def test_a_directory_that_cannot_be_had_costs_the_keeping_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("MULTIGRAD_CACHE", str(cache / "file" / "cache"))
    monkeypatch.setenv("MULTIGRAD_NATIVE", "on")
    with pytest.warns(RuntimeWarning, match="compiled, but not kept"):
        assert answer() == 42
    monkeypatch.setenv("MULTIGRAD_CACHE", "off")
    assert answer() == 42


@POSIX
def test_the_reason_is_named_where_there_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "cache"))
    compiler = tmp_path / "cc"
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(NoLibraryError, match=r"no C compiler .*cc: install gcc or clang"):
        answer()
    compiler.write_text("#!/bin/sh\necho 'out of disk' >&2\nexit 1\n")
    compiler.chmod(0o700)
    with pytest.raises(NoLibraryError, match=r"cc .* failed: out of disk"):
        answer()


def test_the_variable_switches_it_off_and_takes_three_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_NATIVE", "off")
    with pytest.raises(NoLibraryError, match="MULTIGRAD_NATIVE=off"):
        answer()
    monkeypatch.setenv("MULTIGRAD_NATIVE", "yes")
    with pytest.raises(RuleValueError, match="MULTIGRAD_NATIVE is on, off or auto, got 'yes'"):
        answer()
