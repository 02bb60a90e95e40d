"""The pytest plugin of the conformance suite: the options, the markers, and the `backend` fixture.

    pytest --pyargs multigrad_conformance --backends=torch

The fixture runs a test once per backend; one whose framework is not installed is a visible skip,
and an error where `--backends` asks for it. It is made of the public `Backend` row alone, and a
framework is imported when a test first uses it, never while tests are collected.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import textwrap
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from multigrad.core import ops
from multigrad.core.backend.contract import Autodiff, Backend, Kernels, Tensors
from multigrad.core.backend.discovery import entry_points, load_backend
from multigrad.core.backend.discovery import loaded as loaded_backends
from multigrad.core.ir.op import Op
from multigrad.engine.backend.array_rows import MARK
from multigrad.engine.backend.statuses import BackendStatus, backends, is_importable
from multigrad.errors import BackendNotFound, UnsupportedOp

from .under_test import BackendUnderTest, is_installed, split_names

STATM = Path("/proc/self/statm")


def installed() -> int:
    """Return the bytes of memory that the machine has; 0 where the system does not say."""
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if "SC_PHYS_PAGES" not in names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


GIBIBYTE = 1 << 30
# Clearing costs seconds, and the common ops are traced and compiled again: of what the machine has,
# two workers may fill a quarter.
LEAST, MOST = 7 << 28, 3 * GIBIBYTE
ROOM = min(max(LEAST, installed() // 8), MOST)
# How much the process may grow after it was cleared.
GROWTH = GIBIBYTE


class ProcessMemory:
    """The memory of this process, and how much it may grow before it is cleared again."""

    def __init__(self) -> None:
        self.limit = ROOM

    def keep_small(self) -> None:
        if resident() <= self.limit:
            return
        forget_compiled()
        self.limit = max(ROOM, resident() + GROWTH)


def resident() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not say."""
    if not STATM.exists():
        return 0
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_compiled() -> None:
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()
    gc.collect()
    if sys.platform == "linux":
        # glibc keeps freed memory unless it is told to return it.
        ctypes.CDLL(None).malloc_trim(0)


MARKERS = (
    "backends(*names): run a test that takes the `backend` fixture on these backends only",
    "beside_numpy: the test compares with NumPy, the reference, and is not run on it",
    "gpu: runs on a GPU, and is skipped, visibly, where a framework sees none",
    "needs(*packages): skip the test, visibly, where one of these packages is not installed",
)
ELSEWHERE = "elsewhere: no backend that it is for was asked for; it is not collected"
REFERENCE = "numpy"
MEMORY = ProcessMemory()


def asked_for(config: pytest.Config) -> list[str]:
    """Return the backends that `--backends` names; none: all of them."""
    return split_names(str(config.getoption("--backends")))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        default="",
        metavar="NAMES",
        help="run backend tests on these only, and fail where one is not installed: jax,torch",
    )
    parser.addoption(
        "--require",
        default="",
        metavar="PACKAGES",
        help="fail, rather than skip, where one of these packages is not installed: keras,optax",
    )
    parser.addoption(
        "--compiling",
        default="",
        metavar="NAMES",
        help="frameworks that compile each op for each shape and dtype: fewer of both are tried: "
        "jax",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (*MARKERS, ELSEWHERE):
        config.addinivalue_line("markers", marker)
    asked = asked_for(config)
    known = list(entry_points())
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise pytest.UsageError(f"--backends: no backend {unknown}; there are {known}")
    unfit = [row for row in backends() if row.name in asked and not _may_load(row)]
    if unfit:
        said = "; ".join(f"{row.name}: {row.reason}" for row in unfit)
        raise pytest.UsageError(f"asked for on the command line but unusable: {said}")
    required = split_names(str(config.getoption("--require")))
    missing = [name for name in required if not is_installed(name)]
    if missing:
        raise pytest.UsageError(f"asked for on the command line but not installed: {missing}")


def _may_load(row: BackendStatus) -> bool:
    # Also on a backend in the making whose framework is not there yet: its list of work shows.
    if row.installed:
        return True
    with suppress(BackendNotFound):
        return bool(list_todo(load_backend(row.name)))
    return False


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    asked = asked_for(metafunc.config) or list(entry_points())
    only = metafunc.definition.get_closest_marker("backends")
    names = [name for name in asked if only is None or name in only.args]
    if metafunc.definition.get_closest_marker("beside_numpy"):
        names = [name for name in names if name != REFERENCE]
    params = [pytest.param(name, marks=pytest.mark.needs(name)) for name in names]
    # A mark, because a test without parameters would be skipped, visibly; it is deselected.
    if not names:
        params = [pytest.param(REFERENCE, marks=pytest.mark.elsewhere)]
    metafunc.parametrize("backend", params, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    elsewhere = [item for item in items if item.get_closest_marker("elsewhere")]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if not item.get_closest_marker("elsewhere")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    loaded = {row.name for row in loaded_backends()}  # one in the making may have no framework yet
    for mark in item.iter_markers("needs"):
        missing = [name for name in mark.args if not is_installed(name) and name not in loaded]
        if missing:
            pytest.skip(f"{', '.join(missing)} not installed")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    MEMORY.keep_small()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Skip a test, visibly, at an op that its backend lists as missing."""
    # The list itself is looked at in `test_completeness.py`.
    try:
        return (yield)
    except (UnsupportedOp, KeyError) as error:
        backend: Any = pyfuncitem.funcargs.get("backend")
        if backend is None or not is_listed(load_backend(backend.name), str(error)):
            raise
        pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    asked = asked_for(terminalreporter.config)
    for row in loaded_backends():
        todo = list_todo(row) if row.name in asked else ""
        if todo:
            terminalreporter.section("what is left to do", sep="=")
            terminalreporter.write_line(todo)


def is_listed(row: Backend, message: str) -> bool:
    """Return whether a refusal is of an op that the backend lacks, or has yet to write."""
    missing = [op.name for rows in ops_to_write(row).values() for op in rows]
    said = (f"{{}}, which {row.name} lacks", f"{{}} is not available on {row.name}", "Op({})")
    if any(each.format(name) in message for each in said for name in missing):
        return True
    for op, reasons in row.kernels.unsupported.items():
        listed = [reasons] if isinstance(reasons, str) else list(reasons.values())
        if op.name in message and any(reason in message for reason in listed):
            return True
    return False


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> BackendUnderTest:
    """The backend under test; one that cannot be loaded and was not asked for is a visible skip."""
    try:
        row = load_backend(request.param)
    except BackendNotFound as error:
        if request.param in asked_for(request.config):
            raise
        pytest.skip(str(error))
    if not is_begun(row):
        request.session.shouldfail = f"the backend {row.name!r} is not written yet"
        pytest.fail(f"the backend {row.name!r} is not written yet", pytrace=False)
    return BackendUnderTest(request.param)


@pytest.fixture
def compiling(request: pytest.FixtureRequest, backend: Any) -> bool:
    """Whether the framework compiles each op for each shape and dtype, so that fewer are tried."""
    return backend.name in split_names(str(request.config.getoption("--compiling")))


@pytest.fixture
def paired(request: pytest.FixtureRequest, compiling: bool) -> Callable[..., list[tuple[Any, Any]]]:
    """Pairs of two rows: all, or where each is compiled, each row once, by the test's name."""
    turn = zlib.crc32(request.node.name.encode())

    def pair(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Any, Any]]:
        if not compiling:
            return list(itertools.product(first, second))
        count = max(len(first), len(second))
        return [(first[i % len(first)], second[(i + turn) % len(second)]) for i in range(count)]

    return pair


# --- what a backend in the making lacks -----------------------------------------------------------
NEEDED = {"tensors": Tensors, "kernels": Kernels, "autodiff": Autodiff}
WIDTH = 96


def is_begun(backend: Backend) -> bool:
    """Return whether enough is written that tests can say something: all fields, and some rows."""
    return not fields_to_write(backend) and bool(backend.kernels.rows)


def list_todo(backend: Backend) -> str:
    """List the work left to do, in the order in which to do it; "" if there is none."""
    return "\n".join(_lines(backend))


def _lines(backend: Backend) -> Iterator[str]:
    needed, missing = fields_to_write(backend), ops_to_write(backend)
    if not needed and not missing:
        return
    yield f"to do, for the backend {backend.name!r}:"
    if not is_importable(backend.name):
        yield _item(f"install the framework: `import {backend.name}` finds nothing")
    if needed:
        yield f"  {len(needed)} needed fields; `multigrad.backend` says what each is called with"
        for name, asked in needed.items():
            yield _item(f"{name}: {asked}", "    ")
    if missing:
        count = sum(map(len, missing.values()))
        yield f"  {count} ops, by family: a row of OPS for each, or its reason in UNSUPPORTED"
        for family, rows in missing.items():
            names = ", ".join(op.name for op in rows)
            yield _item(f"{family} ({len(rows)}): {names}", "    ")


def _item(text: str, indent: str = "  ") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=f"{indent}[ ] ", subsequent_indent=f"{indent}    "
    )


def fields_to_write(backend: Backend) -> dict[str, str]:
    """Return the marked fields of a backend, each with what its docstring asks for."""
    found = {}
    for group, kind in NEEDED.items():
        for each in fields(kind):
            value = getattr(getattr(backend, group), each.name)
            parts = value if isinstance(value, tuple) else (value,)
            for part in parts:
                if getattr(part, MARK, False):
                    found[f"{group}.{each.name}"] = " ".join((part.__doc__ or "").split())
    return found


def ops_to_write(backend: Backend) -> dict[str, list[Op]]:
    """Return the ops that a backend neither has nor lists as unsupported, by family."""
    known = {*backend.kernels.rows, *backend.kernels.unsupported}
    found = {}
    for family in ops.FAMILIES:
        own = [op for op in vars(family).values() if isinstance(op, Op) and op in ops.CALLABLE_OPS]
        missing = [op for op in own if op.symbol is None and op not in known]
        if missing:
            found[family.__name__.rpartition(".")[2]] = missing
    return found
