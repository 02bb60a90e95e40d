"""`multigrad.backend` is all that a backend's author imports, and it suffices."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import backend as door
from multigrad.core.backend import discovery

ROOT = Path(door.__file__).parent
TOY = Path(__file__).parents[1] / "toy_backend" / "multigrad_toy"
GROUPS = (
    door.Tensors,
    door.Kernels,
    door.Autodiff,
    door.Draws,
    door.Compiler,
    door.Interop,
    door.Imports,
    door.Models,
    door.Ranks,
)
# The rooms of what the door shows.
ROOMS = ("multigrad.core.backend.", "multigrad.engine.backend.")


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import in a file of multigrad or beside it, in full."""
    package = (
        ["multigrad", *path.parent.relative_to(ROOT.parent).parts] if ROOT in path.parents else []
    )
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def mentioned(annotation: Any) -> Iterator[Any]:
    """Yield the classes in an annotation, at any depth."""
    for part in annotation if isinstance(annotation, list | tuple) else typing.get_args(annotation):
        yield from mentioned(part)
    if isinstance(annotation, type):
        yield annotation


def hints(of: Any) -> dict[str, Any]:
    names = {name: getattr(door, name) for name in door.__all__}  # as it has those that load later
    return typing.get_type_hints(of, names | vars(sys.modules[of.__module__]))


def test_the_toy_backend_imports_nothing_else_of_multigrad() -> None:
    found = {m for path in TOY.glob("*.py") for m, _ in imports(path) if m.startswith("multigrad")}
    assert found == {"multigrad.backend"}


def test_each_class_that_an_author_meets_is_there() -> None:
    waiting: list[Any] = [door.Backend]
    seen: set[Any] = set()
    while waiting:
        each = waiting.pop()
        if each in seen or each.__module__.partition(".")[0] != "multigrad":
            continue
        seen.add(each)
        members = [each]
        members += [m for n, m in inspect.getmembers(each, inspect.isfunction) if n[0] != "_"]
        if each.__module__.startswith(ROOMS):
            waiting += [
                cls for m in members for hint in hints(m).values() for cls in mentioned(hint)
            ]
    assert {*GROUPS, door.Emitted, door.Code, door.Body, door.SharedBuffer, door.Reader} < seen
    lacking = {each.__name__ for each in seen if getattr(door, each.__name__, None) is not each}
    assert not lacking


def test_ten_fields_are_required_and_every_field_says_what_it_is() -> None:
    required = [
        field.name
        for group in GROUPS
        for field in dataclasses.fields(group)
        if field.default is dataclasses.MISSING is field.default_factory
    ]
    assert len(required) == 10
    names = ("core/backend/contract.py", "engine/backend/features.py")
    texts = [(ROOT.parent / name).read_text(encoding="utf-8") for name in names]
    nodes = [node for text in texts for node in ast.parse(text).body]
    for group in (n for n in nodes if isinstance(n, ast.ClassDef) and n.name != "Backend"):
        for field, following in zip(group.body, [*group.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                assert told, f"{group.name}.{ast.unparse(field.target)}"


def test_nothing_asks_a_numpy_array_who_reads_along(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    act = xg.activation("Tanh")
    act(np.ones(3))
    assert discovery.READERS[np.ndarray] == ()

    def is_reading() -> bool:
        asked.append(True)
        return False

    call: Callable[..., Any] = act.apply
    row = ((np.ndarray,), is_reading, call)
    monkeypatch.setitem(discovery.READERS, np.ndarray, (row,))
    act(np.ones(3))
    assert asked == [True]  # the table is what is asked
    monkeypatch.setitem(discovery.READERS, np.ndarray, ())
    act(np.ones(3))
    assert asked == [True]


def test_who_reads_code_is_asked_before_who_notes_regions() -> None:
    calls = [
        reader.call
        for each in discovery.loaded()
        for reader in each.compiler.read_activation
        if reader.reads_code
    ]
    assert [call for _, _, call in discovery.EVERY_READER[: len(calls)]] == calls


def test_the_walkthrough_says_how_long_the_toy_is() -> None:
    text = (TOY.parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in TOY.glob("*.py"))
    assert f"in {lines} lines" in text


# --- rows -----------------------------------------------------------------------------------------


def test_rows_are_found_by_the_names_of_their_ops() -> None:
    found = door.rows_of({"sin": np.sin, "sum_": np.sum, "root": np.sqrt})
    assert found == {door.ops.SIN: np.sin, door.ops.SUM: np.sum}


def test_compositions_are_made_of_the_backends_own_rows() -> None:
    names = ("abs", "tanh", "clip", "quantile", "where", "all_sum")
    named = [getattr(door.ops, name.upper()) for name in names]
    own = {op: op.numpy for op in named}
    composed = door.compositions(own, lambda function: function)
    alone = door.compositions({op: own[op] for op in named[:-1]}, lambda function: function)
    assert set(composed) - set(alone) == {door.ops.ALL_SUM, door.ops.ALL_NORM} - set(own)
    x = np.linspace(-7.0, 7.0, 29)
    assert {op.name for op in set(composed) - set(own)} >= {"hard_silu", "lerp", "soft_sign"}
    for op in set(composed) - set(own):
        attrs = {name: attr.samples[0] for name, attr in op.attrs.items() if attr.samples}
        attrs = {"min": -0.5, "max": 2.0} if op is door.ops.HARD_TANH else attrs
        attrs = {"axis": 0, "keepdims": False} if op is door.ops.MEDIAN else attrs
        attrs = {"names": None, "ord": 2} if op is door.ops.ALL_NORM else attrs
        operands = (x if attrs.get("ord") is None else abs(x), x[::-1], x**2)[: len(op.operands)]
        with np.errstate(all="ignore"):
            result = composed[op](*operands, **attrs)
            np.testing.assert_allclose(result, op.numpy(*operands, **attrs))
