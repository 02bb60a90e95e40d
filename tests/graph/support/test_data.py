"""Garbage, the directory that is kept, and params that one looks at."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import multigrad as xg
from multigrad.engine.support.files import cache_root, check_private, open_folder, write_file

from ...harness.hidden import python

# What multigrad imports takes no part in Python's search for garbage, and others' garbage does.


PROGRAM = """
import gc, weakref

class Knot:
    def __init__(self):
        self.own = self

def churn(count):  # so that Python searches what is young, and all where that is due
    for _ in range(count):
        Knot()

gc.collect()
kept = [[] for _ in range(100_000)]  # what an application has imported
gc.collect()
churn(100_000)
knot = weakref.ref(Knot())
assert knot() is not None  # it is garbage, which nobody has looked for
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))

import multigrad as xg
xg.get("triangular")

assert knot() is None  # it has not aged with what was imported
churn(30_000)
print(gc.isenabled(), 2 in searched)
"""


def test_an_import_makes_no_search_of_all_objects_due() -> None:
    assert python("-c", PROGRAM).split() == ["True", "False"]


FROZEN = """
import gc
gc.freeze()
frozen = gc.get_freeze_count()

import multigrad as xg
xg.get("triangular")

print(gc.get_freeze_count() > 0.9 * frozen)
"""


def test_what_was_frozen_before_stays_so() -> None:
    """As servers do before they fork."""
    assert python("-c", FROZEN).split() == ["True"]


# The directory that is kept across processes: where it is, who may write into it, whole files.


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


# Params that one looks at are a copy: changing it is refused, with what to write instead.


WAYS = {
    "item": lambda params: params.__setitem__("width", 1.0),
    "delete": lambda params: params.__delitem__("width"),
    "update": lambda params: params.update(width=1.0),
    "or": lambda params: params.__ior__({"width": 1.0}),
    "pop": lambda params: params.pop("width"),
    "setdefault": lambda params: params.setdefault("width", 1.0),
    "clear": lambda params: params.clear(),
}


@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
def test_params_that_are_read_cannot_be_changed_in_place(change: Any) -> None:
    act = xg.activation("Linear", "triangular", {"width": 2.0})
    with pytest.raises(TypeError, match=r"changes nothing; make another: xg\.activation\("):
        change(act.params)
    with pytest.raises(TypeError, match=r"changes nothing; write rule\.with_params\("):
        change(xg.get("triangular").params)
    assert act.params == {"width": 2.0}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
def test_params_of_a_torch_layer_are_assigned_as_a_whole(change: Any) -> None:
    act = xg.Activation("Linear", "triangular", {"width": 2.0})
    with pytest.raises(TypeError, match=r"act\.params = \{\*\*act\.params, \.\.\.\}"):
        change(act.params)
    act.params = {**act.params, "width": 1.0}
    assert act.params == {"width": 1.0}


def test_params_that_are_copied_are_plain() -> None:
    params = xg.activation("Linear", "triangular", {"width": 2.0}).params
    for plain in (
        dict(params),
        params.copy(),
        copy.deepcopy(params),
        pickle.loads(pickle.dumps(params)),
    ):
        plain["width"] = 1.0
        assert plain == {"width": 1.0}
    assert params == {"width": 2.0}
