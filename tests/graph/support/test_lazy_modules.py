"""Public modules that are aliases of rooms, and packages whose names load on first use."""

from __future__ import annotations

import ast
import inspect
import warnings
from types import ModuleType

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


@pytest.mark.parametrize("package", [backend])
def test_type_checkers_see_the_names_that_load_on_first_use(package: ModuleType) -> None:
    (choice,) = (x for x in ast.parse(inspect.getsource(package)).body if isinstance(x, ast.If))
    declared = {
        ("." * (each.level - 1) + (each.module or ""), alias.name)
        for each in choice.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assigned = choice.orelse[0]
    assert isinstance(assigned, ast.Assign)
    files = ast.literal_eval(assigned.value.args[1])  # type: ignore[attr-defined]
    files |= {".core": ("ops",), ".engine": ("random",)} if package is backend else {}
    assert declared == {(file, name) for file, names in files.items() for name in names}
    for _, name in declared:
        value = getattr(package, name)
        assert package is backend or value.__name__ == name


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
