"""The outcome of one sample: whether it shows a difference, and whose fault that is.

`compare_outcome` asks, in this order, whether original and graph differ at all; whether they do so
under the signs of vectors that the original's library chooses; whether the results depend on what
libraries leave open; and whether the original left its dtype's range, or lies on an edge, where two
derivatives may differ. What is left is a fault of the graph, and is raised with its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.discovery import load_backend
from ....core.functions.recipe import KEY
from ....core.ir.graph import Graph, Location, Node, every_node
from ....core.ir.op import dtype_name
from ...capture.dialect import UNORDERED, told_conventions
from ...lowering.calls import drop_calls
from ...ops.loops import Endless
from . import samples
from .compare import (
    Disagreement,
    are_equal,
    casts_to_integers,
    count_ops,
    eps_of,
    find_difference,
    find_dtype,
    find_off,
)
from .line_tracing import find_parting
from .meanings import (
    Change,
    VectorSigns,
    choose_smallest_integer,
    has_signs,
    note_ties,
    refuse_singular,
    run_bounded,
)
from .rounding import Rounding, as_floats, differ_from_lowered, differ_from_meaning, is_meant
from .run import Attempt, Outcome
from .samples import Sample
from .verdicts import (
    CHOSEN,
    MEANS_ANOTHER,
    MENDED,
    NOT_AS_KNOWN,
    OURS,
    OURS_BUT_FOR_ONE_OUTPUT,
    OURS_BUT_FOR_SIGNS,
    OUT_OF_RANGE,
    VARIES,
    disprove,
    leave_open,
)

SEARCHES = (ops.ARGMAX, ops.ARGMIN, ops.ARGSORT)


def compare_outcome(
    attempt: Attempt, sample: Sample, outcome: Outcome, *, is_call: bool = False
) -> str | None:
    """Return "" if original and graphs agree on a sample, else why that stays open.

    None: the graphs meet a matrix without an inverse there, or a loop that does not end.

    Args:
        is_call: whether the sample is a call's own values, on which alone the two are compared.

    Raises:
        DisprovedError: they differ.
    """
    case = Case(attempt, sample, outcome, is_call)
    try:
        difference = case.find_difference()
        if difference is not None and has_signs(attempt.graphs):
            eps = Rounding(attempt, sample).eps
            _ = Rounding(attempt, sample, partial(refuse_singular, eps)).wide
            difference = case.find_difference(VectorSigns(outcome.home, attempt.dtype))
        if difference is not None and _depends_on_choices(case):
            return leave_open(attempt.subject, CHOSEN)
    except (np.linalg.LinAlgError, Endless):
        return None
    except IndexError:
        if sample.label != samples.FAR:  # its integers are no places
            raise
        return None
    if difference is None or _left_its_range(case):
        return ""
    if attempt.captured.recipe.is_derived and sample.label == samples.OWN and _is_on_an_edge(case):
        return ""
    subject = attempt.subject
    if subject.home and outcome.home:  # where it was found to run, whatever was guessed
        subject = replace(subject, home=outcome.home)
    blame = _blame(case, difference)
    line = None if blame == VARIES else _find_line(case)
    raise disprove(subject, difference, line, blame)


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared: the outcome of an attempt on one sample; `is_call`: see above."""

    attempt: Attempt
    sample: Sample
    outcome: Outcome
    is_call: bool = False

    @property
    def original(self) -> Mapping[str, Any]:
        return self.outcome.original or {}

    def find_difference(
        self, choose: Change | None = None, *, is_in_range: bool = False
    ) -> Disagreement | None:
        """Return the first difference: of dtypes, from the lowered code, or from the meaning.

        Args:
            choose: makes the choices that ops leave open; None: NumPy's.
            is_in_range: compare with the lowered code only, where the original is what is meant.
        """
        attempt, original, lowered = self.attempt, self.original, self.outcome.lowered
        titles = attempt.shown
        if attempt.captured.recipe.is_derived and self._meets_edges():
            titles = _without_gradients(titles)
        # What is meant for all libraries keeps its dtype, which NumPy promotes.
        is_free = attempt.is_neutral and self.outcome.home == "numpy"
        if not is_free:
            difference = find_dtype(self.sample, original, attempt.dtypes, titles)
            if difference is not None:
                return difference
        rounding = Rounding(attempt, self.sample, choose)
        lowered_too = {name: a for name, a in original.items() if name in (lowered or {})}
        if lowered is not None and not are_equal(lowered_too, lowered):
            difference = differ_from_lowered(
                rounding, lowered_too, lowered, titles, is_free=is_free, is_in_range=is_in_range
            )
            if difference is not None:
                return difference
        if is_in_range or not self._may_show_the_meaning():
            return None
        return differ_from_meaning(rounding, original, titles, half=lowered is not None)

    def _may_show_the_meaning(self) -> bool:
        # False if other samples show it better: what overflows says nothing of it, and the call's
        # own values are as good as any.
        label = self.sample.label
        if self.outcome.lowered is None or (self.is_call and label == samples.OWN):
            return True
        # A proof in another dtype has compared the same meaning in float64.
        is_known = "" in self.attempt.captured.variant.proofs.values()
        return not (is_known or label in (samples.FAR, samples.OWN))

    def _meets_edges(self) -> bool:
        # NaN, as of sums out of range, is an edge, too.
        if self.sample.label != samples.FAR:
            return self.sample.label == samples.ON_EDGES
        names = _without_gradients(self.attempt.shown)
        outputs = [self.original[name] for name in names if name in self.original]
        return any(not np.isfinite(as_floats(a)).all() for a in outputs if samples.is_float(a))


def _without_gradients(shown: Mapping[str, str]) -> dict[str, str]:
    # "gradient of x", "second derivative of x": no output has a name with " of ".
    return {name: title for name, title in shown.items() if " of " not in name}


# --- differences that are no fault ----------------------------------------------------------------
def _depends_on_choices(case: Case) -> bool:
    # Each function of a library chooses the signs of vectors and the order of equal elements.
    attempt, sample, outcome = case.attempt, case.sample, case.outcome
    if attempt.captured.may_act or find_dtype(sample, case.original, attempt.dtypes, attempt.shown):
        return False
    if has_signs(attempt.graphs):
        sides = [side for side in (outcome.original, outcome.lowered) if side is not None]
        return all(_fits_some_signs(case, side) for side in sides)
    if not any(told_conventions(graph, UNORDERED) for graph in attempt.graphs):
        return False
    ties: list[Node] = []
    _ = Rounding(attempt, sample, partial(note_ties, ties)).wide
    return bool(ties) and _agree_beside(case)


def _fits_some_signs(case: Case, results: Mapping[str, Any]) -> bool:
    # One choice of signs has to explain all results.
    signs = VectorSigns(case.outcome.home, case.attempt.dtype)

    def cost() -> float:
        expected = Rounding(case.attempt, case.sample, signs).wide
        errors = [
            as_floats(results[n]) - as_floats(each.value)
            for n, each in expected.items()
            if n in results
        ]
        return float(sum(np.sum(np.square(each[np.isfinite(each)])) for each in errors))

    with np.errstate(all="ignore"):
        signs.fit(cost)
    return _is_meant_under(case, results, signs)


def _is_meant_under(case: Case, results: Mapping[str, Any], choose: Change) -> bool:
    rounding = Rounding(case.attempt, case.sample, choose)
    return not differ_from_meaning(rounding, results, case.attempt.shown, half=True)


def _left_its_range(case: Case) -> bool:
    # The original may lose to its dtype's range: in float64 it is what its graph means, and where
    # it is so in its own dtype, the lowered code is, too.
    attempt, sample = case.attempt, case.sample
    if sample.label != samples.FAR or attempt.captured.may_act or not sample.is_narrow():
        return False
    wide_sample = sample.widened()
    try:
        (wide_outcome,) = attempt.run([wide_sample])
    except Exception:  # it takes no float64
        return False
    is_own = wide_outcome.original is not None and is_meant(
        Rounding(attempt, wide_sample), wide_outcome.original, attempt.shown
    )
    if not is_own:
        return False
    # Among numbers that overflowed on the way, a search may find any place, on either side.
    has_search = any(node.op in SEARCHES for graph in attempt.graphs for node in graph.nodes)
    return has_search or case.find_difference(is_in_range=True) is None


def _is_on_an_edge(case: Case) -> bool:
    # True if the sides agree next to the sample, and on it in all but derivatives.
    values = replace(case.attempt, shown=_without_gradients(case.attempt.shown))
    difference = replace(case, attempt=values, is_call=True).find_difference()
    return difference is None and _agree_beside(case)


def _agree_beside(case: Case) -> bool:
    # Next to the sample no two elements are equal, so there are no ties.
    attempt = case.attempt
    neighbor = attempt.add_cotangents(case.sample.moved())
    try:
        (outcome,) = attempt.run([neighbor])
        difference = Case(attempt, neighbor, outcome, is_call=True).find_difference()
        return outcome.original is not None and difference is None
    except Exception:
        return False


# --- whose fault it is, and in which line ---------------------------------------------------------
def _blame(case: Case, difference: Disagreement) -> str:
    attempt = case.attempt
    if _varies(case):
        return VARIES
    if read_as := attempt.subject.read_as:
        return MEANS_ANOTHER.format(read_as, case.outcome.home)
    if casts_to_integers(attempt.graphs) and _is_meant_under(
        case, case.original, choose_smallest_integer
    ):
        return OUT_OF_RANGE
    conventions = [each for graph in attempt.graphs for each in told_conventions(graph)]
    is_slope = " of " in difference.what
    if conventions and is_slope and not attempt.captured.may_act and _agree_beside(case):
        return f"The graph takes the derivative {conventions[0]}. {NOT_AS_KNOWN}"
    outputs = attempt.graphs[0].outputs  # of the forward; equal nodes are one
    if is_slope and len({*outputs}) < len(outputs):
        return OURS_BUT_FOR_ONE_OUTPUT
    is_nan = isinstance(difference.original, np.floating) and np.isnan(difference.original)
    if is_nan and (known := _find_mended(case)):
        return MENDED.format(known)
    return OURS_BUT_FOR_SIGNS if has_signs(attempt.graphs) else OURS


def _find_mended(case: Case) -> str:
    # Which kernel of the graphs' ops is known to give NaN, where our own replaces it.
    home, dtype = case.outcome.home, dtype_name(case.attempt.dtype)
    names = {node.op.name for graph in case.attempt.graphs for node in every_node(graph)}
    for row in load_backend(home).differences.mended if home else ():
        is_told = row.figure.startswith("NaN") and (row.dtypes == "all" or dtype in row.dtypes)
        for kernel in row.kernel.split(", ") if is_told else ():
            if kernel.rpartition(".")[2] in names:
                return f"{kernel} of {home} in {row.dtypes}: {row.figure}"
    return ""


def _varies(case: Case) -> bool:
    if case.attempt.captured.may_act or case.outcome.original is None:
        return False
    try:
        (second_outcome,) = case.attempt.run([case.sample])
    except Exception:  # which the first run did not raise
        return True
    return not are_equal(case.outcome.original, second_outcome.original or {})


def _find_line(case: Case) -> Location | None:
    attempt, sample = case.attempt, case.sample
    if attempt.captured.may_act:
        return None
    files = {location.file for graph in attempt.graphs for location in graph.locations.values()}
    if attempt.subject.code is not None:
        files.add(attempt.subject.code.co_filename)
    inputs: dict[str, Any] = {**sample.widened().arrays, **sample.numbers, "key": KEY}
    nodes = {node.attr("name"): node for graph in attempt.graphs for node in graph.inputs}

    def agree(value: Any, node: Any) -> bool:
        if isinstance(value, tuple) and isinstance(node, tuple) and len(value) == len(node):
            return all(map(agree, value, node))
        if not isinstance(node, Node) or not isinstance(value, np.ndarray):
            return True
        return _agrees(value, Graph("line", tuple(nodes.values()), (node,)), inputs, attempt.dtype)

    copies = {name: array.copy() for name, array in sample.arrays.items()}
    by_lines = replace(sample, label=samples.BY_LINES, arrays=copies)
    return find_parting(lambda: attempt.run([by_lines]), attempt.recapture, files, agree)


def _agrees(array: Any, graph: Graph, inputs: Mapping[str, Any], dtype: Any) -> bool:
    # True also if the two cannot be compared.
    try:
        graph = drop_calls(graph)
        (bounded,) = run_bounded(graph, inputs, dtype)
    except Exception:
        return True
    judge = partial(find_off, ops=count_ops((graph,)), eps=eps_of(dtype), half=True)
    titles = {"value": "value"}
    line = Sample("line", {})
    return find_difference(line, {"value": array}, {"value": bounded}, judge, titles) is None
