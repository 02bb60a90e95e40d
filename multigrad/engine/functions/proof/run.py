"""Runs of originals and of lowered code for proofs: on which framework, and in isolation.

Arrays go in and come out. Each run of user code for a proof begins in `run_samples`; `homes` tells
on which frameworks it may run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ....core import ops
from ....core.backend.contract import Backend
from ....core.backend.discovery import in_use, load_backend
from ....core.functions.proof import isolated
from ....core.functions.recipe import KEY
from ....core.ir.graph import Graph
from ....core.ops.numerics import as_numpy_dtype
from ...capture.dialect import find_dialect
from ...random import REPLAYED, fold_in
from . import samples
from .executions import FunctionUnderProof
from .line_tracing import StepLimit
from .samples import InputSlot, Sample, is_float
from .verdicts import ProofSubject

Array = Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """What both sides gave for a sample: arrays (or None) by name.

    Attributes:
        original: by the user's code; None: it raised.
        lowered: by the graphs' lowered code on the same framework, `home`; None: it did not run.
    """

    original: Mapping[str, Any] | None
    lowered: Mapping[str, Any] | None = None
    home: str = ""


Side = Callable[[Backend, Sample], Mapping[str, Any]]  # -> its results by name


def run_samples(
    dialect: str,
    samples: Sequence[Sample],
    original: Side,
    lowered: Side | None,
    *,
    is_random: bool,
    limit: StepLimit,
    elsewhere: bool = True,
) -> list[Outcome]:
    """Run both sides on samples, all at once in isolation, on the framework of a dialect.

    What the original raises for the first of them is raised.

    Args:
        limit: ends the original if it goes on for too long on made-up numbers.
        elsewhere: whether the original may run on another framework if its own lacks a name.
    """
    dtypes = [a.dtype.name for a in samples[0].arrays.values() if is_float(a)]
    # JAX has float64 only in a mode of its own: one for all samples.
    dtype = next((name for name in dtypes if name == "float64"), "float32")

    def run_on(backend: Backend) -> list[Outcome]:
        def run() -> list[Outcome]:
            return [
                _run_both(backend, sample, original, lowered, limit, is_first=n == 0)
                for n, sample in enumerate(samples)
            ]

        return isolated(backend, run, dtype, is_random)

    return on_first_home(dialect, run_on, elsewhere=elsewhere)


def _run_both(
    backend: Backend,
    sample: Sample,
    original: Side,
    lowered: Side | None,
    limit: StepLimit,
    is_first: bool,
) -> Outcome:
    # The original's draws take the keys of the capture, from the first on.
    REPLAYED.set(keys())
    try:
        with limit:
            results = original(backend, sample)
    except Exception:
        if is_first:
            raise
        return Outcome(None)
    lowered_results = None
    with suppress(Exception):  # an op that it lacks, an index that is too large
        lowered_results = None if lowered is None else lowered(backend, sample)
    return Outcome(results, lowered_results, backend.name)


def keys() -> Iterator[Any]:
    """Yield the keys of an application's draws, as capture numbers them."""
    yield KEY
    n = 1
    while True:
        yield fold_in(KEY, n)
        n += 1


def homes(dialect: str) -> Iterator[Backend]:
    """Yield the backends on whose tensors code of a dialect may run, the likeliest first."""
    if is_neutral(dialect):
        yield load_backend("numpy")
        yield from (backend for backend in in_use() if backend.name != "numpy")
        return
    library = find_dialect(dialect)
    name = dialect if library is None or library.state.runs_on is None else library.state.runs_on()
    yield from sorted(in_use(), key=lambda backend: backend.name != name)


def home_name(dialect: str) -> str:
    """Return the name of the likeliest backend, "" if code is written for none."""
    home = next(homes(dialect), None)
    return "" if home is None or not dialect else home.name


def is_neutral(dialect: str) -> bool:
    """Return whether code is written for all libraries: `xg.xp`, or plain operators."""
    return dialect in ("", __name__.partition(".")[0])


def replays_draws(dialect: str) -> bool:
    """Return whether draws in code of a dialect can be made to take a graph's keys."""
    library = find_dialect(dialect)
    if library is not None and library.state.runs_on is not None:  # it has generators of its own
        return False
    home = next(homes(dialect), None)
    return home is not None and home.draws.replays


def coarseness_of(dialect: str, graphs: Iterable[Graph]) -> float:
    """Return by how much of a result a library's kernels are off by themselves; 0: by rounding."""
    library = find_dialect(dialect)
    if library is None:
        return 0.0
    inexact = library.habits.inexact
    names = {node.op.name for graph in graphs for node in graph.nodes} if inexact else set()
    return max((inexact[name] for name in names & inexact.keys()), default=0.0)


def promotes_to_float32(dialect: str) -> bool:
    library = find_dialect(dialect)
    return library is not None and library.habits.promotes_to_float32


def keeps_infinity(dialect: str) -> bool:
    """Return whether 0 times inf is NaN there: a compiler may select instead of multiply."""
    library = find_dialect(dialect)
    return library is None or library.calls.at_once is None


def on_first_home(dialect: str, run: Callable[[Backend], Any], *, elsewhere: bool = True) -> Any:
    """Run on the framework of a dialect; if that lacks a name, on the first one that has it.

    Where code has nothing but methods, its library is a guess: one without a method is not meant.
    """
    failure: Exception | None = None
    try:
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
    finally:
        del failure  # its traceback holds this frame


# --- an attempt at a proof: a capture, what was captured, and how both are run on samples ---------
# `functions.py` makes one, and carries it out.
@dataclass(frozen=True, slots=True)
class Attempt:
    """A capture to be proven.

    Attributes:
        captured: the graphs, their code, and the arguments.
        subject: what it is, for messages.
        graphs, names: the graphs, and a name for each of their outputs, in order.
        shown: what messages call each result that is compared, by name.
        dtypes: those of results, by name, as the graphs have them.
        slots: the tensors that both sides get.
        slots_as_called: the tensors in the call's own shapes, for an original that takes no smaller
            ones; None: they are these already, or too large.
        numbers: the run-time numbers by name.
        run: runs both sides on samples; raises what the original raises for the first of them.
        recapture: captures once more, to find the line where the two part.
        dialect: that which the original is written in.
        add_cotangents: adds to a sample the cotangents, which have the shapes of its outputs.
        is_neutral: whether the code is for no one library: on NumPy its dtypes are not NumPy's.
    """

    captured: FunctionUnderProof
    subject: ProofSubject
    graphs: tuple[Graph, ...]
    names: tuple[str, ...]
    shown: Mapping[str, str]
    dtypes: Mapping[str, str]
    slots: tuple[InputSlot, ...]
    numbers: Mapping[str, Any]
    run: Callable[[Sequence[Sample]], list[Outcome]]
    recapture: Callable[[], Any]
    dialect: str
    add_cotangents: Callable[[Sample], Sample]
    slots_as_called: tuple[InputSlot, ...] | None
    is_neutral: bool

    @property
    def dtype(self) -> Any:
        """The dtype that T stands for."""
        return as_numpy_dtype(samples.first_float(self.slots))

    @property
    def ops(self) -> set[ops.Op]:
        return {node.op for graph in self.graphs for node in graph.nodes}
