"""Laws of dtypes and of numbers: derivatives, 16 bits, far numbers, edges, empty inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..capture.dialects import xp as _xp
from ..functions.proof.compare import eps_of, smallest_of
from ..graph.ops.numerics import as_numpy_dtype
from ..look.check import differentiate, pick, slope_at
from ..look.subject import as_float, brackets
from .trial import (
    LOOSE,
    SEED,
    Arrays,
    NotApplicable,
    Trial,
    Weigh,
    largest_of,
    moved_along,
    start,
    total,
    weighed,
    with_element,
    worst,
)

xp: Any = _xp
MOST_PLACES = 64  # whose differences are taken
MOST_STEPS = 24  # that tell whether an output is flat
FINE = 1e-7  # what a small number beside a divisor may change in float64
TINY = 1e-6  # from here down a pole is near
NEAR_ENOUGH = 1e2  # up to here no wave fits into a step
# Numbers at which code often branches; at 1000 float64's exp is infinite.
EDGES = (0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 1000.0, -1000.0)
# float32's exp ends between 88 and 89, its cubes at 7e12.
FAR = (1e4, -1e4, 88.0, -88.0, 1e-4, -1e-4, 1e-30, 1e12)


# --- dtypes ---------------------------------------------------------------------------------------


def judge_type(trial: Trial) -> str:
    with trial.quiet(trial.dtype):
        run = trial.run(trial.given)
        gradients = run.pull(trial.tensors(trial.cotangents(run)))
    for n in trial.floats:
        got, given = gradients[n], trial.given[n]
        if got is None:
            continue
        array = run.read(got)
        if array.shape != given.shape or array.dtype != given.dtype:
            return (
                f"argument {n} is {given.dtype}{list(given.shape)}, its gradient "
                f"{array.dtype}{list(array.shape)}"
            )
    return ""


def in_16_bits(dtype: str) -> Callable[[Trial], str]:
    """Return a judge that compares a 16-bit dtype with the widest, to the digits of the dtype and
    to what one rounding of the inputs changes.
    """

    def judge(trial: Trial) -> str:
        narrow = trial.cast(dtype)
        with trial.quiet("float32"):
            run = trial.run(narrow)
            u = [as_float(a, dtype) for a in trial.cotangents(run)]
            gradients = run.gradients(
                [as_float(a, y.dtype.name) for a, y in zip(u, run.arrays(), strict=True)]
            )
        exact = trial.changed(narrow, lambda a: as_float(a, trial.wide))
        return differs_in(dtype, trial, outputs=run.arrays(), found=gradients, u=u, exact=exact)

    return judge


def differs_in(
    dtype: str, trial: Trial, *, outputs: Arrays, found: Arrays, u: Arrays, exact: Arrays
) -> str:
    """Return where gradients computed in a 16-bit dtype differ from those of the widest.

    Args:
        outputs, found: of that run, and its gradients.
        u: its cotangents.
        exact: its inputs in the widest dtype.
    """
    wide_run = trial.run(exact)
    pairs = zip(outputs, wide_run.arrays(), strict=True)
    # A rounded input may lie on the other side of a step.
    if any(_crosses(np.asarray(y, np.float64), wide) for y, wide in pairs):
        raise NotApplicable("its steps lie between other numbers, rounded to 16 bits")
    given = [as_float(a, trial.wide) for a in u]
    wanted = wide_run.gradients(given)
    beside = rounded(dtype, trial, exact)
    pairs = zip(trial.run(beside).gradients(given), wanted, strict=True)
    moved = [np.abs(a - b) for a, b in pairs if a is not None and b is not None]
    # 65504 is the largest float16; bfloat16 has about the range of float32.
    largest = float(np.finfo(as_numpy_dtype("float32")).max) if dtype == "bfloat16" else 65504.0
    # What does not fit into the dtype is NaN in both, so that it is not compared.
    fits = [None if w is None else np.where(np.abs(w) <= largest, w, np.nan) for w in wanted]
    kept = [
        g if g is None or w is None else np.where(np.isnan(w), np.nan, g.astype(np.float64))
        for g, w in zip(found, fits, strict=True)
    ]
    # Below the smallest number there is nothing.
    noise = trial.noise_in(dtype) + 4 * (largest_of(moved) + smallest_of(as_numpy_dtype(dtype)))
    return worst(kept, fits, LOOSE[dtype], noise)


def rounded(dtype: str, trial: Trial, arrays: Arrays) -> Arrays:
    """Return inputs with a rounding to a dtype on each element, up and down in turn."""
    eps = eps_of(as_numpy_dtype(dtype))

    def turn(a: Any) -> Any:
        turns = (1 - 2 * (np.arange(a.size) % 2)).reshape(a.shape)
        return (a * (1 + eps * turns)).astype(a.dtype)

    return trial.changed(arrays, turn)


def _crosses(narrow: Any, wide: Any) -> bool:
    # Only outputs of whole numbers, as those of a step, can jump.
    return bool(np.all(wide == np.rint(wide)) and not np.array_equal(narrow, wide))


# --- numbers --------------------------------------------------------------------------------------


def _elements(
    trial: Trial, weigh: Weigh, arrays: Arrays, found: Sequence[Any], most: int = MOST_PLACES
) -> Iterator[tuple[int, tuple[int, ...], float, float, float]]:
    """Yield the elements with a slope by differences: argument and place, the slope, the gradient,
    and the largest slope of the argument.
    """
    for n in trial.floats:
        places = pick(arrays[n].shape, MOST_PLACES)[:most]
        slopes = {place: slope_at(weigh, arrays, n, place) for place in places}
        settled = {place: slope for place, (slope, is_settled) in slopes.items() if is_settled}
        largest = max(map(abs, settled.values()), default=0.0)
        for place, slope in settled.items():
            yield n, place, slope, 0.0 if found[n] is None else found[n][place], largest


def _need_float64(trial: Trial) -> None:
    if trial.digits != "float64":
        raise NotApplicable("it does not compute in float64, in which differences are taken")


def judge_derivative(trial: Trial) -> str:
    if trial.is_surrogate and trial.meant is None:
        raise NotApplicable("it is a surrogate, which is meant to differ")
    if trial.digits == "float32":
        return _coarse_derivative(trial)
    _need_float64(trial)
    run, u = start(trial)
    arrays, gradients = trial.cast("float64"), run.gradients(u)
    weigh = weighed(trial.stated, u)
    if trial.meant is not None:
        shapes = [[y.shape for y in each.run(arrays).arrays()] for each in (trial, trial.stated)]
        if shapes[0] != shapes[1]:
            return f"outputs are {shapes[0]}, those of what is meant {shapes[1]}"
    elements = list(_elements(trial, weigh, arrays, gradients))
    flat = not any(slope for _, _, slope, *_ in elements)
    wrong = [
        f"argument {n}{brackets(place)} = {arrays[n][place]:.6g}: {got:.9g}, expected "
        f"{slope:.9g} by differences"
        for n, place, slope, got, largest in elements
        # `not <=`, so that NaN counts as wrong.
        if not abs(got - slope) <= 1e-5 * max(largest, 1e-3) + 1e-7
    ]
    if not (_compare_beside(trial, wrong) or elements):
        raise NotApplicable("it has no derivative at any of the inputs' elements")
    # Wrong and flat: a surrogate, unless the caller has said what is meant.
    if wrong and trial.meant is None and (flat or _has_flat_output(trial)):
        raise NotApplicable("its forward is flat: it is a surrogate, which is meant to differ")
    return wrong[0] if wrong else _beside_autodiff(trial, u, gradients)


def _beside_autodiff(trial: Trial, u: Arrays, found: Arrays) -> str:
    # Differences show errors above 1e-5 only; autodiff of the forward shows smaller ones.
    if trial.forward is None or trial.meant is not None or trial.backend.autodiff.vjp is None:
        return ""
    arrays = trial.cast("float64")
    try:
        given = replace(trial, call=trial.forward).run(arrays).gradients(u)
    except Exception:  # the user's code, which nobody has written for autodiff
        return ""
    pairs = [(found[n], given[n]) for n in trial.floats]
    pairs = [(got, want) for got, want in pairs if got is not None and want is not None]
    if any(worst([got], [want], 1e-5, 1e-7) for got, want in pairs):
        return ""  # differences have told whose it is: the forward hides a part of itself
    gradients, wanted = (list(each) for each in zip(*pairs, strict=True)) if pairs else ([], [])
    said = worst(gradients, wanted, FINE, trial.noise)
    return f"{said} by autodiff of the forward" if said else ""


def _compare_beside(trial: Trial, wrong: list[str]) -> bool:
    # Other numbers show what was wrongly kept from the first call.
    arrays = trial.changed(trial.cast("float64"), lambda a: a * 0.75)
    run = trial.run(arrays)
    u = trial.cotangents(run, seed=1)
    gradients = run.gradients(u)
    ways = {n: np.cos(np.arange(arrays[n].size)).reshape(arrays[n].shape) for n in trial.floats}
    weigh = moved_along(weighed(trial.stated, u), arrays, ways)
    slope, is_settled = differentiate(weigh, 0.0)
    parts = [gradients[n] * way for n, way in ways.items() if gradients[n] is not None]
    size = sum(float(np.sum(np.abs(part))) for part in parts)
    got = sum(float(np.sum(part)) for part in parts)
    if is_settled and not abs(got - slope) <= 1e-5 * max(abs(slope), size, 1e-3) + 1e-7:
        wrong.append(
            f"at 3/4 of the inputs, along one direction: {got:.9g}, expected {slope:.9g} by "
            "differences"
        )
    return is_settled


def judge_edges(trial: Trial) -> str:
    """With one element of the first tensor at a number where codes decide, the gradient lies
    between the slopes to both sides.
    """
    if trial.is_surrogate:
        raise NotApplicable("it is a surrogate, which is meant to differ")
    _need_float64(trial)
    given, compared = trial.cast("float64"), 0
    for n in trial.floats[:1]:  # others may be limits of it, which must not cross
        if not given[n].size:
            continue
        own = float(given[n].flat[0])
        for number in (own, *EDGES):

            def weigh(step: float, n: int = n, number: float = number) -> float:
                return total(trial, with_element(given, n, 0, number + step))

            sides = [_slope_to(weigh, side) for side in (-1.0, 1.0)]
            low, high = min(sides), max(sides)
            if not np.isfinite([low, high]).all():
                continue
            run = trial.run(with_element(given, n, 0, number))
            gradient = run.gradients([np.ones_like(a) for a in run.arrays()])[n]
            got = 0.0 if gradient is None else float(gradient.flat[0])
            compared += 1
            if low == high == 0 and np.isfinite(got):
                continue  # it is flat there, and may be a surrogate
            noise = 1e-4 * (1 + max(abs(low), abs(high)))
            if not low - noise <= got <= high + noise:
                # The element's own number comes first: a fault there is not the edge's.
                if number == own:
                    raise NotApplicable("it is no derivative at other numbers either")
                return (
                    f"argument {n}'s first element = {number:g}: {got:.6g}, expected "
                    f"{f'{low:.6g}' if high - low < noise else f'{low:.6g} to {high:.6g}'} by "
                    "differences to both sides"
                )
    if not compared:
        raise NotApplicable("it has no slopes there")
    return ""


def _slope_to(f: Callable[[float], float], side: float) -> float:
    middle = f(0.0)
    first, second, third = (side * (f(side * h) - middle) / h for h in (4e-5, 2e-5, 1e-5))
    # Extrapolated to a step of 0; two extrapolations must agree.
    slope = 2 * third - second
    is_settled = abs(slope - (2 * second - first)) <= 1e-5 * (1 + abs(slope) + abs(middle))
    return slope if is_settled else float("nan")


def _has_flat_output(trial: Trial) -> bool:
    arrays = trial.cast("float64")
    outputs = trial.run(arrays).arrays()
    moves = [False] * len(outputs)
    for n in trial.floats:
        for place in pick(arrays[n].shape, MOST_PLACES)[:MOST_STEPS]:
            other = [a.copy() if i == n else a for i, a in enumerate(arrays)]
            other[n][place] += 1e-7
            for k, (y, before) in enumerate(zip(trial.run(other).arrays(), outputs, strict=True)):
                moves[k] = moves[k] or not np.array_equal(y, before, equal_nan=True)
    return not all(moves)


def judge_second(trial: Trial) -> str:
    """Compare the gradient's own gradient with differences of the gradient."""
    if trial.digits != "float32":
        _need_float64(trial)
    backend = trial.backend
    if backend.autodiff.vjp is None:
        raise NotApplicable(f"{backend.name} has no autodiff of its own")
    run, u = start(trial)
    arrays = trial.cast(trial.wide)
    weights = [np.cos(np.arange(a.size)).reshape(a.shape).astype(a.dtype) for a in arrays]

    def gradients_of(tensors: Sequence[Any]) -> list[Any]:
        # Cotangents depend on the inputs, as a loss's do: once_differentiable raises only then.
        nothing = sum(xp.sum(tensors[n]) * 0.0 for n in trial.floats)
        cotangents = [x + nothing for x in trial.tensors(u)]
        gradients = trial.run_on(list(tensors)).pull(cotangents)
        return [gradients[n] for n in trial.floats]

    _, pull = backend.autodiff.vjp(gradients_of, trial.tensors(arrays))
    given = trial.tensors([weights[n] for n in trial.floats])
    second = [run.read(each) for each in pull(given)]

    def weigh(moved: Arrays) -> float:
        gradients = trial.run(moved).gradients(u)
        pairs = ((weights[n], gradients[n]) for n in trial.floats if gradients[n] is not None)
        return float(sum(np.sum(weight * each) for weight, each in pairs))

    if trial.digits == "float32":
        return _coarse_second(trial, second, weigh, weights)
    for n, place, slope, got, largest in _elements(trial, weigh, arrays, second, MOST_STEPS):
        if not abs(got - slope) <= 1e-4 * max(largest, 1e-3) + 1e-6:
            fault = _fault(second[n])
            if fault == "is wrong" and (trial.is_surrogate or _has_flat_output(trial)):
                raise NotApplicable("it is a surrogate, whose gradient may have one, too")
            return (
                f"the second derivative {fault}: argument {n}{brackets(place)}: {got:.9g}, "
                f"expected {slope:.9g} by differences of the gradient"
            )
    return ""


def _fault(gradient: Any) -> str:
    return "is missing" if gradient is None or not gradient.any() else "is wrong"


def judge_far(trial: Trial) -> str:
    """Compare far numbers in the dtype of the call with float64."""
    if trial.dtype != "float32" or trial.wide != "float64":
        raise NotApplicable("it takes float32 and float64 both, or there is nothing to compare")
    for number in FAR:
        arrays = trial.changed(trial.given, lambda a, number=number: np.full_like(a, number))
        with trial.quiet("float32"):
            run = trial.run(arrays)
            outputs = run.arrays()
            if not all(np.isfinite(y).all() for y in outputs):
                continue  # the forward overflows, which is its own matter
            u = [np.ones_like(a) for a in outputs]
            gradients = run.gradients(u)
        exact = trial.changed(arrays, lambda a: as_float(a, "float64"))
        wanted = trial.run(exact).gradients([as_float(a, "float64") for a in u])
        for n in trial.floats:
            got, want = gradients[n], wanted[n]
            if got is None or want is None:
                continue
            fits = np.isfinite(want) & (np.abs(want) < 1e37)
            # Near a pole one more product may overflow, but 0 / 0 must not give NaN.
            bad = fits & (np.isnan(got) if abs(number) < TINY else ~np.isfinite(got))
            if bad.any():
                return f"argument {n} = {number:g}: {got[bad][0]}, expected {want[bad][0]:.6g}"
        said = _differs_far(trial, number) if abs(number) > 1.0 else ""
        if said:
            return said
    return ""


def _differs_far(trial: Trial, number: float) -> str:
    arrays = list(trial.cast("float64"))
    for n in trial.floats:  # no two alike, as at ties there is no derivative
        steps = np.arange(arrays[n].size).reshape(arrays[n].shape)
        arrays[n] = number * (1.0 + 0.01 * np.sin(1.0 + steps + 7.0 * n))
    run = trial.run(arrays)
    outputs = run.arrays()
    # Cotangents are not all alike either: the outputs of a softmax add up to one.
    u = [np.cos(np.arange(y.size, dtype=y.dtype)).reshape(y.shape) for y in outputs]
    gradients = run.gradients(u)
    for n in trial.floats:
        got = gradients[n]
        if got is None:
            continue
        way = number * np.cos(np.arange(got.size, dtype=got.dtype)).reshape(got.shape)
        moved = moved_along(weighed(trial.stated, u), arrays, {n: way})
        slope, is_settled = differentiate(moved, 0.0)
        if not is_settled or not abs(slope) < 1e37:
            continue
        along = float(np.sum(got * way))
        if np.isnan(along) or np.isinf(along):
            return f"argument {n} = {number:g}: {got[~np.isfinite(got)][0]}, expected a number"
        if abs(number) > NEAR_ENOUGH:
            continue
        large = max(abs(slope), float(np.sum(np.abs(got * way))))
        allowed = 1e-3 * large + 1e-7 * sum(float(np.sum(np.abs(y))) for y in outputs)
        if abs(along - slope) > allowed and _is_derivative(trial):
            # What oscillates may look settled by steps of many periods.
            again, is_settled = differentiate(lambda t, f=moved: f(t / 1024) * 1024, 0.0)
            if not is_settled or abs(again - slope) > 0.1 * abs(along - slope):
                continue
            return (
                f"argument {n} = {number:g}: the gradient along one direction is "
                f"{along / number:.6g}, expected {slope / number:.6g} by differences"
            )
    return ""


def _is_derivative(trial: Trial) -> bool:
    if trial.digits != "float64":
        return False  # differences tell nothing as small as a far number's gradient
    # A gradient that is wrong at the inputs is the law `derivative`'s finding.
    try:
        return not judge_derivative(trial)
    except NotApplicable:
        return False


def judge_zeros(trial: Trial) -> str:
    """The gradient is the same at 0 and -0, which are one number."""
    run, _ = start(trial)
    given = trial.cast(trial.wide)
    gradients = []
    for zero in (0.0, -0.0):
        run = trial.run(trial.changed(given, lambda a, zero=zero: np.full_like(a, zero)))
        gradients.append(run.gradients([np.ones_like(a) for a in run.arrays()]))
    if not all(np.isfinite(g).all() for each in gradients for g in each if g is not None):
        raise NotApplicable("it has no derivative at 0")
    said = worst(gradients[1], gradients[0], trial.loose, trial.noise)
    if said and _has_kink(trial, [np.zeros_like(a) for a in given]):
        raise NotApplicable("it has no derivative at 0")
    return f"at -0 and 0: {said}" if said else ""


def _has_kink(trial: Trial, arrays: Arrays) -> bool:
    return trial.digits == "float64" and not all(
        slope_at(partial(total, trial), arrays, n, place)[1]
        for n in trial.floats
        for place in pick(arrays[n].shape, MOST_PLACES)[:MOST_STEPS]
    )


def judge_empty(trial: Trial) -> str:
    count = len(trial.given) - getattr(trial.call, "parameter_count", 0)  # parameters have no batch
    given = trial.cast(trial.wide)
    arrays = [a[:0] if a.ndim and n < count else a for n, a in enumerate(given)]
    if not any(a.ndim and n in trial.floats for n, a in enumerate(trial.given)):
        raise NotApplicable("its inputs have no axes")
    run = trial.run(arrays)
    gradients = run.gradients(trial.cotangents(run))
    shapes = [None if g is None else g.shape for g in gradients]
    for n in trial.floats:
        if shapes[n] not in (None, arrays[n].shape):
            return f"argument {n} of shape {arrays[n].shape} has a gradient of shape {shapes[n]}"
    return ""


# --- what computes in float32, whatever it is given -----------------------------------------------
# Few digits, so long steps along directions in which every element moves.
DIRECTIONS = 3  # for each argument
STEP = 2.0**-5  # of an element's size
SHARE = 1e-2  # of the largest that a slope along a direction may be: what it may be off by
EPS = 2.0**-23
SHORT = 2.0**-18  # some numbers of float32
Moved = Callable[[float], float]


def _directions(
    trial: Trial, weigh: Weigh, found: Sequence[Any], size: float
) -> Iterator[tuple[int, Moved, float, float, float, float]]:
    """Yield directions of the arguments: the argument, `weigh` as a function of a step, its slope
    and how far that may be off, the slope by the gradient, and the size of either.
    """
    arrays = trial.cast(trial.wide)
    for n in trial.floats:
        for way in _ways(arrays[n], n):
            moved = moved_along(weigh, arrays, {n: way})
            slope, doubt = _slope(moved, size)
            parts = np.zeros(1) if found[n] is None else found[n] * way
            largest = max(abs(slope), float(np.sqrt(np.sum(parts**2))))
            yield n, moved, slope, doubt, float(np.sum(parts)), largest


def _coarse_derivative(trial: Trial) -> str:
    run, u = start(trial)
    size = float(sum(np.sum(np.abs(c * y)) for c, y in zip(u, run.arrays(), strict=True)))
    compared, moves, has_stairs, said = 0, False, False, ""
    rows = _directions(trial, weighed(trial.stated, u), run.gradients(u), size)
    for n, moved, slope, doubt, along, largest in rows:
        moves = moves or abs(slope) > doubt
        if not abs(along - slope) > 4 * doubt and doubt > SHARE * largest:
            continue  # neither right nor wrong
        is_wrong = not abs(along - slope) <= SHARE * largest + 4 * doubt
        if is_wrong and trial.meant is None and _is_flat(moved):
            has_stairs = True
            continue
        compared += 1
        if not said and is_wrong:
            said = (
                f"argument {n}: along one direction {along:.6g}, expected {slope:.6g} by "
                "differences in float32"
            )
    # Stairs are flat under a short step and sloped under a long one: a surrogate again.
    if trial.meant is None and ((said and not moves) or (has_stairs and not said)):
        raise NotApplicable("its forward is flat: it is a surrogate, which is meant to differ")
    if not compared:
        raise NotApplicable("it computes in float32, and differences tell nothing there")
    return said


def _coarse_second(trial: Trial, second: Sequence[Any], weigh: Weigh, weights: Arrays) -> str:
    size = abs(weigh(trial.cast(trial.wide)))
    size += sum(float(np.abs(weights[n]).sum()) for n in trial.floats)
    for n, _, slope, doubt, along, largest in _directions(trial, weigh, second, size):
        if not abs(along - slope) <= 3 * SHARE * largest + 8 * doubt:
            return (
                f"the second derivative {_fault(second[n])}: argument {n}, along one direction "
                f"{along:.6g}, expected {slope:.6g} by differences of the gradient in float32"
            )
    return ""


def _ways(array: Any, n: int) -> list[Any]:
    # Steps keep signs, so that they stay inside a domain such as x > 0.
    generator = np.random.default_rng((SEED, n))
    sizes = np.maximum(np.abs(array), 0.1 * np.max(np.abs(array), initial=0.0))
    made = []
    for _ in range(DIRECTIONS):
        signs = generator.integers(0, 2, array.shape) * 2 - 1
        made.append(sizes * signs * generator.uniform(0.5, 1.5, array.shape))
    return made


def _is_flat(moved: Moved) -> bool:
    # SHORT is long for float32 but short for a stair, which STEP would take for a slope.
    return moved(SHORT) == moved(0.0) == moved(-SHORT)


def _slope(moved: Moved, size: float) -> tuple[float, float]:
    slopes = [(moved(h) - moved(-h)) / (2 * h) for h in (STEP, STEP / 2, STEP / 4)]
    before, last = slopes[1] - slopes[0], (slopes[2] - slopes[1])
    noise = 16 * EPS * size / STEP
    if not abs(last) <= 0.5 * abs(before) + noise:  # at a kink slopes part as steps shrink
        return slopes[2], np.inf
    # Halving the step divides the error of central differences by 4, hence the third.
    return slopes[2] + last / 3, abs(last) + noise
