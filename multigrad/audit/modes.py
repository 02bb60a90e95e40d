"""Laws of a framework's modes: forward mode, checkpoints, autocast, its map over a batch and its
compiler; and of the tensors kept for the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.functions.recipe import NotCaptured
from ..core.ir.op import dtype_name
from ..engine.backend.features import Kept
from ..engine.functions.calls.arguments import replace_at
from ..engine.functions.known_forms import capture_example
from ..errors import GradientError
from ..look.convert import brief
from ..look.subject import as_float
from .consistency import differs_in, other_choices, rounded
from .trial import (
    TOLERANCES,
    NotApplicable,
    Remark,
    Trial,
    as_output_difference,
    draw_like,
    find_difference,
    largest_of,
    law,
)

# Between two formulas of one derivative, of which one may be an approximation.
LEAST_TOLERANCE = 1e-5


def _mode(trial: Trial, name: str) -> Any:
    modes = trial.backend.modes
    mode = getattr(modes, name)
    if not mode:
        reason = f"{trial.backend.name} has no {name} that multigrad knows"
        raise NotApplicable(modes.lacks.get(name, reason))
    return mode


@law("forward mode", "products with a Jacobian or a Hessian belong to another function")
def judge_forward(trial: Trial) -> str:
    """Forward mode, if there is one, is the transpose of the backward.

    The product of cotangent and output tangent is the product of gradient and input tangent.
    """
    push = _mode(trial, "jvp")
    run, u = trial.start()
    gradients, arrays = run.gradients(u), trial.inputs
    if not all(np.isfinite(gradients[n]).all() for n in trial.floats if gradients[n] is not None):
        raise NotApplicable("it has no finite gradient at the inputs")
    # Each argument alone too: the others then have no tangent, a case of its own in many rules.
    groups: list[list[int]] = [[n] for n in trial.floats]
    for seed, group in enumerate([*groups, trial.floats] if len(groups) > 1 else groups):
        generator = np.random.default_rng((seed, 5))
        draws = [np.asarray(generator.standard_normal(a.shape)) for a in arrays]
        tangents = [as_float(t, trial.wide) if n in group else None for n, t in enumerate(draws)]
        tangent_tensors = [None if t is None else trial.tensors([t])[0] for t in tangents]
        try:
            outputs, output_tangents = push(trial.outputs, trial.tensors(arrays), tangent_tensors)
        except (NotImplementedError, GradientError) as error:  # ours says why by the latter
            raise NotApplicable(f"it offers no forward mode: {error}") from error
        for n, (y, t) in enumerate(zip(outputs, output_tangents, strict=True)):
            types = [
                f"{dtype_name(each.dtype)}{list(each.shape)}" for each in (y, t) if t is not None
            ]
            if len(set(types)) > 1:
                return f"output {n} is {types[0]}, its tangent {types[1]}"
        left, size = _product(u, [run.read(t) for t in output_tangents])
        right, other_size = _product(gradients, tangents)
        steps = sum(float(np.sum(np.abs(t.astype(np.float64)))) for t in tangents if t is not None)
        allowed = max(trial.tolerance, LEAST_TOLERANCE) * (size + other_size) + trial.noise * steps
        if not abs(left - right) <= allowed:
            subject = f"argument {group[0]}" if len(group) == 1 else "all arguments"
            return (
                f"the product with a cotangent is {left:.9g} by forward mode, {right:.9g} by "
                f"reverse mode, along one direction of {subject}"
            )
    return ""


def _product(first: Sequence[Any], second: Sequence[Any]) -> tuple[float, float]:
    """Return the inner product of two lists of arrays, and the sum of its terms' sizes."""
    terms = [
        a.astype(np.float64) * b.astype(np.float64)
        for a, b in zip(first, second, strict=True)
        if a is not None and b is not None
    ]
    return sum(float(np.sum(t)) for t in terms), sum(float(np.sum(np.abs(t))) for t in terms)


@law("checkpoint", "saving memory changes the training")
def judge_checkpoint(trial: Trial) -> str:
    """Under a checkpoint, which runs the forward again, it gives the same result."""
    checkpoints = _mode(trial, "checkpoints")
    run, u = trial.start()
    wanted, arrays = run.gradients(u), trial.inputs
    for name, vjp in checkpoints.items():
        checkpoint_run = trial.run_on(trial.tensors(arrays), vjp)
        if fault := trial.compare(checkpoint_run, run, u, wanted):
            return f"under {name} {fault}"
    return ""


@law("autocast", "training in mixed precision fails in the backward, or loses a term")
def judge_autocast(trial: Trial) -> str:
    """Under autocast to bfloat16 the gradient is that of the plain call, to the precision of
    bfloat16, and has the dtype of its argument.
    """
    # The forward runs under autocast, the backward after it, as in a training step.
    vjp = _mode(trial, "autocast")
    trial.refuse_draws("another dtype gets")
    if trial.dtype not in ("float32", "float64"):
        raise NotApplicable("autocast begins with float32")
    trial.start()
    arrays = trial.cast("float32")
    with trial.quiet("float32"):
        try:
            run = trial.run_on(trial.tensors(arrays), vjp)
        except NotImplementedError as error:
            raise NotApplicable(str(error)) from error
        # Rounded once, so that the exact run gets the same cotangents.
        u = [as_float(a, "bfloat16") for a in trial.cotangents(run)]
        try:
            gradients = run.gradients(u)
        except GradientError as error:
            return " ".join(str(error).split())
    for n in trial.floats:
        got = gradients[n]
        if got is not None and dtype_name(got.dtype) != "float32":
            return f"argument {n} is float32, its gradient {got.dtype}"
    # In float32 too: float64 would choose otherwise at a tie, as of a rounded quotient.
    outputs = run.arrays()
    fault = differs_in("bfloat16", trial, run=run, gradients=gradients, u=u, exact=arrays)
    # The output may move as far as one rounding of the inputs moves it.
    wanted, neighbors = (
        trial.run(a).arrays() for a in (arrays, rounded("bfloat16", trial, arrays))
    )
    if fault or other_choices(trial, outputs, wanted, arrays):
        return fault
    shift = largest_of([np.abs(a - b) for a, b in zip(wanted, neighbors, strict=True)])
    noise = 4 * shift + trial.noise_in("bfloat16")
    return as_output_difference(find_difference(outputs, wanted, TOLERANCES["bfloat16"], noise))


# --- what is kept ---------------------------------------------------------------------------------
def kept_tensors(trial: Trial, factor: float = 1.0) -> list[Kept]:
    list_residuals = _mode(trial, "kept")
    trial.start()

    def cotangents(outputs: Sequence[Any]) -> list[Any]:
        seed = int(8 * factor)
        return trial.tensors([draw_like(y, 6, seed, n) for n, y in enumerate(outputs)])

    arrays = trial.changed(trial.inputs, lambda a: a * a.dtype.type(factor))
    residuals = list_residuals(trial.outputs, trial.tensors(arrays), cotangents)
    if not residuals:
        raise NotApplicable("no custom gradient in it keeps a tensor")
    return list(residuals)


@law("bytes", "memory is wasted, unless other code needs it anyway")
def judge_bytes(trial: Trial) -> str:
    """The backward reads everything that is kept for it."""
    residuals = kept_tensors(trial)
    unread_residuals = [each for each in residuals if each.size and not each.is_read]
    if unread_residuals:  # by these numbers, but perhaps by others
        unread_places = {each.where for each in kept_tensors(trial, 0.75) if not each.is_read}
        unread_residuals = [each for each in unread_residuals if each.where in unread_places]
    total = sum(each.size for each in residuals)
    if not unread_residuals:
        return Remark(f"{total} bytes are kept in {trial.wide}{_least(trial)}")
    return (
        f"its backward reads no number of {' and '.join(each.where for each in unread_residuals)}: "
        f"{sum(each.size for each in unread_residuals)} of {total} bytes that are kept"
    )


def _least(trial: Trial) -> str:
    if trial.converted is None:
        return ""
    try:
        # The cut is known once these inputs are captured.
        capture_example(trial.converted, *trial.arguments.nest(trial.given)[0])
        least_bytes = sum(each.size for each in kept_tensors(replace(trial, call=trial.converted)))
    except NotApplicable:
        least_bytes = 0
    except NotCaptured as error:
        return f"; multigrad does not capture it: {brief(error.error)}"
    except Exception as error:
        return f"; once converted it raises {brief(error)}"
    return f", {least_bytes} once it is converted"


@law(
    "saved",
    "a later in-place change is not noticed, and an output that refers to itself is never freed",
)
def judge_saved(trial: Trial) -> str:
    """Inputs and outputs are kept by `save_for_backward`."""
    for each in kept_tensors(trial):
        if each.apart:
            return f"{each.where}, is an {each.apart} that is not kept by save_for_backward"
    return ""


# --- maps and compilers ---------------------------------------------------------------------------
@law("vmap", "per-example gradients are unavailable, or wrong")
def judge_batched(trial: Trial) -> str:
    """The framework's map over a batch gives what a loop gives."""
    vmap, vjp = trial.backend.autodiff.vmap, trial.backend.autodiff.vjp
    if vmap is None or vjp is None:
        name = trial.backend.name
        raise NotApplicable(f"{name} has no map over a batch that keeps custom gradients")
    arrays = trial.inputs
    # Two different rows, so that a mix-up of the batch shows.
    batches = [np.stack([arrays[n], arrays[n] * 0.5]) for n in trial.floats]

    def run_one(*floats: Any) -> tuple[Any, ...]:
        return tuple(trial.outputs(replace_at(trial.tensors(arrays), trial.floats, floats)))

    singles = [trial.run(replace_at(arrays, trial.floats, [b[i] for b in batches])) for i in (0, 1)]
    u = [trial.cotangents(single, seed=i) for i, single in enumerate(singles)]
    _, pull = vjp(lambda floats: list(vmap(run_one)(*floats)), trial.tensors(batches))
    batch_gradients = pull(trial.tensors([np.stack(pair) for pair in zip(*u, strict=True)]))
    rows = [single.gradients(c) for single, c in zip(singles, u, strict=True)]
    wanted = [
        None if rows[0][n] is None else np.stack([each[n] for each in rows]) for n in trial.floats
    ]
    return trial.find_difference([singles[0].read(g) for g in batch_gradients], wanted)


@law("compiled", "a gradient that is right in a notebook differs in production")
def judge_compiled(trial: Trial) -> str:
    """The framework's compiler gives the same result."""
    backend = trial.backend
    if backend.compiler.jit is None or backend.autodiff.vjp is None:
        raise NotApplicable(f"{backend.name} has no compiler")
    trial.refuse_draws("compiled code draws")
    _, u = trial.start()
    cotangents = trial.tensors(u)

    def gradients_of(*tensors: Any) -> list[Any]:
        gradients = trial.run_on(list(tensors), backend.modes.once).pull(cotangents)
        return [each for each in gradients if each is not None]

    compiled, inputs = backend.compiler.jit(gradients_of, {}), trial.inputs
    # A number that compiled code took from its first call shows at other numbers.
    other_inputs = trial.changed(inputs, lambda a: 0.75 * a)
    for arrays, prefix in ((inputs, ""), (other_inputs, "called again, with 3/4 of the inputs: ")):
        run = trial.run(arrays)
        wanted = [g for g in run.gradients(u) if g is not None]
        results = [run.read(each) for each in compiled(*trial.tensors(arrays))]
        fault = trial.find_difference(results, wanted)
        if fault:
            return prefix + fault
    return ""


@law(
    "compiled transforms",
    "the compiler differentiates the forward, and silently drops the backward",
)
def judge_compiled_transforms(trial: Trial) -> str:
    """A transform of gradients inside the compiler gives the same result."""
    transforms, drops = _mode(trial, "transforms"), trial.backend.modes.drops
    trial.refuse_draws("compiled code draws")
    run, u = trial.start()
    call = trial.as_plain_code()
    if len(call(run.inputs)) != len(u):
        raise NotApplicable("it has outputs that are no floats")
    inputs, cotangents = trial.tensors(trial.inputs), trial.tensors(u)
    wanted, refusals, faults = run.gradients(u), [], []
    for name, transform in transforms.items():
        try:
            results = transform(call, inputs, cotangents)
        except Exception as error:  # of the user's code: a transform may be refused
            refusals.append(error)
            continue
        gradients = [run.read(each) for each in results]
        if difference := trial.find_difference(gradients, [wanted[n] for n in trial.floats]):
            fault = drops(name) if drops is not None else ""
            if not fault:
                return f"under {name}: {difference}"
            faults.append(fault)
    if faults:  # which is the framework's, and not the code's
        raise NotApplicable(f"{faults[0]}; once converted it has its own gradient there")
    if len(refusals) == len(transforms):
        raise refusals[0]
    return ""
