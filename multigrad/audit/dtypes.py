"""Laws of dtypes: a gradient has its argument's, and in 16 bits the numbers of float64, rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.ops.numerics import as_numpy_dtype
from ..engine.functions.proof.compare import eps_of, smallest_of
from ..look.subject import as_float
from .trial import (
    TOLERANCES,
    Array,
    Arrays,
    ForwardRun,
    Law,
    NotApplicable,
    Remark,
    Trial,
    error_in_ulps,
    find_difference,
    largest_of,
    law,
    where_different,
)

OTHER_CHOICES = "its forward, rounded, chooses other values in some rows, which are not compared"


@law("type", "accumulation casts it silently, or fails far away", is_loud=False)
def judge_type(trial: Trial) -> str:
    """A gradient has the shape and the dtype of its argument."""
    with trial.quiet(trial.dtype):
        run = trial.run(trial.given)
        gradients = run.pull(trial.tensors(trial.cotangents(run)))
    for n in trial.floats:
        gradient, argument = gradients[n], trial.given[n]
        if gradient is None:
            continue
        array = run.read(gradient)
        if array.shape != argument.shape or array.dtype != argument.dtype:
            return (
                f"argument {n} is {argument.dtype}{list(argument.shape)}, its gradient "
                f"{array.dtype}{list(array.shape)}"
            )
    return ""


def in_16_bits(dtype: str, matters: str) -> Law:
    """Return the law of a 16-bit dtype: what one rounding of the inputs changes is allowed."""

    def judge(trial: Trial) -> str:
        trial.refuse_draws("another dtype gets")
        inputs = trial.cast(dtype)
        with trial.quiet("float32"):
            run = trial.run(inputs)
            u = [as_float(a, dtype) for a in trial.cotangents(run)]
            gradients = run.gradients(u)
        exact = trial.changed(inputs, lambda a: as_float(a, trial.wide))
        return differs_in(dtype, trial, run=run, gradients=gradients, u=u, exact=exact)

    sentence = f"In {dtype} the gradient is that of float64, to the precision of {dtype}."
    return Law(dtype, sentence, judge, matters)


judge_float16 = in_16_bits("float16", "16 bits overflow or lose a small term on the way")
judge_bfloat16 = in_16_bits("bfloat16", "16 bits lose a small term on the way")


def differs_in(
    dtype: str, trial: Trial, *, run: ForwardRun, gradients: Arrays, u: Arrays, exact: Arrays,
    tolerance: float = 0.0,
) -> str:  # fmt: skip
    """Return where gradients of a run in a small dtype differ from those of a wider one.

    Args:
        u: the cotangents of the run.
        exact: its inputs in the wider dtype.
        tolerance: the relative one, if it is larger than the dtype's.
    """
    outputs, wide_run = run.arrays(), trial.run(exact)
    expected = wide_run.arrays()
    for y, z in zip(outputs, expected, strict=True):
        # A rounded input may lie on the other side of a step, whose outputs are whole numbers.
        if np.all(z == np.rint(z)) and not np.array_equal(np.asarray(y, np.float64), z):
            raise NotApplicable("its steps lie between other numbers, rounded to 16 bits")
    rounded_run = trial.run(rounded(dtype, trial, exact))
    allowed, noise = max(tolerance, TOLERANCES[dtype]), trial.noise_in(dtype)

    def judge(gradients: Arrays, u: Arrays) -> str:
        wanted, shifted = wide_run.gradients(u), rounded_run.gradients(u)
        return compare_in(dtype, gradients, wanted, shifted, allowed=allowed, noise=noise)

    verdict = judge(gradients, u)
    masks = other_choices(trial, outputs, expected, exact) if verdict else []
    if not masks:
        return verdict
    u = [np.where(mask, 0, a).astype(a.dtype) for mask, a in zip(masks, u, strict=True)]
    if not largest_of(u):
        raise NotApplicable(OTHER_CHOICES)
    with trial.quiet("float32"):
        gradients = run.gradients(u)
    return judge(gradients, u) or Remark(OTHER_CHOICES)


def compare_in(
    dtype: str, gradients: Arrays, wanted: Arrays, shifted: Arrays, *, allowed: float, noise: float
) -> str:
    """Return where gradients in a small dtype differ from the wanted ones, or by how little.

    Args:
        shifted: the wanted ones at inputs with one rounding: what that changes is allowed.
    """
    small = as_numpy_dtype(dtype)
    # 65504 is the largest float16; bfloat16 has about the range of float32.
    largest = float(np.finfo(np.float32).max) if dtype == "bfloat16" else 65504.0
    # What does not fit into the dtype is NaN in both, so that it is not compared.
    truths = [None if w is None else np.where(np.abs(w) <= largest, w, np.nan) for w in wanted]
    grads = [
        g if g is None or w is None else np.where(np.isnan(w), np.nan, g.astype(np.float64))
        for g, w in zip(gradients, truths, strict=True)
    ]
    both = zip(shifted, wanted, strict=True)
    shifts = [np.abs(a - b) for a, b in both if a is not None and b is not None]
    # Below the smallest number there is nothing.
    noise += 4 * (largest_of(shifts) + smallest_of(small))
    if fault := find_difference(grads, truths, allowed, noise):
        return fault
    # Single numbers may be off by rounding; all of them may not, as where a term is missing.
    pairs = [(g, w) for g, w in zip(grads, truths, strict=True) if g is not None and w is not None]
    for (got, want), shift in zip(pairs, shifts, strict=True):
        error, size, rounding = map(root_mean_square, (got - want, want, shift))
        if error > allowed / 8 * size + 4 * rounding + noise:
            return f"on average it is off by {error:.3g}, of numbers of {size:.3g}"
    ulps = max((error_in_ulps(*pair, float(eps_of(small)))[0] for pair in pairs), default=0.0)
    return Remark(f"off by at most {ulps:.2g} ulps of the largest number")


def root_mean_square(a: Array) -> float:
    return float(np.sqrt(np.nanmean(np.square(a.astype(np.float64))))) if a.size else 0.0


def other_choices(trial: Trial, outputs: Arrays, wanted: Arrays, exact: Arrays) -> Arrays:
    """Return masks of rows in which a surrogate chose other inputs, such as another code, or []."""
    pairs = zip(outputs, wanted, strict=True)
    masks = [where_different(y, as_float(z, y.dtype.name)) for y, z in pairs]
    numbers = np.concatenate([np.ravel(a) for a in exact])
    is_chosen = any(np.isin(z, numbers).all() for z in wanted)
    if not (trial.is_surrogate and is_chosen and any(map(np.any, masks))):
        return []
    return [mask.any(axis=tuple(range(1, mask.ndim)), keepdims=True) for mask in masks]


def rounded(dtype: str, trial: Trial, arrays: Arrays) -> Arrays:
    """Return inputs with a rounding to a dtype on each element, up and down in turn."""
    eps = eps_of(as_numpy_dtype(dtype))

    def turn(a: Any) -> Any:
        turns = (1 - 2 * (np.arange(a.size) % 2)).reshape(a.shape)
        return (a * (1 + eps * turns)).astype(a.dtype)

    return trial.changed(arrays, turn)
