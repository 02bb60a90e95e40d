"""Public modules that are aliases of rooms, and packages whose names load on first use."""

from __future__ import annotations

import importlib
import inspect
import warnings

import pytest

import multigrad as xg
from multigrad import backend

from ...harness.hidden import python

ALIASES = """
import multigrad.xp
import multigrad.core.xp as room
from multigrad.xp import tanh
assert multigrad.xp is room and room.tanh is tanh
assert room.__spec__.name == room.__name__ == "multigrad.core.xp"
print("one module")
"""


def test_an_alias_is_the_module_of_its_room() -> None:
    assert python("-c", ALIASES).strip() == "one module"


def test_an_alias_runs_as_a_program() -> None:
    assert xg.__version__ in python("-m", "multigrad.cli", "--version")


def test_a_name_that_loads_on_first_use_is_the_one_that_type_checkers_see() -> None:
    assert set(dir(backend)) == {"ops", "random", *backend.FILES}
    for name, file in backend.FILES.items():
        assert getattr(backend, name) is getattr(importlib.import_module(file), name)
    with pytest.raises(AttributeError, match="did you mean 'kernel'"):
        backend.Kernel  # noqa: B018


def test_a_deprecated_name_works_and_warns_at_the_line_that_asks_for_it() -> None:
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.warns(DeprecationWarning) as warned:
        from multigrad.context import apply_now, key_token
    assert {(each.filename, each.lineno) for each in warned} == {(__file__, line)}
    message = str(warned[0].message)
    for word in ("'key_token'", "since multigrad 1.0", "removed in 2.0", "`token`"):
        assert word in message
    in_force = apply_now("noise", None, key=7)
    assert key_token(in_force.draws) in in_force.token
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="did you mean"):
        warnings.simplefilter("error")
        xg.context.apply_nov  # type: ignore[attr-defined]  # noqa: B018
