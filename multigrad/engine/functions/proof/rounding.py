"""The differences that rounding may make, measured: graphs run with steps rounded at random.

A formula may magnify its roundings until few digits are left, and an iteration may end a turn
earlier. So the graph is run RUNS times in float64, each step rounded as its dtype would be, and
the spread of these runs tells what rounding may do to each element. A wrong constant, or a step in
another dtype, is no rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.functions.recipe import KEY
from ....core.ir.graph import Graph
from ....core.ir.op import BOOL, FLOATS, T
from ....core.ops.numerics import as_numpy_dtype
from ....core.support.records import cached_property
from ....errors import MultigradError
from ...lowering.calls import drop_calls
from ...lowering.plain_functions import run_reference
from .compare import (
    Disagreement,
    count_ops,
    eps_of,
    find_difference,
    find_off,
    largest_of,
    smallest_of,
)
from .meanings import Bounded, Change, magnitude, run_bounded, run_rounded
from .run import Attempt, coarseness_of
from .samples import FAR, Sample, is_float

Array = Any
RUNS = 6
COARSEST = 1.0  # an eps that caps nothing
UNSETTLED = 0.1  # of a result: an iteration that roundings move so far has no digits
MOST_SPREADS = 8  # a right result may lie so many times as far off as the runs spread
QUOTIENTS = (ops.DIV, ops.MEAN, ops.VAR, ops.STD)
MOST_READ = 1_024  # elements of an array


class Rounding:
    """How far roundings spread the results of an attempt's graphs on one sample.

    `choose` makes the choices that ops leave open; None: NumPy's. `eps` is that of the coarsest
    dtype among the sample's floats.
    """

    def __init__(self, attempt: Attempt, sample: Sample, choose: Change | None = None) -> None:
        self.attempt, self.sample, self.choose = attempt, sample, choose
        self.names, self.dtype = attempt.names, attempt.dtype
        floats = [array.dtype for array in sample.arrays.values() if is_float(array)]
        self.eps = max([eps_of(each) for each in floats], default=eps_of(self.dtype))
        self._spreads: dict[tuple[float, float], dict[str, Array]] = {}

    @cached_property
    def graphs(self) -> list[Graph]:
        return [drop_calls(graph) for graph in self.attempt.graphs]

    @cached_property
    def least(self) -> float:
        """How coarsely each step may be rounded at least, whatever its dtype."""
        inexact = coarseness_of(self.attempt.dialect, self.attempt.graphs)
        # Numbers in a rule take the dtype of what they meet.
        is_rule = self.attempt.captured.recipe.noun == "rule"
        return max(inexact, self._eps_of_numbers() if is_rule else 0.0)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        return {**self.sample.widened().arrays, **self.sample.numbers, "key": KEY}

    @cached_property
    def wide(self) -> dict[str, Bounded]:
        values = run_bounded(self.graphs, self.inputs, self.dtype, self.choose)
        return dict(zip(self.names, values, strict=True))

    def unexplained(
        self,
        name: str,
        actual: Array,
        expected: Array,
        off: Array,
        cap: float,
        *,
        least: float = 0.0,
    ) -> Array:
        """Return which of the elements that differ do so by more than roundings spread them.

        Each step is rounded at most as coarsely as `cap`, at least as `least`, whatever its dtype.
        """
        spread = self._spread(cap, least)[name]
        with np.errstate(all="ignore"):
            distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
            return off & ~((distance <= MOST_SPREADS * spread) | np.isinf(spread))

    def find_other_slopes(self, actual: Array, expected: Array, off: Array) -> Array:
        """Return which elements of a derivative differ by more than derived ones may."""
        # Libraries derive in ways of their own, which may differ by half of the digits, its own or
        # the cotangents'. Outside a function's domain a derivative may be NaN.
        actual, ideal = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(all="ignore"):
            scale = np.fmax(np.fmax(np.abs(actual), np.abs(ideal)), self._largest_cotangent())
            off = off & ~(np.abs(actual - ideal) <= np.sqrt(self.eps) * scale)
        values = (bounded.value for name, bounded in self.wide.items() if " of " not in name)
        is_outside = any(is_float(a) and np.isnan(a).any() for a in map(np.asarray, values))
        return off & ~np.isnan(actual) if is_outside else off

    def precision_of(self, name: str, actual: Array) -> float:
        """Return how coarsely a result was rounded on the way, by its distance from float64."""
        # That is the eps of the finest dtype, from its own on, that explains the distance.
        meaning, least = np.asarray(self.wide[name].value), eps_of(actual.dtype)
        with np.errstate(all="ignore"):
            distance = np.abs(actual.astype(np.float64) - meaning.astype(np.float64))
        off = ~((distance <= MOST_SPREADS * least * np.abs(meaning)) | np.isnan(meaning))
        # The dtypes from the finest to the coarsest.
        caps = [eps_of(as_numpy_dtype(dtype)) for dtype in reversed(FLOATS)]
        for cap in (each for each in caps if each >= least):
            if not off.any() or not self.unexplained(name, actual, meaning, off, cap).any():
                return cap
        return COARSEST

    def _eps_of_numbers(self) -> float:
        # Float32's where a number, or a quotient of a mask, has more digits, else 0.
        nodes = [node for graph in self.graphs for node in graph.nodes]
        numbers = [node.attr("value") for node in nodes if node.op is ops.CONST]
        numbers += self.sample.numbers.values()
        floats = [value for value in numbers if isinstance(value, float)]
        for node in nodes:
            if node.op is ops.ARRAY:  # arrays in code take the dtype of what they meet, too
                floats += node.attr("value").as_numpy(np.float64).ravel()[:MOST_READ].tolist()
        with np.errstate(over="ignore"):
            is_wide = floats != [float(np.float32(v)) for v in floats]
        masks = [n for n in nodes if n.op is ops.CAST and n.operands[0].type.dtype == BOOL]
        divides = bool(masks) and any(node.op in QUOTIENTS for node in nodes)
        return eps_of("float32") if is_wide or divides else 0.0

    def _spread(self, cap: float, least: float = 0.0) -> dict[str, Array]:
        spreads = self._spreads.get((cap, least))
        if spreads is None:
            own_eps = eps_of(self.dtype)
            eps_by_dtype = {name: eps_of(as_numpy_dtype(name)) for name in FLOATS} | {T: own_eps}
            spreads = self._spreads[cap, least] = self._measure(
                {name: max(min(eps, cap), least) for name, eps in eps_by_dtype.items()}
            )
        return spreads

    def _measure(self, roundings: Mapping[str, float]) -> dict[str, Array]:
        smallest = {name: smallest_of(as_numpy_dtype(name)) for name in FLOATS}
        smallest[T] = smallest_of(self.dtype)
        spreads = {name: np.zeros(np.shape(self.wide[name].value)) for name in self.names}
        for seed in range(RUNS):
            results = run_rounded(
                self.graphs,
                self.inputs,
                self.dtype,
                roundings,
                smallest=smallest,
                seed=seed,
                choose=self.choose,
            )
            for name, result in zip(self.names, results, strict=True):
                spreads[name] = np.maximum(spreads[name], self._apart(name, result))
        if any(node.op is ops.WHILE_LOOP for graph in self.graphs for node in graph.nodes):
            return {name: self._settled(name, spread) for name, spread in spreads.items()}
        return spreads

    def _largest_cotangent(self) -> float:
        arrays = self.sample.widened().arrays.items()
        magnitudes = [
            np.abs(a[np.isfinite(a)]) for name, a in arrays if name.startswith("grad_out")
        ]
        return max((float(a.max()) for a in magnitudes if a.size), default=0.0)

    def _settled(self, name: str, spread: Array) -> Array:
        # Where an iteration does not settle, it may end anywhere.
        with np.errstate(all="ignore"):
            is_settled = spread <= UNSETTLED * np.abs(np.asarray(self.wide[name].value, np.float64))
        return np.where(is_settled, spread, np.inf)

    def _apart(self, name: str, result: Any) -> Array:
        mean = np.asarray(self.wide[name].value)
        if not mean.size or mean.dtype.kind not in "fiub":
            return np.zeros(mean.shape)
        with np.errstate(all="ignore"):
            a, b = np.asarray(result, np.float64), mean.astype(np.float64)
            is_same = (a == b) | (np.isnan(a) & np.isnan(b))
            return np.where(is_same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))


def run_in_own_dtype(rounding: Rounding) -> dict[str, Bounded]:
    """Return the graphs' values by NumPy in the sample's own dtype; {} if it does not run."""
    sample = rounding.sample
    inputs: dict[str, Any] = {**sample.arrays, **sample.numbers, "key": KEY}
    try:
        results = [result for graph in rounding.graphs for result in run_reference(graph, inputs)]
    except (ArithmeticError, MultigradError, TypeError, ValueError):
        return {}
    return {
        name: Bounded(result, rounding.wide[name].largest)
        for name, result in zip(rounding.names, results, strict=True)
    }


# --- which differences count: all but what rounding decides ---------------------------------------
# The code that runs is compared to the last digits that both sides have, in the dtype of the call;
# the meaning of the graph in float64, from which each other backend is lowered, to half of them.


def differ_from_lowered(
    rounding: Rounding,
    original: Mapping[str, Any],
    lowered: Mapping[str, Any],
    shown: Mapping[str, str],
    *,
    is_free: bool,
    is_in_range: bool,
) -> Disagreement | None:
    """Return the first result that the lowered code gives otherwise.

    They are compared in the dtype of the call, to its last digits but what rounding decides.

    Args:
        is_free: whether the original may compute in a wider dtype than the call's.
        is_in_range: only where the original is what the graphs mean in float64.
    """
    judge = partial(find_off, ops=0, eps=0.0, half=False)
    meanings, is_derived = rounding.wide, rounding.attempt.captured.recipe.is_derived
    expected = {name: Bounded(a, magnitude(a)) for name, a in lowered.items() if a is not None}

    def forgive(name: str, actual: Array, given: Array, off: Array) -> Array:
        if rounding.sample.label == FAR:  # what overflows on both sides may do so in any order
            off = off & (np.isfinite(as_floats(actual)) | np.isfinite(as_floats(given)))
        if is_derived and name.startswith("gradient") and actual.shape == given.shape:
            off = rounding.find_other_slopes(actual, given, off)
        if name not in meanings:
            return _find_off_without_meaning(rounding, name, actual, given, off)
        meaning = np.asarray(meanings[name].value)
        if meaning.shape != actual.shape:
            return off
        # An original that overflows in its own dtype does worse than its graph.
        off = off & ~(np.isfinite(meaning) & ~np.isfinite(actual.astype(np.float64)))
        if is_in_range:
            off = off & ~find_lost(rounding, name, actual)
        if is_free:
            count, largest = count_ops(rounding.graphs), meanings[name].largest
            off &= find_off(actual, meaning, largest, ops=count, eps=rounding.eps, half=True)
        if not off.any():
            return off
        # Neither side may be coarser than the other, but by what the result's own dtype rounds.
        lowered_eps = max(rounding.precision_of(name, given), eps_of(given.dtype))
        code_eps = max(rounding.precision_of(name, actual), eps_of(actual.dtype))
        cap = lowered_eps if is_free or actual.dtype != given.dtype else min(code_eps, lowered_eps)
        return rounding.unexplained(name, actual, given, off, cap, least=rounding.least)

    return find_difference(rounding.sample, original, expected, judge, shown, forgive=forgive)


def _find_off_without_meaning(
    rounding: Rounding, name: str, actual: Array, given: Array, off: Array
) -> Array:
    # Of second derivatives, and of gradients of zeros, which the graphs do not give.
    if name.startswith("second"):  # a class may cut its own off: ours need not be lost
        return off & (not np.any(given)) & (largest_of(actual) > 0)
    if name.startswith("zero"):  # of zeros it is zero, whatever 0 times inf makes of that
        off = off & ~((given == 0) & ~np.isfinite(as_floats(actual)))
    count, largest = count_ops(rounding.graphs), largest_of(actual)
    return off & find_off(actual, given, largest, ops=count, eps=0.0, half=True)


def find_lost(rounding: Rounding, name: str, actual: Array) -> Array:
    """Return which elements are not what the graphs mean, to half of the digits."""
    meaning = np.asarray(rounding.wide[name].value)
    off = find_off(actual, meaning, magnitude(meaning), ops=0, eps=rounding.eps, half=True)
    return rounding.unexplained(name, actual, meaning, off, rounding.eps) if off.any() else off


def is_meant(rounding: Rounding, original: Mapping[str, Any], shown: Mapping[str, str]) -> bool:
    """Return whether all results are what the graphs mean; those that are None are not compared."""
    pairs = [(name, original.get(name)) for name in shown if name in rounding.wide]
    arrays = [(name, np.asarray(array)) for name, array in pairs if array is not None]
    return all(
        actual.shape == np.shape(rounding.wide[name].value)
        and not find_lost(rounding, name, actual).any()
        for name, actual in arrays
    )


def as_floats(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


def differ_from_meaning(
    rounding: Rounding,
    original: Mapping[str, Any],
    shown: Mapping[str, str],
    *,
    half: bool,
) -> Disagreement | None:
    """Return the first result that is not the graphs', neither in float64 nor in their dtype."""
    meanings, graphs = rounding.wide, rounding.graphs
    is_derived = rounding.attempt.captured.recipe.is_derived
    types = {node.type.dtype for graph in graphs for node in graph.nodes}
    eps = max([rounding.eps, *(eps_of(as_numpy_dtype(t)) for t in types if t in FLOATS)])
    judge = partial(find_off, ops=count_ops(graphs), eps=eps, half=half)
    compared = {name: a for name, a in original.items() if name in meanings}
    narrow: dict[str, Bounded] = {}

    def forgive(name: str, actual: Array, expected: Array, off: Array) -> Array:
        # In their own dtype the graphs run once, if float64 differs; "": that gave nothing.
        if not narrow:
            narrow.update(run_in_own_dtype(rounding) or {"": Bounded(None, None)})
        if name in narrow and np.shape(narrow[name].value) == actual.shape:
            off = off & judge(actual, np.asarray(narrow[name].value), narrow[name].largest)
        if is_derived and name.startswith("gradient") and actual.shape == expected.shape:
            off = rounding.find_other_slopes(actual, expected, off)
        if not off.any():
            return off
        return rounding.unexplained(name, actual, expected, off, COARSEST, least=rounding.least)

    return find_difference(rounding.sample, compared, meanings, judge, shown, forgive=forgive)
