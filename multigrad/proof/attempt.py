"""One attempt at a proof: sample after sample, the original beside its graph; rounding is no
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import ops
from ..backend.discovery import backend_of
from ..errors import MultigradError
from ..ir.graph import Graph, Location, Node
from ..tracing.calls import drop_calls
from . import samples
from .bounded import Bounded, run_bounded
from .compare import (
    Difference,
    as_dtype,
    count_ops,
    find_difference,
    is_vacuous,
    run_graphs,
    run_reference,
    takes_infinity,
)
from .run import KEY, keeping_generators
from .samples import Sample, Slot
from .trail import find_parting
from .verdict import Subject, describe, disprove, leave_open

Array = Any


def _as_it_is(sample: Sample) -> Sample:
    return sample


@dataclass(frozen=True, slots=True)
class Attempt:
    """A capture to be proven.

    Attributes:
        graphs, names: the graphs, and a name for each of their outputs, in order.
        shown: what messages call the results that are compared, by name.
        slots: the tensors that both sides get.
        numbers: the run-time numbers; those in `fixed` are part of the capture.
        is_polymorphic: whether the graph holds for every float dtype.
        acts: whether the original may have side effects, so that it runs once.
        run: the original on a sample: arrays (or None) by name.
        recapture: captures once more, to find the line where the two part.
        complete: adds to a sample what follows from it.
        whole: the tensors in the call's own shapes, for an original that takes no smaller ones.
        replays: whether the original's draws take the graph's keys.
        infinite: whether inf and NaN mean the same on both sides.
        ties: whether a derivative on an edge is compared: frameworks differ in theirs.
    """

    subject: Subject
    graphs: tuple[Graph, ...]
    names: tuple[str, ...]
    shown: Mapping[str, str]
    slots: tuple[Slot, ...]
    numbers: Mapping[str, Any]
    fixed: frozenset[str]
    is_polymorphic: bool
    acts: bool
    is_random: bool
    run: Callable[[Sample], Mapping[str, Any]]
    recapture: Callable[[], Any]
    complete: Callable[[Sample], Sample] = _as_it_is
    whole: tuple[Slot, ...] | None = None
    ties: bool = True
    replays: bool = True
    infinite: bool = True

    @property
    def dtype(self) -> Any:
        """That of the first float tensor."""
        floats = [slot.dtype for slot in self.slots if "float" in slot.dtype]
        return as_dtype(floats[0] if floats else "float32")


def prove(attempt: Attempt, *, is_call: bool = False) -> str:
    """Return "" where original and graph agree, else why nothing was found out.

    Args:
        is_call: compare the call's own values alone.

    Raises:
        DisprovedError: they differ.
    """
    if any(node.op.collective for graph in attempt.graphs for node in graph.nodes):
        # The others may not be capturing, and would be waited for.
        return leave_open(attempt.subject, "it exchanges numbers with other processes")
    with keeping_generators():
        return _prove_call(attempt) if is_call else _prove(attempt)


def _prove(attempt: Attempt) -> str:
    if attempt.is_random and not attempt.replays:
        return leave_open(
            attempt.subject, "it draws random numbers, which cannot be repeated there"
        )
    try:
        first = attempt.complete(samples.draw(attempt.slots, attempt.numbers))
        originals = attempt.run(first)
    except Exception as error:
        if attempt.whole is not None and not attempt.acts:
            return _prove(replace(attempt, slots=attempt.whole, whole=None))
        return _prove_with_own(attempt, error)
    compared = _compare(attempt, first, originals)
    said_something = compared and not is_vacuous(originals)
    if not attempt.acts:
        for sample in _others(attempt):
            try:
                found = attempt.run(sample := attempt.complete(sample))
            except Exception:  # not every original takes every number
                continue
            compared = _compare(attempt, sample, found)
            said_something = said_something or (compared and not is_vacuous(found))
    if not said_something:
        return leave_open(attempt.subject, "its results are not finite on small inputs")
    return ""


def _prove_call(attempt: Attempt) -> str:
    """Compare the call's own values alone, where they are known and few."""
    own = samples.own_values(attempt.slots, attempt.numbers)
    if own is None or attempt.acts:
        return ""
    try:
        found = attempt.run(own := attempt.complete(own))
    except Exception:  # the call itself says so
        return ""
    _compare(attempt, own, found)
    return ""


def _prove_with_own(attempt: Attempt, error: Exception) -> str:
    """Try the call's own values, where the original takes no others."""
    own = samples.own_values(attempt.slots, attempt.numbers)
    if own is None or attempt.acts:
        return leave_open(attempt.subject, describe(error))
    try:
        found = attempt.run(own := attempt.complete(own))
    except Exception as again:
        return leave_open(attempt.subject, describe(again))
    _compare(attempt, own, found)
    return ""


def _others(attempt: Attempt) -> Iterator[Sample]:
    """Yield further samples: the call's own values under other numbers, and edges."""
    free = {name: value for name, value in attempt.numbers.items() if name not in attempt.fixed}
    numbers = {**attempt.numbers, **samples.vary(free)}
    own = samples.own_values(attempt.slots, numbers)
    if own is not None and own.arrays:
        yield own
    elif free:
        yield samples.draw(attempt.slots, numbers, "other numbers")
    infinite = attempt.infinite and takes_infinity(attempt.graphs)
    values = samples.EDGES if infinite else samples.FINITE_EDGES
    # Which of equal elements comes first is open in some libraries' sorts.
    sorts = any(node.op is ops.ARGSORT for graph in attempt.graphs for node in graph.nodes)
    yield samples.on_edges(attempt.slots, attempt.numbers, values, distinct=sorts)


def _compare(attempt: Attempt, sample: Sample, originals: Mapping[str, Any]) -> bool:
    """Compare one sample; return False where the graph raises on a matrix without an inverse.

    Raises:
        DisprovedError: the results differ, by more than rounding.
    """
    try:
        difference = _differ(attempt, sample, originals)
    except np.linalg.LinAlgError:
        return False
    if difference is None or _is_rounding(attempt, sample, originals):
        return True
    if not attempt.ties and sample.label == samples.OWN and _is_on_an_edge(attempt, sample):
        return True
    raise disprove(attempt.subject, difference, _find_line(attempt, sample))


def _is_on_an_edge(attempt: Attempt, sample: Sample) -> bool:
    """Return whether the sides agree right beside a sample, and in all but derivatives on it."""
    beside = attempt.complete(sample.moved())
    try:
        on, off = attempt.run(sample), attempt.run(beside)
    except Exception:
        return False
    values = replace(attempt, shown=_without_gradients(attempt.shown))
    agree = _differ(values, sample, on) is None or _is_rounding(values, sample, on)
    return agree and (_differ(attempt, beside, off) is None or _is_rounding(attempt, beside, off))


def _without_gradients(shown: Mapping[str, str]) -> dict[str, str]:
    return {name: what for name, what in shown.items() if not what.startswith("the gradient")}


def _differ(attempt: Attempt, sample: Sample, originals: Mapping[str, Any]) -> Difference | None:
    key = KEY if attempt.is_random else None
    graphs = run_graphs(attempt.graphs, attempt.names, sample, key, attempt.dtype)
    shown = attempt.shown
    if not attempt.ties and sample.label == "on edges":
        shown = _without_gradients(shown)
    return find_difference(sample, originals, graphs, count_ops(attempt.graphs), shown)


def _is_rounding(attempt: Attempt, sample: Sample, originals: Mapping[str, Any]) -> bool:
    """Return whether a difference is one of rounding: in the reference's own dtype, or in float64,
    it is gone.
    """
    if _agrees_with_reference(attempt, sample, originals):
        return True
    if attempt.dtype.itemsize == 8:  # constants of float32 in the original
        return _differ(attempt, sample, _narrowed(originals)) is None
    if attempt.acts:
        return False
    if attempt.is_polymorphic:
        wide = replace(
            attempt,
            slots=tuple(
                replace(slot, dtype="float64") if "float" in slot.dtype else slot
                for slot in attempt.slots
            ),
        )
        try:
            found = attempt.run(sample.widened())
        except Exception:
            return False
        return _differ(wide, sample.widened(), _narrowed(found)) is None
    return False


def _narrowed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return float64 results as float32: constants of float32 in the original are forgiven."""
    with np.errstate(all="ignore"):
        return {
            name: a.astype(np.float32) if a is not None and samples.is_float(a) else a
            for name, a in found.items()
        }


def _agrees_with_reference(attempt: Attempt, sample: Sample, originals: Mapping[str, Any]) -> bool:
    """Return whether NumPy's execution of the graph in the sample's own dtype gives the original's
    numbers.
    """
    given: dict[str, Any] = {**sample.arrays, **sample.numbers, "key": KEY}
    try:
        results = [result for graph in attempt.graphs for result in run_reference(graph, given)]
    except (ArithmeticError, MultigradError, TypeError, ValueError):
        return False
    bounded = run_graphs(attempt.graphs, attempt.names, sample, KEY, attempt.dtype)
    reference = {
        name: Bounded(result, bounded[name].largest)
        for name, result in zip(attempt.names, results, strict=True)
    }
    shown = attempt.shown
    return find_difference(sample, originals, reference, count_ops(attempt.graphs), shown) is None


def _find_line(attempt: Attempt, sample: Sample) -> Location | None:
    """Return the first line whose variables differ."""
    files = {where.file for graph in attempt.graphs for where in graph.locations.values()}
    if attempt.subject.code is not None:
        files.add(attempt.subject.code.co_filename)
    given: dict[str, Any] = {**sample.widened().arrays, **sample.numbers, "key": KEY}
    known = {node.attr("name"): node for graph in attempt.graphs for node in graph.inputs}

    def agree(value: Any, symbol: Any) -> bool:
        return _agrees(value, getattr(symbol, "node", None), given, known, attempt)

    if attempt.acts:
        return None
    return find_parting(lambda: attempt.run(sample), attempt.recapture, files, agree)


def _agrees(
    value: Any, node: Any, given: Mapping[str, Any], known: Mapping[str, Node], attempt: Attempt
) -> bool:
    """Return whether a variable of the original is what a node stands for; True where that cannot
    be told.
    """

    if node is None:
        return True
    try:
        backend = backend_of(value)
        found = np.asarray(backend.tensors.to_numpy(value))
        graph = drop_calls(Graph("line", tuple(known.values()), (node,)))
        (bounded,) = run_bounded(graph, given, attempt.dtype)
    except Exception:
        return True
    sample = Sample("line", {})
    shown = {"value": "value"}
    ops = count_ops((graph,))
    return find_difference(sample, {"value": found}, {"value": bounded}, ops, shown) is None
