"""Laws of unusual inputs and cotangents: other memory layouts, numbers where codes branch, far
numbers, both zeros, numbers that are not finite, rows that share memory, no elements, no axes.

A judge returns what it saw, "" if the law is kept (see `trial.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..core import xp as _xp
from ..engine.functions.calls.arguments import replace_at
from ..look.check import pick, slope_at
from ..look.subject import as_float, brackets
from .derivatives import (
    MOST_PLACES,
    MOST_STEPS,
    judge_derivative,
    moved_along,
    require_float64,
    slope_along,
)
from .trial import (
    Array,
    Arrays,
    ForwardRun,
    NotApplicable,
    Trial,
    as_output_difference,
    law,
    wave,
    where_different,
    with_element,
)

xp: Any = _xp


def _transposed(trial: Trial, x: Any) -> Any:
    if len(x.shape) < 2:
        # Every second element of a doubled vector has stride 2.
        doubled_vector = xp.repeat(x.reshape(-1), 2) if len(x.shape) else x
        return doubled_vector[::2].reshape(x.shape) if len(x.shape) else x
    # The axes are swapped in memory, then swapped back as a view.
    swapped_array = np.ascontiguousarray(
        np.swapaxes(np.asarray(trial.backend.tensors.to_numpy(x)), -1, -2)
    )
    return xp.swapaxes(trial.backend.tensors.from_numpy(swapped_array), -1, -2)


def _cut_out(trial: Trial, x: Any) -> Any:
    """Return a part of a larger tensor: it begins later, and there are gaps between its rows."""
    if not len(x.shape):
        return x  # a part of an array of NumPy would be a number
    array = np.asarray(trial.backend.tensors.to_numpy(x))
    larger = np.pad(array, 2, constant_values=1)
    return trial.backend.tensors.from_numpy(larger)[(slice(2, -2),) * array.ndim]


LAYOUTS = (_transposed, _cut_out)


def _require_strides(trial: Trial) -> None:
    if trial.backend.tensors.is_contiguous is None:
        raise NotApplicable(f"{trial.backend.name}'s tensors have no strides")


def _require_input_strides(trial: Trial) -> None:
    _require_strides(trial)
    if trial.seeds is not None:
        raise NotApplicable("it draws, and the order of its numbers may follow the memory's")


@law("strided cotangent", "a transpose after the call changes the gradient")
def judge_strided_cotangent(trial: Trial) -> str:
    """A cotangent may have another memory order, or be a part of a larger tensor."""
    _require_strides(trial)
    run, u = trial.start()
    wanted = run.gradients(u)
    for layout in LAYOUTS:
        cotangents = [layout(trial, x) for x in trial.tensors(u)]
        gradients = [run.read(g) for g in trial.run().pull(cotangents)]
        if fault := trial.find_difference(gradients, wanted):
            return fault
    return ""


@law("broadcast cotangent", "kernels read or write past the one number")
def judge_broadcast_cotangent(trial: Trial) -> str:
    """A cotangent may be one repeated number, as `sum` gives.

    `y.sum().backward()` passes one number of stride 0.
    """
    _require_strides(trial)
    run, u = trial.start()
    wanted = run.gradients([np.full_like(a, 0.75) for a in u])
    other_run = trial.run()
    single_numbers = trial.tensors([np.full((1,) * a.ndim, 0.75, a.dtype) for a in u])
    cotangents = [xp.broadcast_to(x, a.shape) for x, a in zip(single_numbers, u, strict=True)]
    return trial.find_difference([run.read(g) for g in other_run.pull(cotangents)], wanted)


@law("strided input", "a transpose before the call changes the numbers")
def judge_strided_input(trial: Trial) -> str:
    """An input may have another memory order, or be a part of a larger tensor."""
    _require_input_strides(trial)
    run, u = trial.start()
    wanted = run.gradients(u)
    for layout in LAYOUTS:
        tensors = trial.changed(trial.tensors(trial.inputs), partial(layout, trial))
        if fault := trial.compare(trial.run_on(tensors), run, u, wanted):
            return fault
    return ""


# --- numbers where codes branch, far ones, and zeros ----------------------------------------------
# Numbers at which code often branches; at 1000 float64's exp is infinite.
EDGES = (0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 1000.0, -1000.0)
# float32's exp ends between 88 and 89, its cubes at 7e12.
FAR_NUMBERS = (1e4, -1e4, 88.0, -88.0, 1e-4, -1e-4, 1e-30, 1e12)
NEAR_POLE = 1e-6  # from here down a pole is near
MOST_COMPARED = 1e2  # up to here no wave fits into a step of differences


@law("edges", "a clamp counts at both branches, or 0 / 0 is NaN")
def judge_edges(trial: Trial) -> str:
    """At numbers where code often branches, and where numbers are alike, the gradient lies between
    the slopes on both sides.
    """
    if trial.is_surrogate:
        raise NotApplicable(trial.intention or "it is a surrogate, which is meant to differ")
    require_float64(trial)
    # Of the first tensor alone: others may be limits of it, which must not cross.
    inputs, n, was_compared = trial.cast("float64"), trial.floats[0], False
    own_numbers = inputs[n].flat[:1].tolist()
    # The element's own number, if there is one, comes first: a fault there is not the edge's.
    for number in (*own_numbers, *EDGES) if own_numbers else ():

        def weigh(step: float, number: float = number) -> float:
            return _total(trial, with_element(inputs, n, 0, number + step))

        low, high = sorted(_slope_to(weigh, side) for side in (-1.0, 1.0))
        if not np.isfinite([low, high]).all():
            continue
        run = trial.run(with_element(inputs, n, 0, number))
        gradient = run.gradients([np.ones_like(a) for a in run.arrays()])[n]
        got = 0.0 if gradient is None else float(gradient.flat[0])
        was_compared = True
        if low == high == 0 and np.isfinite(got):
            continue  # it is flat there, and may be a surrogate
        noise = 1e-4 * (1 + max(abs(low), abs(high)))
        if not low - noise <= got <= high + noise:
            if [number] == own_numbers:
                raise NotApplicable("it is no derivative at other numbers either")
            interval = f"{low:.6g}" if high - low < noise else f"{low:.6g} to {high:.6g}"
            return (
                f"argument {n}'s first element = {number:g}: {got:.6g}, expected {interval} by "
                "differences to both sides"
            )
    if not was_compared:
        raise NotApplicable("it has no slopes there")
    return _differs_where_alike(trial, inputs)


def _differs_where_alike(trial: Trial, inputs: Arrays) -> str:
    """Compare where all elements of the first tensor, or all of its rows, are alike: at ties one
    element has the gradient, or all have a share of it.
    """
    n = trial.floats[0]
    x = inputs[n]

    def wrong_at(point: Array, direction: Array) -> tuple[float, float] | None:
        """Return the gradient along a direction and the slope there, None if they are one."""
        arrays = [np.array(point) if i == n else a for i, a in enumerate(inputs)]
        run = trial.run(arrays)
        # Not all alike: the outputs of a softmax add up to one.
        u = [1 + 0.5 * wave(y) for y in run.arrays()]
        outputs_at = moved_along(trial.weighed(u), arrays, {n: direction})
        slopes = [_slope_to(outputs_at, side) for side in (-1.0, 1.0)]
        gradient = run.gradients(u)[n]
        # No gradient; a kink, or an infinity; or flat, as a surrogate's forward is.
        if gradient is None or not np.isfinite([*slopes, gradient.sum()]).all() or not any(slopes):
            return None
        got, noise = float(np.sum(gradient * direction)), 1e-4 * (1 + max(map(abs, slopes)))
        # Where the sides differ it is a tie, and any share of it is right.
        is_wrong = abs(slopes[1] - slopes[0]) <= noise < abs(got - slopes[1])
        return (got, slopes[1]) if is_wrong else None

    for name, point, direction in (
        ("elements", np.ones_like(x), np.ones_like(x)),
        ("rows", np.broadcast_to(x[:1], x.shape) if x.ndim else x, wave(x)),
    ):
        wrong = wrong_at(point, direction)
        # Where it is wrong beside, too, as off the unit quaternions, ties are not the reason.
        if wrong and not wrong_at(point * (1 + 0.1 * wave(x)), direction):
            return (
                f"argument {n}'s {name} all alike: {wrong[0]:.6g} along one direction, expected "
                f"{wrong[1]:.6g} by differences"
            )
    return ""


def _slope_to(f: Callable[[float], float], side: float) -> float:
    value = f(0.0)
    first, second, third = (side * (f(side * h) - value) / h for h in (4e-5, 2e-5, 1e-5))
    # Extrapolated to a step of 0; two extrapolations must agree.
    slope = 2 * third - second
    is_settled = abs(slope - (2 * second - first)) <= 1e-5 * (1 + abs(slope) + abs(value))
    return slope if is_settled else float("nan")


@law("far numbers", "one large activation turns a training into NaN")
def judge_far(trial: Trial) -> str:
    """Where the derivative at a large number is finite, the gradient equals it."""
    trial.refuse_draws("another dtype gets")
    if trial.dtype != "float32" or trial.wide != "float64":
        raise NotApplicable("it takes float32 and float64 both, or there is nothing to compare")
    for number in FAR_NUMBERS:
        far = _far_arrays(trial, number)
        arrays = [far.get(n, a) for n, a in enumerate(trial.given)]
        with trial.quiet("float32"):
            run = trial.run(arrays)
            outputs = run.arrays()
            if not all(np.isfinite(y).all() for y in outputs):
                continue  # the forward overflows, which is its own matter
            u = [np.ones_like(a) for a in outputs]
            gradients = run.gradients(u)
        exact_arrays = trial.changed(arrays, lambda a: as_float(a, "float64"))
        wanted = trial.run(exact_arrays).gradients(u)
        for n in trial.floats:
            got, want = gradients[n], wanted[n]
            if got is None or want is None:
                continue
            fits = np.isfinite(want) & (np.abs(want) < 1e37)
            # Near a pole one more product may overflow, but 0 / 0 must not give NaN.
            bad = fits & (np.isnan(got) if abs(number) < NEAR_POLE else ~np.isfinite(got))
            if bad.any():
                return f"{_place_of(trial, n, far)}: {got[bad][0]}, expected {want[bad][0]:.6g}"
        if abs(number) > 1.0 and (fault := _differs_far(trial, number, far)):
            return fault
    return ""


def _far_arrays(trial: Trial, number: float) -> dict[int, Array]:
    """Return the arguments that are far; the others stay as they are given.

    The first is the number everywhere. Others next to it may be its bounds, which have to be
    positive or must not cross: they are scaled by one factor, or stay if one of the two is a
    scalar, as a temperature or a step is. A scalar before a matrix is no first.
    """
    given = trial.given
    first, *later = trial.floats
    if not given[first].ndim:
        first = next((n for n in later if given[n].ndim > 1), first)
    others = [n for n in trial.floats if n != first and given[n].ndim and given[first].ndim]
    factor = abs(number) / (max([np.abs(given[n]).max(initial=0) for n in others], default=0) or 1)
    return {
        first: np.full_like(given[first], number),
        **{n: (given[n] * factor).astype(given[n].dtype) for n in others},
    }


def _place_of(trial: Trial, n: int, far: dict[int, Array]) -> str:
    """Return the first numbers of all arguments as text, that of argument n before the others."""
    arrays = {k: far.get(k, trial.given[k]) for k in trial.floats}
    numbers = {k: array.flat[0] for k, array in arrays.items() if array.size}
    places = sorted(numbers, key=lambda k: k != n)
    return ", ".join(f"argument {k} = {numbers[k]:g}" for k in places)


def _differs_far(trial: Trial, number: float, far: dict[int, Array]) -> str:
    """Return where a gradient near far numbers differs from differences, "" if nowhere."""
    arrays = list(trial.cast("float64"))
    for n, array in far.items():  # no two alike, as at ties there is no derivative
        places = np.arange(array.size).reshape(array.shape)
        arrays[n] = array * (1.0 + 0.01 * np.sin(1.0 + places + 7.0 * n))
    run = trial.run(arrays)
    outputs = run.arrays()
    # Cotangents are not all alike either: the outputs of a softmax add up to one.
    u = [wave(y).astype(y.dtype) for y in outputs]
    gradients, weigh = run.gradients(u), trial.stated.weighed(u)
    for n in trial.floats:
        got = gradients[n]
        if got is None:
            continue
        size = abs(number) if n in far else 1.0
        line = slope_along(weigh, arrays, gradients, {n: size * wave(got)})
        if not line.is_settled or not abs(line.slope) < 1e37:
            continue
        if not np.isfinite(line.gradient):
            place = _place_of(trial, n, far)
            return f"{place}: {got[~np.isfinite(got)][0]}, expected a number"
        if abs(number) > MOST_COMPARED:
            continue
        # The second part is what rounding of the outputs leaves in differences.
        allowed = 1e-3 * max(abs(line.slope), line.size)
        allowed += 1e-7 * sum(float(np.sum(np.abs(y))) for y in outputs)
        if line.slope == 0.0:  # what the forward's 1 - exp(-x) may have rounded away
            allowed += np.finfo(float).eps * size
        is_off = abs(line.gradient - line.slope) > allowed
        if is_off and _is_derivative(trial) and line.is_kept_by(1024):
            return (
                f"{_place_of(trial, n, far)}: the gradient along one direction is "
                f"{line.gradient / size:.6g}, expected {line.slope / size:.6g} by differences"
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


@law("zeros", "the sign of a zero decides the gradient")
def judge_zeros(trial: Trial) -> str:
    """0 and -0 have the same gradient."""
    trial.start()  # or the law does not apply
    arrays, gradients = trial.inputs, []
    for zero in (0.0, -0.0):
        run = trial.run(trial.changed(arrays, lambda a, zero=zero: np.full_like(a, zero)))
        gradients.append(run.gradients([np.ones_like(a) for a in run.arrays()]))
    if not all(np.isfinite(g).all() for each in gradients for g in each if g is not None):
        raise NotApplicable("it has no derivative at 0")
    fault = trial.find_difference(gradients[1], gradients[0])
    if not fault:
        return ""
    zeros = [np.zeros_like(a) for a in arrays]
    if (
        trial.digits == "float64"
        and not all(
            slope_at(partial(_total, trial), zeros, n, place)[1]  # whether it is settled
            for n in trial.floats
            for place in pick(zeros[n].shape, MOST_PLACES)[:MOST_STEPS]
        )
    ):
        raise NotApplicable("it has no derivative at 0")
    return f"at -0 and 0: {fault}"


# --- numbers that are not finite, shared rows, no elements, no axes -------------------------------
FAR = 1e3  # on either side of where codes decide
MOST_SUSPECTS = 8  # elements of which it is asked whether they affect an output


@law("not finite", "one bad sample turns the entire batch into NaN")
def judge_not_finite(trial: Trial) -> str:
    """An infinite element, or NaN, affects only gradients of elements that share an output; that of
    a cotangent is not hidden.

    Gradients are taken of the unaffected outputs.
    """
    run, u = trial.start()
    if not trial.is_surrogate and (fault := _hides(trial, u, run.gradients(u))):
        return fault
    arrays, n = trial.inputs, trial.floats[0]
    if not arrays[n].size:
        raise NotApplicable("it has no element")
    was_compared = False
    for number in (np.inf, -np.inf, np.nan):
        other_run = trial.run(with_element(arrays, n, 0, number))
        masks = _changed(trial, arrays, other_run.arrays())
        if all(each.all() for each in masks):
            continue  # a sum of all
        was_compared = True
        cotangents = [np.where(c, 0, a).astype(a.dtype) for c, a in zip(masks, u, strict=True)]
        if leak := _find_leak(trial, arrays, masks, other_run.gradients(cotangents), cotangents):
            return f"argument {n}'s first element = {number}: {leak}"
    if not was_compared:
        raise NotApplicable("one element changes all outputs")
    return ""


def _hides(trial: Trial, u: Arrays, gradients: Arrays) -> str:
    """Return where the gradient of cotangents that are not finite is, though it depends on them."""
    for number in (np.nan, np.inf):
        results = trial.run().gradients([np.full_like(a, number) for a in u])
        for n in trial.floats:
            got, usual = results[n], gradients[n]
            if got is not None and (np.isfinite(got) & (usual != 0) & np.isfinite(usual)).any():
                return f"argument {n}: a cotangent of {number} gives a finite gradient"
    return ""


def _find_leak(
    trial: Trial, arrays: Arrays, masks: Arrays, gradients: Arrays, cotangents: Arrays
) -> str:
    """Return where a gradient changed though its element affects no changed output, "" if none.

    Args:
        arrays: the inputs before the first float input's first element changed.
        masks: where outputs changed.
        gradients: those after the change.
        cotangents: those of the unchanged outputs; zeros for the others.
    """
    n = trial.floats[0]
    # Also far away on either side: a branch may hide the effect at the given numbers.
    bases = (arrays, *(with_element(arrays, n, 0, sign * FAR) for sign in (1, -1)))
    old_gradients = trial.run(arrays).gradients(cotangents)
    for k in trial.floats:
        got, want = gradients[k], old_gradients[k]
        if got is None or want is None:
            continue
        is_different = np.ravel(where_different(got, want))
        if k == n:
            is_different[0] = False  # the changed element itself may have any gradient
        for place in np.flatnonzero(is_different).tolist()[:MOST_SUSPECTS]:
            if not any(_affects(trial, base, masks, k, place) for base in bases):
                index = brackets([*map(int, np.unravel_index(place, want.shape))])
                return f"argument {k}{index}: {got.flat[place]:.9g}, before {want.flat[place]:.9g}"
    return ""


def _changed(trial: Trial, arrays: Arrays, outputs: Arrays) -> list[Any]:
    old_outputs = trial.run(arrays).arrays()
    masks = [where_different(a, b) for a, b in zip(outputs, old_outputs, strict=True)]
    if any(map(np.any, masks)):
        return masks
    # A step shows no change: then the first row counts as changed.
    sizes = [c[0].size if c.ndim and c.size else 1 for c in masks]
    return [np.arange(c.size).reshape(c.shape) < n for c, n in zip(masks, sizes, strict=True)]


def _affects(trial: Trial, arrays: Arrays, masks: Arrays, n: int, place: int) -> bool:
    """Return whether one element of input n affects an output where a mask is true."""
    old_outputs = trial.run(arrays).arrays()
    value = float(arrays[n].flat[place])
    # NaN spreads through most functions; the steps are for those that drop it.
    for number in (np.nan, value + 1.0, value - 1.0, 2.0 * value):
        new_outputs = trial.run(with_element(arrays, n, place, number)).arrays()
        triples = zip(new_outputs, old_outputs, masks, strict=True)
        if any((where_different(a, b) & c).any() for a, b, c in triples):
            return True
    return False


def _total(trial: Trial, arrays: Arrays) -> float:
    return float(sum(np.sum(y) for y in trial.run(arrays).arrays()))


@law("broadcast input", "kernels read past the one row, or its gradient shares that row's memory")
def judge_broadcast_input(trial: Trial) -> str:
    """An input may be one repeated row, as `expand` gives.

    `x.expand(n, -1)` is one row of stride 0, which holds the same numbers as n rows.
    """
    _require_input_strides(trial)
    rows = _of_inputs(trial, lambda a: a[:1] if a.ndim and a.shape[0] > 1 else None)
    arrays = trial.inputs
    for n, row in rows.items():
        arrays[n] = np.broadcast_to(row, arrays[n].shape).copy()
    run, u = _start_if_taken(trial, arrays)
    wanted = run.gradients(u)
    if not all(np.isfinite(a).all() for a in (*run.arrays(), *wanted) if a is not None):
        raise NotApplicable("it is not finite where all rows are alike")
    tensors = trial.tensors(arrays)
    for n, row in rows.items():
        tensors[n] = xp.broadcast_to(*trial.tensors([row]), arrays[n].shape)
    return trial.compare(trial.run_on(tensors), run, u, wanted)


@law("empty", "the last batch, or an expert without tokens, fails")
def judge_empty(trial: Trial) -> str:
    """An empty batch has an empty gradient."""
    count = trial.input_count  # parameters have no batch
    shapes = {n: a.shape for n, a in enumerate(trial.given[:count]) if a.ndim}
    if not shapes:
        raise NotApplicable("its inputs have no axes")
    first, shape = next(iter(shapes.items()))
    # All that are as long as the first one; where that does not run, those of its shape, or it.
    long = [n for n, each in shapes.items() if each[0] == shape[0]]
    alike = [n for n, each in shapes.items() if each == shape]
    candidates = [
        [a[:0] if n in batch else a for n, a in enumerate(trial.inputs)]
        for batch in (long, alike, [first])
    ]
    arrays = next(filter(trial.runs, candidates), candidates[0])
    run = trial.run(arrays)
    gradients = run.gradients(trial.cotangents(run))
    for n in trial.floats:
        g, shape = gradients[n], arrays[n].shape
        if g is not None and g.shape != shape:
            return f"argument {n} of shape {shape} has a gradient of shape {g.shape}"
    return ""


@law("no axes", "a loss, a temperature or a learned scale fails, or gets an axis")
def judge_no_axes(trial: Trial) -> str:
    """A scalar has the same gradient as a vector of one element."""
    singles = _of_inputs(
        trial, lambda a: a.reshape(-1)[:1] if a.ndim and a.size else None, are_all=True
    )
    arrays = replace_at(trial.inputs, [*singles], [*singles.values()])
    run, u = _start_if_taken(trial, arrays)
    if any(y.shape != (1,) for y in run.arrays()):
        raise NotApplicable("its outputs have other axes than its inputs")
    scalars = [a.reshape(()) if n in singles else a for n, a in enumerate(arrays)]
    scalar_run = trial.run(scalars)
    if any(y.shape for y in scalar_run.arrays()):
        raise NotApplicable("its outputs have axes all the same")
    if fault := trial.find_difference([y.reshape(1) for y in scalar_run.arrays()], run.arrays()):
        return as_output_difference(fault)
    gradients = scalar_run.gradients([a.reshape(()) for a in u])
    for n, gradient in enumerate(gradients):
        if gradient is not None and gradient.shape != scalars[n].shape:
            return f"argument {n} without axes has a gradient of shape {gradient.shape}"
    vectors = [g if g is None else g.reshape(arrays[n].shape) for n, g in enumerate(gradients)]
    return trial.find_difference(vectors, run.gradients(u))


def _of_inputs(trial: Trial, change: Callable[[Any], Any], are_all: bool = False) -> dict[int, Any]:
    """Return the changed inputs by position: float inputs or all, but never parameters."""
    candidates = {
        n: change(a)
        for n, a in enumerate(trial.inputs[: trial.input_count])
        if are_all or n in trial.floats
    }
    inputs = {n: a for n, a in candidates.items() if a is not None}
    if not inputs:
        raise NotApplicable("its inputs have no axes")
    return inputs


def _start_if_taken(trial: Trial, arrays: Arrays) -> tuple[ForwardRun, Arrays]:
    if not trial.runs(arrays):
        raise NotApplicable("it takes no such inputs")
    return trial.start(arrays)
