"""The comparison in a proof: which numbers are the same, and where results first differ.

A float may be off by a few roundings of the largest value that led to it, for each op on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....core import ops
from ....core.ir.graph import Graph
from ....core.ir.op import PER_ELEMENT, WHOLE
from ....core.ir.op import is_float as is_float_type
from ....core.ops.numerics import name_of
from .meanings import Bounded, magnitude
from .samples import Sample, is_float

Array = Any
ROUNDINGS = 4  # of the largest intermediate value, for each op on the way
# Graphs lack these dtypes, and hold their numbers in others.
HOLDERS = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
MOST_INTEGERS = 8  # that a message shows, as they may be places or counts
MOST_OPS = 64  # that are counted: more of them lose no more digits in practice


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where an original and its graph part.

    Attributes:
        what: "the result", "output 1", "the gradient of x".
        index: of the first element that differs; (): shapes or dtypes do, or there are no axes.
        original, graph: their numbers there, or words for a shape or a dtype.
    """

    what: str
    index: tuple[int, ...]
    original: Any
    graph: Any
    sample: Sample

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return (
            f"{self.what}{place} is {_show(self.original)} as written and "
            f"{_show(self.graph)} as a graph, for {self._inputs()}"
        )

    def _inputs(self) -> str:
        words = []
        for name, array in self.sample.arrays.items():
            has_axes = self.index and array.ndim == len(self.index)
            if has_axes and all(i < n for i, n in zip(self.index, array.shape, strict=True)):
                words.append(f"{name}{list(self.index)} = {_show(array[self.index])}")
            elif not array.ndim or (array.dtype.kind in "iu" and array.size <= MOST_INTEGERS):
                words.append(f"{name} = {_show(array) if not array.ndim else array.tolist()}")
            else:
                words.append(f"{name} = an array of shape {array.shape}")
        words += [f"{name} = {_show(value)}" for name, value in self.sample.numbers.items()]
        return ", ".join(words)


def _show(value: Any) -> str:
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    return f"{array.astype(np.float64):.6g}" if array.ndim == 0 and is_float(array) else str(value)


def margins(
    actual: Array,
    expected: Array,
    largest: Any,
    roundings: float,
    *,
    eps: float = 0.0,
    half: bool = False,
    overflows: bool = True,
    flushed: Callable[..., Array] = np.add,
) -> tuple[Array, Array]:
    """Return (how far each float is from what is expected, how far it may be).

    Args:
        largest: the largest value on the way: one for all, or for each element.
        roundings: of that value, by which a float may be off.
        eps: of the coarsest dtype on the way; a wider result holds what was rounded there.
        half: whether half of the digits are enough: kernels of two libraries differ in the others
            where a formula magnifies roundings.
        overflows: whether inf is right where what is expected is too large for the dtype.
        flushed: for kernels that flush to zero: (allowed, the smallest normal number) -> allowed.
    """
    dtype, limits = actual.dtype, limits_of(actual.dtype)
    eps = max(float(limits.eps), eps)
    with np.errstate(all="ignore"):
        actual, wide_expected = actual.astype(np.float64), expected.astype(np.float64)
        # Where it overflows in the narrow dtype, inf is right.
        rounded = wide_expected.astype(dtype).astype(np.float64) if overflows else wide_expected
        is_equal = (actual == rounded) | (np.isnan(actual) & np.isnan(wide_expected))
        allowed = roundings * eps * np.broadcast_to(largest, wide_expected.shape)
        allowed = flushed(allowed, float(limits.smallest_normal))
        # Half of bfloat16's digits would accept nearly anything.
        if half and eps < 1e-3:
            half_of_digits = np.sqrt(eps) * np.minimum(np.abs(actual), np.abs(wide_expected))
            allowed = np.maximum(allowed, half_of_digits)
        return np.where(is_equal, 0.0, np.abs(actual - wide_expected)), allowed


def are_off(error: Array, allowed: Array) -> Array:
    """Return which elements are farther off than they may be; NaN on one side alone is."""
    return np.asarray(~((error == 0.0) | (error <= allowed)))


def find_off(
    actual: Array, expected: Array, largest: Any, *, ops: int, eps: float, half: bool
) -> Array:
    """Return which elements of an original's result are not what is expected.

    Args:
        largest, half: see `margins`.
        ops: how many ops lead to the results.
        eps: of the coarsest dtype that the comparison is made in.
    """
    if not is_float(actual):
        return np.asarray(actual != expected)
    roundings = ROUNDINGS * min(ops + 1, MOST_OPS)
    return are_off(*margins(actual, expected, largest, roundings, eps=eps, half=half))


def find_difference(
    sample: Sample,
    original: Mapping[str, Any],
    graph: Mapping[str, Bounded],
    judge: Callable[..., Array],
    shown: Mapping[str, str],
    forgive: Callable[[str, Array, Array, Array], Array] | None = None,
) -> Disagreement | None:
    """Return the first place where an original's results are not those of its graph.

    Args:
        original: arrays by name; None: it gives none, which is zero.
        judge: `find_off` with its options.
        shown: what messages call each result that is compared, by name.
        forgive: optional; (name, original's, graph's, which differ) -> which of these count.
    """
    for name, what in shown.items():
        if name not in original:  # as a backend without autodiff has no derivative of its own
            continue
        array: Any = original[name]
        bounded = graph.get(name)
        # No gradient on either side; on one side alone, None is zero.
        if array is None and bounded is None:
            continue
        expected = (
            np.zeros(np.asarray(array).shape) if bounded is None else np.asarray(bounded.value)
        )
        actual = np.zeros(expected.shape, np.float32) if array is None else np.asarray(array)
        if actual.shape != expected.shape:
            shapes = (f"of shape {actual.shape}", f"of shape {expected.shape}")
            return Disagreement(what, (), *shapes, sample)
        # By the result alone first: the largest value on the way takes another pass.
        off = judge(actual, expected, 0.0 if bounded is None else magnitude(expected))
        if off.any() and bounded is not None:
            off = judge(actual, expected, bounded.largest)
        if off.any() and forgive is not None and is_float(actual):
            off = forgive(name, actual, expected, off)
        if off.any():
            index = tuple(int(i) for i in np.argwhere(off)[0])
            return Disagreement(what, index, actual[index], expected[index], sample)
    return None


def find_dtype(
    sample: Sample,
    original: Mapping[str, Any],
    expected: Mapping[str, str],
    shown: Mapping[str, str],
) -> Disagreement | None:
    """Return the first result whose dtype is not the expected one; see `find_difference`."""
    for name, dtype in expected.items():
        actual = original.get(name)
        if actual is None or name not in shown:
            continue
        name_found = name_of(actual.dtype)
        if HOLDERS.get(name_found, name_found) != dtype:
            words = f"of {actual.dtype.name}", f"of {dtype}"
            return Disagreement(shown[name], (), *words, sample)
    return None


def are_equal(original: Mapping[str, Any], lowered: Mapping[str, Any]) -> bool:
    """Return whether what both sides give is the same to the last bit, any NaN equal to any."""
    return all(
        name not in original or _is_equal(original[name], each) for name, each in lowered.items()
    )


def _is_equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=is_float(a))


def largest_of(array: Any) -> float:
    return float(np.max(magnitude(np.asarray(array, np.float64)), initial=0.0))


def eps_of(dtype: Any) -> float:
    return float(limits_of(np.dtype(dtype)).eps)


def smallest_of(dtype: Any) -> float:
    return float(limits_of(np.dtype(dtype)).smallest_normal)


@functools.cache
def limits_of(dtype: np.dtype[Any]) -> Any:
    """Return the limits of a float dtype; of NumPy's own without an import."""
    if dtype.isbuiltin == 1:
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def count_ops(graphs: Sequence[Graph]) -> int:
    return len([node for graph in graphs for node in graph.nodes if node.operands])


def takes_infinity(graphs: Sequence[Graph]) -> bool:
    """Return whether inf and NaN stay in their elements: no op mixes these, or makes integers."""
    nodes = [node for graph in graphs for node in graph.nodes if node.operands]
    return all(node.op.result in PER_ELEMENT and "int" not in node.type.dtype for node in nodes)


def casts_to_integers(graphs: Sequence[Graph]) -> bool:
    nodes = [node for graph in graphs for node in graph.nodes if node.op is ops.CAST]
    return any(n.type.dtype in WHOLE and is_float_type(n.operands[0].type) for n in nodes)


def is_vacuous(original: Mapping[str, Any]) -> bool:
    """Return whether results say nothing: there are floats, and not one of them is finite."""
    arrays = [np.asarray(a) for a in original.values() if a is not None]
    floats = [array.astype(np.float64) for array in arrays if is_float(array) and array.size]
    return bool(floats) and not any(np.isfinite(array).any() for array in floats)
