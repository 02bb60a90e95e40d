"""One of the two sides of a gate, a kernel or its reference, with its inputs: the calls on which
both are compared, its results, and of a reference what these may be off by.

The reference in float64 is the truth. How far it is from that itself in a smaller dtype, at its
worst over several draws and moves of the inputs by a few eps, is the budget for the other's errors,
so that no tolerance has to be chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ..core.ops.numerics import as_numpy_dtype, ignoring_warnings
from ..engine.functions.calls.arguments import replace_at
from ..engine.functions.proof.compare import limits_of
from ..errors import RuleTypeError
from ..look.convert import brief
from ..look.subject import as_float, in_dtype, not_compared
from .audit import AuditReport, audit, keeping_dtypes, open_up
from .consistency import error_in_ulps
from .modes import kept_tensors
from .moves import moves, others_of_number
from .sizes import MOST_RESULTS, find_axes, numbers_in_code, resized, sizes_to_try
from .trial import Arrays, Trial, largest_of, place_of_largest, trial_of

DRAWS = 3  # of inputs and cotangents, the inputs as given among them
NEARBY = 2  # moves of each case by a few eps, which may not be as lucky
FACTOR = 4.0  # the error that is allowed, over that of the reference
FLOORS = {"float64": 64.0, "float32": 32.0, "float16": 8.0, "bfloat16": 4.0}  # ulps always allowed
EPS = float(np.finfo(np.float64).eps)
SMALL = 2.0**6  # over the smallest normal number: from here down digits are lost
MOST_ELEMENTS = 2**17  # of the inputs of another size
# Moves of inputs that tell a near tie: how many, and by how much at most. It is the same for 16
# bits, a few eps of which would hide a wrong threshold.
JUMPS, JUMP = 16, 4.0 * float(np.finfo(np.float32).eps)
GIVEN = "the inputs"


@dataclass(frozen=True, slots=True)
class GateCase:
    """A call on which both are compared: arrays in float64 that `dtype` holds exactly.

    Attributes:
        numbers: other plain numbers than the given ones, by their places among the leaves.
        made_with: those that the side is made with instead, by their places or names.
        is_made: whether it is no variation of the inputs, but made up: only what is finite in the
            dtype counts, and no side of a tie.
    """

    name: str
    dtype: str
    arrays: Arrays
    seed: tuple[int, int]
    numbers: Mapping[int, Any] = field(default_factory=dict)
    made_with: Mapping[Any, Any] = field(default_factory=dict)
    is_made: bool = False

    @property
    def limits(self) -> Any:
        return limits_of(as_numpy_dtype(self.dtype))

    def least(self, usual: float) -> float:
        """Return the size below which a result has no digits, in this dtype or in float64."""
        return max(SMALL * float(self.limits.tiny), EPS * usual)

    @property
    def is_draw(self) -> bool:
        return self.name == GIVEN or self.name.startswith("draw ")

    def counted(self, exact: dict[str, Any]) -> dict[str, Any]:
        """Return by name which elements of results are compared: of inputs that are made up, those
        that the dtype holds, and gradients only of outputs that are all finite.
        """
        if not self.is_made:
            return {name: np.full(y.shape, True) for name, y in exact.items()}
        outputs = {name: y for name, y in exact.items() if name.startswith("output")}
        is_finite = all(np.isfinite(y).all() for y in outputs.values())
        most = float(self.limits.max)
        return {n: (np.abs(y) <= most) & (is_finite or n in outputs) for n, y in exact.items()}

    def errors(
        self, found: Any, exact: Any, usual: Mapping[str, float]
    ) -> dict[str, tuple[float, float, tuple[int, ...]]]:
        """Return by name how far results are from the truth: in ulps of the largest element, as
        norms, and where it is furthest.

        Args:
            usual: the size of results at draws. Far below, float64 has no digits of them either.
        """
        errors = {}
        for name, counts in self.counted(exact).items():
            got, want = (np.where(counts, each[name], 0.0) for each in (found, exact))
            least = self.least(usual.get(name, 0.0))
            errors[name] = error_in_ulps(got, want, float(self.limits.eps), least)
        return errors


# Outputs and gradients by name; or why there are none.
Answer = dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class Truth:
    """What a case's results are in float64, and by how much the reference misses them in its dtype:
    in ulps of the largest element, and of the norms; of each element in `spread`. `usual` is how
    large the results are at draws.
    """

    exact: dict[str, Any]
    errors: dict[str, tuple[float, float]]
    spread: dict[str, Any]
    usual: dict[str, float]

    def allowed_errors(self, case: GateCase, name: str) -> Any:
        """Return the largest error that is allowed for each element of a result."""
        sizes = np.maximum(np.abs(self.exact[name]), case.least(self.usual.get(name, 0.0)))
        eps, ulps = float(case.limits.eps), self.errors[name][0]
        # A reference that loses digits of the whole may lose them in any element.
        lost = FACTOR * ulps * eps * sizes.max(initial=0.0) if ulps > FLOORS[case.dtype] else 0.0
        return np.maximum(FACTOR * self.spread[name], 2 * FLOORS[case.dtype] * eps * sizes) + lost

    def worst_element(self, case: GateCase, found: Any, name: str) -> Any:
        """Return the element of a result that misses most of what is allowed: by how many of its
        own ulps, how many are allowed, by what share of it, and where; None if none misses it.
        """
        exact, allowed = self.exact[name], self.allowed_errors(case, name)
        with np.errstate(all="ignore"):
            error = np.abs(found[name] - exact)
            # What is not finite is told by the error of the whole.
            counts = case.counted(self.exact)[name] & np.isfinite(error) & np.isfinite(allowed)
            share = np.where(counts, error / allowed, 0.0)
        if not share.size or share.max() <= 1.0:
            return None
        place = place_of_largest(share)
        unit = float(case.limits.eps) * (abs(exact[place]) or 1.0)
        ulps = float(error[place]) / unit
        return (
            ulps,
            float(allowed[place]) / unit,
            float(error[place]) / (abs(exact[place]) or 1.0),
            place,
        )


class Side:
    """A custom gradient or its reference, with inputs.

    Args:
        init: what `make` makes fn with, by place or name.
    """

    def __init__(
        self,
        fn: Any,
        inputs: Sequence[Any],
        init: Mapping[Any, Any] = MappingProxyType({}),
        make: Callable[[Mapping[Any, Any]], Any] | None = None,
    ) -> None:
        self.fn, self.inputs, self.init, self.make = fn, inputs, init, make
        with ignoring_warnings():
            self.called, all_inputs = open_up(fn, inputs)
            with keeping_dtypes(self.called):
                self.trial: Trial = trial_of(self.called, all_inputs, None)
        if not self.trial.floats:
            raise RuleTypeError(f"{self.trial.name} got no float tensor; pass arrays")

    def audit(self, laws: Iterable[str]) -> AuditReport:
        return audit(self.fn, *self.inputs, laws=laws)

    def cases(self, dtypes: Sequence[str], numbers: Iterable[int], seed: int) -> list[GateCase]:
        """Return the calls to compare, which depend on the inputs and the seed alone.

        Args:
            numbers: lengths to try beside those around powers of two, as code states them.
        """
        trial, cases = self.trial, list[GateCase]()
        for n in range(DRAWS):
            rng, arrays = np.random.default_rng((seed, n)), trial.cast("float64")
            for k in trial.floats if n else ():
                # Signs and ranges stay, so that what has to be positive, or within 0 and 1, is.
                permutation = rng.permutation(arrays[k].ravel()).reshape(arrays[k].shape)
                arrays[k] = permutation * rng.uniform(0.9, 1.0, permutation.shape)
            name = f"draw {n}" if n else GIVEN
            cases += [GateCase(name, dtype, _rounded(arrays, dtype), (seed, n)) for dtype in dtypes]
        for name, arrays in self._of_other_sizes([*numbers]):
            # The narrowest first, as code may keep what it computed in that for the next call.
            of_length = dtypes[::-1] if name.startswith("2 ") else dtypes[:1]
            cases += [GateCase(name, each, _rounded(arrays, each), (seed, 0)) for each in of_length]
        for move in moves(trial, seed):
            arrays = _rounded(move.arrays, dtypes[0])
            case = GateCase(
                move.name, dtypes[0], arrays, (seed, 0), numbers=move.numbers, is_made=True
            )
            cases.append(case)
        for place, value in self.init.items():
            for other in others_of_number(value):
                name, made_with = f"made with {other!r} in place of {value!r}", {place: other}
                with suppress(Exception):  # of the user's code, which may need the given number
                    arrays = _rounded(self.remade(made_with).trial.cast("float64"), dtypes[0])
                    case = GateCase(
                        name, dtypes[0], arrays, (seed, 0), made_with=made_with, is_made=True
                    )
                    cases.append(case)
        return cases

    def remade(self, changes: Mapping[Any, Any]) -> Side:
        assert self.make is not None
        return Side(self.make({**self.init, **changes}), self.inputs)

    def _of_other_sizes(self, numbers: Sequence[int]) -> Iterator[tuple[str, Arrays]]:
        trial = self.trial
        for axis in find_axes(trial):
            for size in sizes_to_try(trial, axis, numbers):
                arrays = resized(trial, axis, size)
                if sum(a.size for a in arrays) <= MOST_ELEMENTS:
                    yield f"{size} in place of {axis.length}", arrays
            # Lengths equal by chance are taken apart, where the reference runs so. Ids that
            # are fewer than their rows may run by chance.
            is_apart = len(axis.places) > 1 and {n for n, _ in axis.places} <= {*trial.floats}
            for n, dim in axis.places if is_apart else ():
                size = axis.length + 3
                arrays = resized(trial, axis._replace(places=((n, dim),)), size)
                yield f"{size} in place of {axis.length} in axis {dim} of {trial.names[n]}", arrays

    def answer(self, case: GateCase, dtype: str = "") -> Answer:
        """Return outputs and gradients for a case, in another dtype if one is named."""
        if case.made_with:
            try:
                side = self.remade(case.made_with)
            except Exception as error:
                return f"it raises {brief(error)}"
            return side.answer(replace(case, made_with={}), dtype)
        trial, dtype = self.trial, dtype or case.dtype
        shapes = [np.shape(a) for a in trial.given]
        if len(shapes) != len(case.arrays):
            return f"it has {len(shapes)} inputs and parameters, expected {len(case.arrays)}"
        arrays = in_dtype(case.arrays, dtype)
        if case.numbers:
            leaves = replace_at(trial.arguments.leaves, [*case.numbers], [*case.numbers.values()])
            trial = replace(trial, arguments=replace(trial.arguments, leaves=tuple(leaves)))
        try:
            with trial.quiet(dtype), keeping_dtypes(self.called), ignoring_warnings():
                run = trial.run(arrays)
                outputs = run.arrays()
                if max((y.size for y in outputs), default=0) > MOST_RESULTS:
                    return "its outputs are too large to be compared"
                rngs = (np.random.default_rng((*case.seed, n)) for n in range(len(outputs)))
                draws = (r.standard_normal(y.shape) for r, y in zip(rngs, outputs, strict=True))
                gradients = run.gradients([as_float(np.asarray(a), case.dtype) for a in draws])
        except Exception as error:
            return f"it raises {brief(error)}"
        results = {f"output {n}": y for n, y in enumerate(outputs)}
        for n in trial.floats:
            gradient = gradients[n]
            results[f"gradient {n}"] = np.zeros_like(arrays[n]) if gradient is None else gradient
        # NumPy alone may not know the dtype, and float64 holds all the others.
        return {name: np.asarray(a).astype(np.float64) for name, a in results.items()}

    def answers(self, cases: Sequence[GateCase]) -> list[Answer]:
        return [self.answer(case) for case in cases]

    def truths(self, cases: Sequence[GateCase]) -> list[Truth | str]:
        """Return the truth of each case, or why it is not known."""
        if self.trial.seeds is not None or not self.trial.is_repeatable:
            return ["the reference draws at random"] * len(cases)
        truths, sizes = list[Truth | str](), dict[str, float]()
        errors = dict[str, dict[str, tuple[float, float]]]()  # of draws, by dtype
        for case in cases:  # the draws come first
            truth = self.truth(case, sizes)
            if not isinstance(truth, str):
                worst = _largest(truth.errors, errors.get(case.dtype, {}))
                truth = replace(truth, errors=worst)
                if case.is_draw:
                    errors[case.dtype] = worst
                    largest = {name: largest_of([y]) for name, y in truth.exact.items()}
                    sizes |= {name: max(n, sizes.get(name, 0.0)) for name, n in largest.items()}
            truths.append(truth)
        return truths

    def truth(self, case: GateCase, usual: Mapping[str, float]) -> Truth | str:
        exact, spread = dict[str, Any](), dict[str, Any]()
        errors = dict[str, tuple[float, float]]()
        step = 4.0 * float(case.limits.eps)
        for n in range(NEARBY + 1):
            rng, arrays = np.random.default_rng((*case.seed, n)), [*case.arrays]
            for k in self.trial.floats if n else ():
                arrays[k] = arrays[k] * (1.0 + step * rng.uniform(-1.0, 1.0, np.shape(arrays[k])))
            nearby = replace(case, arrays=_rounded(arrays, case.dtype) if n else arrays)
            wanted, found = (self.answer(nearby, dtype) for dtype in ("float64", case.dtype))
            if isinstance(wanted, str) or isinstance(found, str):
                if n:
                    continue
                return wanted if isinstance(wanted, str) else str(found)
            exact = exact or wanted
            rows = case.errors(found, wanted, usual)
            errors = _largest(errors, {name: row[:2] for name, row in rows.items()})
            for name, y in wanted.items():
                error = np.abs(found[name] - y)
                spread[name] = np.fmax(spread.get(name, 0.0), np.where(found[name] == y, 0, error))
        return Truth(exact, errors, spread, dict(usual))

    def jumps(self, case: GateCase, found: Any, truth: Truth) -> dict[str, Any]:
        """Return the elements, by the results' names, to whose numbers this function jumps within a
        few eps of float32 of a case, as at a near tie of an argmin, or which are no further from
        its own than these moves take it, as a sum that nearly cancels.

        No jump is a slope, which half a move follows by half, nor an exact tie or a bound that is
        met exactly, which the tiniest move leaves: there fn has to be right, where the inputs are
        not made up.
        """
        exact, eps = truth.exact, float(case.limits.eps)
        masks = dict[str, Any]()
        for n in range(JUMPS):
            rng = np.random.default_rng((*case.seed, n))
            steps = [JUMP * rng.uniform(-1.0, 1.0, np.shape(a)) for a in case.arrays]
            moved: list[Any] = []
            for factor in (1.0, 0.5, 2.0**-10):
                arrays = [*case.arrays]
                for k in self.trial.floats:
                    # Zeros that are made up move, too: there an absolute value has no derivative.
                    sizes = np.where(arrays[k] == 0, 1, arrays[k]) if case.is_made else arrays[k]
                    arrays[k] = arrays[k] + factor * steps[k] * sizes
                moved.append(self.answer(replace(case, arrays=arrays), "float64"))
            for name, y in exact.items():
                close = allowed_ulps(case, truth, name) * eps * (largest_of([y]) or 1.0)
                with np.errstate(invalid="ignore"):  # of infinities
                    whole, half, tiny = (abs(each[name] - y) for each in moved)
                    is_same = abs(moved[0][name] - found[name]) <= close
                    error = abs(found[name] - y)
                is_jump = ((4 * half < whole) | (4 * half > 3 * whole)) & (64 * tiny < whole)
                is_within = (close < error) & (error <= whole)
                mask = np.where(is_jump, is_same, is_within)
                if case.is_made:
                    # Beside a tie that is made up each side may be right, and what lies between,
                    # and another element of its row may be the one that moves.
                    is_tie = ((4 * half < whole) | (4 * half > 3 * whole)) & (
                        whole > truth.allowed_errors(case, name)
                    )
                    if y.ndim:
                        row = whole.max(-1, keepdims=True)
                        whole = np.where(is_tie.any(-1, keepdims=True), row, whole)
                    mask = error <= 2 * whole
                masks[name] = masks.get(name, False) | mask
        return masks

    def seconds(self) -> float:
        with self.trial.quiet(self.trial.dtype), keeping_dtypes(self.called), ignoring_warnings():
            tensors = self.trial.tensors(self.trial.given)
            start = time.perf_counter()
            run = self.trial.run_on(tensors)
            outputs = run.arrays()
            run.gradients([np.ones_like(y) for y in outputs])
            return time.perf_counter() - start

    def kept_bytes(self) -> int | None:
        """Return the bytes that custom gradients keep for the backward; None if there are none, or
        they are not known.
        """
        try:
            with self.trial.quiet(), ignoring_warnings():
                return sum(each.size for each in kept_tensors(self.trial)) or None
        except Exception:
            return None

    def numbers(self) -> list[int]:
        return numbers_in_code(self.trial)

    def not_compared(self) -> str:
        return not_compared(self.trial.numbers_with_gradient)


def allowed_ulps(case: GateCase, truth: Truth, name: str) -> float:
    return max(FACTOR * truth.errors[name][0], FLOORS[case.dtype])


def _largest(
    errors: dict[str, tuple[float, float]], others: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    none = (0.0, 0.0)
    names = [*dict.fromkeys((*errors, *others))]
    pairs = {name: (errors.get(name, none), others.get(name, none)) for name in names}
    return {name: (max(a[0], b[0]), max(a[1], b[1])) for name, (a, b) in pairs.items()}


def _rounded(arrays: Arrays, dtype: str) -> Arrays:
    return in_dtype(in_dtype(arrays, dtype), "float64")
