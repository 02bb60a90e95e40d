"""What every test can ask for: a framework to run on, and the same four verbs on each of them.

Options, markers and the choice of backends are those of `multigrad_conformance.plugin`. That suite
reaches a framework through our backend alone; here it is reached as its users reach it, so that
neither vouches for itself.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import re
import sys
import threading
import types

# One thread per worker: the workers of pytest-xdist share few cores, and a sum keeps its order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The same kernels on every machine: oneDNN chooses by processor and rounds differently.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# No test depends on what another process has proven.
os.environ["MULTIGRAD_CACHE"] = "off"

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.rule_names import LIBRARY, RULES, renaming

# The names that tests import from here; the hooks are registered by `pytest_plugins`.
from multigrad_conformance.under_test import BackendUnderTest, is_installed, split_names

# An installed package may bring a `tests` of its own, as tf2onnx does: relative imports mean these,
# whatever becomes of `sys.path`, by which a namespace's path is searched anew.
sys.modules.setdefault("tests", types.ModuleType("tests")).__path__ = [str(Path(__file__).parent)]

from . import turns
from .core.frameworks import BACKENDS, NumpyBackend
from .harness import once
from .support.sampling import WHOLE

__all__ = ["BACKENDS", "NumpyBackend", "find_backend", "is_installed", "split_names"]
pytest_plugins = ["multigrad_conformance.plugin"]
CONTEXTS = threading.local()
TOO_OLD = re.compile(r"needs (\w+)>=\S+, and \1 \S+ is installed: ")
SKIPPED = re.compile(
    r"skip(ped|files| function).*multigrad", re.DOTALL
)  # Dynamo, of a function of ours
TESTS = Path(__file__).parent

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--once",
        action="store_true",
        help="leave out what runs elsewhere: an environment without a framework has the tests that "
        "need none, one "
        "with a framework those that need it alone, one with several those that need more than one",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "anywhere: the test does more where more is installed; it runs where no framework is, and "
        "where all are",
    )
    config.addinivalue_line(
        "markers",
        "always: it runs before each merge, however many seconds it takes",
    )
    config.addinivalue_line("markers", "peers: the test compares with a package, in tests/peers")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without the garbage collector, which then never looks at the tests themselves again:
    they are most of what is in memory. Then it looks seldom: each time it goes through all that the
    frameworks have imported.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Skip a test that asks a release of a framework for what a newer one has, with its message."""
    try:
        return (yield)
    except Exception as error:
        if (why := too_old(error)) is None:
            raise
        pytest.skip(why)


def too_old(error: Exception) -> str | None:
    """Return what an error says of a release that docs/versions.md says it of, too; else None."""
    if isinstance(error, xg.MultigradError) and TOO_OLD.search(str(error)):
        return str(error)
    torch = sys.modules.get("multigrad_torch.core.versions")
    if torch is None or torch.COMPILES or type(error).__module__ != "torch._dynamo.exc":
        return None
    releases = importlib.import_module("multigrad_torch.releases")
    message = releases.need(releases.COMPILING, "no full graph")
    return message if SKIPPED.search(str(error)) else None


def pytest_runtest_setup() -> None:
    if "jax" in sys.modules and "context" not in vars(CONTEXTS):
        CONTEXTS.context = None
        share_contexts(sys.modules["jax"])


def share_contexts(jax: Any) -> None:
    """Let the programs that jax lowers share one context of MLIR for each thread.

    jax makes one for each program, which takes a quarter of the time of these small ones.
    """
    mlir = importlib.import_module(f"{jax.__name__}._src.interpreters.mlir")
    make = mlir.make_ir_context

    def make_once() -> Any:
        if is_within_one():  # its module would become a part of the one being written
            return make()
        if getattr(CONTEXTS, "context", None) is None:
            CONTEXTS.context = make()
        return CONTEXTS.context

    def is_within_one() -> bool:
        try:
            return mlir.ir.Context.current is not None
        except ValueError:
            return False

    mlir.make_ir_context = make_once


def is_once(config: pytest.Config) -> bool:
    return bool(config.getoption("--once"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files in which no test belongs to this environment."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if not (is_test and is_once(config)):
        return None
    return None if once.environment_of(config).may_read(collection_path) else True


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> list[pytest.Item] | None:
    """Make no cases of a function none of which belongs to this environment."""
    if not (is_once(collector.config) and name.startswith("test") and inspect.isfunction(obj)):
        return None
    needed = once.needed_by_all(collector, obj)
    if needed is None or once.environment_of(collector.config).has(needed, is_anywhere=False):
        return None
    once.tell_hidden(collector.path, needed, has_roles=False)
    return []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not is_once(config):
        return
    here, elsewhere, environment = [], [], once.environment_of(config)
    for item in items:
        needed = once.frameworks_of(item)
        if item.path.is_relative_to(TESTS):
            once.tell_hidden(item.path, needed, "backend" in getattr(item, "fixturenames", ()))
        is_anywhere = item.get_closest_marker("anywhere") is not None
        (here if environment.has(needed, is_anywhere) else elsewhere).append(item)
    if not WHOLE:
        here, left = turns.now_and_later(here, environment)
        elsewhere += left
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = here


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    turns.SPENT[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what each case has taken, where `tests.turns` shall read it."""
    folder, config = os.environ.get("MULTIGRAD_SECONDS"), session.config
    if folder and not hasattr(config, "workerinput"):
        turns.keep(Path(folder), once.environment_of(config).name)


def find_backend(name: str) -> Any:
    """Return a backend as tests use it: as its users do, or by its row where no class is above."""
    return BACKENDS.get(name) or BackendUnderTest(name)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Any:
    """The backend under test: `name`, `array`, `numpy`, `vjp`, `precision`."""
    return find_backend(request.param)


@pytest.fixture(scope="session")
def torch_compiles() -> None:
    """A test that compiles whole graphs, in another process or counted, needs a torch that does."""
    if not importlib.import_module("multigrad_torch.core.versions").COMPILES:
        releases = importlib.import_module("multigrad_torch.releases")
        pytest.skip(releases.need(releases.COMPILING, "no full graph"))


@pytest.fixture(autouse=True)
def registry_as_found() -> Iterator[None]:
    """A test leaves the rules as it found them; the library's stay where it has imported them."""
    before = dict(RULES)
    yield
    if before == RULES:  # nearly always, and a twentieth of what the names one by one take
        return
    for name in {*before, *RULES}:
        rule = before.get(name, LIBRARY.get(name))
        if RULES.get(name) is not rule:
            with renaming(name):
                if rule is None:
                    del RULES[name]
                else:
                    RULES[name] = rule


@pytest.fixture
def captured() -> Callable[..., xg.Rule]:
    """Make a rule that must be captured."""
    return lambda function: xg.register("under test", override=True, native=False)(function)


@pytest.fixture(scope="module")
def quick_collections() -> None:
    """A full collection looks at what a file's tests have made: what was there before stays."""
    gc.freeze()


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures are not proven, so that a test can count how often its functions run."""
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
