"""Laws that compare a gradient with itself, so no formula of the derivative is needed.

A judge returns what it saw, "" if the law is kept (see `trial.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..core.ops.numerics import as_numpy_dtype
from ..engine.functions.calls.arguments import replace_at
from ..engine.functions.proof.compare import eps_of, smallest_of
from ..look.subject import as_float
from .trial import (
    SEED,
    TOLERANCES,
    Array,
    Arrays,
    ForwardRun,
    Law,
    NotApplicable,
    Remark,
    Tensor,
    Trial,
    added,
    find_difference,
    largest_of,
    law,
    place_of_largest,
    scaled,
    where_different,
)

THREADS = 4
TURNS = 8  # of each thread
# Of 120 calls a race of 1 in 40 shows with a probability of 95 %.
MOST_CALLS, FEWEST_CALLS = 120, 3
# Beyond limits and thresholds; loss scaling and means over large batches have such cotangents.
FAR_FACTORS = {"float64": 2.0**40, "float32": 2.0**20}
LONGEST = 1.0  # seconds of calls that are all alike


@law(
    "linear",
    "doubling a loss does not double its gradient; sums of losses are wrong",
    is_loud=False,
)
def judge_linear(trial: Trial) -> str:
    """The gradient is linear in the cotangent."""
    run, u = trial.start()
    v = trial.cotangents(run, seed=1)
    # Both factors are exact in every float dtype.
    mixture = added(scaled(u, 1.75), scaled(v, -0.625))
    of_u, of_v, of_mixture = (trial.run().gradients(c) for c in (u, v, mixture))
    sums = added(scaled(of_u, 1.75), scaled(of_v, -0.625))
    fault = trial.find_difference(finite_at(of_u, sums, of_mixture), sums, 4)
    return fault or _differs_from_parts(trial, u, of_u)


def finite_at(gradients: Arrays, sums: Arrays, wanted: Arrays) -> Arrays:
    """Return the sums that are expected, or any at a pole, where infinities add up to NaN."""
    return [
        w if g is None or w is None else np.where(np.isfinite(g), w, s)
        for g, s, w in zip(gradients, sums, wanted, strict=True)
    ]


def _differs_from_parts(trial: Trial, u: Arrays, gradients: Arrays) -> str:
    # Kernels take shortcuts for rows of zeros, and for one number that is not. Step 0 stands for
    # that number alone; a row is a last axis, or one number of a vector.
    for name, step in (("one number", 0), ("every second row", 2)):
        halves: tuple[Arrays, Arrays] = [], []
        for a in u:
            rows = np.arange(a.size).reshape(a.shape) // (a.shape[-1] if a.ndim > 1 and step else 1)
            mask = rows % step == 0 if step else rows == 0
            for half, part in zip(halves, (mask, ~mask), strict=True):
                half.append(np.where(part, a, 0).astype(a.dtype))
        part_gradients = (trial.run().gradients(each) for each in halves)
        sums = added(*part_gradients)
        fault = trial.find_difference(finite_at(gradients, sums, gradients), sums, 4)
        if fault:
            return f"the cotangent's {name} and the rest, added up: {fault}"
    return ""


@law("scale", "loss scaling changes the gradient", is_loud=False)
def judge_scale(trial: Trial) -> str:
    """A cotangent times a power of two gives the gradient times it, bit for bit.

    Powers of two are exact, so that a gradient that is linear follows them to the bit.
    """
    run, u = trial.start()
    gradients = run.gradients(u)
    far = FAR_FACTORS.get(trial.digits, 1.0)
    faults = (_follows(trial, gradients, u, factor) for factor in (4.0, far, 1.0 / far))
    return next(filter(None, faults), "")


@law("ones", "a shortcut for the cotangent 1 hides that it is otherwise ignored", is_loud=False)
def judge_ones(trial: Trial) -> str:
    """A cotangent of ones is treated like any other.

    A loss has the cotangent 1, for which kernels take shortcuts.
    """
    run, u = trial.start()
    ones = [np.ones_like(a) for a in u]
    gradients = run.gradients(ones)
    return _follows(trial, gradients, ones, 2.0) or _follows(trial, gradients, ones, -1.0)


def _follows(trial: Trial, gradients: Arrays, cotangents: Arrays, factor: float) -> str:
    other_gradients = trial.run().gradients(scaled(cotangents, factor))
    return find_difference(other_gradients, scaled(gradients, factor), 1e-12)


@law("zero", "a masked loss gives NaN", is_loud=False)
def judge_zero(trial: Trial) -> str:
    """A cotangent of zeros gives zeros.

    Compare where the gradient is finite only: at a pole, 0 times infinity is NaN.
    """
    run, u = trial.start()
    gradients = run.gradients(u)
    zero_gradients = trial.run().gradients([np.zeros_like(a) for a in u])
    wanted = [
        None if g is None else np.where(np.isfinite(gradient), 0, g).astype(g.dtype)
        for g, gradient in zip(zero_gradients, gradients, strict=True)
    ]
    return find_difference(zero_gradients, wanted)


@law("each output", "a loss on one output alone is wrong")
def judge_each_output(trial: Trial) -> str:
    """The gradient is the sum of the gradients of the outputs, taken separately."""
    run, u = trial.start()
    if len(u) < 2:
        raise NotApplicable("it has one output")
    gradients = run.gradients(u)
    zeros = [np.zeros_like(a) for a in u]
    parts = [trial.run().gradients(replace_at(zeros, [n], [u[n]])) for n in range(len(u))]
    return trial.find_difference(added(*parts), gradients)


@law("each input", "training with a frozen part, or a call with one tensor for two, goes wrong")
def judge_each_input(trial: Trial) -> str:
    """An input's gradient is the same if the other inputs need none, or share its memory."""
    vjp = trial.backend.autodiff.vjp
    if len(trial.floats) < 2 or vjp is None:
        raise NotApplicable("it has one float input, or its framework has no autodiff")
    run, u = trial.start()
    wanted, arrays = run.gradients(u), trial.inputs
    for n in trial.floats:
        tensors = trial.tensors(arrays)

        def call(xs: Sequence[Tensor], n: int = n, tensors: list[Tensor] = tensors) -> list[Any]:
            return trial.outputs(replace_at(tensors, [n], xs))

        _, pull = vjp(call, [tensors[n]])
        (got,) = pull(trial.tensors(u))
        fault = trial.find_difference([run.read(got)], [wanted[n]])
        if fault:
            fault = fault.replace("argument 0", f"argument {n}")
            return f"{fault}, if no other input needs a gradient"
    pairs = [(a, b) for a in trial.floats for b in trial.floats if a < b]
    for a, b in (pair for pair in pairs if len({arrays[n].shape for n in pair}) == 1):
        equal_run = trial.run(replace_at(arrays, [b], [arrays[a].copy()]))
        tensors = trial.tensors(arrays)
        shared_run = trial.run_on(replace_at(tensors, [b], [tensors[a]]))
        fault = trial.compare(shared_run, equal_run, u, equal_run.gradients(u))
        if fault:
            return f"argument {a} and argument {b} are one tensor: {fault}"
    return ""


@law("each parameter", "a part of the model is never trained", is_loud=False)
def judge_parameters(trial: Trial) -> str:
    """Each trained parameter of a module gets a gradient, which is not zero at all numbers."""
    dead = [n for n in trial.floats if n >= trial.input_count]
    if not dead:
        raise NotApplicable("it has no parameters")
    generator = np.random.default_rng(SEED)
    # What is initialized as zero, such as the second factor of a low-rank update, lets nothing
    # through to what comes before it: so others are tried.
    variants = [
        trial.changed(trial.inputs, lambda a: a + generator.normal(size=a.shape)) for _ in range(3)
    ]
    for arrays in (trial.inputs, *variants):
        run = trial.run(arrays)
        gradients = run.gradients(trial.cotangents(run))
        dead = [n for n in dead if gradients[n] is None or not gradients[n].any()]
    return f"none, or zeros, for {', '.join(f'argument {n}' for n in dead)}" if dead else ""


# --- repeated, interleaved and concurrent calls ---------------------------------------------------
@law("backward twice", "a saved tensor is overwritten", is_loud=False)
def judge_twice(trial: Trial) -> str:
    """A second backward through a retained graph gives the same result."""
    run, u = trial.start()
    first, second = (run.gradients(u) for _ in range(2))
    return find_difference(second, first)


@law("written", "numbers that other code holds change", is_loud=False)
def judge_written(trial: Trial) -> str:
    """Inputs, cotangents and outputs are not written to."""
    arrays = trial.inputs
    run, u = trial.start()
    outputs = [np.array(a) for a in run.arrays()]
    cotangents = trial.tensors(u)
    run.pull(cotangents)
    for kind, tensors, wanted in (
        ("input argument", run.inputs, arrays),
        ("cotangent", cotangents, u),
        ("output", run.outputs, outputs),
    ):
        fault = find_difference([run.read(x) for x in tensors], list(wanted))
        if fault:
            return f"it writes into its {fault.replace('argument', kind)}"
    return ""


@law("repeatable", "no other law can be tested", is_loud=False)
def judge_repeatable(trial: Trial) -> str:
    """Calls with the same inputs give the same result.

    Compare the outputs and gradients of many calls: a race shows in one of 40, or so.
    """
    run, u = trial.start()
    outputs, gradients = run.arrays(), run.gradients(u)
    start = time.monotonic()
    for count in range(2, MOST_CALLS + 1):
        repeated_run = trial.run()
        fault = find_difference(repeated_run.arrays(), outputs).replace("argument", "output")
        fault = fault or find_difference(repeated_run.gradients(u), gradients)
        if fault:
            return f"call {count} differs from the first: {fault}"
        if time.monotonic() - start > LONGEST and count >= FEWEST_CALLS:
            break
    return ""


@law(
    "seeded",
    "no run can be repeated, and a checkpoint's second forward is another one",
    is_loud=False,
)
def judge_seeded(trial: Trial) -> str:
    """What draws at random draws the same from the same seed."""
    if trial.seeds is not None:
        return Remark("it draws, and is given the same seed before each run")
    raise NotApplicable("it draws nothing")


@law("interleaved", "values for the backward are kept outside the call", is_loud=False)
def judge_interleaved(trial: Trial) -> str:
    """Another call in between changes nothing."""
    # Two calls are under way before either goes backward, as in a network that uses it twice.
    run, u = trial.start()
    wanted = trial.run().gradients(u)
    trial.run(trial.changed(trial.inputs, lambda a: a * 0.5))
    return find_difference(run.gradients(u), wanted)


@law("threads", "values for the backward are shared between threads", is_loud=False)
def judge_threads(trial: Trial) -> str:
    """Concurrent threads give the same results as one.

    Each thread has numbers of its own, so that a value of another thread shows.
    """
    if trial.seeds is not None:
        raise NotApplicable("it draws, and threads share the generator")
    inputs = [trial.changed(trial.inputs, lambda a, k=k: a * (1 - k / 8)) for k in range(THREADS)]
    u = [trial.cotangents(trial.run(arrays), seed=k) for k, arrays in enumerate(inputs)]
    wanted = [trial.run(arrays).gradients(c) for arrays, c in zip(inputs, u, strict=True)]

    def work(k: int) -> str:
        with trial.quiet():
            for _ in range(TURNS):
                fault = find_difference(trial.run(inputs[k]).gradients(u[k]), wanted[k])
                if fault:
                    return fault
        return ""

    with ThreadPoolExecutor(THREADS) as pool:
        return next(filter(None, pool.map(work, range(THREADS))), "")


# --- laws of dtypes: a gradient has its argument's; in 16 bits, the numbers of float64 ------------
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


def error_in_ulps(
    found: Array, exact: Array, eps: float, least: float = 0.0
) -> tuple[float, float, tuple[int, ...]]:
    """Return the largest error in units of the last place of the largest number, that of the norms,
    and where the largest is.

    Args:
        least: what the largest number counts as at least.
    """
    if not exact.size:
        return 0.0, 0.0, ()
    is_same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    with np.errstate(all="ignore"):
        error = np.where(is_same, 0.0, np.nan_to_num(np.abs(found - exact), nan=np.inf))
        finite = np.where(np.isfinite(exact), exact, 0.0)
        largest = max(float(np.max(np.abs(finite))), least) or 1.0
        norm = float(np.linalg.norm(finite)) or 1.0
        place = place_of_largest(error)
        return float(error[place]) / largest / eps, float(np.linalg.norm(error)) / norm, place
