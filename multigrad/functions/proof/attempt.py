"""One attempt at a proof: sample after sample, the original beside its graph in float64 and beside
what that is lowered to; rounding is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ...backend.finding.discovery import backend_of
from ...capture.code.conventions import told_conventions
from ...graph import ops
from ...graph.ir.graph import Graph, Location, Node
from ...graph.ops.arrays.loops import Endless, turning_at_most
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.support.data import dataclass
from ...trace.derived.calls import drop_calls
from . import samples
from .bounded import run_bounded
from .compare import (
    Difference,
    Judge,
    are_equal,
    casts_to_integers,
    count_ops,
    eps_of,
    find_difference,
    find_dtype,
    is_vacuous,
    takes_infinity,
)
from .endless import MOST_TURNS
from .rounding import (
    Rounding,
    as_floats,
    differ_from_lowered,
    differ_from_meaning,
    is_meant,
    run_in_own_dtype,
)
from .run import KEY, Outcome, keeping_generators
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
        dtypes: those of results as the graphs have them.
        is_neutral: whether code means no library's promotions; NumPy's are not those of the others.
        acts: whether the original may have side effects, so that it runs once.
        run: both sides on samples; raises what the original raises for the first of them.
        recapture: captures once more, to find the line where the two part.
        complete: adds to a sample what follows from it.
        whole: the tensors in the call's own shapes, for an original that takes no smaller ones.
        replays: whether the original's draws take the graph's keys.
        infinite: whether inf and NaN mean the same on both sides.
        is_again: whether the graphs were compared in another dtype already: float64's meaning of
            them is the same in each.
        coarseness: how far off the original's library is by itself, whatever the dtype.
        is_generic: whether numbers in code take the dtype of what they meet, as a rule's do.
        ties: whether somebody wrote the derivative: those that frameworks derive differ in
            rounding, and on edges.
    """

    subject: Subject
    graphs: tuple[Graph, ...]
    names: tuple[str, ...]
    shown: Mapping[str, str]
    dtypes: Mapping[str, str]
    slots: tuple[Slot, ...]
    numbers: Mapping[str, Any]
    fixed: frozenset[str]
    acts: bool
    is_random: bool
    run: Callable[[Sequence[Sample]], list[Outcome]]
    recapture: Callable[[], Any]
    complete: Callable[[Sample], Sample] = _as_it_is
    whole: tuple[Slot, ...] | None = None
    is_neutral: bool = False
    is_generic: bool = False
    coarseness: float = 0.0
    ties: bool = True
    replays: bool = True
    infinite: bool = True
    is_again: bool = False

    @property
    def dtype(self) -> Any:
        """That of the first float tensor."""
        return as_numpy_dtype(samples.first_float(self.slots))

    @property
    def seeds(self) -> tuple[str, ...]:
        """The cotangents' names, where the graphs read them."""
        nodes = dict.fromkeys(node for graph in self.graphs for node in graph.inputs)
        names = [node.attr("name") for node in nodes]
        return tuple(name for name in names if name.startswith("grad_out_"))

    @property
    def turns(self) -> bool:
        """Whether a graph has a loop that values end."""
        return any(n.op is ops.WHILE_LOOP for graph in self.graphs for n in graph.nodes)


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
    with keeping_generators(), turning_at_most(MOST_TURNS):
        return _prove_call(attempt) if is_call else _prove(attempt)


def _prove(attempt: Attempt) -> str:
    if attempt.is_random and not attempt.replays:
        return leave_open(
            attempt.subject, "it draws random numbers, which cannot be repeated there"
        )
    try:
        first = attempt.complete(samples.draw(attempt.slots, attempt.numbers))
        given = [first] if attempt.acts else [first, *_others(attempt)]
        if attempt.turns:
            given = [sample for sample in given if _ends(attempt, sample)]
        if not given:
            raise Endless(f"a loop has not ended after {MOST_TURNS:,} turns on made-up numbers")
        outcomes = attempt.run(given)
    except Exception as error:
        if attempt.whole is not None and not attempt.acts and not isinstance(error, Endless):
            return _prove(replace(attempt, slots=attempt.whole, whole=None))
        return _prove_with_own(attempt, error)
    said_something = False
    for sample, outcome in zip(given, outcomes, strict=True):
        if outcome.original is None:  # not every original takes every number
            continue
        compared = _compare(attempt, sample, outcome)
        said_something = said_something or (compared and not is_vacuous(outcome.original))
    if not said_something:
        return leave_open(attempt.subject, "its results are not finite on small inputs")
    return ""


def _ends(attempt: Attempt, sample: Sample) -> bool:
    """Return whether the graphs' loops end on a sample: a compiled one could not be stopped."""
    rounding = _rounding(attempt, sample)
    try:
        run_in_own_dtype(rounding)
    except Endless:
        return False
    return True


def _prove_call(attempt: Attempt) -> str:
    """Compare the call's own values alone, where they are known and few."""
    own = samples.own_values(attempt.slots, attempt.numbers)
    if own is None or attempt.acts:
        return ""
    try:
        (outcome,) = attempt.run([own := attempt.complete(own)])
    except Exception:  # the call itself says so
        return ""
    _compare(attempt, own, outcome, is_call=True)
    return ""


def _prove_with_own(attempt: Attempt, error: Exception) -> str:
    """Try the call's own values, where the original takes no others."""
    own = samples.own_values(attempt.slots, attempt.numbers)
    if own is None or attempt.acts:
        return leave_open(attempt.subject, describe(error))
    try:
        (outcome,) = attempt.run([own := attempt.complete(own)])
    except Exception as again:
        return leave_open(attempt.subject, describe(again))
    _compare(attempt, own, outcome, is_call=True)
    return ""


def _others(attempt: Attempt) -> Iterator[Sample]:
    """Yield further samples: the call's own values under other numbers, edges, numbers far out."""
    free = {name: value for name, value in attempt.numbers.items() if name not in attempt.fixed}
    numbers = {**attempt.numbers, **samples.vary(free)}
    own = samples.own_values(attempt.slots, numbers)
    if own is not None and own.arrays:
        yield attempt.complete(own)
    elif free:
        yield attempt.complete(samples.draw(attempt.slots, numbers, "other numbers"))
    infinite = attempt.infinite and takes_infinity(attempt.graphs)
    values = samples.EDGES if infinite else samples.FINITE_EDGES
    # Which of equal elements comes first is open in some libraries' sorts.
    sorts = any(node.op is ops.ARGSORT for graph in attempt.graphs for node in graph.nodes)
    yield attempt.complete(samples.on_edges(attempt.slots, attempt.numbers, values, distinct=sorts))
    drawn = samples.draw(attempt.slots, attempt.numbers, samples.ALONE)
    if len(attempt.seeds) > 1:  # a loss of one output alone
        yield attempt.complete(replace(drawn, absent=frozenset(attempt.seeds[1:])))
    # Of floats out of range, each library makes other integers.
    whole = casts_to_integers(attempt.graphs)
    with suppress(Exception):  # cotangents of it may have no shape
        far = samples.draw_far(attempt.slots, attempt.numbers, only_whole=whole)
        yield attempt.complete(far)


# --- the comparison -------------------------------------------------------------------------------


def _compare(attempt: Attempt, sample: Sample, outcome: Outcome, *, is_call: bool = False) -> bool:
    """Compare one sample; return False where the graph raises on a matrix without an inverse.

    Raises:
        DisprovedError: the results differ, by more than rounding.
    """
    try:
        difference = _differ(attempt, sample, outcome, is_call)
    except (np.linalg.LinAlgError, Endless):
        return False
    except IndexError:
        if sample.label != samples.FAR:  # its integers are no places
            raise
        return False
    if difference is None or _left_its_range(attempt, sample, outcome):
        return True
    if not attempt.ties and sample.label == samples.OWN and _is_on_an_edge(attempt, sample):
        return True
    subject = attempt.subject
    if subject.home and outcome.home:  # where it was found to run, whatever was guessed
        subject = replace(subject, home=outcome.home)
    if _varies(attempt, sample, outcome):
        raise disprove(subject, difference, None, is_ours=False)
    told = dict.fromkeys(told for graph in attempt.graphs for told in told_conventions(graph))
    raise disprove(subject, difference, _find_line(attempt, sample), rests_on=tuple(told))


def _varies(attempt: Attempt, sample: Sample, outcome: Outcome) -> bool:
    """Return whether the original gives something else when it runs again."""
    if attempt.acts or outcome.original is None:
        return False
    try:
        (again,) = attempt.run([sample])
    except Exception:  # as it did not before
        return True
    return not are_equal(outcome.original, again.original or {})


def _left_its_range(attempt: Attempt, sample: Sample, outcome: Outcome) -> bool:
    """Return whether what differs is only what the original lost to its dtype's range: in float64
    it is what its graph means, and where it is so in its own dtype, the lowered code is, too.
    """
    wide = sample.widened()
    if sample.label != samples.FAR or attempt.acts or not sample.is_narrow():
        return False
    try:
        (again,) = attempt.run([wide])
    except Exception:  # it takes no float64
        return False
    original = again.original
    if original is None or not is_meant(_rounding(attempt, wide), original, attempt.shown):
        return False
    return _differ(attempt, sample, outcome, is_in_range=True) is None


def _is_on_an_edge(attempt: Attempt, sample: Sample) -> bool:
    """Return whether the sides agree right beside a sample, and in all but derivatives on it."""
    beside = attempt.complete(sample.moved())
    try:
        on, off = attempt.run([sample, beside])
    except Exception:
        return False
    if off.original is None:
        return False
    values = replace(attempt, shown=_without_gradients(attempt.shown))
    return _differ(values, sample, on, True) is None and _differ(attempt, beside, off, True) is None


def _meets_edges(attempt: Attempt, sample: Sample, original: Mapping[str, Any]) -> bool:
    """Return whether derivatives are asked for on edges: NaN, to which sums out of range come, is
    one of each kink.
    """
    if sample.label != samples.FAR:
        return sample.label == "on edges"
    outputs = [original[name] for name in _without_gradients(attempt.shown) if name in original]
    return any(not np.isfinite(as_floats(a)).all() for a in outputs if samples.is_float(a))


def _without_gradients(shown: Mapping[str, str]) -> dict[str, str]:
    return {name: what for name, what in shown.items() if " of " not in name}


def _least(attempt: Attempt, rounding: Rounding) -> float:
    """Return how coarsely numbers may be rounded, whatever the dtype."""
    own = rounding.eps_of_numbers() if attempt.is_generic else 0.0
    return max(own, attempt.coarseness)


def _rounding(attempt: Attempt, sample: Sample) -> Rounding:
    return Rounding(attempt.graphs, attempt.names, sample, attempt.dtype)


def _differ(
    attempt: Attempt,
    sample: Sample,
    outcome: Outcome,
    is_call: bool = False,
    is_in_range: bool = False,
) -> Difference | None:
    """Return where the original is not what it is lowered to, or not what its graphs mean.

    Args:
        is_in_range: only where the original is what its graphs mean.
    """
    original, shown = outcome.original or {}, attempt.shown
    if not attempt.ties and _meets_edges(attempt, sample, original):
        shown = _without_gradients(shown)
    rounding = _rounding(attempt, sample)
    difference = None
    # What is meant for all libraries keeps its dtype, which NumPy promotes.
    is_free = attempt.is_neutral and outcome.home == "numpy"
    if not is_free:
        difference = find_dtype(sample, original, attempt.dtypes, shown)
    if difference is None and outcome.lowered is not None:
        known = {name: a for name, a in original.items() if name in outcome.lowered}
        if not are_equal(known, outcome.lowered):
            difference = differ_from_lowered(
                rounding,
                known,
                outcome.lowered,
                shown,
                is_free=is_free,
                least=_least(attempt, rounding),
                is_in_range=is_in_range,
                is_derived=not attempt.ties,
            )
    if difference is not None or is_in_range:
        return difference
    # What overflows says nothing of meanings; the call's own values are as good as any.
    told = attempt.is_again or sample.label in (samples.FAR, samples.OWN)
    if (is_call and sample.label == samples.OWN) or not told or outcome.lowered is None:
        return differ_from_meaning(
            rounding,
            original,
            shown,
            half=outcome.lowered is not None,
            least=_least(attempt, rounding),
            is_derived=not attempt.ties,
        )
    return None


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
    return find_parting(lambda: attempt.run([sample]), attempt.recapture, files, agree)


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
    judge = Judge(count_ops((graph,)), eps_of(attempt.dtype), half=True)
    return find_difference(sample, {"value": found}, {"value": bounded}, judge, shown) is None
