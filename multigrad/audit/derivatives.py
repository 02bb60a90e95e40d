"""Laws of derivatives: a gradient is compared with differences of its forward.

In float64 that is done element by element. Where code computes in float32 whatever it is given,
digits are few, so steps are long, along directions in which every element moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from ..core import xp as _xp
from ..look.check import (
    differentiate,
    pick,
    slope_at,
    tells_something,
    weighted_sum,
    weights_where_finite,
)
from ..look.subject import as_float, brackets, not_compared
from .consistency import differs_in
from .trial import (
    SEED,
    SMALL_STEP,
    TINY_STEP,
    Arrays,
    ForwardRun,
    NotApplicable,
    Remark,
    Trial,
    Weigh,
    find_difference,
    flat_outputs,
    has_few_digits,
    law,
    moved_by,
    place_of_largest,
    wave,
    where_different,
)

xp: Any = _xp
Moved = Callable[[float], float]  # of a step
MOST_PLACES = 64  # elements whose differences are taken
MOST_STEPS = 24  # elements that tell whether an output is flat
MOST_LOST = 1e-2  # by a forward in float32 whose gradient is compared
FINE = 1e-7  # what a small number beside a divisor may change in float64
UNCOMPARED = "are not compared"
MISSING, WRONG = "the second derivative is missing", "the second derivative is wrong"


def require_float64(trial: Trial) -> None:
    if trial.digits != "float64":
        raise NotApplicable("it does not compute in float64, in which differences are taken")


def how_to_compare(trial: Trial) -> str:
    """Return the sentence on a surrogate that nothing says more of."""
    stated = f'SURROGATE = {{"{trial.name}": f}} in its module'
    compares = "compares them with the derivative of f"
    return f"Its numbers {UNCOMPARED}: surrogate=f, or {stated}, {compares}"


def excuse_flat(trial: Trial) -> NotApplicable:
    excuse = "its forward is flat: it is a surrogate, which is meant to differ"
    return NotApplicable(f"{excuse}. {how_to_compare(trial)}")


# --- functions of a step, for differences ---------------------------------------------------------
def moved_along(weigh: Weigh, arrays: Arrays, ways: Mapping[int, Any]) -> Moved:
    """Return `weigh` as a function of a step; tensors without a direction do not move."""

    def moved(steps: float) -> float:
        ends = [
            (a + steps * ways[n]).astype(a.dtype) if n in ways else a for n, a in enumerate(arrays)
        ]
        return weigh(ends)

    return moved


class DirectionSlope(NamedTuple):
    """The slope along a direction in which elements of arguments move.

    Attributes:
        moved: the weighed outputs as a function of a step along it.
        slope: by differences.
        doubt: how far that may be off: 0 in float64; infinity where there is none.
        parts: what the slope by the custom gradient adds up.
    """

    moved: Moved
    slope: float
    doubt: float
    parts: Arrays

    @property
    def gradient(self) -> float:
        """The slope by the custom gradient."""
        return sum(float(np.sum(part)) for part in self.parts)

    @property
    def size(self) -> float:
        return sum(float(np.sum(np.abs(part))) for part in self.parts)

    @property
    def usual_size(self) -> float:
        """That of the slope, or of such a sum with random signs."""
        return max(abs(self.slope), sum(float(np.sum(part**2)) for part in self.parts) ** 0.5)

    @property
    def is_settled(self) -> bool:
        return self.doubt == 0.0

    @property
    def is_wrong(self) -> bool:
        allowed = 1e-5 * max(abs(self.slope), self.size, 1e-3) + 1e-7
        # `not <=`, so that NaN counts as wrong.
        return self.is_settled and not abs(self.gradient - self.slope) <= allowed

    def is_kept_by(self, shorter: int) -> bool:
        """Return whether steps so many times shorter give the same slope: among many elements two
        may change places within a step, and what oscillates may look settled.
        """
        slope, is_settled = differentiate(lambda t: self.moved(t / shorter) * shorter, 0.0)
        error = abs(self.gradient - self.slope)
        return is_settled and not abs(slope - self.slope) > 0.1 * error


def in_float64(moved: Moved) -> tuple[float, float]:
    slope, is_settled = differentiate(moved, 0.0)
    return slope, 0.0 if is_settled else np.inf


def slope_along(
    weigh: Weigh, arrays: Arrays, gradients: Sequence[Any], ways: Mapping[int, Any],
    differ: Callable[[Moved], tuple[float, float]] = in_float64,
) -> DirectionSlope:  # fmt: skip
    moved = moved_along(weigh, arrays, ways)
    parts = [gradients[n] * way for n, way in ways.items() if gradients[n] is not None]
    return DirectionSlope(moved, *differ(moved), parts)


def start_where_finite(
    trial: Trial, arrays: Arrays | None = None, seed: int = 0
) -> tuple[ForwardRun, Arrays, bool]:
    """Start a trial with cotangents of 0 for what is not finite; and whether all outputs are."""
    run, u = trial.start(arrays, seed)
    return run, *weights_where_finite(u, run.arrays())


# --- in float64 -----------------------------------------------------------------------------------
@law("derivative", "training goes wrong", is_loud=False)
def judge_derivative(trial: Trial) -> str:
    """The gradient is the derivative of the forward."""
    if trial.contradiction:
        return trial.contradiction
    if trial.is_surrogate and trial.meant is None:
        raise NotApplicable(trial.intention or "it is a surrogate, which is meant to differ")
    judge = _judge_in_float32 if trial.digits == "float32" else _judge_in_float64
    return judge(trial) or Remark(
        "; ".join(filter(None, (trial.intention, not_compared(trial.numbers_with_gradient))))
    )


def _judge_in_float64(trial: Trial) -> str:
    require_float64(trial)
    run, u, are_finite = start_where_finite(trial)
    arrays, gradients = trial.cast("float64"), run.gradients(u)
    weigh = trial.stated.weighed(u)
    if trial.meant is not None:
        shapes = [[y.shape for y in each.run(arrays).arrays()] for each in (trial, trial.stated)]
        if shapes[0] != shapes[1]:
            return f"outputs are {shapes[0]}, those of what is meant {shapes[1]}"
    elements = list(_elements(trial, weigh, arrays, gradients, are_finite=are_finite))
    faults = [
        f"argument {each.argument}{brackets(each.place)} = "
        f"{arrays[each.argument][each.place]:.6g}: {each.gradient:.9g}, expected "
        f"{each.slope:.9g} by differences"
        for each in elements
        if each.is_off(1e-5, 1e-7)
    ]
    at_other_numbers = _compare_at_other_numbers(trial)
    if at_other_numbers.is_wrong:
        faults.append(
            f"at 3/4 of the inputs, along one direction: {at_other_numbers.gradient:.9g}, expected "
            f"{at_other_numbers.slope:.9g} by differences"
        )
    if not (at_other_numbers.is_settled or elements):
        raise NotApplicable("it has no derivative at any of the inputs' elements")
    # Wrong and flat: a surrogate, unless the caller has said what is meant.
    is_flat = not any(each.slope for each in elements)
    if faults and _may_be_surrogate(trial, is_flat or _has_flat_output(trial)):
        raise excuse_flat(trial)
    if faults:
        factor = _factor_of(elements)
        remark = f"; it is {factor:.5g} times that everywhere" if is_telling(factor) else ""
        return f"{faults[0]}{remark}"
    return (
        _compare_with_autodiff(trial, u, gradients)
        or _find_narrow(trial, u, gradients)
        or differs_in_own_dtype(trial, arrays)
    )


def factor_of_derivative(trial: Trial) -> float | None:
    """Return the constant that the gradient is times the derivative; None if there is none."""
    require_float64(trial)
    run, u, are_finite = start_where_finite(trial)
    arrays, weigh = trial.cast("float64"), trial.weighed(u)
    return _factor_of(
        list(_elements(trial, weigh, arrays, run.gradients(u), are_finite=are_finite))
    )


def _factor_of(elements: Sequence[ElementSlope]) -> float | None:
    pairs = np.array([(each.gradient, each.slope) for each in elements if each.slope])
    if len(pairs) < 2:
        return None  # any number is some factor times another
    gradients, slopes = pairs.T
    factor = float(np.sum(gradients * slopes) / np.sum(slopes * slopes))
    # A gradient where the slope is 0 is no multiple of it.
    largest_error = max(np.abs(e.gradient - factor * e.slope) for e in elements)
    return factor if largest_error <= 1e-5 * np.abs(gradients).max() else None


def is_telling(factor: float | None) -> TypeGuard[float]:
    """Return whether a factor is neither 0 nor 1, but for rounding."""
    return factor is not None and float(f"{factor:.5g}") not in (0.0, 1.0)


def _compare_at_other_numbers(trial: Trial) -> DirectionSlope:
    """Compare at 3/4 of the inputs, which shows what was wrongly kept from the first call."""
    arrays = trial.changed(trial.cast("float64"), lambda a: a * 0.75)
    run, u, are_finite = start_where_finite(trial, arrays, seed=1)
    directions, gradients = {n: wave(arrays[n], n) for n in trial.floats}, run.gradients(u)
    if not are_finite:
        # What is NaN there may not be moved, nor does it count.
        gradients = [g if g is None else np.nan_to_num(g, posinf=0, neginf=0) for g in gradients]
        directions = {
            n: way if gradients[n] is None else np.where(gradients[n] == 0, 0, way)
            for n, way in directions.items()
        }
    return slope_along(trial.stated.weighed(u), arrays, gradients, directions)


def _compare_with_autodiff(trial: Trial, u: Arrays, gradients: Arrays) -> str:
    """Return where a gradient that agrees with differences differs from autodiff of the forward,
    which shows errors below 1e-5, too; "" if nowhere.
    """
    is_own = trial.stated.call is trial.call
    if trial.forward is None or not is_own or trial.backend.autodiff.vjp is None:
        return ""
    arrays = trial.cast("float64")
    try:
        by_autodiff = replace(trial, call=trial.forward).run(arrays).gradients(u)
    except Exception:  # the user's code, which nobody has written for autodiff
        return ""
    triples = [(n, gradients[n], by_autodiff[n]) for n in trial.floats]
    triples = [(n, got, want) for n, got, want in triples if got is not None and want is not None]
    for n, got, want in triples:
        if find_difference([got], [want], 1e-5, 1e-7):
            # Differences tell whose it is: the forward may hide a part of itself.
            place = place_of_largest(np.abs(got - want))
            slope, is_settled = slope_at(trial.weighed(u), arrays, n, place)
            if not is_settled or abs(got[place] - slope) < 10 * abs(want[place] - slope):
                return ""
            return f"argument {n}{brackets(place)}: {got[place]:.9g}, expected {slope:.9g}"
    fault = find_difference(
        [got for _, got, _ in triples], [want for _, _, want in triples], FINE, trial.noise
    )
    return f"{fault} by autodiff of the forward" if fault else ""


def _find_narrow(trial: Trial, u: Arrays, gradients: Arrays) -> str:
    """Return which gradient is computed in fewer digits than the forward, "" if none is."""
    arrays = trial.cast("float64")
    for name in ("inputs", "cotangents"):
        results = []
        for step in (TINY_STEP, SMALL_STEP):
            move = partial(moved_by, step=step)
            points = trial.changed(arrays, move) if name == "inputs" else arrays
            results.append(trial.run(points).gradients(u if name == "inputs" else [*map(move, u)]))
        for n in trial.floats:
            here, near, far = gradients[n], results[0][n], results[1][n]
            # What cancels to nothing but rounding has no digits.
            if (
                has_few_digits(here, near, far)
                and float(np.max(np.abs(here), initial=0.0)) > 1e3 * trial.noise
            ):
                return f"argument {n}: its gradient reads the {name} in fewer digits than float64"
    return ""


def differs_in_own_dtype(trial: Trial, arrays: Arrays, tolerance: float = 0.0) -> str:
    """Return where the gradient in float32, if the call is in it, differs from that in float64;
    what draws gets other numbers there.
    """
    if trial.dtype != "float32" or trial.wide != "float64" or trial.seeds is not None:
        return ""
    inputs = [as_float(a, "float32") if n in trial.floats else a for n, a in enumerate(arrays)]
    try:
        with trial.quiet("float32"):
            run, u = trial.start(inputs)
            outputs, gradients = run.arrays(), run.gradients(u)
    except Exception:  # of the user's code; at the given lengths the law of the type tells it
        return ""
    exact = trial.changed(inputs, lambda a: as_float(a, trial.wide))
    if find_difference(outputs, trial.run(exact).arrays(), MOST_LOST):
        return ""  # the forward itself has too few digits there, as where a matrix is singular
    try:
        fault = differs_in(
            "float32", trial, run=run, gradients=gradients, u=u, exact=exact, tolerance=tolerance
        )  # fmt: skip
    except NotApplicable:  # rounded, an input lies on the other side of a step
        return ""
    return f"in float32 {fault}" if fault else ""


@law("second derivative", "gradient penalties have no effect")
def judge_second(trial: Trial) -> str:
    """The gradient's own gradient is right, or is refused with an error."""
    if trial.digits != "float32":
        require_float64(trial)
    vjp = trial.backend.autodiff.vjp
    if vjp is None:
        raise NotApplicable(f"{trial.backend.name} has no autodiff of its own")
    run, u, are_finite = start_where_finite(trial)
    arrays = trial.inputs
    weights, _ = weights_where_finite(
        [wave(a).astype(a.dtype) for a in arrays],
        [a if g is None else g for a, g in zip(arrays, run.gradients(u), strict=True)],
    )

    def gradients_of(tensors: Sequence[Any]) -> list[Any]:
        # Cotangents depend on the inputs, as a loss's do: once_differentiable raises only then.
        zero = sum(xp.sum(tensors[n]) * 0.0 for n in trial.floats)
        cotangents = [x + zero for x in trial.tensors(u)]
        gradients = trial.run_on(list(tensors)).pull(cotangents)
        return [gradients[n] for n in trial.floats]

    _, pull = vjp(gradients_of, trial.tensors(arrays))
    # Products of the Hessian with the weights.
    hvps = [run.read(each) for each in pull(trial.tensors([weights[n] for n in trial.floats]))]

    def weigh(inputs: Arrays) -> float:
        gradients = trial.run(inputs).gradients(u)
        places = [n for n in trial.floats if gradients[n] is not None]
        return weighted_sum([weights[n] for n in places], [gradients[n] for n in places])

    if trial.digits == "float32":
        return _judge_second_in_float32(trial, hvps, weigh, weights)
    for each in _elements(trial, weigh, arrays, hvps, are_finite=are_finite, most=MOST_STEPS):
        if each.is_off(1e-4, 1e-6):
            fault = _fault(hvps)
            may_differ = trial.is_surrogate or _may_be_surrogate(trial, _has_flat_output(trial))
            if fault == WRONG and may_differ:
                raise NotApplicable("it is a surrogate, whose gradient may have one, too")
            return (
                f"{fault}: argument {each.argument}{brackets(each.place)}: "
                f"{each.gradient:.9g}, expected {each.slope:.9g} by differences of the gradient"
            )
    return ""


def _fault(hvps: Sequence[Any]) -> str:
    # A part of it, as of kernels that keep what forward computed, is a wrong one.
    return WRONG if any(each is not None and each.any() for each in hvps) else MISSING


class ElementSlope(NamedTuple):
    """The slope along one element of an argument, by differences and by the custom gradient.

    `largest` is the largest slope by differences of the argument's elements.
    """

    argument: int
    place: tuple[int, ...]
    slope: float
    gradient: float
    largest: float

    def is_off(self, share: float, least: float) -> bool:
        """Return whether the two differ by more than a share of the largest, or are NaN."""
        return not abs(self.gradient - self.slope) <= share * max(self.largest, 1e-3) + least


def _elements(
    trial: Trial, weigh: Weigh, arrays: Arrays, gradients: Sequence[Any], *, are_finite: bool,
    most: int = MOST_PLACES,
) -> Iterator[ElementSlope]:  # fmt: skip
    """Yield elements of the float arguments whose slope by differences of `weigh` is reliable."""
    for n in trial.floats:
        places = pick(arrays[n].shape, MOST_PLACES)[:most]
        pairs = {place: slope_at(weigh, arrays, n, place) for place in places}
        slopes = {place: slope for place, (slope, is_settled) in pairs.items() if is_settled}
        largest = max(map(abs, slopes.values()), default=0.0)
        for place, slope in slopes.items():
            gradient = 0.0 if gradients[n] is None else gradients[n][place]
            if are_finite or tells_something(gradient, slope):
                yield ElementSlope(n, place, slope, gradient, largest)


def _has_flat_output(trial: Trial) -> bool:
    """Return whether small steps of the inputs leave one of the outputs as it is."""
    arrays = trial.cast("float64")
    outputs = trial.run(arrays).arrays()
    moving_outputs = set[int]()
    for n in trial.floats:
        for place in pick(arrays[n].shape, MOST_PLACES)[:MOST_STEPS]:
            other_arrays = [a.copy() for a in arrays]
            other_arrays[n][place] += 1e-7
            pairs = zip(trial.run(other_arrays).arrays(), outputs, strict=True)
            moving_outputs |= {k for k, (y, z) in enumerate(pairs) if where_different(y, z).any()}
    return len(moving_outputs) < len(outputs)


def _may_be_surrogate(trial: Trial, is_flat: bool = True) -> bool:
    """Return whether an output is flat in all arguments, and nobody has said what is meant.

    Args:
        is_flat: whether one is at the inputs.
    """
    is_unknown = is_flat and trial.meant is None
    flat = [flat_outputs(trial, n) for n in trial.floats] if is_unknown else []
    return bool(flat) and bool(set.intersection(*flat))


# --- what computes in float32, whatever it is given -----------------------------------------------
DIRECTIONS = 3  # for each argument
STEP = 2.0**-5  # of an element's size
SHARE = 1e-2  # of the largest that a slope along a direction may be: what it may be off by
EPS = 2.0**-23
SHORT = 2.0**-18  # some numbers of float32


def _judge_in_float32(trial: Trial) -> str:
    run, u, _ = start_where_finite(trial)
    size = weighted_sum(map(np.abs, u), map(np.abs, run.arrays()))
    compared_count, has_slope, has_stairs, message = 0, False, False, ""
    for n, each in _directions(trial, trial.stated.weighed(u), run.gradients(u), size):
        has_slope = has_slope or abs(each.slope) > each.doubt
        error = abs(each.gradient - each.slope)
        if not error > 4 * each.doubt and each.doubt > SHARE * each.usual_size:
            continue  # neither right nor wrong
        is_wrong = not error <= SHARE * each.usual_size + 4 * each.doubt
        moved = each.moved
        # SHORT is long for float32 but short for a stair, which STEP would take for a slope.
        if is_wrong and trial.meant is None and moved(SHORT) == moved(0.0) == moved(-SHORT):
            has_stairs = True
            continue
        compared_count += 1
        if not message and is_wrong:
            message = (
                f"argument {n}: along one direction {each.gradient:.6g}, expected "
                f"{each.slope:.6g} by differences in float32"
            )
    # Stairs are flat under a short step and sloped under a long one: a surrogate again.
    if (message and not has_slope) or (has_stairs and not message):
        if _may_be_surrogate(trial):
            raise excuse_flat(trial)
        message = message or "a gradient, where the forward is flat at these inputs alone"
    if not compared_count:
        raise NotApplicable("it computes in float32, and differences tell nothing there")
    return message


def _judge_second_in_float32(
    trial: Trial, hvps: Sequence[Any], weigh: Weigh, weights: Arrays
) -> str:
    size = abs(weigh(trial.inputs))
    size += sum(float(np.abs(weights[n]).sum()) for n in trial.floats)
    # Twice and three times what the first derivative may be off by: this one loses more digits.
    for n, each in _directions(trial, weigh, hvps, size):
        if not abs(each.gradient - each.slope) <= 3 * SHARE * each.usual_size + 8 * each.doubt:
            return (
                f"{_fault(hvps)}: argument {n}, along one direction "
                f"{each.gradient:.6g}, expected {each.slope:.6g} by differences of the gradient "
                "in float32"
            )
    return ""


def _directions(
    trial: Trial, weigh: Weigh, gradients: Sequence[Any], size: float
) -> Iterator[tuple[int, DirectionSlope]]:
    """Yield float arguments, each with slopes along directions in which all its elements move.

    Args:
        size: the sum of the terms that `weigh` adds up, of whose rounding slopes consist in part.
    """
    arrays, differ = trial.inputs, partial(_slope, size=size)
    for n in trial.floats:
        x, generator = arrays[n], np.random.default_rng((SEED, n))
        # Steps that keep signs, to stay in a domain such as x > 0.
        sizes = np.maximum(np.abs(x), 0.1 * np.max(np.abs(x), initial=0.0))
        for _ in range(DIRECTIONS):
            signs = generator.integers(0, 2, x.shape) * 2 - 1
            direction = sizes * signs * generator.uniform(0.5, 1.5, x.shape)
            yield n, slope_along(weigh, arrays, gradients, {n: direction}, differ)


def _slope(moved: Moved, size: float) -> tuple[float, float]:
    """Return the slope at 0 by differences, and how far it may be off; infinity at a kink."""
    slopes = [(moved(h) - moved(-h)) / (2 * h) for h in (STEP, STEP / 2, STEP / 4)]
    first, last = slopes[1] - slopes[0], (slopes[2] - slopes[1])
    noise = 16 * EPS * size / STEP
    if not abs(last) <= 0.5 * abs(first) + noise:  # at a kink slopes part as steps shrink
        return slopes[2], np.inf
    # Halving the step divides the error of central differences by 4, hence the third.
    return slopes[2] + last / 3, abs(last) + noise
