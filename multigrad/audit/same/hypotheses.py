"""Hypotheses of why two paths have different gradients.

Each is a function of a `Comparison` that returns a `Reason`, or None where it does not explain the
difference. A hypothesis that names a cause has run it: the first path with that change gives the
second path's numbers, or one path alone reads what it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...look.subject import brackets, is_float_array
from ..trial import Trial
from .paired_runs import PathPair, PathRun, Rows, is_mask, scaled_at, size_of

Array = Any
MOST_EXAMPLES = 64  # of a batch, for each of which one path runs once
MOST_PLACES = 512  # of a tensor of the batch: each is changed alone, and both paths run
MOST_WEIGHTS = 8  # of examples that a reason lists
CLOSE = 1e-6  # by how much a factor may differ from the number that explains it
# Numbers by which parameters are scaled by mistake are among these, or between two of them.
FACTORS = (-2.0, -1.0, 0.0, 1 / 16, 0.25, 0.6, 0.95, 1.05, 1.7, 4.0, 16.0)
KINK_STEP = 2.0**-10  # by which parameters are moved from a kink, relative to their size
MOST_STEPS = 40  # from two of these to the number between them


class Comparison(NamedTuple):
    """Two paths that differ.

    Attributes:
        a, b: a run of each.
        rows: of the parameters, by position.
    """

    pair: PathPair
    a: PathRun
    b: PathRun
    rows: Rows

    @property
    def wrong(self) -> list[int]:
        """The positions of the parameters whose gradients differ."""
        return [n for n, row in self.rows.items() if not row.is_same]

    @property
    def words(self) -> tuple[str, str]:
        return self.pair.first.name, self.pair.second.name

    @property
    def has_same_outputs(self) -> bool:
        return not self.pair.outputs_differ(self.a, self.b)


class Reason(NamedTuple):
    """Why two paths differ: see `SameReport`."""

    words: str
    culprit: str = ""
    factor: float | None = None


def explain_by_kink(comparison: Comparison) -> Reason | None:
    """The paths agree wherever the parameters are moved a little: they part at a kink, or a tie."""
    pair = comparison.pair
    if not comparison.wrong or not comparison.has_same_outputs:
        return None
    for size in (KINK_STEP, -KINK_STEP):
        arrays = list(pair.given)
        for n in pair.names:
            # Another step for each element, so that a sum or a tie of several moves, too.
            steps = size * np.linspace(1, 2, arrays[n].size).reshape(arrays[n].shape)
            arrays[n] = (arrays[n] + steps * (1 + np.abs(arrays[n]))).astype(arrays[n].dtype)
        if not pair.agree(pair.run(pair.first, arrays), pair.run(pair.second, arrays)):
            return None
    names = [pair.names[n] for n in comparison.wrong]
    words = f"the gradient of {_listed(names)} differs at a kink or a tie alone"
    return Reason(f"{words}: where the parameters are moved a little, the paths agree", names[0])


def explain_by_one_factor(comparison: Comparison) -> Reason | None:
    """All gradients that differ have one factor: all there are, or some."""
    pair, a, b, rows = comparison
    factors = [rows[n].factor for n in comparison.wrong]
    factor = factors[0] if factors else None  # none differs where the outputs alone do
    if not factor or any(f is None or abs(f - factor) > CLOSE * abs(factor) for f in factors):
        return None
    # Others are the same, and not as both are zero: the factor is of some parameters alone.
    if any(row.is_same and size_of(a.gradients[n]) > pair.allowed(a, n) for n, row in rows.items()):
        names = [rows[n].name for n in comparison.wrong]
        words = f"the gradient of {_listed(names)} alone is {factor:.6g} times as large"
        return Reason(words, names[0], factor)
    phrase = f"{factor:.6g} times as large{_counted(factor, pair)}"
    if comparison.has_same_outputs:
        return Reason(f"the loss is the same, every gradient is {phrase}", factor=factor)
    if abs(b.loss - factor * a.loss) <= CLOSE * abs(a.loss):
        return Reason(f"the loss and every gradient are {phrase}", factor=factor)
    return Reason(f"every gradient is {phrase}, the loss is not", factor=factor)


def _counted(factor: float, pair: PathPair) -> str:
    """Name the count that a factor equals: of examples, elements, or ones of a mask."""
    counts = {"1": 1}
    for n, name in pair.leaves.items():
        array = pair.given[n]
        if is_mask(array):
            counts.setdefault(f"ones in {name}", int(array.sum()))
        for axis, length in enumerate(array.shape):
            counts.setdefault(f"axis {axis} of {name}", length)
        counts.setdefault(f"elements of {name}", array.size)
    counts = {name: count for name, count in counts.items() if count > 1 or name == "1"}
    # A mean over the outputs divides by the batch's length times a layer's.
    widths = {
        f"{name} times axis {axis} of {layer}": count * length
        for name, count in counts.items()
        for n, layer in pair.names.items()
        for axis, length in enumerate(pair.given[n].shape)
        if name.startswith("axis") and length > 1
    }
    for top, m in counts.items():
        for bottom, n in counts.items():
            if m != n and abs(factor - m / n) <= CLOSE * abs(factor):
                return f": {m} / {n} ({top} over {bottom})"
    for name, count in widths.items():
        for number, text in ((count, f"{count}"), (1 / count, f"1 / {count}")):
            if abs(factor - number) <= CLOSE * abs(factor):
                return f": {text} ({name})"
    return ""


def explain_by_scaled_layer(comparison: Comparison) -> Reason | None:
    """The second path is the first with a parameter, or a layer's parameters, scaled."""
    pair, a, b, _ = comparison
    if comparison.has_same_outputs or [y.shape for y in a.outputs] != [y.shape for y in b.outputs]:
        return None
    first, second = comparison.words
    for name, numbers in _layers(pair).items():
        for factor in _factors_to(pair, numbers, b.loss):
            run = pair.run(pair.first, scaled_at(pair.given, numbers, factor))
            # By the chain rule a scaled parameter's own gradient has the factor too.
            gradients = scaled_at(run.gradients, numbers, factor)
            if not pair.agree(run._replace(gradients=gradients), b):
                continue
            if not factor:
                return Reason(f"{second} ignores {name}", name, 0.0)
            return Reason(f"{second} is {first} with {name} times {factor:.6g}", name, factor)
    return None


def _layers(pair: PathPair) -> dict[str, list[int]]:
    """Return the positions of each layer's parameters, then of those that have axes or no layer."""
    layers: dict[str, list[int]] = {}
    for n, name in pair.names.items():
        layers.setdefault(name.rpartition("/" if "/" in name else ".")[0] or name, []).append(n)
    singles = {
        pair.names[n]: [n]
        for numbers in layers.values()
        for n in numbers
        if len(numbers) == 1 or pair.given[n].ndim > 1
    }
    return {name: numbers for name, numbers in layers.items() if len(numbers) > 1} | singles


def _factors_to(pair: PathPair, numbers: list[int], loss: float) -> Iterator[float]:
    """Yield the factors of these parameters with which the first path has this loss."""

    def off(factor: float) -> float:
        return pair.loss(pair.first, scaled_at(pair.given, numbers, factor)) - loss

    close = 1e-12 * (1.0 + abs(loss))
    ends = [(factor, off(factor)) for factor in FACTORS]
    yield from (factor for factor, difference in ends if abs(difference) <= close)
    for (low, below), (high, above) in pairwise(ends):
        if min(abs(below), abs(above)) <= close or not below * above < 0:
            continue
        for _ in range(MOST_STEPS):
            middle = (low * above - high * below) / (above - below)
            difference = off(middle)
            if abs(difference) <= close or middle in (low, high):
                yield middle
                break
            # The Illinois rule: an end that stays counts half, so that it moves soon.
            if difference * above < 0:
                low, below = high, above
            else:
                below /= 2
            high, above = middle, difference


def explain_by_unread_tensor(comparison: Comparison) -> Reason | None:
    """One path does not read a tensor of the batch, such as a mask, or reads another form of it."""
    pair, a, b, _ = comparison
    first, second = comparison.words
    for n, name in pair.leaves.items():
        array = pair.given[n]
        if array.size < 2:
            continue
        arrays = pair.with_tensor(n, _other_values(array))
        is_read = [
            pair.loss(trial, arrays) != run.loss
            for trial, run in ((pair.first, a), (pair.second, b))
        ]
        if is_read[0] != is_read[1]:
            return Reason(f"{second if is_read[0] else first} does not read {name}", name)
        for words, form in _forms(array):
            if pair.agree(pair.run(pair.first, pair.with_tensor(n, form)), b):
                return Reason(f"{second} is {first} with {name} {words}", name)
    return None


def _other_values(array: Array) -> Array:
    if array.dtype.kind == "b":
        return ~array
    if is_float_array(array):
        return array * array.dtype.type(1.25) + array.dtype.type(0.125)
    return np.roll(array.reshape(-1), 1).reshape(array.shape)


def _forms(array: Array) -> Iterator[tuple[str, Array]]:
    if is_float_array(array) and not is_mask(array):
        return
    for axis in range(array.ndim):
        for step in (1, -1):
            yield f"moved by {step} along axis {axis}", np.roll(array, step, axis)
    if is_mask(array):
        yield "inverted", (1 - array.astype(np.int64)).astype(array.dtype)
        yield "replaced by ones", np.ones_like(array)


def explain_by_example_weights(comparison: Comparison) -> Reason | None:
    """Both gradients are sums of those of single examples, with other weights."""
    pair, a, b, _ = comparison
    count = pair.example_count
    if not 1 < count <= MOST_EXAMPLES:
        return None
    single_runs = [pair.run(pair.first, pair.with_examples([i])) for i in range(count)]
    columns = np.stack([_flat(pair, run) for run in single_runs], axis=1)
    # Weights of so few numbers always fit; a mean over an example that is masked whole is NaN.
    if columns.shape[0] < 2 * count or not np.isfinite(columns).all():
        return None
    wholes = np.stack([_flat(pair, run) for run in (a, b)], axis=1)
    weights, *_ = np.linalg.lstsq(columns, wholes, rcond=None)
    misfit = np.abs(columns @ weights - wholes).max(axis=0)
    if not (misfit <= CLOSE * np.abs(wholes).max(axis=0)).all():
        return None
    weights_a, weights_b = weights.T
    largest = float(np.max(np.abs(weights_a)))
    if np.allclose(weights_a, weights_b, rtol=1e-5, atol=1e-7 * largest):
        return None
    second = comparison.words[1]
    is_missing = (np.abs(weights_b) <= CLOSE * largest) & (np.abs(weights_a) > CLOSE * largest)
    if is_missing.any():
        missing = _listed(np.flatnonzero(is_missing))
        return Reason(f"{second} leaves out example {missing} of the batch", "batch", 0.0)
    lists = " and ".join(
        f"[{', '.join(f'{w:.4g}' for w in each[:MOST_WEIGHTS])}"
        f"{', ...' if count > MOST_WEIGHTS else ''}]"
        for each in (weights_a, weights_b)
    )
    words = f"examples weigh {lists}, as in means of other parts, or over another normalizer"
    return Reason(words, "batch", float(weights_b[0] / weights_a[0]) if weights_a[0] else None)


def _flat(pair: PathPair, run: PathRun) -> Array:
    gradients = [np.ravel(pair.gradient(run, n)) for n in pair.names]
    return np.concatenate(gradients).astype(np.float64)


def explain_by_places(comparison: Comparison) -> Reason | None:
    """One path reads places of a tensor of the batch that the other does not, as behind a mask."""
    pair = comparison.pair
    for n, name in pair.leaves.items():
        array = pair.given[n]
        if not 1 < array.size <= MOST_PLACES or is_mask(array):
            continue
        a, b = (_places_read(pair, trial, n) for trial in (pair.first, pair.second))
        for trial, mask in ((pair.second, b & ~a), (pair.first, a & ~b)):
            if not mask.any():
                continue
            where, culprit = _where(pair, mask)
            count = f"{int(mask.sum())} of {mask.size} places"
            return Reason(f"{trial.name} alone reads {name} at {count}, {where}", culprit or name)
    return None


def _places_read(pair: PathPair, trial: Trial, n: int) -> Array:
    """Return for each place of a tensor of the batch whether another number there matters."""
    array = pair.given[n]
    values = np.unique(array)
    loss, is_read = pair.loss(trial, pair.given), np.zeros(array.shape, bool)
    for place in np.ndindex(array.shape):
        variant = array.copy()
        if is_float_array(array):
            variant[place] += array.dtype.type(0.5)
        else:  # an id that the batch has is a valid one
            variant[place] = next((v for v in values if v != array[place]), array[place])
        is_read[place] = pair.loss(trial, pair.with_tensor(n, variant)) != loss
    return is_read


def _where(pair: PathPair, places: Array) -> tuple[str, str]:
    # What places have in common: a value of a mask, with the mask's name.
    first = tuple(int(i) for i in np.argwhere(places)[0])
    for n, name in pair.leaves.items():
        mask = pair.given[n]
        if is_mask(mask) and mask.shape == places.shape and np.ptp(mask[places].astype(int)) == 0:
            return f"where {name} is {int(mask[first])}", name
    return f"the first is {brackets(first)}", ""


def explain_by_mixing(comparison: Comparison) -> Reason | None:
    """Examples affect each other on one path: packed without a mask, or by a shared statistic."""
    pair = comparison.pair
    count = pair.example_count
    if not 1 < count <= MOST_EXAMPLES or comparison.has_same_outputs:
        return None
    are_mixed = [_mixes(pair, trial, count) for trial in (pair.first, pair.second)]
    if are_mixed[0] == are_mixed[1]:
        return None
    path = comparison.words[int(are_mixed[1])]
    words = (
        f"examples of the batch affect each other in {path} alone, as where they are packed into "
        "one row without a mask"
    )
    return Reason(words, "batch")


def _mixes(pair: PathPair, trial: Trial, count: int) -> bool:
    # In a sum over examples the effects of changing two of them add up. Masks stay, as many
    # normalizers count their ones.
    def loss(*changed: int) -> float:
        order = [(i + 1) % count if i in changed else i for i in range(count)]
        return pair.loss(trial, pair.with_examples(order, without_masks=True))

    base, first = loss(), loss(0)
    size = abs(base) + abs(first)
    return any(abs(loss(0, i) - first - loss(i) + base) > 1e-9 * size for i in range(1, count))


def explain_by_missing_gradient(comparison: Comparison) -> Reason | None:
    """Parameters have no gradient on one path: it detaches them, or does not read them."""
    pair, a, b, rows = comparison
    second_lacks = [n for n in comparison.wrong if rows[n].factor == 0]
    first_lacks = [n for n in comparison.wrong if not size_of(a.gradients[n])]
    for numbers, run, trial in ((second_lacks, b, pair.second), (first_lacks, a, pair.first)):
        if not numbers:
            continue
        names = [pair.names[n] for n in numbers]
        arrays = pair.with_tensor(numbers[0], _other_values(pair.given[numbers[0]]))
        verb = "detaches" if pair.loss(trial, arrays) != run.loss else "ignores"
        return Reason(f"{trial.name} {verb} {_listed(names)}", names[0], 0.0)
    return None


def explain_by_rows(comparison: Comparison) -> Reason | None:
    """One path alone reads rows of a table, as of tokens or positions."""
    pair = comparison.pair
    for n, name in pair.names.items():
        if pair.given[n].ndim != 2:
            continue
        used_rows = [
            set(np.flatnonzero(np.abs(pair.gradient(run, n)).max(axis=1)).tolist())
            for run in (comparison.a, comparison.b)
        ]
        extras = used_rows[0] - used_rows[1], used_rows[1] - used_rows[0]
        for word, extra in zip(comparison.words, extras, strict=True):
            if extra and min(map(len, used_rows)):
                return Reason(f"{word} alone reads rows {_listed(sorted(extra))} of {name}", name)
    return None


def explain_by_boundary(comparison: Comparison) -> Reason | None:
    """The loss is the same, and the gradients part at some parameter."""
    if not comparison.has_same_outputs:
        return None
    rows = [comparison.rows[n] for n in comparison.wrong]
    if all(row.factor for row in rows):
        factors = _listed(f"{row.name} times {row.factor:.6g}" for row in rows)
        words = f"the loss is the same, these gradients are not: {factors}"
        return Reason(words, rows[0].name, rows[0].factor)
    last = rows[-1]
    words = f"the loss is the same; {last.name} is the last parameter whose gradient differs"
    return Reason(f"{words}: a path to it is detached, or counted twice", last.name, last.factor)


# In order: the cheap ones first, and what is specific before what is general.
HYPOTHESES = (
    explain_by_kink,
    explain_by_one_factor,
    explain_by_missing_gradient,
    explain_by_unread_tensor,
    explain_by_example_weights,
    explain_by_places,
    explain_by_scaled_layer,
    explain_by_rows,
    explain_by_mixing,
    explain_by_boundary,
)


def _listed(words: Iterable[Any]) -> str:
    names = [str(word) for word in words]
    suffix = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + suffix
