"""Inputs for targets that come without any: from annotations, docstrings' shapes or argument names,
or from calls that doctests and tests make. Those run in a process of their own, and the smallest
call of each target is written down as it comes.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import functools
import inspect
import io
import itertools
import os
import pickle
import re
import signal
import sys
import textwrap
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multigrad.capture.user_code.object_state import held_by, read_state
from multigrad.command.convert import NUMBERS, SHAPE, guess_inputs
from multigrad.command.named_objects import SEED, draw, make_default_inputs
from multigrad.errors import MultigradError
from multigrad.functions.calls.arguments import flatten, signature_of
from multigrad.functions.importers import find_custom
from multigrad.functions.object_arguments import owner_of_method
from multigrad.graph.ir.types import dtype_name
from multigrad.graph.support.trees import optree
from multigrad.look.subject import arguments_of, as_array, find_original, is_float_array
from multigrad.rules.activation import Activation
from multigrad.rules.model.rule import Rule

from .targets import find_target, holder_of, source_of

# --- by what is written of them, and by their names -----------------------------------------------


INTEGERS = ("target", "targets", "label", "labels", "index", "indices", "ids", "idx")
LINES = ("bias", "gamma", "beta", "running_mean", "running_var")
EACH = SHAPE[-1]
SHAPES = (SHAPE, (EACH, EACH), (EACH,), (2, 4, EACH), (2, 3, 4, EACH))
# Other values for an argument, tried one argument at a time.
OTHERWISE = (None, 2, True, "uniform", "line", "indices")
LENGTHS = (4, 6, 3, 5, 2)  # of axes that have names
MOST_GUESSES, MOST_LENGTHS = 90, 3
AXES = r"\((?P<axes>(?:[A-Z]\w*|\d+)(?:, ?(?:[A-Z]\w*|\d+))*,?)\)"  # (N, C)
ANNOTATIONS, DOCSTRING = "its annotations", "its docstring"
Inputs = list[Any]


def described_inputs(fn: Any) -> Iterator[tuple[str, Inputs]]:
    """Yield where shapes are stated, annotations or docstring, and inputs of these shapes."""
    parameters = _parameters_of(fn)
    hints = _hints_of(fn)
    annotated = [_annotated(hints.get(p.name, p.annotation)) for p in parameters]
    text = "\n".join(filter(None, (inspect.getdoc(each) for each in (fn, _code_of(fn)))))
    written = [_written(p.name, text) for p in parameters]
    for source, found in ((ANNOTATIONS, annotated), (DOCSTRING, written)):
        if any(isinstance(each, tuple) for each in found):
            # Shared by all arguments: axes of one name have one length.
            sizes = dict[str, int]()
            generator = np.random.default_rng(SEED)
            shapes = [None if each is None else _sized(each[0], sizes) for each in found]
            yield (
                source,
                [
                    _likely(p, SHAPE, generator)
                    if each is None or shape is None
                    else draw(shape, each[1], generator)
                    for p, each, shape in zip(parameters, found, shapes, strict=True)
                ],
            )


def guessed_inputs(fn: Any) -> Iterable[Inputs]:
    """Return inputs that may fit a target, the likeliest first."""
    return itertools.islice(_guesses(fn), MOST_GUESSES)


def _guesses(fn: Any) -> Iterator[Inputs]:
    if isinstance(fn, Activation | Rule) or getattr(fn, "examples", None) is not None:
        with contextlib.suppress(MultigradError):
            yield make_default_inputs(fn, "float32")
    parameters = _parameters_of(fn) or [None]
    flags = _flags_of(_code_of(fn))
    for shape in (*_shapes_beside(fn), *SHAPES):
        generator = np.random.default_rng(SEED)
        likely = _likely_all(parameters, flags, shape, generator)
        yield likely
        # Some code requires that its defaults are passed.
        if shape == SHAPE:
            yield [*likely, *_defaults_of(fn)]
        if shape == SHAPE and not isinstance(fn, tuple | Rule):
            yield guess_inputs(fn)
        yield [draw(shape, "float32", generator) for _ in parameters]
        for number in (2, 0.5, None):  # what follows the first is often no tensor
            yield [likely[0], *(number for _ in likely[1:])]
    for shape in (SHAPE, SHAPES[-1]):
        yield from _varied(parameters, flags, shape)


def _shapes_beside(fn: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(fn, type):
        original = find_original(fn)
        fn = None if original.is_custom else original.call
    if fn is None or owner_of_method(fn) is not fn or inspect.isfunction(fn):
        return
    # The lengths of an object's weights hint at its inputs' shapes; the last axes come first.
    shapes = (held_by(each).shape for each in read_state(fn).tensors.values())
    lengths = dict.fromkeys(int(n) for shape in shapes for n in reversed(shape))
    for n in itertools.islice(lengths, MOST_LENGTHS):
        yield from ((4, n), (2, n, 8, 8), (2, 4, n), (n,))


def _varied(parameters: Sequence[Any], flags: set[str], shape: tuple[int, ...]) -> Iterator[Inputs]:
    generator = np.random.default_rng(SEED)
    likely = _likely_all(parameters, flags, shape, generator)
    tensors = {
        "uniform": draw(shape, "uniform", generator),
        "line": draw(shape[-1:], "float32", generator),
        "indices": draw(shape, "int64", generator),
    }
    for other in OTHERWISE:
        # The last arguments first: they are the likeliest not to be tensors.
        for place in reversed(range(len(likely))):
            yield [*likely[:place], tensors.get(str(other), other), *likely[place + 1 :]]


def _likely_all(
    parameters: Sequence[Any], flags: set[str], shape: tuple[int, ...], generator: Any
) -> Inputs:
    return [
        False if getattr(p, "name", "") in flags else _likely(p, shape, generator)
        for p in parameters
    ]


def _flags_of(function: Any) -> set[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set()
    # An argument that is used as a condition is a flag: tensors have no truth value.
    tests: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            tests.append(node.test)
        elif isinstance(node, ast.BoolOp):
            tests += node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tests.append(node.operand)
    return {test.id for test in tests if isinstance(test, ast.Name)}


def _parameters_of(fn: Any) -> Sequence[Any]:
    fn = fn[0] if isinstance(fn, tuple) else fn
    return [] if isinstance(fn, Rule) else arguments_of(find_original(fn)) or []


def _defaults_of(fn: Any) -> Inputs:
    fn = fn[0] if isinstance(fn, tuple) else fn
    signature = None if isinstance(fn, Rule) else find_original(fn).function.parameters
    given = signature.parameters.values() if signature is not None else ()
    return [p.default for p in given if p.default is not p.empty and p.kind is not p.KEYWORD_ONLY]


def _code_of(fn: Any) -> Any:
    fn = fn[0] if isinstance(fn, tuple) else fn
    return getattr(fn, "forward", None) or getattr(fn, "call", None) or fn


def _hints_of(fn: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(_code_of(fn))
    except Exception:  # a name that only a type checker knows
        return {}


def _annotated(annotation: Any) -> tuple[list[str], str] | None:
    # jaxtyping keeps the axes of `Float[Tensor, "n 3"]` in `dim_str`.
    axes = getattr(annotation, "dim_str", None)
    if not isinstance(axes, str):
        return None
    names = " ".join(map(str, getattr(annotation, "dtypes", ()) or ("float32",)))
    kind = next((each for each in ("float32", "bool", "int64") if each in names), "float32")
    return axes.split(), kind


def _written(name: str, text: str) -> tuple[list[str], str] | None:
    # Matches a docstring's line of an argument, such as `x: of shape (N, C)`.
    match = re.search(
        rf"(?m)^\s*(?:- )?[`*]*{re.escape(name)}\b[^\n(]*(?:\([^)\n]*\))??[^\n(]*{AXES}", text
    )
    if match is None:
        return None
    kind = "int64" if name in INTEGERS else "float32"
    return re.split(r", ?", match["axes"].rstrip(", ")), kind


def _sized(axes: Sequence[str], sizes: dict[str, int]) -> tuple[int, ...]:
    # Axes of one name have one length.
    return tuple(
        int(axis)
        if axis.isdigit()
        else sizes.setdefault(
            axis.lstrip("*#?").lower() or "...", LENGTHS[len(sizes) % len(LENGTHS)]
        )
        for axis in axes
    )


def _likely(parameter: Any, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    annotation = str(getattr(parameter, "annotation", ""))
    if annotation.endswith("?"):  # of a schema
        return None
    for word, number in NUMBERS.items():
        if f"'{word}'" in annotation or annotation == word:
            return number
    name = str(getattr(parameter, "name", ""))
    if name in INTEGERS:
        return draw(shape[:1], "int64", generator)
    if name == "mask" or name.endswith("_mask"):
        return draw(shape, "bool", generator)
    if name in ("dim", "axis"):
        return -1
    if name == "eps" or name.startswith("epsilon"):
        return 1e-5
    if name in LINES:
        return draw(shape[-1:], "float32", generator)
    if name == "weight" and len(shape) > 1:
        return draw((EACH, EACH), "float32", generator)
    return draw(shape, "float32", generator)


SMALL, MOST = 2**12, 2**16  # numbers in a call that is as good as another, and in one that is kept
UNWANTED = 2 * MOST + 1  # as is a call without floats
LONGEST = 5.0  # seconds for a docstring or a test
MOST_FILES = 12  # of tests, the likeliest first
TESTS = ("test", "tests")
PLAIN = ("-q", "-p", "no:cacheprovider", "-c", os.devnull)  # of pytest, whatever a project asks
INSTALLED = ("site-packages", "dist-packages")


def places_to_look(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules whose docstrings may call targets, and files of tests."""
    modules, files = set[str](), dict[str, int]()
    words = {name.rpartition(":")[2].rpartition(".")[2] for name in names}
    for module in {id(m): m for name in names if (m := holder_of(name))}.values():
        root = module.__name__.partition(".")[0]
        beside = [m for n, m in sorted(sys.modules.items()) if m and n.partition(".")[0] == root]
        # Docstrings and tests often call a target through a wrapper in its package.
        own = words | set(_callers(beside, words))
        is_named = re.compile(rf"\b({'|'.join(map(re.escape, own))})\b").search
        for each in beside:
            text = source_of(each)
            if ">>> " in text and is_named(text):
                modules.add(each.__name__)
        for file in _test_files(sys.modules.get(root, module)):
            # `__self__` of the bound `search` is the compiled pattern.
            count = len(set(re.findall(is_named.__self__, file.read_text("utf-8", "replace"))))
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
    file = Path(str(package.__file__)).resolve()
    is_package = hasattr(package, "__path__")
    folder = file.parent
    # An installed package's parent is site-packages, where tests are of other packages.
    if is_package:
        yield from _named_as_tests(folder.rglob("*.py"))
        folder = folder.parent
    if folder.name in INSTALLED:
        return
    folder = folder.parent if folder.name == "src" else folder
    yield from _named_as_tests(folder.glob("*.py"))
    for name in TESTS:
        yield from _named_as_tests((folder / name).rglob("*.py"))


def _named_as_tests(files: Iterator[Path]) -> Iterator[Path]:
    for file in files:
        if file.stem.startswith("test_") or file.stem.endswith("_test"):
            yield file


# --- in a process of its own ----------------------------------------------------------------------
def record(
    names: Sequence[str], places: tuple[Sequence[str], Sequence[str]], folder: str, seconds: float
) -> None:
    """Run docstrings and tests until each target was called, and write its call to the folder, as
    the target's place among the names.

    Args:
        places: modules and files, as `places_to_look` has them.
        seconds: for all; docstrings have at most half of them.
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
    except FileNotFoundError:
        return None


class Recorder:
    """Keeps the smallest call of each target.

    Attributes:
        place: the docstring or the test that runs now.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.place = ""
        self.deadline = float("inf")
        # By target, the rank of the call on disk; `keep` only lowers it.
        self.ranks = [UNWANTED] * count

    @property
    def is_done(self) -> bool:
        """Whether nothing better is to come, or no time is left."""
        return max(self.ranks) <= SMALL or time.monotonic() > self.deadline

    @contextlib.contextmanager
    def run(self, place: str) -> Iterator[None]:
        """Interrupt an example by TimeoutErrors, repeated because it may catch one."""
        self.place = place
        has_alarm = hasattr(signal, "setitimer")  # Windows has none
        if has_alarm:
            signal.signal(signal.SIGALRM, _raise_timeout)
            signal.setitimer(signal.ITIMER_REAL, LONGEST, LONGEST)
        try:
            yield
        finally:
            if has_alarm:
                signal.setitimer(signal.ITIMER_REAL, 0.0)

    def watch(self, n: int, target: Any) -> None:
        if isinstance(target, type) and find_custom(target) is not None:
            takes_ctx = not find_original(target).function.recipe.has_setup
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
            standing = Standing(
                target, lambda args, kwargs: self.keep(n, None, _positional(target, args, kwargs))
            )
            # Modules may have imported the function by name: replace it wherever it is bound.
            for module in list(sys.modules.values()):
                for name, value in list(getattr(module, "__dict__", {}).items()):
                    if value is target:
                        setattr(module, name, standing)

    def _replace(self, cls: Any, name: str, keep: Callable[[Any, Any], None]) -> None:
        own = getattr(cls, name)

        @functools.wraps(own)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            keep(args, kwargs)
            return own(*args, **kwargs)

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
                given, _ = optree.tree_unflatten(tree, leaves)
                data = pickle.dumps((self.place, owner, list(given)))
                (self.folder / f"{n}").write_bytes(data)
                # Small enough: no later call replaces it.
                self.ranks[n] = rank if rank > SMALL else 0
        except Exception:  # noqa: S110  # it is no call that could be made again
            pass


def _rank(arrays: Sequence[Any]) -> int:
    # Fewer numbers rank better. Equal ones hide errors, so they rank last; no floats, unwanted.
    floats = [a for a in arrays if is_float_array(a)]
    if not any(a.size for a in floats):
        return UNWANTED
    is_dull = all(a.size and (a == a.flat[0]).all() for a in floats)
    return sum(a.size for a in arrays) + MOST * (is_dull and max(a.size for a in floats) > 1)


class Standing:
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
    raise TimeoutError(f"it does not end within {LONGEST:g} s")


def _run_tests(files: Sequence[str], recorder: Recorder) -> None:
    try:
        import pytest
    except ImportError:
        return
    for file in files:
        if recorder.is_done:
            return
        with contextlib.suppress(Exception, SystemExit):
            folder = str(Path(file).parent)
            pytest.main([*PLAIN, "--rootdir", folder, file], plugins=[Watching(file, recorder)])


class Watching:
    """The pytest plugin that tells the recorder which test runs, and stops when it is done."""

    def __init__(self, file: str, recorder: Recorder) -> None:
        self.file, self.recorder = file, recorder
        self.running = contextlib.ExitStack()

    def pytest_runtest_setup(self, item: Any) -> None:
        self.running.enter_context(self.recorder.run(f"{Path(self.file).name}::{item.name}"))

    def pytest_runtest_teardown(self, item: Any) -> None:
        self.running.close()
        if self.recorder.is_done:
            item.session.shouldstop = "each target was called"
