"""Laws of a framework's modes: forward mode, checkpoints, autocast, its map over a batch and its
compiler; and of the tensors kept for the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..backend.contract import Kept
from ..errors import GradientError
from ..functions.calls.arguments import replace_at
from ..functions.calls.capture_errors import NotCaptured
from ..functions.captures import capture_example
from ..graph.ir.types import dtype_name
from ..look.convert import brief
from ..look.subject import as_float
from .derivatives import differs_in, rounded
from .trial import (
    TOLERANCES,
    Arrays,
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
        said = f"{trial.backend.name} has no {name} that multigrad knows"
        raise NotApplicable(modes.lacks.get(name, said))
    return mode


@law("forward mode", "products with a Jacobian or a Hessian belong to another function")
def judge_forward(trial: Trial) -> str:
    """Forward mode, if there is one, is the transpose of the backward.

    The product of cotangent and output tangent is the product of gradient and input tangent.
    """
    push = _mode(trial, "jvp")
    run, u = trial.start()
    gradients, given = run.gradients(u), trial.inputs
    if not all(np.isfinite(gradients[n]).all() for n in trial.floats if gradients[n] is not None):
        raise NotApplicable("it has no finite gradient at the inputs")
    # Each argument alone too: the others then have no tangent, a case of its own in many rules.
    ways: list[list[int]] = [[n] for n in trial.floats]
    for seed, moved in enumerate([*ways, trial.floats] if len(ways) > 1 else ways):
        generator = np.random.default_rng((seed, 5))
        drawn = [np.asarray(generator.standard_normal(a.shape)) for a in given]
        tangents = [as_float(t, trial.wide) if n in moved else None for n, t in enumerate(drawn)]
        made = [None if t is None else trial.tensors([t])[0] for t in tangents]
        try:
            outputs, tangents_out = push(trial.outputs, trial.tensors(given), made)
        except (NotImplementedError, GradientError) as error:  # ours says why by the latter
            raise NotApplicable(f"it offers no forward mode: {error}") from error
        for n, (y, t) in enumerate(zip(outputs, tangents_out, strict=True)):
            kinds = [
                f"{dtype_name(each.dtype)}{list(each.shape)}" for each in (y, t) if t is not None
            ]
            if len(set(kinds)) > 1:
                return f"output {n} is {kinds[0]}, its tangent {kinds[1]}"
        said = _off(trial, u, [run.read(t) for t in tangents_out], gradients, tangents)
        if said:
            which = f"argument {moved[0]}" if len(moved) == 1 else "all arguments"
            return f"{said} by reverse mode, along one direction of {which}"
    return ""


def _off(trial: Trial, u: Arrays, found: Arrays, gradients: Arrays, tangents: list[Any]) -> str:
    left, size = _product(u, found)
    right, other = _product(gradients, tangents)
    steps = sum(float(np.sum(np.abs(t.astype(np.float64)))) for t in tangents if t is not None)
    allowed = max(trial.tolerance, LEAST_TOLERANCE) * (size + other) + trial.noise * steps
    if abs(left - right) <= allowed:
        return ""
    return f"the product with a cotangent is {left:.9g} by forward mode, {right:.9g}"


def _product(first: Sequence[Any], second: Sequence[Any]) -> tuple[float, float]:
    terms = [
        a.astype(np.float64) * b.astype(np.float64)
        for a, b in zip(first, second, strict=True)
        if a is not None and b is not None
    ]
    return sum(float(np.sum(t)) for t in terms), sum(float(np.sum(np.abs(t))) for t in terms)


@law("checkpoint", "saving memory changes the training")
def judge_checkpoint(trial: Trial) -> str:
    """Under a checkpoint, which runs the forward again, it gives the same result."""
    ways = _mode(trial, "checkpoints")
    run, u = trial.start()
    wanted, given = run.gradients(u), trial.inputs
    for name, vjp in ways.items():
        other = trial.run_on(trial.tensors(given), vjp)
        if said := trial.compare(other, run, u, wanted):
            return f"under {name} {said}"
    return ""


@law("autocast", "training in mixed precision fails in the backward, or loses a term")
def judge_autocast(trial: Trial) -> str:
    """Under autocast to bfloat16 the gradient is that of float64, to the precision of bfloat16, and
    has the dtype of its argument.
    """
    # The forward runs under autocast, the backward after it, as in a training step.
    vjp = _mode(trial, "autocast")
    trial.refuse_draws("another dtype gets")
    if trial.dtype not in ("float32", "float64"):
        raise NotApplicable("autocast begins with float32")
    trial.start()
    given = trial.cast("float32")
    with trial.quiet("float32"):
        try:
            run = trial.run_on(trial.tensors(given), vjp)
        except NotImplementedError as error:
            raise NotApplicable(str(error)) from error
        # Rounded once, so that the exact run gets the same cotangents.
        u = [as_float(a, "bfloat16") for a in trial.cotangents(run)]
        cotangents = [as_float(a, y.dtype.name) for a, y in zip(u, run.arrays(), strict=True)]
        try:
            gradients = run.gradients(cotangents)
        except GradientError as error:
            return " ".join(str(error).split())
    for n in trial.floats:
        got = gradients[n]
        if got is not None and dtype_name(got.dtype) != "float32":
            return f"argument {n} is float32, its gradient {got.dtype}"
    exact = trial.changed(given, lambda a: as_float(a, trial.wide))
    outputs = run.arrays()
    said = differs_in("bfloat16", trial, outputs=outputs, gradients=gradients, u=u, exact=exact)
    if said:
        return said
    # The output may move as far as one rounding of the inputs moves it.
    wanted, beside = (trial.run(a).arrays() for a in (exact, rounded("bfloat16", trial, exact)))
    moved = largest_of([np.abs(a - b) for a, b in zip(wanted, beside, strict=True)])
    noise = 4 * moved + trial.noise_in("bfloat16")
    return as_output_difference(find_difference(outputs, wanted, TOLERANCES["bfloat16"], noise))


# --- what is kept ---------------------------------------------------------------------------------
def kept_tensors(trial: Trial, factor: float = 1.0) -> list[Kept]:
    ask = _mode(trial, "kept")
    trial.start()

    def cotangents(outputs: Sequence[Any]) -> list[Any]:
        seed = int(8 * factor)
        return trial.tensors([draw_like(y, 6, seed, n) for n, y in enumerate(outputs)])

    arrays = trial.changed(trial.inputs, lambda a: a * a.dtype.type(factor))
    kept = ask(trial.outputs, trial.tensors(arrays), cotangents)
    if not kept:
        raise NotApplicable("no custom gradient in it keeps a tensor")
    return list(kept)


@law("bytes", "memory is wasted, unless other code needs it anyway")
def judge_bytes(trial: Trial) -> str:
    """The backward reads everything that is kept for it."""
    kept = kept_tensors(trial)
    unread = [each for each in kept if not each.is_read]
    if unread:  # by these numbers, but perhaps by others
        others = {each.where for each in kept_tensors(trial, 0.75) if not each.is_read}
        unread = [each for each in unread if each.where in others]
    total = sum(each.size for each in kept)
    if not unread:
        return Remark(f"{total} bytes are kept{_least(trial)}")
    return (
        f"its backward reads no number of {' and '.join(each.where for each in unread)}: "
        f"{sum(each.size for each in unread)} of {total} bytes that are kept"
    )


def _least(trial: Trial) -> str:
    if trial.converted is None:
        return ""
    try:
        # The cut is known once these inputs are captured.
        capture_example(trial.converted, *trial.arguments.nest(trial.given)[0])
        least = sum(each.size for each in kept_tensors(replace(trial, call=trial.converted)))
    except NotApplicable:
        least = 0
    except NotCaptured as error:
        return f"; multigrad does not capture it: {brief(error.error)}"
    except Exception as error:
        return f"; once converted it raises {brief(error)}"
    return f", {least} once it is converted"


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
    given = trial.inputs
    # Two different rows, so that a mix-up of the batch shows.
    batches = [np.stack([given[n], given[n] * 0.5]) for n in trial.floats]

    def run_one(*floats: Any) -> tuple[Any, ...]:
        return tuple(trial.outputs(replace_at(trial.tensors(given), trial.floats, floats)))

    singles = [trial.run(replace_at(given, trial.floats, [b[i] for b in batches])) for i in (0, 1)]
    u = [trial.cotangents(single, seed=i) for i, single in enumerate(singles)]
    _, pull = vjp(lambda floats: list(vmap(run_one)(*floats)), trial.tensors(batches))
    pulled = pull(trial.tensors([np.stack(pair) for pair in zip(*u, strict=True)]))
    alone = [single.gradients(c) for single, c in zip(singles, u, strict=True)]
    wanted = [
        None if alone[0][n] is None else np.stack([each[n] for each in alone]) for n in trial.floats
    ]
    return trial.find_difference([singles[0].read(g) for g in pulled], wanted)


@law("compiled", "a gradient that is right in a notebook differs in production")
def judge_compiled(trial: Trial) -> str:
    """The framework's compiler gives the same result."""
    backend = trial.backend
    if backend.compiler.jit is None or backend.autodiff.vjp is None:
        raise NotApplicable(f"{backend.name} has no compiler")
    trial.refuse_draws("compiled code draws")
    _, u = trial.start()
    made = trial.tensors(u)

    def both(*tensors: Any) -> list[Any]:
        gradients = trial.run_on(list(tensors), backend.modes.once).pull(made)
        return [each for each in gradients if each is not None]

    compiled, given = backend.compiler.jit(both, {}), trial.inputs
    # A number that compiled code took from its first call shows at other numbers.
    other = trial.changed(given, lambda a: 0.75 * a)
    for arrays, where in ((given, ""), (other, "called again, with 3/4 of the inputs: ")):
        run = trial.run(arrays)
        wanted = [g for g in run.gradients(u) if g is not None]
        found = [run.read(each) for each in compiled(*trial.tensors(arrays))]
        said = trial.find_difference(found, wanted)
        if said:
            return where + said
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
    given, made = trial.tensors(trial.inputs), trial.tensors(u)
    wanted, refusals, faults = run.gradients(u), [], []
    for name, transform in transforms.items():
        try:
            found = transform(call, given, made)
        except Exception as error:  # of the user's code: a transform may be refused
            refusals.append(error)
            continue
        gradients = [run.read(each) for each in found]
        if said := trial.find_difference(gradients, [wanted[n] for n in trial.floats]):
            fault = drops(name) if drops is not None else ""
            if not fault:
                return f"under {name}: {said}"
            faults.append(fault)
    if faults:  # which is the framework's, and not the code's
        raise NotApplicable(f"{faults[0]}; once converted it has its own gradient there")
    if len(refusals) == len(transforms):
        raise refusals[0]
    return ""
