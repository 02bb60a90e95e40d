"""Runs of originals and of lowered code for proofs: on which framework, and in isolation.

Arrays go in and come out. Each run of user code for a proof begins in `run_samples`. Code is
stopped where it may not end on made-up numbers; code that may act runs once; lines are compared
with the graph to find where the two part. Python's own tracing tells a line, whatever the library:
it costs nothing where no loop is, and until a proof has failed.
"""

from __future__ import annotations

import contextvars
import dis
import functools
import linecache
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...backend.discovery import backend_of, in_use, load_backend
from ...capture.dialect import find_dialect
from ...capture.user_code.inspection import nested_codes, plain_function
from ...capture.user_code.libraries import dialect_of, is_library_file
from ...capture.user_code.snapshot import functions_of
from ...graph import ops
from ...graph.ir.graph import Graph, Location
from ...graph.random import REPLAYED, fold_in
from ...graph.support.class_bases import dataclass
from ...trace.trace import Value
from .samples import Sample, is_float

Array = Any
Tensor = Any
KEY = (0, 7)  # of the draws in a proof


@dataclass(frozen=True, slots=True)
class Outcome:
    """What both sides gave for a sample: arrays (or None) by name.

    Attributes:
        original: by the user's code; None: it raised.
        lowered: by the graphs' lowered code on the original's own framework; None: it did not run.
        home: the framework that they ran on.
    """

    original: Mapping[str, Any] | None
    lowered: Mapping[str, Any] | None = None
    home: str = ""


Side = Callable[[Backend, Sample], Mapping[str, Any]]


def run_samples(
    dialect: str,
    samples: Sequence[Sample],
    original: Side,
    lowered: Side | None,
    *,
    is_random: bool,
    stop: Stoppable,
    elsewhere: bool = True,
) -> list[Outcome]:
    """Run both sides on samples, all at once in isolation, on the framework of a dialect.

    Args:
        stop: ends the original where it goes on for too long.
        elsewhere: whether the original may run on another framework, where that has no such words.

    Raises:
        Exception: what the original raised for the first of them.
    """
    dtypes = [a.dtype.name for a in samples[0].arrays.values() if is_float(a)]
    # JAX has float64 only in a mode of its own: one for all samples.
    dtype = next((name for name in dtypes if name == "float64"), "float32")

    def run_on(backend: Backend) -> list[Outcome]:
        def run() -> list[Outcome]:
            return [
                _run_both(backend, sample, original, lowered, stop, is_first=n == 0)
                for n, sample in enumerate(samples)
            ]

        return isolated(backend, run, dtype, is_random)

    return on_first_home(dialect, run_on, elsewhere=elsewhere)


def _run_both(
    backend: Backend,
    sample: Sample,
    original: Side,
    lowered: Side | None,
    stop: Stoppable,
    is_first: bool,
) -> Outcome:
    # The original's draws take the keys of the capture, from the first on.
    REPLAYED.set(keys())
    try:
        with stop:
            results = original(backend, sample)
    except Exception:
        if is_first:
            raise
        return Outcome(None)
    lowered_results = None
    with suppress(Exception):  # an op that it lacks, an index that is too large
        lowered_results = None if lowered is None else lowered(backend, sample)
    return Outcome(results, lowered_results, backend.name)


def homes(dialect: str) -> Iterator[Backend]:
    """Yield the backends on whose tensors code of a dialect may run, the likeliest first."""
    if is_neutral(dialect):
        yield load_backend("numpy")
        yield from (backend for backend in in_use() if backend.name != "numpy")
        return
    known = find_dialect(dialect)
    name = dialect if known is None or known.state.runs_on is None else known.state.runs_on()
    yield from sorted(in_use(), key=lambda backend: backend.name != name)


def home_name(dialect: str) -> str:
    """Return the name of the likeliest backend, "" if code is written for none."""
    home = next(homes(dialect), None)
    return "" if home is None or not dialect else home.name


def is_neutral(dialect: str) -> bool:
    """Return whether code is written for all libraries: `xg.xp`, or plain operators."""
    return dialect in ("", __name__.partition(".")[0])


def dialect_for(rule: Any) -> str:
    """Return the library that a rule's own function is written in, "" where it is any."""
    plain = plain_function(rule.function)
    return rule.library or ("" if plain is None else dialect_of(plain))


def replays_draws(dialect: str) -> bool:
    """Return whether draws in code of a dialect can be made to take a graph's keys."""
    known = find_dialect(dialect)
    if known is not None and known.state.runs_on is not None:  # it has generators of its own
        return False
    home = next(homes(dialect), None)
    return home is not None and home.draws.replays


def coarseness_of(dialect: str, graphs: Iterable[Graph]) -> float:
    """Return how far off a library's kernels are by themselves, of a result; 0: they round only."""
    known = find_dialect(dialect)
    if known is None:
        return 0.0
    inexact = known.habits.inexact
    names = {node.op.name for graph in graphs for node in graph.nodes} if inexact else set()
    return max((inexact[name] for name in names & inexact.keys()), default=0.0)


def promotes_to_float32(dialect: str) -> bool:
    known = find_dialect(dialect)
    return known is not None and known.habits.promotes_to_float32


def keeps_infinity(dialect: str) -> bool:
    """Return whether 0 times inf is NaN there: a compiler may select instead of multiply."""
    known = find_dialect(dialect)
    return known is None or known.calls.at_once is None


def on_first_home(dialect: str, run: Callable[[Backend], Any], *, elsewhere: bool = True) -> Any:
    """Run on the framework of a dialect; what lacks names there, on the first that has them.

    A library is guessed where code has nothing but methods: one without such a method is not meant.

    Raises:
        Exception: what the first of them raised.
    """
    failure: Exception | None = None
    for backend in homes(dialect):
        try:
            return run(backend)
        # A missing method or keyword: the guess was wrong.
        except (AttributeError, TypeError) as error:
            failure = failure or error
            if not elsewhere:
                break
        except Exception as error:
            raise failure or error from None
    raise failure or LookupError(f"{dialect} is not imported")


def isolated(backend: Backend, run: Callable[[], Any], dtype: str, is_random: bool) -> Any:
    """Run a function in the mode that keeps a dtype, whatever the backend's modes are around it.

    Args:
        is_random: whether the framework's own draws are to take the keys of `REPLAYED`.
    """
    precise = (
        nullcontext() if backend.tensors.precision is None else backend.tensors.precision(dtype)
    )

    def run_precisely() -> Any:
        with np.errstate(all="ignore"), precise:
            return run()

    isolate = backend.autodiff.isolate
    # In a context of its own: what the run sets there ends with it.
    run_own = contextvars.copy_context().run
    return run_own(run_precisely) if isolate is None else run_own(isolate, run_precisely, is_random)


def keys() -> Iterator[Any]:
    """Yield the keys of an application's draws, as capture numbers them."""
    yield KEY
    n = 1
    while True:
        yield fold_in(KEY, n)
        n += 1


def to_tensor(backend: Backend, array: Array) -> Tensor:
    """Return an array as a tensor of its own, which lies in memory as the array does."""
    # An expanded array: one number in memory for all elements.
    if array.size > 1 and not any(array.strides):
        one = backend.tensors.from_numpy(array[(slice(0, 1),) * array.ndim].copy())
        return backend.kernels.rows[ops.BROADCAST_TO_SHAPE](one, shape=array.shape)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return backend.tensors.from_numpy(array.copy(order="K"))
    # Every second element of a larger array, so that it is not contiguous.
    apart = np.zeros((*array.shape, 2), array.dtype)
    apart[..., 0] = array
    return backend.tensors.from_numpy(apart)[..., 0]


def to_array(backend: Backend, value: Any) -> Any:
    return None if value is None else np.asarray(backend.tensors.to_numpy(value))


# --- whether it may act, as far as its bytecode tells --------------------------------------------


_ACTING = """
    append debug delattr exec extend info input next open print setattr warn warning write
    writelines
"""
ACTING_NAMES = frozenset(_ACTING.split())
ACTING_MODULES = frozenset(
    {"logging", "os", "shutil", "socket", "subprocess", "sys", "time", "warnings"}
)
STORES = frozenset(
    dis.opmap[name]
    for name in ("DELETE_ATTR", "DELETE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL")
)
# Objects of one call alone: no other code sees what is written to them.
OWN_OBJECTS = frozenset({"ctx"})


def may_act(*functions: Any) -> bool:
    """Return whether functions, or the user's helpers that they mention, may have side effects."""
    # Without it: test_a_proof_repeats_no_warning_of_the_users_for_each_sample hears five.
    return any(map(_acts, codes_of(*functions)))


def codes_of(*functions: Any) -> Iterator[types.CodeType]:
    """Yield the code of functions, and of the user's helpers that they mention."""
    for plain in functions_of(*functions):
        yield from nested_codes(plain.__code__)


@functools.lru_cache(maxsize=1024)  # each dtype that is met asks once more
def _acts(code: types.CodeType) -> bool:
    names = set(code.co_names)
    if names & ACTING_NAMES or names & ACTING_MODULES:
        return True
    # The operations stand at even places; to decode them all takes long.
    if STORES.isdisjoint(code.co_code[::2]):
        return False
    before = ""
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return True
        if step.opname == "STORE_DEREF" and step.argval in code.co_freevars:
            return True
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and before not in OWN_OBJECTS:
            return True
        before = str(step.argval) if step.opname.startswith("LOAD_FAST") else ""
    return False


MOST_STEPS = 100_000  # lines of an original on one sample, in the functions that have a loop
MOST_TURNS = 2_000  # of a graph's loop, which NumPy runs op by op
OURS = str(Path(__file__).parents[2])
LOOPS = frozenset(
    code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name or name == "JUMP_ABSOLUTE"
)
if "JUMP_ABSOLUTE" in dis.opmap:  # before Python 3.11 `while` ends with a test
    LOOPS |= {code for name, code in dis.opmap.items() if name.startswith("POP_JUMP_IF")}


class TooLong(Exception):
    """Code has not ended on a sample."""


class _Stop(BaseException):
    """Leaves code that catches `Exception`."""


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing where code is traced, or is ours: no loop of it waits for values."""
    follower = sys.gettrace()
    is_ours = isinstance(getattr(follower, "__self__", None), Stoppable)
    if is_ours:
        sys.settrace(None)
    try:
        yield
    finally:
        if is_ours:
            sys.settrace(follower)


class Stoppable:
    """A context that user code leaves by `TooLong` where it takes too many steps.

    Where a debugger or a measurement of coverage follows the code already, nothing is counted.

    Args:
        functions: the user's, which may lie in an installed package.
        turns: whether a library's loop calls them; else nothing is counted where they have none.
    """

    def __init__(self, functions: Iterable[Any], *, turns: bool = False) -> None:
        plain = [p for p in map(plain_function, functions) if p is not None]
        codes = [code for each in plain for code in nested_codes(each.__code__)]
        self._files = {code.co_filename for code in codes}
        self._others: set[str] = set()  # files of libraries and of ours, as they are met
        codes += codes_of(*plain)
        self._counts = turns or any(not LOOPS.isdisjoint(c.co_code[::2]) for c in codes)
        self._follows = False
        self._steps = 0

    def __enter__(self) -> None:
        self._steps = MOST_STEPS
        # A debugger or coverage traces already, and only one can.
        self._follows = self._counts and sys.gettrace() is None
        if self._follows:
            sys.settrace(self._enter)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._follows:
            sys.settrace(None)
        if isinstance(error, _Stop):
            raise TooLong(str(error)) from None

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file in self._others:
            return None
        if file not in self._files and (file.startswith(OURS) or is_library_file(file)):
            self._others.add(file)
            return None
        self._count(frame, event, argument)
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._steps -= 1
        if self._steps < 0:
            name, line = frame.f_code.co_name, frame.f_lineno
            raise _Stop(
                f"{name!r} has not ended after {MOST_STEPS:,} steps on numbers that are made up "
                f"(line {line})"
            )
        return self._count


# --- where it parts from its graph ---------------------------------------------------------------


Step = tuple[str, int, str, int]  # file, line, variable, how often it was met
RETURNED = "return"


class Trail:
    """The values that each executed line of some files assigned, or wrote in place, in order.

    They are arrays, or nodes of a graph, which no later line writes into.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.files = files
        self.steps: dict[Step, Any] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._before: dict[FrameType, tuple[int, dict[str, Any]]] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        self._before[frame] = (frame.f_lineno, _kept(frame))
        return self.follow

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Note what the line that has ended assigned."""
        line, before = self._before[frame]
        now = _kept(frame)
        place = (frame.f_code.co_filename, line)
        count = self._counts[place] = self._counts.get(place, 0) + 1
        for name, value in now.items():
            if name not in before or not _is_same(before[name], value):
                self.steps[(*place, name, count)] = value
        self._before[frame] = (frame.f_lineno, now)
        if event == "return":
            self.steps[(*place, RETURNED, count)] = _keep(argument)
            del self._before[frame]
        return self.follow


def _kept(frame: FrameType) -> dict[str, Any]:
    return {name: _keep(value) for name, value in frame.f_locals.items()}


def _keep(value: Any) -> Any:
    # A copy: a later line may write into the value.
    if type(value) is tuple:
        return tuple(map(_keep, value))
    if isinstance(value, Value):
        return value.node
    try:
        return np.array(backend_of(value).tensors.to_numpy(value))
    except Exception:  # no tensor, or one without numbers
        return value


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return a is b


@contextmanager
def following(trail: Trail) -> Iterator[None]:
    """Record what runs on this thread in a trail."""
    before = sys.gettrace()
    sys.settrace(trail.enter)
    try:
        yield
    finally:
        sys.settrace(before)


def find_parting(
    run_original: Callable[[], Any],
    run_capture: Callable[[], Any],
    files: Collection[str],
    agree: Callable[[Any, Any], bool],
) -> Location | None:
    """Return the first line after which a variable of the original is not what capture took it for.

    Args:
        agree: whether an array of the original's and a node are the same; True where that cannot be
            told.
    """
    trails = Trail(files), Trail(files)
    for trail, run in zip(trails, (run_original, run_capture), strict=True):
        try:
            with following(trail):
                run()
        except Exception:  # as far as it came
            pass
    for step, value in trails[0].steps.items():
        if step in trails[1].steps and not agree(value, trails[1].steps[step]):
            file, line = step[:2]
            return Location(file, line, linecache.getline(file, line).strip())
    return None
