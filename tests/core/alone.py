"""The tests of this folder where only the core of multigrad is installed.

    python -m tests.core.alone torch            what is not of the core has been deleted
    python -m tests.core.alone torch --lend     it is lent, and the lines that ask for it are listed
    python -m tests.core.alone torch --stub     it can be imported, and is an error where it is used

The package and the backend are copied to a temporary directory, where every module that is not
listed as the core's is deleted. This file is also the plugin of pytest that runs there: it offers
the `backend` fixture of this one backend, and imports nothing of multigrad.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BACKENDS = ("numpy", "torch", "jax", "tensorflow")
WHOLE = "MULTIGRAD_WHOLE"  # names the folder that lends modules to the core
REPORT = "MULTIGRAD_LENT"  # names the file that gets the lines that asked for them
STUBS = "MULTIGRAD_STUBS"  # is set where what is imported is an error as it is used
JOINTS = "multigrad.engine"
THROUGH = tuple(f"multigrad.core.support.{name}" for name in ("lazy_modules", "threads"))
PROVIDED = "multigrad.core.support.lazy_modules"


def modules_in(root: Path) -> dict[str, Path]:
    """Return the files of multigrad and its backends, by the names of their modules."""
    found = {}
    for base in (root, root / "backends"):
        for path in sorted(base.glob("multigrad*/**/*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def core_modules(backend: str) -> set[str]:
    """Return the names of the core's modules, and of a backend's."""
    own = f"multigrad_{backend}"
    tops = {*("multigrad", "multigrad.backend", "multigrad.core", "multigrad.errors"), own}
    inside = ("multigrad.core.", f"{own}.core")
    return {name for name in modules_in(ROOT) if name in tops or name.startswith(inside)}


def copy_core(folder: Path, backend: str, core: set[str]) -> None:
    """Write the core of multigrad and of a backend, and these tests, into an empty folder."""
    packages = ["multigrad", f"backends/multigrad_{backend}"]
    for name in packages if backend != "numpy" else packages[:1]:
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(HERE, folder / "tests/core", ignore=shutil.ignore_patterns("test_alone.py"))
    shutil.copytree(HERE.parent / "support", folder / "tests/support")
    (folder / "tests/__init__.py").touch()
    for name, path in modules_in(folder).items():
        is_package = path.name == "__init__.py" and any(
            module.startswith(f"{name}.") for module in core
        )
        if name not in core and not is_package:
            path.unlink()
    for path in sorted(folder.glob("**/"), reverse=True):
        if not any(path.rglob("*.py")):  # it would be imported, as a namespace
            shutil.rmtree(path)


def run(
    backend: str, core: set[str], words: Sequence[str] = (), lend: bool = False, stub: bool = False
) -> tuple[int, str]:
    """Run the tests on the core alone; return their exit code and, if lent, what was asked for."""
    with tempfile.TemporaryDirectory() as place:
        folder, report = Path(place, "core"), Path(place, "lent.txt")
        copy_core(folder, backend, core)
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'backends'}"}
        environment |= {"MULTIGRAD_CACHE": "off", "TF_CPP_MIN_LOG_LEVEL": "2"}
        environment["MULTIGRAD_PROVE"] = ""  # as users have it: the core has the small proof alone
        if lend or stub:
            environment |= {
                WHOLE: str(ROOT),
                REPORT: str(report),
                **({STUBS: "1"} if stub else {}),
            }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        command += ["--rootdir", str(folder), "--import-mode=importlib", "-p", "tests.core.alone"]
        command += [f"--backends={backend}", str(folder / "tests/core"), *words]
        code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
        return code, report.read_text() if report.is_file() else ""


# --- the plugin of pytest -------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backends", default="numpy", help="the backend that the tests run on")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backends(*names): the test is for these backends alone")
    if WHOLE in os.environ:
        LENDER.start()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("backends")
        name = metafunc.config.getoption("--backends")
        names = [name] if only is None or name in only.args else []
        metafunc.parametrize("backend", names, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Any:
    """The backend under test."""
    return importlib.import_module("tests.core.frameworks").BACKENDS[request.param]


@pytest.fixture(autouse=True)
def registry_as_found() -> Iterator[None]:
    """A test leaves the rules as it found them."""
    import multigrad as xg

    before = {name: xg.get(name) for name in xg.rules()}
    yield
    for name in xg.rules():
        if xg.get(name) is not before.get(name):
            xg.unregister(name)  # which gives a name of the library back to it


def pytest_runtest_setup(item: pytest.Item) -> None:
    LENDER.test = item.name


def pytest_unconfigure() -> None:
    if REPORT in os.environ:
        Path(os.environ[REPORT]).write_text(LENDER.report())


class Stub(type):
    """A class that stands for anything of a module that is missing: a constant, function or class.

    While modules are loaded it may be used, which does nothing.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stub(f"{cls.__name__}.{name}")

    def __call__(cls, *given: Any, **named: Any) -> Any:
        cls.meet()
        return given[0] if len(given) == 1 and callable(given[0]) else cls

    def __iter__(cls) -> Iterator[Any]:
        cls.meet()
        return iter(())

    def __contains__(cls, item: object) -> bool:
        cls.meet()
        return False

    def __getitem__(cls, item: object) -> Any:
        cls.meet()
        return cls

    def meet(cls) -> None:
        """Raise if it is used by code that runs."""
        frame = sys._getframe(2)
        if frame.f_code.co_name != "<module>":
            place = f"{frame.f_globals.get('__name__')}:{frame.f_lineno}"
            raise AssertionError(f"{cls.__name__} is not of the core; it is used at {place}")


def make_stub(name: str) -> Stub:
    """Return what stands for a name of a missing module."""
    return Stub(name, (Exception,), {})


class StubLoader(Loader):
    """Loads a missing module as one that has every name."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def get_name(name: str) -> Stub:
            if name.startswith("__"):
                raise AttributeError(name)
            return make_stub(f"{module.__name__}.{name}")

        module.__dict__["__getattr__"] = get_name


class Lender(MetaPathFinder):
    """Finds modules that the core lacks where all of multigrad is, and notes who asks for them.

    Attributes:
        test: the test that runs now; "" while modules are imported for the first.
        asked: the names that each line of the core asked a module for, and in which test.
        called: the places in the core that called a function of a module that is not of it.
    """

    def __init__(self) -> None:
        self.whole: dict[str, Path] = {}
        self.core: dict[str, Path] = {}
        self.test = ""
        self.asked: dict[tuple[str, str, int], tuple[set[str], str]] = {}
        self.called: dict[tuple[str, str], set[str]] = {}

    def start(self) -> None:
        """Lend from now on."""
        self.whole = modules_in(Path(os.environ[WHOLE]))
        self.core = modules_in(ROOT)
        sys.meta_path.append(self)
        import_name, import_module = builtins.__import__, importlib.import_module

        def note_name(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            self.note(name, fromlist or (), level)
            return import_name(name, globals, locals, fromlist, level)

        def note_module(name: str, package: str | None = None) -> Any:
            level = len(name) - len(name.lstrip("."))
            self.note(f"{package}{name}" if level == 1 else name, (), 0)
            return import_module(name, package)

        builtins.__import__, importlib.import_module = note_name, note_module
        if STUBS not in os.environ:
            sys.setprofile(self.note_call)
            threading.setprofile(self.note_call)

    def note_call(self, frame: FrameType, event: str, given: Any) -> None:
        """Note the call of a function that is not of the core by the core, as a profiler."""
        if event != "call" or frame.f_back is None:
            return
        module = frame.f_globals.get("__name__")
        caller = frame.f_back.f_globals.get("__name__")
        is_joint = caller == PROVIDED
        if (
            module in self.whole
            and module not in self.core
            and caller in self.core
            and not is_joint
        ):
            name = frame.f_code.co_qualname
            if not name.startswith("<"):
                path = self.core[caller].relative_to(ROOT)
                places = self.called.setdefault((str(module), name), set())
                places.add(f"{path}:{frame.f_back.f_lineno} {frame.f_back.f_code.co_qualname}")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return where all of multigrad has a module."""
        file = self.whole.get(fullname)
        if file is None or (fullname == JOINTS and STUBS in os.environ):
            return None
        if STUBS in os.environ:
            return ModuleSpec(fullname, StubLoader(), is_package=file.name == "__init__.py")
        folders = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(fullname, file, submodule_search_locations=folders)

    def note(self, name: str, names: Sequence[str], level: int) -> None:
        """Note which line of the core imports something that is not of the core."""
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__") in THROUGH:
            frame = frame.f_back
        asking = str(frame.f_globals.get("__name__", ""))
        if asking not in self.core or asking == PROVIDED or f"{name}.engine" == JOINTS:
            return
        if level:
            package = str(frame.f_globals["__package__"]).split(".")
            parts = package[: len(package) - level + 1]
            name = ".".join([*parts, *([name] if name else [])])
        for each in names or ("",):
            inner = f"{name}.{each}"
            module = inner if inner in self.whole else name
            if module in self.whole and module not in self.core:
                at_import = "<module>" if frame.f_code.co_name == "<module>" else self.test
                row = self.asked.setdefault((module, asking, frame.f_lineno), (set(), at_import))
                row[0].add("" if inner == module else each)

    def report(self) -> str:
        """Return what was asked for: a module a paragraph, the lines that ask for it below it."""
        lines: dict[str, list[str]] = {}
        for (module, asking, number), (names, test) in sorted(self.asked.items()):
            when = "as it is loaded" if test == "<module>" else f"in {test}"
            path = self.core[asking].relative_to(ROOT)
            what = ", ".join(sorted(names - {""}))
            lines.setdefault(module, []).append(f"    {path}:{number}  {what}  ({when})")
        count = sum(map(len, lines.values()))
        head = f"{count} lines of the core import {len(lines)} modules that are not of the core"
        rows = [head, *self.paragraphs(lines)]
        calls: dict[str, list[str]] = {}
        for (module, name), places in sorted(self.called.items()):
            calls.setdefault(module, []).append(f"    {name}")
            calls[module] += [f"        {place}" for place in sorted(places)]
        rows += ["", f"it calls {len(self.called)} functions of {len(calls)} of them"]
        return "\n".join([*rows, *self.paragraphs(calls)])

    @staticmethod
    def paragraphs(lines: dict[str, list[str]]) -> Iterator[str]:
        """Yield the longest first, each below its name."""
        for name in sorted(lines, key=lambda name: -len(lines[name])):
            yield from (name, *lines[name])


LENDER = Lender()


def main() -> int:
    """Run the tests, and print what was lent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--lend", action="store_true", help="list what the core asks for")
    parser.add_argument("--stub", action="store_true", help="let it import what it does not use")
    given, words = parser.parse_known_args()
    core = core_modules(given.backend)
    code, report = run(given.backend, core, words, lend=given.lend, stub=given.stub)
    print(report)
    return code


if __name__ == "__main__":
    sys.exit(main())
