"""`--once`: which tests run in an environment, and which files and functions cannot hold any of
them, so that they are neither imported nor made into cases there.

A file is read as text. A wrong guess about one is an error, never a test that runs nowhere: what is
collected elsewhere of the file says what it needs, and `tell_hidden` compares.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from multigrad_conformance.under_test import split_names

from ..support import sampling

FRAMEWORKS = {"torch", "jax", "tensorflow", "mlx"}
# What a case runs on; in Keras's tests also the other framework, and who reads a file.
ROLES = ("backend", "guest", "reader")
# Fixtures that know of no backend.
PLAIN = {"captured", "unproven"}
PLAIN |= {"capfd", "caplog", "capsys", "monkeypatch", "recwarn", "request", "tmp_path"}

IMPORTED = re.compile(r"""^\S.*pytest\.importorskip\("(\w+)""", re.MULTILINE)
MARKED = re.compile(r"^pytestmark = (?:\[\n(?: .*\n)*\]|.*)$", re.MULTILINE)
NEEDED = re.compile(r"\bneeds\(([^)]*)\)")
COMPUTED = re.compile(r"\bneeds\((?!\")")
ROLE = re.compile(r'\b(?:backend|guest|reader|compiling|paired): |"(?:backend|guest|reader)\b')


class Environment(NamedTuple):
    """What an environment is asked for.

    Attributes:
        frameworks: those of `--backends`.
        is_for_keras: whether the tests of Keras on that one framework are asked for.
    """

    frameworks: frozenset[str]
    is_for_keras: bool

    @property
    def name(self) -> str:
        """What `seconds.txt` calls it: `core`, `torch`, `keras-torch`, `several`."""
        own = "several" if len(self.frameworks) > 1 else "".join(self.frameworks) or "core"
        return f"keras-{own}" if self.is_for_keras else own

    def has(self, needed: set[str], is_anywhere: bool) -> bool:
        """Return whether a test belongs here that needs these of the frameworks and Keras."""
        several = len(self.frameworks) > 1
        if is_anywhere:
            return several or not (needed or self.frameworks or self.is_for_keras)
        if several:
            return len(needed - {"keras"}) > 1
        if self.is_for_keras:
            return "keras" in needed and needed <= {*self.frameworks, "keras"}
        return needed == self.frameworks

    def may_read(self, path: Path) -> bool:
        """Return whether a file may hold a test that belongs here."""
        told = read(path)
        if told.imported & (FRAMEWORKS - self.frameworks):
            return False
        if len(self.frameworks) > 1:
            return told.is_anywhere or told.is_open or len(told.named) + told.has_roles > 1
        allowed = self.frameworks | ({"keras"} if self.is_for_keras else set())
        if not told.all_need <= allowed:
            return False
        if self.is_for_keras:
            return "keras" in told.named
        return told.is_open or told.has_roles or self.frameworks <= told.named


class Told(NamedTuple):
    """What a file's text says of its tests.

    Attributes:
        named: the frameworks, Keras among them, that are named anywhere.
        imported: those that are imported while it is collected.
        all_need: those that each of its tests needs.
        has_roles: whether some take the backend they run on as an argument.
        is_open: whether what some need is computed.
        is_anywhere: whether some are marked `anywhere`.
    """

    named: set[str]
    imported: set[str]
    all_need: set[str]
    has_roles: bool
    is_open: bool
    is_anywhere: bool


@functools.cache
def read(path: Path) -> Told:
    text = path.read_text(encoding="utf-8")
    known = {*FRAMEWORKS, "keras"}
    marked = " ".join(NEEDED.findall(" ".join(MARKED.findall(text))))
    imported = set(IMPORTED.findall(text)) & known
    return Told(
        named={name for name in known if name in text},
        imported=imported,
        all_need=imported | set(re.findall(r'"(\w+)"', marked)) & known,
        has_roles=bool(ROLE.search(text)),
        is_open=bool(COMPUTED.search(text)),
        is_anywhere=".anywhere" in text,
    )


def environment_of(config: pytest.Config) -> Environment:
    frameworks = set(split_names(str(config.getoption("--backends")))) & FRAMEWORKS
    is_required = "keras" in split_names(str(config.getoption("--require")))
    return Environment(frozenset(frameworks), is_required and len(frameworks) < 2)


def known(names: Iterable[object]) -> set[str]:
    """Return the frameworks among names, and the one that Keras runs on where it is there."""
    named = {str(name) for name in names}
    if "keras" in named:
        named.add(os.environ.get("KERAS_BACKEND", ""))
    return named & {*FRAMEWORKS, "keras"}


def frameworks_of(item: pytest.Item) -> set[str]:
    """Return the frameworks, Keras among them, without which a test cannot run."""
    needed = [name for mark in item.iter_markers("needs") for name in mark.args]
    spec = getattr(item, "callspec", None)
    given = {} if spec is None else spec.params
    return known([*needed, *(given[role] for role in ROLES if role in given)])


def framework_in_turn(item: pytest.Item, environment: Environment) -> str | None:
    """Return the framework that an item runs on where the same item runs on others too."""
    spec = getattr(item, "callspec", None)
    own = None if spec is None else spec.params.get("backend")
    if own is None and environment.is_for_keras:
        marks = {name for mark in item.iter_markers("needs") for name in mark.args}
        own = next(iter(environment.frameworks), None) if marks.isdisjoint(FRAMEWORKS) else None
    return own if own in sampling.IN_TURN else None


def needed_by_all(collector: pytest.Collector, function: Any) -> set[str] | None:
    """Return what all cases of a test function need; None where that differs or is not plain."""
    marks = [*getattr(function, "pytestmark", ()), *collector.iter_markers()]
    given: set[str] = set()
    for mark in marks:
        if mark.name == "anywhere":
            return None
        if mark.name == "parametrize":
            names, cases = mark.args[:2]
            given |= set(split_names(names) if isinstance(names, str) else names)
            if not isinstance(cases, list | tuple) or any(getattr(c, "marks", ()) for c in cases):
                return None
    code = function.__code__
    if given & set(ROLES) or not set(code.co_varnames[: code.co_argcount]) <= given | PLAIN:
        return None
    return known(name for mark in marks if mark.name == "needs" for name in mark.args)


def tell_hidden(path: Path, needed: set[str], has_roles: bool) -> None:
    """Raise where a file's text would keep a test from the environment that it belongs to."""
    told = read(path)
    # Where Keras is needed, the framework that it runs on need not be named.
    written = needed & {"keras"} or needed
    is_read = written <= told.named or told.is_open or told.has_roles
    assert is_read and (told.has_roles or not has_roles), (
        f"{path}: a test needs {sorted(needed)}, of which the text says nothing: "
        "name it in a mark, needs(...), of that file"
    )
    assert told.imported <= needed, (
        f"{path}: imports {sorted(told.imported)} while it is collected, which its tests do not "
        "need by a mark: they would run nowhere"
    )
