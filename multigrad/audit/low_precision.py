"""Differences of what computes in float32, whatever it is given: few digits, so long steps along
directions in which every element moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .judging import NotApplicable, Weigh, moved_along, start, weighed
from .trial import SEED, Arrays, Trial

DIRECTIONS = 3  # for each argument
STEP = 2.0**-5  # of an element's size
SHARE = 1e-2  # of the largest that a slope along a direction may be: what it may be off by
EPS = 2.0**-23
SHORT = 2.0**-18  # some numbers of float32
Moved = Callable[[float], float]


def judge_derivative(trial: Trial) -> str:
    """Compare the gradient with slopes along directions."""
    run, u = start(trial)
    arrays, found = trial.cast(trial.wide), run.gradients(u)
    size = float(sum(np.sum(np.abs(c * y)) for c, y in zip(u, run.arrays(), strict=True)))
    weigh = weighed(trial.stated, u)
    compared, moves, has_stairs, said = 0, False, False, ""
    for n in trial.floats:
        got = np.zeros_like(arrays[n]) if found[n] is None else found[n]
        for way in _ways(arrays[n], n):
            moved = moved_along(weigh, arrays, {n: way})
            slope, doubt = _slope(moved, size)
            moves = moves or abs(slope) > doubt
            along = float(np.sum(got * way))
            largest = max(abs(slope), float(np.sqrt(np.sum((got * way) ** 2))))
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
    if trial.meant is None and ((said and not moves) or (has_stairs and not said)):
        raise NotApplicable("its forward is flat: it is a surrogate, which is meant to differ")
    if not compared:
        raise NotApplicable("it computes in float32, and differences tell nothing there")
    return said


def judge_second(trial: Trial, second: Sequence[Any], weigh: Weigh, weights: Arrays) -> str:
    """Compare the gradient's own gradient with slopes of the gradient along directions."""
    arrays = trial.cast(trial.wide)
    size = float(abs(weigh(arrays))) + sum(float(np.abs(weights[n]).sum()) for n in trial.floats)
    for n in trial.floats:
        got = np.zeros_like(arrays[n]) if second[n] is None else second[n]
        for way in _ways(arrays[n], n):
            slope, doubt = _slope(moved_along(weigh, arrays, {n: way}), size)
            along = float(np.sum(got * way))
            largest = max(abs(slope), float(np.sqrt(np.sum((got * way) ** 2))))
            if not abs(along - slope) <= 3 * SHARE * largest + 8 * doubt:
                kind = "is missing" if not got.any() else "is wrong"
                return (
                    f"the second derivative {kind}: argument {n}, along one direction "
                    f"{along:.6g}, expected {slope:.6g} by differences of the gradient in float32"
                )
    return ""


def _ways(array: Any, n: int) -> list[Any]:
    """Return directions whose steps keep signs, so that they stay inside of a domain."""
    generator = np.random.default_rng((SEED, n))
    sizes = np.maximum(np.abs(array), 0.1 * np.max(np.abs(array), initial=0.0))
    made = []
    for _ in range(DIRECTIONS):
        signs = generator.integers(0, 2, array.shape) * 2 - 1
        made.append(sizes * signs * generator.uniform(0.5, 1.5, array.shape))
    return made


def _is_flat(moved: Moved) -> bool:
    """Return whether a step that is short, but not for float32, changes nothing at all: what rounds
    has steps, which longer ones take for slopes.
    """
    return moved(SHORT) == moved(0.0) == moved(-SHORT)


def _slope(moved: Moved, size: float) -> tuple[float, float]:
    """Return the slope along a direction, and what it may be off by."""
    slopes = [(moved(h) - moved(-h)) / (2 * h) for h in (STEP, STEP / 2, STEP / 4)]
    before, last = slopes[1] - slopes[0], (slopes[2] - slopes[1])
    noise = 16 * EPS * size / STEP
    if not abs(last) <= 0.5 * abs(before) + noise:  # at a kink slopes part as steps shrink
        return slopes[2], np.inf
    return slopes[2] + last / 3, abs(last) + noise
