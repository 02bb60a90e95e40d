"""Inputs for targets that come without any: those of calls that doctests and tests make.

Doctests and tests run in a process of their own, with stand-ins for the targets, and the smallest
call of each target is written to a file as it comes. Tested by tests/audit/test_targets.py.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import itertools
import os
import pickle
import re
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multigrad.command.named_objects import SEED, draw, split_name
from multigrad.functions.calls.arguments import flatten
from multigrad.functions.calls.parameters import signature_of
from multigrad.functions.importers import find_custom
from multigrad.graph.ir.types import dtype_name
from multigrad.graph.support.trees import optree
from multigrad.look.subject import as_array, find_original, is_float_array

from .targets import find_target, holder_of, source_of

GOOD_ENOUGH_SIZE = 2**12  # numbers in a call that is as good as a smaller one
LARGEST_KEPT_SIZE = 2**16  # numbers in a call that is kept if it is the smallest
UNWANTED = 2 * LARGEST_KEPT_SIZE + 1  # the rank of a call that is too large, or without floats
LONGEST_RUN = 5.0  # seconds for a docstring or a test
MOST_FILES = 12  # of tests, the likeliest first
TESTS = ("test", "tests")
# The same for every project, whatever it configures.
PYTEST_OPTIONS = ("-q", "-p", "no:cacheprovider", "-c", os.devnull)
INSTALLED = ("site-packages", "dist-packages")


def places_to_look(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules whose docstrings may call targets, and files of tests."""
    modules, files = set[str](), dict[str, int]()
    words = {split_name(name)[1].rpartition(".")[2] for name in names}
    for module in {id(m): m for name in names if (m := holder_of(name))}.values():
        root = module.__name__.partition(".")[0]
        package = [m for n, m in sorted(sys.modules.items()) if m and n.partition(".")[0] == root]
        # Docstrings and tests often call a target through a wrapper in its package.
        target_words = words | set(_callers(package, words))
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, target_words))})\b")
        texts = {each.__name__: source_of(each) for each in package}
        modules |= {n for n, text in texts.items() if ">>> " in text and pattern.search(text)}
        for file in _test_files(sys.modules.get(root, module)):
            count = len(set(pattern.findall(file.read_text("utf-8", "replace"))))
            if count:
                # Negative, to sort the files that name the most targets first.
                files[str(file)] = -count
    return sorted(modules), sorted(files, key=lambda file: (files[file], file))[:MOST_FILES]


def _callers(modules: Sequence[types.ModuleType], words: set[str]) -> Iterator[str]:
    for module in modules:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            inner = vars(value).values() if isinstance(value, type) else (value,)
            codes = (getattr(each, "__code__", None) for each in inner)
            if any(words & set(code.co_names) for code in codes if code is not None):
                yield name


def _test_files(package: types.ModuleType) -> Iterator[Path]:
    if not getattr(package, "__file__", None):
        return
    folder, files = Path(str(package.__file__)).resolve().parent, list[Iterator[Path]]()
    if hasattr(package, "__path__"):
        files.append(folder.rglob("*.py"))
        folder = folder.parent
    # An installed package's parent is site-packages, where tests are of other packages.
    if folder.name not in INSTALLED:
        folder = folder.parent if folder.name == "src" else folder
        files += [folder.glob("*.py"), *((folder / name).rglob("*.py") for name in TESTS)]
    for file in itertools.chain(*files):
        if file.stem.startswith("test_") or file.stem.endswith("_test"):
            yield file


# --- in a process of its own ----------------------------------------------------------------------
def record(
    names: Sequence[str], places: tuple[Sequence[str], Sequence[str]], folder: str, seconds: float
) -> None:
    """Run docstrings and tests until each target was called, and write its call to the folder, as
    the target's place among the names. Docstrings have at most half of the seconds.
    """
    modules, files = places
    start = time.monotonic()
    recorder = Recorder(Path(folder), len(names))
    for n, name in enumerate(names):
        with contextlib.suppress(Exception):  # it is audited with other inputs
            recorder.watch(n, find_target(name))
    # As `python -m pytest` does, so that tests can import from the current folder.
    sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stderr(io.StringIO()):
        recorder.deadline = start + seconds / 2
        _run_docstrings(modules, recorder)
        recorder.deadline = start + seconds
        _run_tests(files, recorder)


def read_record(file: str) -> tuple[str, Any, list[Any]] | None:
    """Return where a call was made, the object called (None: the target) and its inputs, if any."""
    try:
        return pickle.loads(Path(file).read_bytes())  # our own, of a moment ago
    except OSError:
        return None


class Recorder:
    """Keeps the smallest call of each target."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.place = ""  # the docstring or the test that runs now
        self.deadline = float("inf")
        # By target, the rank of the call on disk; `keep` only lowers it.
        self.ranks = [UNWANTED] * count

    @property
    def is_done(self) -> bool:
        return max(self.ranks) <= GOOD_ENOUGH_SIZE or time.monotonic() > self.deadline

    @contextlib.contextmanager
    def run(self, place: str) -> Iterator[None]:
        """Interrupt an example by TimeoutErrors, repeated because it may catch one."""
        self.place = place
        has_alarm = hasattr(signal, "setitimer")  # Windows has none
        if has_alarm:
            signal.signal(signal.SIGALRM, _raise_timeout)
            signal.setitimer(signal.ITIMER_REAL, LONGEST_RUN, LONGEST_RUN)
        try:
            yield
        finally:
            if has_alarm:
                signal.setitimer(signal.ITIMER_REAL, 0.0)

    def watch(self, n: int, target: Any) -> None:
        if isinstance(target, type) and find_custom(target) is not None:
            imported = find_original(target).function.recipe.imported
            takes_ctx = imported is None or not imported.has_setup
            # `takes_ctx` is a bool used as 0 or 1: ctx is no input.
            self._replace(target, "forward", lambda args, _: self.keep(n, None, args[takes_ctx:]))
        elif isinstance(target, type):
            names = ("forward", "call", "__call__")
            name = next(each for each in names if hasattr(target, each))

            def keep(args: Any, kwargs: Any) -> None:
                self.keep(n, args[0], _positional(getattr(args[0], name), args[1:], kwargs))

            self._replace(target, name, keep)
        else:
            target = target[0] if isinstance(target, tuple) else target

            def keep_call(args: Any, kwargs: Any) -> None:
                self.keep(n, None, _positional(target, args, kwargs))

            stand_in = RecordingFunction(target, keep_call)
            # Modules may have imported the function by name: replace it wherever it is bound.
            for module in list(sys.modules.values()):
                for name, value in list(getattr(module, "__dict__", {}).items()):
                    if value is target:
                        setattr(module, name, stand_in)

    def _replace(self, cls: Any, name: str, keep: Callable[[Any, Any], None]) -> None:
        original = getattr(cls, name)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            keep(args, kwargs)
            return original(*args, **kwargs)

        # A plain function in its place would be bound as a method.
        is_static = isinstance(vars(cls).get(name), staticmethod)
        setattr(cls, name, staticmethod(recorded) if is_static else recorded)

    def keep(self, n: int, owner: Any, args: Sequence[Any] | None) -> None:
        """Write a call down if it is smaller than the one written before."""
        try:
            leaves, tree = flatten(tuple(args or ()), {})
            leaves = [_read(leaf) for leaf in leaves]
            rank = _rank([leaf for leaf in leaves if isinstance(leaf, np.ndarray)])
            if rank < self.ranks[n]:
                inputs, _ = optree.tree_unflatten(tree, leaves)
                data = pickle.dumps((self.place, owner, list(inputs)))
                (self.folder / f"{n}").write_bytes(data)
                # Small enough: no later call replaces it.
                self.ranks[n] = rank if rank > GOOD_ENOUGH_SIZE else 0
        except Exception:  # noqa: S110  # it is no call that could be made again
            pass


def _rank(arrays: Sequence[Any]) -> int:
    # Fewer numbers rank better. Equal ones hide errors, so they rank last; no floats, unwanted.
    floats = [a for a in arrays if is_float_array(a)]
    if not any(a.size for a in floats):
        return UNWANTED
    has_equal_numbers = all(a.size and (a == a.flat[0]).all() for a in floats)
    is_dull = has_equal_numbers and max(a.size for a in floats) > 1
    return sum(a.size for a in arrays) + (LARGEST_KEPT_SIZE if is_dull else 0)


class RecordingFunction:
    """A stand-in for a function that reports the arguments of each call."""

    def __init__(self, function: Any, keep: Callable[[Any, Any], None]) -> None:
        self._function, self._keep = function, keep

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._keep(args, kwargs)
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def _positional(function: Any, args: Any, kwargs: Any) -> Sequence[Any] | None:
    if not kwargs:
        return args
    signature = signature_of(function)
    bound = None if signature is None else signature.bind(*args, **kwargs)
    return None if bound is None or bound.kwargs else bound.args


def _read(leaf: Any) -> Any:
    try:
        return as_array(leaf)
    except Exception:  # it is traced
        shape = tuple(map(int, leaf.shape))
        return draw(shape, dtype_name(leaf.dtype), np.random.default_rng(SEED))


def _run_docstrings(modules: Sequence[str], recorder: Recorder) -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in modules:
        with contextlib.suppress(Exception):
            for test in finder.find(sys.modules[name], name):
                if recorder.is_done:
                    return
                if test.examples:
                    place = f"the docstring of {test.name}"
                    with recorder.run(place), contextlib.redirect_stdout(io.StringIO()):
                        doctest.DocTestRunner(verbose=False).run(test, out=str)


def _raise_timeout(number: int, frame: Any) -> None:
    raise TimeoutError(f"it does not end within {LONGEST_RUN:g} s")


def _run_tests(files: Sequence[str], recorder: Recorder) -> None:
    try:
        import pytest
    except ImportError:
        return
    for file in files:
        if recorder.is_done:
            return
        with contextlib.suppress(Exception, SystemExit):
            path = Path(file)
            options = [*PYTEST_OPTIONS, "--rootdir", str(path.parent), file]
            pytest.main(options, plugins=[RecorderPlugin(path.name, recorder)])


class RecorderPlugin:
    """The pytest plugin that tells the recorder which test runs, and stops when it is done."""

    def __init__(self, file: str, recorder: Recorder) -> None:
        self.file, self.recorder = file, recorder
        self.running = contextlib.ExitStack()

    def pytest_runtest_setup(self, item: Any) -> None:
        self.running.enter_context(self.recorder.run(f"{self.file}::{item.name}"))

    def pytest_runtest_teardown(self, item: Any) -> None:
        self.running.close()
        if self.recorder.is_done:
            item.session.shouldstop = "each target was called"
