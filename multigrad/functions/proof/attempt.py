"""One attempt at a proof: on each sample, the original against its graph and its lowered code.

The graph runs in float64. Rounding is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...capture.dialect import UNORDERED, told_conventions
from ...capture.user_code.snapshot import Snapshot
from ...errors import TraceError
from ...graph import ops
from ...graph.ir.graph import Graph, Location, Node
from ...graph.ops.arrays.loops import Endless, turning_at_most
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.support.class_bases import dataclass
from ...trace.derived.custom_calls import drop_calls
from . import samples
from .bounded import MOST_TURNS, Change, run_bounded
from .choices import VectorSigns, choose_smallest_integer, has_signs, note_ties
from .compare import (
    Disagreement,
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
from .line_tracing import find_parting
from .rounding import (
    Rounding,
    as_floats,
    differ_from_lowered,
    differ_from_meaning,
    is_meant,
    run_in_own_dtype,
)
from .run import KEY, Outcome
from .samples import InputSlot, Sample
from .verdicts import (
    CHOSEN,
    NOT_AS_KNOWN,
    OURS,
    OURS_BUT_FOR_SIGNS,
    OUT_OF_RANGE,
    VARIES,
    ProofSubject,
    describe,
    disprove,
    leave_open,
)

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
        outside: the functions that the original runs, and the objects that it is given.
        ties: whether somebody wrote the derivative: those that frameworks derive differ in
            rounding, and on edges.
    """

    subject: ProofSubject
    graphs: tuple[Graph, ...]
    names: tuple[str, ...]
    shown: Mapping[str, str]
    dtypes: Mapping[str, str]
    slots: tuple[InputSlot, ...]
    numbers: Mapping[str, Any]
    fixed: frozenset[str]
    acts: bool
    is_random: bool
    run: Callable[[Sequence[Sample]], list[Outcome]]
    recapture: Callable[[], Any]
    complete: Callable[[Sample], Sample] = _as_it_is
    whole: tuple[InputSlot, ...] | None = None
    is_neutral: bool = False
    is_generic: bool = False
    coarseness: float = 0.0
    ties: bool = True
    replays: bool = True
    infinite: bool = True
    is_again: bool = False
    outside: tuple[Sequence[Any], Sequence[Any]] = ((), ())

    @property
    def dtype(self) -> Any:
        return as_numpy_dtype(samples.first_float(self.slots))

    @property
    def seeds(self) -> tuple[str, ...]:
        """The cotangents' names, where the graphs read them."""
        nodes = dict.fromkeys(node for graph in self.graphs for node in graph.inputs)
        names = [node.attr("name") for node in nodes]
        return tuple(name for name in names if name.startswith("grad_out_"))

    @property
    def ops(self) -> set[ops.Op]:
        """The ops of the graphs."""
        return {node.op for graph in self.graphs for node in graph.nodes}

    @property
    def turns(self) -> bool:
        return ops.WHILE_LOOP in self.ops


def prove(attempt: Attempt, *, is_call: bool = False) -> str:
    """Return "" if original and graph agree, else why that could not be found out.

    Raises:
        DisprovedError: they differ.
    """
    if any(op.collective for op in attempt.ops):
        # The others may not be capturing, and would be waited for.
        return leave_open(attempt.subject, "it exchanges numbers with other processes")
    values = _own_values(attempt) if is_call else None
    if is_call and values is None:
        return ""
    # What the original changes outside itself is undone.
    outside = Snapshot()
    outside.see_all(*attempt.outside)
    try:
        with turning_at_most(MOST_TURNS):
            reason = (
                _prove(attempt) if values is None else _prove_own(attempt, values, is_call=True)
            )
    finally:
        outside.restore()
    if outside.change and not is_call:
        raise TraceError(f"{attempt.subject.words} {outside.change}, which a graph does not do")
    return reason


def _prove(attempt: Attempt) -> str:
    if attempt.is_random and not attempt.replays:
        return leave_open(
            attempt.subject, "it draws random numbers, which cannot be repeated there"
        )
    try:
        first = attempt.complete(samples.draw(attempt.slots, attempt.numbers))
        # Code that may act runs once.
        drawn = [first] if attempt.acts else [first, *_others(attempt)]
        if attempt.turns:
            drawn = [sample for sample in drawn if _ends(attempt, sample)]
        if not drawn:
            raise Endless(f"a loop has not ended after {MOST_TURNS:,} turns on made-up numbers")
        outcomes = attempt.run(drawn)
    except Exception as error:
        # The original may accept no shapes but the call's own.
        if attempt.whole is not None and not attempt.acts and not isinstance(error, Endless):
            return _prove(replace(attempt, slots=attempt.whole, whole=None))
        values = _own_values(attempt)  # where it takes no others
        if values is None:
            return leave_open(attempt.subject, describe(error))
        return _prove_own(attempt, values, is_call=False)
    reasons = []
    for sample, outcome in zip(drawn, outcomes, strict=True):
        if outcome.original is None:  # not every original takes every number
            continue
        reason = _compare(attempt, sample, outcome)
        if reason is not None and (reason or not reasons) and not is_vacuous(outcome.original):
            reasons.append(reason)
    if not reasons:
        return leave_open(attempt.subject, "its results are not finite on small inputs")
    return max(reasons)


def _ends(attempt: Attempt, sample: Sample) -> bool:
    # The graphs run here, not the original: one that is compiled could not be stopped.
    rounding = _rounding(attempt, sample)
    try:
        run_in_own_dtype(rounding)
    except Endless:
        return False
    return True


def _own_values(attempt: Attempt) -> Sample | None:
    # None if the values are unknown or too many, or if the original must run only once.
    return None if attempt.acts else samples.own_values(attempt.slots, attempt.numbers)


def _prove_own(attempt: Attempt, sample: Sample, is_call: bool) -> str:
    # If the original does not take these values, the call itself says so.
    try:
        (outcome,) = attempt.run([sample := attempt.complete(sample)])
    except Exception as error:
        return "" if is_call else leave_open(attempt.subject, describe(error))
    return _compare(attempt, sample, outcome, is_call=True) or ""


def _others(attempt: Attempt) -> Iterator[Sample]:
    # In this order: the call's own values under other numbers, edges, numbers far out.
    free = {name: value for name, value in attempt.numbers.items() if name not in attempt.fixed}
    numbers = {**attempt.numbers, **samples.vary(free)}
    called = samples.own_values(attempt.slots, numbers)
    if called is not None and called.arrays:
        yield attempt.complete(called)
    elif free:
        yield attempt.complete(samples.draw(attempt.slots, numbers, "other numbers"))
    infinite = attempt.infinite and takes_infinity(attempt.graphs)
    values = samples.EDGES if infinite else samples.FINITE_EDGES
    # Which of equal elements comes first is open in some libraries' sorts.
    sorts = ops.ARGSORT in attempt.ops
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


def _compare(
    attempt: Attempt, sample: Sample, outcome: Outcome, *, is_call: bool = False
) -> str | None:
    # None if the graph meets a matrix without an inverse, or a loop that does not end.
    try:
        difference = _differ(attempt, sample, outcome, is_call)
        if difference is not None and has_signs(attempt.graphs):
            signs = VectorSigns(outcome.home, attempt.dtype)  # that the original's library chooses
            difference = _differ(attempt, sample, outcome, is_call, choose=signs)
        if difference is not None and _is_open(attempt, sample, outcome):
            return leave_open(attempt.subject, CHOSEN)
    except (np.linalg.LinAlgError, Endless):
        return None
    except IndexError:
        if sample.label != samples.FAR:  # its integers are no places
            raise
        return None
    if difference is None or _left_its_range(attempt, sample, outcome):
        return ""
    is_derived = not attempt.ties and sample.label == samples.OWN
    if is_derived and _is_on_an_edge(attempt, sample, outcome):
        return ""
    subject = attempt.subject
    if subject.home and outcome.home:  # where it was found to run, whatever was guessed
        subject = replace(subject, home=outcome.home)
    blame = _blame(attempt, sample, outcome, difference)
    line = None if blame == VARIES else _find_line(attempt, sample)
    raise disprove(subject, difference, line, blame)


def _varies(attempt: Attempt, sample: Sample, outcome: Outcome) -> bool:
    if attempt.acts or outcome.original is None:
        return False
    try:
        (again,) = attempt.run([sample])
    except Exception:  # as it did not before
        return True
    return not are_equal(outcome.original, again.original or {})


def _left_its_range(attempt: Attempt, sample: Sample, outcome: Outcome) -> bool:
    # The original may lose to its dtype's range: in float64 it is what its graph means, and where
    # it is so in its own dtype, the lowered code is, too.
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


def _is_on_an_edge(attempt: Attempt, sample: Sample, outcome: Outcome) -> bool:
    # True if the sides agree next to the sample, and on it in all but derivatives.
    values = replace(attempt, shown=_without_gradients(attempt.shown))
    return _differ(values, sample, outcome, True) is None and _agree_beside(attempt, sample)


def _agree_beside(attempt: Attempt, sample: Sample) -> bool:
    # Next to the sample no two elements are equal, so there are no ties.
    beside = attempt.complete(sample.moved())
    try:
        (outcome,) = attempt.run([beside])
        return outcome.original is not None and not _differ(attempt, beside, outcome, True)
    except Exception:
        return False


def _meets_edges(attempt: Attempt, sample: Sample, original: Mapping[str, Any]) -> bool:
    # NaN, as of sums out of range, is an edge, too.
    if sample.label != samples.FAR:
        return sample.label == "on edges"
    outputs = [original[name] for name in _without_gradients(attempt.shown) if name in original]
    return any(not np.isfinite(as_floats(a)).all() for a in outputs if samples.is_float(a))


def _without_gradients(shown: Mapping[str, str]) -> dict[str, str]:
    return {name: what for name, what in shown.items() if " of " not in name}


def _least(attempt: Attempt, rounding: Rounding) -> float:
    eps = rounding.eps_of_numbers() if attempt.is_generic else 0.0
    return max(eps, attempt.coarseness)


def _rounding(attempt: Attempt, sample: Sample, choose: Change | None = None) -> Rounding:
    return Rounding(attempt.graphs, attempt.names, sample, attempt.dtype, choose)


def _is_open(attempt: Attempt, sample: Sample, outcome: Outcome) -> bool:
    # Libraries choose the signs of vectors and the order of equal elements, even differently in two
    # of their functions.
    if attempt.acts or find_dtype(sample, outcome.original or {}, attempt.dtypes, attempt.shown):
        return False
    if has_signs(attempt.graphs):
        sides = [side for side in (outcome.original, outcome.lowered) if side is not None]
        return all(_fits(attempt, sample, side, outcome.home) for side in sides)
    if not any(told_conventions(graph, UNORDERED) for graph in attempt.graphs):
        return False
    ties: list[Node] = []
    _ = _rounding(attempt, sample, partial(note_ties, ties)).wide
    return bool(ties) and _agree_beside(attempt, sample)


def _fits(attempt: Attempt, sample: Sample, results: Mapping[str, Any], home: str) -> bool:
    # One choice of signs has to explain all results.
    signs = VectorSigns(home, attempt.dtype)

    def cost() -> float:
        wide = _rounding(attempt, sample, signs).wide
        apart = [
            as_floats(results[n]) - as_floats(each.value)
            for n, each in wide.items()
            if n in results
        ]
        return float(sum(np.sum(np.square(each[np.isfinite(each)])) for each in apart))

    with np.errstate(all="ignore"):
        signs.fit(cost)
    return _is_meant(attempt, sample, results, signs)


def _is_meant(attempt: Attempt, sample: Sample, results: Mapping[str, Any], choose: Change) -> bool:
    rounding = _rounding(attempt, sample, choose)
    least, is_derived = _least(attempt, rounding), not attempt.ties
    return not differ_from_meaning(
        rounding, results, attempt.shown, half=True, least=least, is_derived=is_derived
    )


def _blame(attempt: Attempt, sample: Sample, outcome: Outcome, difference: Disagreement) -> str:
    if _varies(attempt, sample, outcome):
        return VARIES
    if casts_to_integers(attempt.graphs) and _is_meant(
        attempt, sample, outcome.original or {}, choose_smallest_integer
    ):
        return OUT_OF_RANGE
    told = [told for graph in attempt.graphs for told in told_conventions(graph)]
    is_slope = " of " in difference.what
    if told and is_slope and not attempt.acts and _agree_beside(attempt, sample):
        return f"The graph takes the derivative {told[0]}. {NOT_AS_KNOWN}"
    return OURS_BUT_FOR_SIGNS if has_signs(attempt.graphs) else OURS


def _differ(
    attempt: Attempt,
    sample: Sample,
    outcome: Outcome,
    is_call: bool = False,
    is_in_range: bool = False,
    choose: Change | None = None,
) -> Disagreement | None:
    # `is_in_range`: count only differences where the original is what its graphs mean. `choose`
    # makes the choices that ops leave open.
    original, shown = outcome.original or {}, attempt.shown
    if not attempt.ties and _meets_edges(attempt, sample, original):
        shown = _without_gradients(shown)
    rounding = _rounding(attempt, sample, choose)
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
    files = {where.file for graph in attempt.graphs for where in graph.locations.values()}
    if attempt.subject.code is not None:
        files.add(attempt.subject.code.co_filename)
    inputs: dict[str, Any] = {**sample.widened().arrays, **sample.numbers, "key": KEY}
    known = {node.attr("name"): node for graph in attempt.graphs for node in graph.inputs}

    def agree(value: Any, node: Any) -> bool:
        if isinstance(value, tuple) and isinstance(node, tuple) and len(value) == len(node):
            return all(map(agree, value, node))
        return _agrees(value, node, inputs, known, attempt)

    if attempt.acts:
        return None
    slow = replace(
        sample, label=samples.BY_LINES, arrays={n: a.copy() for n, a in sample.arrays.items()}
    )
    return find_parting(lambda: attempt.run([slow]), attempt.recapture, files, agree)


def _agrees(
    array: Any, node: Any, inputs: Mapping[str, Any], known: Mapping[str, Node], attempt: Attempt
) -> bool:
    # True also if the two cannot be compared.
    if not isinstance(node, Node) or not isinstance(array, np.ndarray):
        return True
    try:
        graph = drop_calls(Graph("line", tuple(known.values()), (node,)))
        (bounded,) = run_bounded(graph, inputs, attempt.dtype)
    except Exception:
        return True
    sample = Sample("line", {})
    shown = {"value": "value"}
    judge = Judge(count_ops((graph,)), eps_of(attempt.dtype), half=True)
    return find_difference(sample, {"value": array}, {"value": bounded}, judge, shown) is None
