"""Gradients against finite differences, surrogates against the true derivative: what `xg.check`
compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ..core.backend.contract import Backend
from ..core.backend.discovery import load_backend
from ..core.lowering.lower import lower_graphs
from ..core.ops.numerics import as_numpy_dtype
from ..core.rules.activation_function import graphs_under
from ..core.support.trees import optree
from ..engine.functions.function import Function
from ..engine.functions.known_forms import prove_given
from ..errors import RuleTypeError
from .subject import (
    SEED,
    Inputs,
    Report,
    Subject,
    brackets,
    is_float_array,
    is_of_arrays,
    not_compared,
    numbers_with_gradient,
    precision,
    run_arrays,
)

Array: TypeAlias = np.ndarray[Any, Any]
MOST_ELEMENTS = 4096  # of one argument: each costs some evaluations
STEP = 2.0**-13  # exact in binary; times max(1, |x|) rounded to a power of two
TOLERANCE = 1e-6  # relative to the largest gradient; the numeric error is of the order 1e-10
MOST_ROWS = 12  # in the printed table


@dataclass(frozen=True, slots=True)
class Place:
    """One element of an argument's gradient, with the expected number."""

    argument: str
    index: tuple[int, ...]
    at: float
    given: float
    expected: float

    @property
    def error(self) -> float:
        return abs(self.given - self.expected)

    def __str__(self) -> str:
        place = f"{self.argument}{brackets(self.index)} = {self.at:.6g}"
        return f"{place}: gradient {self.given:.6g}, expected {self.expected:.6g}"


Places = Sequence[Place]


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Report):
    """What `xg.check` found; prints as a table.

    Examples:
        >>> wrong = xg.function(lambda x: x * x, lambda grad_out, x: grad_out * x)  # not 2 * x
        >>> report = xg.check(wrong, np.array([1.0, 3.0]))
        >>> report.ok, report.compared, bool(report)
        (False, 2, False)
        >>> print(report)
        <lambda> on numpy, float64
          THE GRADIENT IS WRONG: largest error 3 (2 elements)
          worst at x[1] = 3: gradient 3, expected 6
                    at        given         true   difference
                     3            3            6            3
                     1            1            2            1

    Attributes:
        ok: of a Function: whether its gradient is the true one; of a surrogate: whether it is
            finite wherever the true derivative is. False where nothing was compared.
        max_error: the largest difference of an element, NaN where a gradient is not finite.
        worst: where that is; None where nothing was compared.
        kinks: the elements at which the function has no derivative, left out of the verdict.
        compared: how many elements were compared.
        is_surrogate: whether a rule's gradient was compared, which is meant to differ.
        rows: the elements, the worst first: derivatives of the outputs' sum, or where an error
            cancels in it, of one with random weights.
        intention: what a custom gradient that differs was recognized as, as by `xg.audit`.
        not_compared: the plain numbers whose gradient was not compared, in a sentence; "" if none.
    """

    name: str
    backend: str
    ok: bool
    max_error: float
    worst: Place | None
    kinks: tuple[Place, ...]
    compared: int
    is_surrogate: bool
    rows: tuple[Place, ...]
    intention: str = ""
    not_compared: str = ""

    @property
    def reason(self) -> str:
        """Why nothing was compared; "" if something was."""
        if self.compared:
            return ""
        if self.kinks:
            return "there is no derivative at any element; give other inputs"
        return "there is no element of a float among the inputs"

    @property
    def shown(self) -> tuple[Place, ...]:
        """The rows that are printed: the worst ones, or of a surrogate some from end to end."""
        if not self.is_surrogate or len(self.rows) <= MOST_ROWS:
            return self.rows[:MOST_ROWS]
        positions = np.linspace(0, len(self.rows) - 1, MOST_ROWS, dtype=int)
        return tuple(self.rows[i] for i in positions)

    def __str__(self) -> str:
        lines = self._head()
        if self.rows:
            column = "surrogate" if self.is_surrogate else "given"
            lines.append(f"  {'at':>12} {column:>12} {'true':>12} {'difference':>12}")
            lines += [
                f"  {row.at:12.6g} {row.given:12.6g} {row.expected:12.6g} {row.error:12.3g}"
                for row in self.shown
            ]
        return "\n".join(lines)

    def _head(self) -> list[str]:
        lines = [f"{self.name} on {self.backend}, float64"]
        lines += [f"  {self.intention}"] if self.intention else []
        if not self.compared:
            lines.append(f"  nothing was compared: {self.reason}")
        elif self.is_surrogate:
            lines.append(
                f"  the surrogate differs from the true derivative by at most {self.max_error:.6g} "
                f"({self.compared} elements)"
            )
        else:
            verdict = "the gradient is the true one" if self.ok else "THE GRADIENT IS WRONG"
            lines.append(
                f"  {verdict}: largest error {self.max_error:.3g} ({self.compared} elements)"
            )
        if self.worst is not None and (self.is_surrogate or not self.ok):
            lines.append(f"  worst at {self.worst}")
        if self.kinks:
            places = ", ".join(f"{kink.argument} = {kink.at:.6g}" for kink in self.kinks[:4])
            others = f" and {len(self.kinks) - 4} more" if len(self.kinks) > 4 else ""
            lines.append(f"  left out, as there is no derivative: {places}{others}")
        return [*lines, *[f"  {self.not_compared}"] * bool(self.not_compared)]


def compare(subject: Subject, data: Inputs, backend: Backend | None = None) -> CheckReport:
    """Return the report on a subject with these inputs; without a backend where they come from, or
    of arrays where the code is at home.
    """
    numpy = load_backend("numpy")
    if backend is None:
        owners = () if data.owner is None else (data.owner,)
        is_elsewhere = {*owners} <= {numpy} and not is_of_arrays(subject.call, owners)
        homes = subject.homes if is_elsewhere else owners
        backend = next(iter(homes), numpy)
    checked_case = CheckedCase(subject, data, backend)
    with precision(checked_case.backend, "float64"), np.errstate(all="ignore"):
        is_ruled = subject.is_surrogate and subject.forward is not None
        if is_ruled:
            return _compare_surrogate(checked_case)
        report = _compare_numerically(checked_case)
        if isinstance(subject.function, Function):
            prove_given(subject.function, checked_case.tensors(data.cast("float64")))
    numbers = numbers_with_gradient(subject.call, checked_case.backend, data, data.names)
    return replace(report, not_compared=not_compared(numbers))


@dataclass(frozen=True, slots=True)
class CheckedCase:
    """A subject on one backend with its inputs, from arrays to arrays."""

    subject: Subject
    inputs: Inputs
    backend: Backend

    def tensors(self, arrays: Sequence[Array]) -> Sequence[Any]:
        return self.inputs.nest([self.backend.tensors.from_numpy(array) for array in arrays])[0]

    def outputs(self, arrays: Sequence[Array]) -> list[Array]:
        # Outputs that are no tensors, such as numbers, have no gradient.
        stated = self.subject.meant or self.subject.call
        leaves = optree.tree_leaves(stated(*self.tensors(arrays)))
        flat = [y for y in leaves if hasattr(y, "dtype")]
        each = [np.asarray(self.backend.tensors.to_numpy(y)) for y in flat]
        return [array for array in each if is_float_array(array)]

    def gradients(self, arrays: Sequence[Array], cotangents: Sequence[Array]) -> list[Array | None]:
        """Return the gradient of each tensor, for cotangents of the float outputs."""
        remaining = iter(cotangents)
        inputs, _ = self.inputs.nest(arrays)
        call = self.subject.call
        return run_arrays(call, self.backend, inputs, lambda n, shape: next(remaining))[1]


def _compare_numerically(case: CheckedCase) -> CheckReport:
    subject, inputs = case.subject, case.inputs
    arrays = inputs.cast("float64")
    outputs = case.outputs(arrays)
    if not outputs:
        raise RuleTypeError(f"{subject.name} returns no tensor of floats, so it has no gradient")
    generator = np.random.default_rng(SEED)
    ones = [np.ones(y.shape) for y in outputs]
    if subject.is_surrogate:
        return _compare_weighted(case, arrays, outputs, ones)
    # Random weights show errors that cancel in a plain sum, which is easier to read.
    weights = [generator.uniform(0.5, 1.5, y.shape) for y in outputs]
    report = _compare_weighted(case, arrays, outputs, weights)
    plain = report if report.ok else _compare_weighted(case, arrays, outputs, ones)
    return report if plain.ok else plain


def _compare_weighted(
    case: CheckedCase, arrays: Sequence[Array], outputs: Sequence[Array], weights: Sequence[Array]
) -> CheckReport:
    """Return the report on the gradient of the outputs' weighted sum."""
    subject, inputs = case.subject, case.inputs
    cotangents, are_finite = weights_where_finite(weights, outputs)

    def weigh(arrays: Sequence[Array]) -> float:
        return weighted_sum(cotangents, case.outputs(arrays))

    gradients = case.gradients(arrays, cotangents)
    places: list[Place] = []
    kinks: list[Place] = []
    for n, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        if not is_float_array(array):
            continue
        path = inputs.paths(inputs.names)[n]
        values = np.zeros_like(array) if gradient is None else gradient
        for index in pick(array.shape, MOST_ELEMENTS):
            slope, is_smooth = slope_at(weigh, arrays, n, index)
            place = Place(path, index, float(array[index]), float(values[index]), float(slope))
            is_smooth = is_smooth and (are_finite or tells_something(place.given, place.expected))
            (places if is_smooth else kinks).append(place)
    size = weighted_sum(map(np.abs, cotangents), map(np.abs, outputs))
    ok = bool(places) and all(
        _agree([place for place in places if place.argument == path], size)
        for path in dict.fromkeys(place.argument for place in places)
    )
    # A surrogate's gradient only has to be finite.
    if subject.is_surrogate:
        ok = bool(places or kinks) and all(np.isfinite(p.given) for p in (*places, *kinks))
    by_error = sorted(places, key=lambda p: (not np.isnan(p.error), -p.error))
    rows = () if ok and not subject.is_surrogate else by_error
    return _report(case, places, kinks, ok=ok, rows=rows)


def _agree(places: Sequence[Place], size: float) -> bool:
    # `size` is that of the outputs: differences divide its rounding by their smallest step.
    noise = 64 * np.finfo(float).eps * size / (STEP / 16)
    scale = max(abs(place.expected) for place in places)
    return bool(_worst(places)[0] <= TOLERANCE * scale + noise)


def pick(shape: tuple[int, ...], most: int) -> list[tuple[int, ...]]:
    """Return the indices to be compared: all, or evenly spread ones."""
    size = int(np.prod(shape))
    flat = np.linspace(0, size - 1, min(size, most), dtype=int)
    return [tuple(int(i) for i in np.unravel_index(n, shape)) for n in flat]


def weights_where_finite(
    weights: Sequence[Array], outputs: Sequence[Array]
) -> tuple[list[Array], bool]:
    """Return weights of outputs, 0 for what is not finite, and whether all of it is.

    NaN for one element, where its input lies outside the domain, would hide all others.
    """
    finite = [np.isfinite(y) for y in outputs]
    masked = [np.where(mask, u, u.dtype.type(0)) for u, mask in zip(weights, finite, strict=True)]
    return masked, all(mask.all() for mask in finite)


def weighted_sum(weights: Iterable[Array], values: Iterable[Array]) -> float:
    """Return the sum of values times weights, without the values whose weight is 0."""
    pairs = ((u[u != 0], y[u != 0]) for u, y in zip(weights, values, strict=True))
    return sum(float(np.sum(u.astype(np.float64) * y.astype(np.float64))) for u, y in pairs)


def tells_something(gradient: float, slope: float) -> bool:
    """Return whether a gradient may be compared where some outputs are not finite: those of which
    the weight is 0 may make it NaN, or leave it and the slope at 0.
    """
    return bool(np.isfinite(gradient)) and (gradient, slope) != (0.0, 0.0)


def slope_at(
    weigh: Callable[[list[Array]], float], arrays: Sequence[Array], n: int, index: tuple[int, ...]
) -> tuple[float, bool]:
    """Return the slope of the weighed outputs in one element, and whether they have one there."""

    def moved(value: float) -> float:
        changed_arrays = [array.copy() if i == n else array for i, array in enumerate(arrays)]
        changed_arrays[n][index] = value
        return weigh(changed_arrays)

    return differentiate(moved, float(arrays[n][index]))


def differentiate(f: Callable[[float], float], x: float) -> tuple[float, bool]:
    """Return the slope of f at x by central differences, and whether f has one there.

    Three steps, each a quarter of the one before, are extrapolated by the order at which they
    converge. At a kink the slopes on both sides stay different as the step shrinks, and at a jump
    the gap grows; elsewhere both slopes meet.
    """
    # A power of two of the order of x: dividing by it is exact.
    step = STEP * 2.0 ** np.floor(np.log2(max(1.0, abs(x)))) if np.isfinite(x) else 1.0
    middle = f(x)
    slopes, gaps = [], []
    for h in (step, step / 4, step / 16):
        above, below = f(x + h), f(x - h)
        slopes.append((above - below) / (2 * h))
        gaps.append(abs((above - middle) / h - (middle - below) / h))
    first_change, last_change = slopes[1] - slopes[0], slopes[2] - slopes[1]
    if not np.isfinite(last_change):
        return slopes[2], False
    noise = 64 * np.finfo(float).eps * max(1.0, abs(middle)) / (step / 16)
    tolerance = TOLERANCE * max(1.0, abs(slopes[2])) + noise
    # The two one-sided slopes do not meet: a kink or a jump.
    if gaps[2] > 0.5 * gaps[1] + tolerance:
        return slopes[2], False
    if abs(last_change) <= tolerance:
        return slopes[2] + last_change / 15, True
    ratio = first_change / last_change  # 16 where f is smooth, 4 where its derivative has a kink
    return (slopes[2] + last_change / (ratio - 1), True) if ratio >= 2 else (slopes[2], False)


def _compare_surrogate(case: CheckedCase) -> CheckReport:
    subject = case.subject
    assert subject.forward is not None
    (array,) = case.inputs.cast("float64")
    (values,) = case.gradients([array], [np.ones(array.shape)])
    assert values is not None
    # By NumPy in float64, whichever backend the surrogate runs on.
    oracle = lower_graphs(graphs_under(None, subject.forward, {}), load_backend("numpy")).native
    y, pullback = oracle.vjp(array)
    expected = np.asarray(pullback(np.ones_like(y)))
    places, kinks = [], []
    for index in pick(array.shape, MOST_ELEMENTS):
        x = float(array[index])
        _, is_smooth = differentiate(
            lambda v: float(oracle.vjp(np.asarray(v, as_numpy_dtype("float64")))[0]), x
        )
        place = Place("x", index, x, float(values[index]), float(expected[index]))
        (places if is_smooth else kinks).append(place)
    # A pole of the true derivative excuses the surrogate there.
    finite = (np.isfinite(p.given) for p in (*places, *kinks) if np.isfinite(p.expected))
    ok = bool(places) and all(finite)
    return _report(case, places, kinks, ok=ok, rows=places)


def _report(
    case: CheckedCase, places: Places, kinks: Places, *, ok: bool, rows: Places
) -> CheckReport:
    largest, worst = _worst(places)
    fields = {"kinks": tuple(kinks), "compared": len(places), "rows": tuple(rows)}
    fields["is_surrogate"] = case.subject.is_surrogate
    return CheckReport(case.subject.name, case.backend.name, ok, largest, worst, **fields)


def _worst(places: Places) -> tuple[float, Place | None]:
    if not places:
        return 0.0, None
    # NaN compares as neither larger nor smaller, so that it needs a key of its own.
    worst = max(places, key=lambda place: (np.isnan(place.error), place.error))
    return worst.error, worst
