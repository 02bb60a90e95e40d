"""The rooms of `multigrad/`: each imports only rooms below it, at the top of its files;
docs/architecture.md draws them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import multigrad.engine  # noqa: F401  # which registers what it provides
from multigrad.core.support.lazy_modules import providers
from multigrad.engine.trace.code_trace import TRANSITIONS

ROOT = Path(__file__).parents[2]
# From the ground up: a room imports rooms before it, and itself. So the core imports nothing of the
# engine, and neither anything of a feature.
ROOMS = (
    "errors",
    *("core.support", "core.ir", "core.ops", "core.passes", "core.backend"),
    *("core.trace", "core.xp", "core.lowering", "core.functions", "core.rules"),
    *("engine.support", "engine.random", "engine.ops", "engine.passes", "engine.backend"),
    *("engine.trace", "engine.lowering", "engine.capture", "engine.functions", "engine.rules"),
    *("backend", "estimators", "schedule", "models", "look", "audit", "keras", "compat"),
)
# The same of the rooms inside; "" are the files that a room has for itself. Its `__init__` is a
# door, which may open to all of them.
INSIDE = {
    "core.trace": ("", "xp"),
    "core.lowering": ("", "reference"),
    "core.rules": ("", "library"),
    "engine.trace": ("", "xp", "derived"),
    "engine.lowering": ("", "kernel_code", "reference"),
    "engine.capture": ("", "user_code", "meanings", "values", "dialects", "copies"),
    "engine.functions": ("calls", "documents", "eject", "proof", "recording", "", "implicit"),
    "engine.rules": ("model", ""),
    "models": ("attribution", ""),
    "audit": ("", "lock", "same"),
    "keras": ("", "dialect"),
}
# They import anything, and nothing imports them.
OUTSIDE = ("command", "testing")
STOREYS = ("core", "engine")
MOST_FILES = 16  # in one folder
# Added by the door alone, as a stranger's is: a distribution of its own.
ADDED = ("multigrad_mlx",)
PROVIDERS = {place: each for place, each in providers.items() if place.startswith("multigrad.")}
BACKENDS = ("multigrad_torch", "multigrad_jax", "multigrad_tensorflow", *ADDED)
DOOR = {"multigrad.backend"}
# Files that import what costs start-up where it is asked for, or name it by `late_function`: to
# register a rule loads nothing that captures one; and of backends, rules on models make Functions,
# which need the backend, and most programs have none.
LATE = {
    *(f"multigrad.core.rules.{name}" for name in ("activation", "resolution", "rule")),
    "multigrad.core.backend.contract",
    "multigrad.core.lowering.reference.backend",
    *("multigrad_torch", "multigrad_jax", "multigrad_tensorflow", "multigrad_tensorflow.engine"),
    *(f"multigrad_{name}.features" for name in ("torch", "jax", "tensorflow")),
    *("multigrad_torch.attach.fusing.dispatch", "multigrad_torch.core.kernels.fast"),
}


class Import(NamedTuple):
    """One import: who, whom, whether inside a function, and the line."""

    importer: str
    imported: str
    is_late: bool
    line: int


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "multigrad").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        is_outside = any(f"{name}.".startswith(f"multigrad.{each}.") for each in OUTSIDE)
        is_top = name in ("multigrad", "multigrad.__main__", "multigrad.core", "multigrad.engine")
        if not is_outside and not is_top:
            found[name] = path
    return found


MODULES = modules()
pytestmark = [
    pytest.mark.always,
    pytest.mark.skipif(not MODULES, reason="the tests run beside an installed package"),
]


def modules_of(backend: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "backends" / backend).rglob("*.py")):
        parts = path.relative_to(ROOT / "backends").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports(package: str = "multigrad") -> tuple[Import, ...]:
    """Return what is imported where, read once: by the worker that has the first of these tests."""
    return tuple(read_imports(MODULES if package == "multigrad" else modules_of(package)))


def read_imports(modules: Mapping[str, Path]) -> Iterator[Import]:
    """Yield every import of a package's own modules, those inside of functions and for types among
    them.
    """
    for importer, path in modules.items():
        tree = ast.parse(path.read_text())
        late = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
        }
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        # Types of what the core holds for others; nothing of them is loaded.
        typed = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if id(node) in typed:
                continue
            for imported in named_by(node, package, modules):
                if imported != importer and imported in modules:
                    is_late = id(node) in late or isinstance(node, ast.Call)
                    yield Import(importer, imported, is_late, node.lineno)


def named_by(node: ast.AST, package: str, modules: Mapping[str, Path] = MODULES) -> Iterator[str]:
    """Yield the modules that an import statement names, or a call of `late_function`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "late_function":
        yield ast.literal_eval(node.args[0]).partition(":")[0]
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            own = package.split(".")
            base = ".".join([*own[: len(own) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in modules else base


def room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[1 : 3 if parts[1] in STOREYS else 2])


def inner(module: str) -> str:
    """Return the room inside of its room; "" for a file of that room's own."""
    parts = MODULES[module].relative_to(ROOT / "multigrad").parts
    parts = parts[1:] if parts[0] in STOREYS else parts
    return parts[1] if len(parts) > 2 else ""


def is_door(module: str) -> bool:
    return MODULES[module].name == "__init__.py" and inner(module) == ""


def test_every_module_is_in_a_room() -> None:
    assert {room(name) for name in MODULES} == set(ROOMS)


def test_no_room_imports_one_above_it() -> None:
    upward = [
        each
        for each in imports()
        if ROOMS.index(room(each.imported)) > ROOMS.index(room(each.importer))
        if not (
            each.is_late and each.importer in LATE
        )  # NumPy's backend, which says places as text
    ]
    assert not upward


@pytest.mark.parametrize("name", INSIDE)
def test_no_room_inside_imports_one_above_it(name: str) -> None:
    order = INSIDE[name]
    upward = [
        each
        for each in imports()
        if room(each.importer) == room(each.imported) == name and not is_door(each.importer)
        if order.index(inner(each.imported)) > order.index(inner(each.importer))
    ]
    assert not upward


def test_each_room_inside_is_known() -> None:
    found = {(room(name), inner(name)) for name in MODULES if not is_door(name)}
    known = {(name, each) for name, order in INSIDE.items() for each in order}
    assert found - {(name, "") for name in ROOMS if name not in INSIDE} == known


def test_no_folder_has_more_files_than_one_sees() -> None:
    tops = ("multigrad", "backends", "tests", "tools", "examples")
    counts = Counter(path.parent for top in tops for path in (ROOT / top).rglob("*.py"))
    assert not {str(folder): n for folder, n in counts.items() if n > MOST_FILES}


@pytest.mark.parametrize("package", ["multigrad", *BACKENDS])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    modules = MODULES if package == "multigrad" else modules_of(package)
    below: dict[str, set[str]] = {name: set() for name in modules}
    for each in imports(package):
        below[each.importer].add(each.imported)
    while below:
        ready = {name for name, needs in below.items() if not needs & below.keys()}
        assert ready, f"a circle among {sorted(below)}"
        below = {name: needs for name, needs in below.items() if name not in ready}


def test_imports_stand_at_the_top_of_their_files() -> None:
    late = [each for name in ("multigrad", *BACKENDS) for each in imports(name) if each.is_late]
    assert {each.importer for each in late} == LATE


def test_the_core_imports_no_framework_not_even_late() -> None:
    frameworks = {folder.removeprefix("multigrad_") for folder in BACKENDS} | {"optax"}
    found = [
        f"{path.name}:{node.lineno} imports {imported}"
        for name, path in MODULES.items()
        if room(name) != "keras"  # which is on one of them
        for node in ast.walk(ast.parse(path.read_text()))
        for imported in named_by(node, name)
        if imported.partition(".")[0] in frameworks
    ]
    assert not found


@pytest.mark.parametrize("name", [n for n in MODULES if MODULES[n].name == "__init__.py"])
def test_a_room_says_what_it_is(name: str) -> None:
    docstring = ast.get_docstring(ast.parse(MODULES[name].read_text())) or ""
    assert len(docstring.partition("\n")[0]) > 20


def test_the_drawing_has_the_rooms_in_their_order() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    places = [text.find(f"| `{name}`") for name in ROOMS]
    assert -1 not in places and places == sorted(places)


@pytest.mark.parametrize("folder", BACKENDS)
def test_a_backend_imports_no_other(folder: str) -> None:
    others = [name for name in BACKENDS if name != folder]
    for path in (ROOT / "backends" / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for imported in named_by(node, folder):
                assert imported.partition(".")[0] not in others, f"{path}:{node.lineno}"


@pytest.mark.parametrize("folder", ADDED)
def test_an_added_backend_imports_the_door_and_nothing_else_of_the_project(folder: str) -> None:
    beside = []
    for path in sorted((ROOT / "backends" / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for imported in named_by(node, folder):
                door = imported if imported in DOOR else imported.rpartition(".")[0]
                if imported.partition(".")[0] == "multigrad" and door not in DOOR:
                    beside.append(f"{path.name}:{node.lineno} imports {imported}")
    assert not beside


@pytest.mark.parametrize("folder", ADDED)
def test_the_project_knows_no_added_backend_by_name(folder: str) -> None:
    name = folder.removeprefix("multigrad_")
    files = [*(ROOT / "multigrad").rglob("*.py"), *(ROOT / "multigrad").rglob("*.toml")]
    assert not [
        path.name for path in files if re.search(rf"\b{name}\b", path.read_text("utf-8").lower())
    ]


@pytest.mark.parametrize("place", PROVIDERS)
def test_what_provides_a_function_takes_its_arguments(place: str) -> None:
    module, _, name = place.partition(":")
    home, _, provider = PROVIDERS[place].partition(":")
    own = inspect.signature(inspect.unwrap(getattr(importlib.import_module(module), name)))
    other = inspect.signature(getattr(importlib.import_module(home), provider))
    assert list(own.parameters) in (list(other.parameters), ["args", "kwargs"])  # of_engine


def test_the_page_has_a_row_for_each_state_that_dtypes_have() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    states = {state for row in TRANSITIONS for state in (row.state, row.next)}
    assert [state for state in sorted(states) if f"\n| {state} |" not in page] == []
