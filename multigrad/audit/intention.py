"""What a gradient that is no derivative is meant to be, where its code or its numbers say so.

    stated_intention    `SURROGATE = ...` of a class, a function or its module
    recognize           straight-through estimators, reversals, scalings and surrogates

Nothing is excused by numbers alone that a wrong derivative could show, too: a constant factor only
where the forward is the identity, a gradient that passes through only where the forward is flat.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.backend.values import is_float_tensor
from ..engine.functions.calls.arguments import replace_at
from ..look.check import pick
from ..look.subject import brackets, origin_of
from .derivatives import UNCOMPARED, factor_of_derivative, how_to_compare, is_telling
from .trial import CLIPS, Arrays, Surrogate, Trial, find_difference, flat_outputs

IN_CODE = "SURROGATE"
# Whole words of a name: "GradReverse" and "grad_reverse" have "reverse", "Signed" has no "sign".
PASSING = {"ste", "straightthrough"}
REVERSING = {"reversal", "reverse", "rev", "grl"}
MEANT = {"surrogate"}
# These, and PASSING, count only where the forward is flat or the gradient is the cotangent.
STEPS = {
    *("binarize", "binarizer", "binarized", "binary", "fakequant", "heaviside", "lsq", "quant"),
    *("quantize", "quantizer", "quantized", "quantization", "round", "rounding", "sign"),
    *("spike", "spiking", "ternarize", "ternary", "vq"),
}
# Any curve is meant, or no function of each element by itself.
OF_ANY_SHAPE = {*MEANT, "heaviside", "spike", "spiking", "vq"}
# In a docstring, where "round" and "reverse" mean much else.
IN_DOCSTRINGS = {
    r"straight[- ]through": "straightthrough",
    r"surrogate[- ]gradient": "surrogate",
    r"gradient[- ]reversal|revers\w+ (the )?gradient": "reversal",
}
ALL_BUT_JUMPS = 0.95  # of the elements: a step from one value to the next is rare
PLACES = 4  # elements of a quantizer's argument that are moved over its jumps
POINTS = 64  # of each way
JUMPS = 4  # as many, and their height tells the factor of its gradient
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def stated_intention(obj: Any, name: str) -> Surrogate:
    """Return the value of `SURROGATE` for an object; None: there is none.

    In a class, on a function or in a module it is True, False, "cotangent" or the function whose
    derivative is meant; in a module also a dictionary of these by name.
    """
    owner = _owner_of(obj)
    module = sys.modules.get(getattr(owner, "__module__", None) or "")
    for holder in (owner, module):
        # Static: an attribute may run code, and a function of a class is not to be bound.
        intention = inspect.getattr_static(holder, IN_CODE, None)
        intention = getattr(intention, "__func__", intention)
        if isinstance(intention, Mapping):
            intention = intention.get(name)
        is_word = isinstance(intention, bool | str) and intention in (True, False, CLIPS)
        if is_word or callable(intention):
            return intention
    return None


def recognize(trial: Trial, obj: Any) -> Trial:
    """Return a trial that knows what its gradient is meant to be, as it is if nothing says so.

    A factor is compared: the gradient has to be that times the derivative everywhere.
    """
    text = inspect.getattr_static(_owner_of(obj), "__doc__", None) or ""
    text = text if isinstance(text, str) else ""
    found = {word: re.search(f"(?i){each}", text) for each, word in IN_DOCSTRINGS.items()}
    words = {word: f"docstring says {match[0]!r}" for word, match in found.items() if match}
    words |= {word: f"name says {quoted!r}" for word, quoted in _split(trial.name).items()}
    try:
        with trial.quiet():
            return _recognize(trial, words)
    except Exception:  # of the user's code: the laws report it
        return trial


def _owner_of(obj: Any) -> Any:
    """Return the class or function that has a gradient's docstring and its SURROGATE."""
    obj = obj[0] if isinstance(obj, tuple) and obj else obj
    origin = origin_of(obj)
    return origin if isinstance(origin, type) else getattr(obj, "__self__", obj)  # `Square.apply`


def _recognize(trial: Trial, words: Mapping[str, str]) -> Trial:
    run, u = trial.start()
    outputs, gradients = run.arrays(), run.gradients(u)
    factor = _factor_of_identity(trial, outputs, u, gradients)
    if is_telling(factor):
        return _scaled(trial, factor, "its forward is the identity")
    if reversing := words.keys() & REVERSING:
        factor = factor_of_derivative(trial)
        if factor is not None and factor < 0:
            return _scaled(trial, factor, f"its {words[min(reversing)]}")
    passing_places = [n for n in trial.floats if _passes(u, gradients[n])]
    flat_places = [n for n in trial.floats if len(flat_outputs(trial, n)) == len(outputs)]
    places = [n for n in passing_places if n in flat_places]
    reason = contradiction = ""
    said = words.keys()
    hints = said & MEANT or (said & PASSING if passing_places or flat_places else set())
    # Few values but for signs, as binary weights times a mean have.
    sizes = np.unique(np.round(np.abs(outputs[0].astype(np.float64)), 6))
    if flat_places or (passing_places and 2 * sizes.size <= outputs[0].size):
        hints = hints or said & STEPS
    if places:
        # A few elements may have met a jump.
        is_flat = len(flat_outputs(trial, places[0], ALL_BUT_JUMPS)) == len(outputs)
        where = trial.names[places[0]] if is_flat else f"most elements of {trial.names[places[0]]}"
        reason = f"its forward is flat in {where}, whose gradient is the cotangent"
    elif hints:
        held: dict[int, str | None] = dict.fromkeys(passing_places, "")
        if not held and not said & OF_ANY_SHAPE:
            held = {n: _strays(trial, n) for n in flat_places}
        places = [n for n, fault in held.items() if fault is not None]
        contradiction = next(filter(None, held.values()), "")
        reason = f"its {words[min(hints)]}"
        if places:
            names = ", ".join(trial.names[n] for n in places)
            what = "is the cotangent" if passing_places else "adds up to what its forward rises by"
            reason += f", and the gradient of {names} {what}"
        else:
            crossing = "; where inputs cross four of its steps, they are compared without f"
            reason += f". {how_to_compare(trial)}{crossing if held else ''}"
    if not reason:
        return trial
    if places and len(trial.floats) > len(places):
        reason += f". Those of its other arguments {UNCOMPARED}: xg.gate compares them"
    kind = "it is straight-through" if passing_places else "it is a surrogate"
    # A docstring may speak of another estimator; a name that says STE promises the cotangent.
    if _split(trial.name).keys() & PASSING and not passing_places and len(u) == 1:
        same_shaped = [g for g in gradients if g is not None and g.shape == u[0].shape]
        if any(g.any() for g in same_shaped):
            contradiction = (
                "its name says straight-through, but its gradient is not the cotangent, nor that "
                "with zeros in it"
            )
    intention = f"{kind}, which is meant to differ: {reason}"
    return replace(trial, is_surrogate=True, intention=intention, contradiction=contradiction)


def _split(name: str) -> dict[str, str]:
    """Return the words of a name in lower case, and how each is written."""
    words = {word.lower(): word for word in WORD.findall(name.rpartition(".")[2])}
    if {"straight", "through"} <= words.keys():
        words["straightthrough"] = f"{words['straight']} {words['through']}"
    return words


# --- what the numbers show ------------------------------------------------------------------------
def _factor_of_identity(
    trial: Trial, outputs: Arrays, u: Arrays, gradients: Arrays
) -> float | None:
    """Return the factor of the cotangent in the gradient of an identity; None: it is none."""
    if len(outputs) != 1:
        return None
    arrays = trial.inputs
    for n in trial.floats:
        if not np.array_equal(outputs[0], arrays[n]) or gradients[n] is None:
            continue
        # A ReLU, or a clamp, is the identity at some numbers, and x - y where y is half of x.
        points = [
            a * a.dtype.type(-16 * (k + 1)) if k in trial.floats else a
            for k, a in enumerate(arrays)
        ]
        c, g = u[0].astype(np.float64), gradients[n].astype(np.float64)
        if g.shape != c.shape or not np.array_equal(trial.run(points).arrays()[0], points[n]):
            continue
        factor = float(np.sum(g * c) / np.sum(c * c)) if c.any() else 0.0
        if not find_difference([g], [factor * c], max(trial.tolerance, 1e-6)):
            return factor
    return None


def _passes(u: Arrays, gradient: Any) -> bool:
    """Return whether a gradient is the cotangent, perhaps with zeros in it."""
    if len(u) != 1 or gradient is None or gradient.shape != u[0].shape:
        return False
    is_same = np.isclose(gradient, u[0], rtol=1e-6, atol=0)
    return bool(is_same.any() and (is_same | (gradient == 0)).all())


def _strays(trial: Trial, n: int) -> str | None:
    """Return where a gradient is not that of a curve which the steps of its forward follow, as
    those of LSQ, PACT and DoReFa are; "" if nowhere, None where there are too few jumps to tell.

    Elements move, one at a time, to the largest or the smallest number of their argument. For the
    same element of the output, the gradient adds up to what that rises by, but for one jump.
    """
    inputs, is_told = trial.inputs, False
    x = inputs[n]
    for place in pick(x.shape, PLACES):
        start, end = float(x[place]), float(max(x.min(), x.max(), key=lambda a: abs(a - x[place])))
        values, slopes = [], []
        for number in np.linspace(start, end, POINTS + 1):
            moved = x.copy()
            moved[place] = number
            run = trial.run(replace_at(inputs, [n], [moved]))
            outputs = run.arrays()
            if [y.shape for y in outputs] != [x.shape]:
                return None
            cotangent = np.zeros_like(outputs[0])
            cotangent[place] = 1
            gradient = run.gradients([cotangent])[n]
            if gradient is None:
                return None
            values.append(float(outputs[0][place]))
            slopes.append(float(gradient[place]))
        jumps = np.diff(values)
        rise, jump = float(jumps.sum()), float(np.abs(jumps).max())
        if not abs(rise) >= JUMPS * jump > 0:
            continue
        is_told, step = True, (end - start) / POINTS
        # Beyond its first and its last jump a forward is at a bound, where gradients go on or stop.
        first, *_, last = np.flatnonzero(jumps)
        between = np.array(slopes[first : last + 2])
        total = step * float(between.sum() - (between[0] + between[-1]) / 2)
        # Where a slope changes between two points, the sum is off by no more than one of them.
        if not abs(total - rise) <= jump + abs(step) * float(np.abs(between).max()):
            return (
                f"argument {n}{brackets(place)}: its gradient is not the cotangent, nor that with "
                f"zeros in it; from {start:.6g} to {end:.6g} the forward changes by {rise:.6g}, "
                f"and the gradient adds up to {total:.6g}"
            )
    return "" if is_told else None


def _scaled(trial: Trial, factor: float, why: str) -> Trial:
    """Return the trial of what is meant to have a factor times the derivative as its gradient."""

    # Read here, as `meant` may be traced, and then tells no dtypes.
    args, kwargs = trial.arguments.nest(trial.tensors(trial.given))
    outputs = trial.call(*args, **kwargs)
    is_one = not isinstance(outputs, tuple | list)
    factors = [factor if is_float_tensor(y) else 1 for y in ([outputs] if is_one else outputs)]

    def meant(*args: Any, **kwargs: Any) -> Any:
        results = trial.call(*args, **kwargs)
        if is_one:
            return results * factor
        return tuple(y if c == 1 else y * c for y, c in zip(results, factors, strict=True))

    kind = "a gradient reversal" if factor < 0 else "a gradient scaling"
    intention = f"it is {kind}, {factor:g} times the derivative: {why}"
    # A factor that is an argument differs at other numbers, so it cannot be compared there.
    scalars = [trial.given[n] for n in trial.floats if trial.given[n].size == 1]
    is_given = any(np.isclose(abs(factor), abs(float(a.reshape(())))) for a in scalars)
    is_known = factor in factors and not (is_given and len(trial.floats) > 1)
    return replace(trial, is_surrogate=True, meant=meant if is_known else None, intention=intention)
