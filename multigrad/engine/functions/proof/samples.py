"""Samples: small inputs for proofs, of the call's rank and dtype, away from edges and on them.

A Function or a rule says which tensors it takes (`InputSlot`); the functions below fill these, each
with another kind of numbers, and label the `Sample` by it: drawn from a normal distribution, the
call's own, on edges, or far out. Equal slots get equal numbers, however often they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ....core.backend.discovery import backend_of
from ....core.functions.proof import EDGES, FAR_FLOATS
from ....core.ir.op import BOOL, WHOLE, T
from ....core.ops.numerics import as_numpy_dtype
from ....core.support.records import record

Array = Any
SMALL = 512  # elements: a tensor of no more is taken in its own size
MOST = 65536  # elements, if the original takes no smaller tensor
FINITE_EDGES = tuple(filter(math.isfinite, EDGES))
DRAWN, OWN = "drawn", "the call's own"
ON_EDGES, FAR, ALONE = "on edges", "far out", "one output alone"
BY_LINES = "line by line"
SEEDS = {DRAWN: 7, "other numbers": 13, "edges": 17, "beside": 19, "cotangents": 23}
SEEDS |= {FAR: 29, ALONE: 31}
# Where float32 and float64 no longer hold each integer.
FAR_WHOLE = {"int32": 2**24 + 1, "int64": 2**53 + 1}


@record(eq=True)
class InputSlot:
    """A tensor input to be filled: its name, its shape and the name of its dtype.

    Attributes:
        own: the call's own values; None: they are many, or unknown.
        is_strided: whether it is not contiguous in memory, as in the call.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    own: Array | None = None
    is_strided: bool = False


@record(eq=True)
class Sample:
    """Values for all inputs: arrays and numbers by name.

    `absent` are cotangents that are not given at all, which are zero.
    """

    label: str
    arrays: Mapping[str, Array]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    def widened(self) -> Sample:
        arrays = {
            name: array.astype(np.float64) if is_float(array) else array
            for name, array in self.arrays.items()
        }
        return replace(self, arrays=arrays)

    def is_narrow(self) -> bool:
        floats = [array for array in self.arrays.values() if is_float(array)]
        return any(array.dtype != np.float64 for array in floats)

    def moved(self) -> Sample:
        """Return values right beside these: no two are equal, none is 0, whole or not finite."""
        generator = np.random.default_rng(SEEDS["beside"])
        arrays = dict(self.arrays)
        for name, array in arrays.items():
            if is_float(array):
                step = generator.uniform(0.01, 0.02, array.shape)
                finite = np.where(np.isfinite(array), array, 0)
                arrays[name] = (finite + step * (1 + np.abs(finite))).astype(array.dtype)
        return Sample("beside the call's own", arrays, self.numbers)


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def draw(slots: Sequence[InputSlot], numbers: Mapping[str, Any], label: str = DRAWN) -> Sample:
    generator = np.random.default_rng(SEEDS[label])
    fill = _fill_far if label == FAR else _fill
    return Sample(label, {slot.name: fill(slot, generator) for slot in slots}, numbers)


def draw_far(
    slots: Sequence[InputSlot],
    numbers: Mapping[str, Any],
    *,
    only_whole: bool = False,
    places: bool = False,
) -> Sample:
    """Return numbers so large that they leave a dtype's range, or lose digits in it.

    Args:
        only_whole: only integers are large; floats are drawn as usual.
        places: integers may be places, which some libraries count in 32 bits only.
    """
    sample = draw(slots, numbers, FAR)
    if places:
        far, near = FAR_WHOLE["int64"], FAR_WHOLE["int32"]
        arrays = {
            name: array - (far - near) if array.dtype == np.int64 else array
            for name, array in sample.arrays.items()
        }
        sample = replace(sample, arrays=arrays)
    near = draw(slots, numbers).arrays if only_whole else {}
    floats = {name: array for name, array in near.items() if is_float(array)}
    return replace(sample, arrays={**sample.arrays, **floats})


def _fill_far(slot: InputSlot, generator: np.random.Generator) -> Array:
    array = _fill(slot, generator)
    if slot.name.startswith("grad_out") or slot.dtype == BOOL:
        return array
    if slot.dtype in WHOLE:
        limits = np.iinfo(array.dtype)
        return in_layout(slot, array + array.dtype.type(FAR_WHOLE.get(slot.dtype, limits.max - 3)))
    with np.errstate(over="ignore"):
        values = array.astype(np.float64)
        far_values = (values + np.sign(values)) * FAR_FLOATS[slot.dtype]  # each as large at least
        return in_layout(slot, far_values.astype(array.dtype))


def in_layout(slot: InputSlot, array: Array) -> Array:
    """Return an array that is contiguous or not, as that of the call."""
    if not slot.is_strided or array.size < 2:
        return array
    if min(array.shape) > 1 < array.ndim:
        return np.asfortranarray(array)
    spaced = np.zeros((*array.shape, 2), array.dtype)
    spaced[..., 0] = array
    return spaced[..., 0]


def on_edges(
    slots: Sequence[InputSlot], numbers: Mapping[str, Any], values: Sequence[float], distinct: bool
) -> Sample:
    """Return the first float tensor but the cotangents on edge values, the others drawn.

    `distinct`: no two of its elements are equal, nor equal but for their signs.
    """
    sample = draw(slots, numbers, "edges")
    arrays = dict(sample.arrays)
    for slot in slots:
        if is_float(arrays[slot.name]) and not slot.name.startswith("grad_out"):
            flat = np.resize(np.array(values), math.prod(slot.shape))
            if distinct:
                distinct_values = list({abs(value): value for value in reversed(values)}.values())
                flat = np.array(arrays[slot.name], np.float64).ravel()
                flat[: len(distinct_values)] = distinct_values[: len(flat)]
            edges = flat.reshape(slot.shape).astype(as_numpy_dtype(slot.dtype))
            arrays[slot.name] = in_layout(slot, edges)
            break
    return Sample(ON_EDGES, arrays, numbers)


def own_values(slots: Sequence[InputSlot], numbers: Mapping[str, Any]) -> Sample | None:
    """Return the call's own values, with cotangents drawn; None if some are many, or unknown."""
    arrays = dict(draw(slots, numbers).arrays)
    for slot in slots:
        if slot.own is not None:
            arrays[slot.name] = in_layout(slot, slot.own)
        elif not slot.name.startswith("grad_out"):
            return None
    return Sample(FAR if any(map(_squares_overflow, arrays.values())) else OWN, arrays, numbers)


def _squares_overflow(array: Array) -> bool:
    if not is_float(array):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isinf(np.square(array[np.isfinite(array)])).any())


def values_of(leaf: Any, shape: tuple[int, ...]) -> Array | None:
    """Return an argument's values; None: they are unknown or many, or not of this shape."""
    try:
        backend = backend_of(leaf)
        if not is_small(shape) or backend.tensors.is_traced(leaf) or tuple(leaf.shape) != shape:
            return None
        return np.array(backend.tensors.to_numpy(leaf))
    except Exception:  # a tensor that is on no machine, or that nobody may look at now
        return None


def _fill(slot: InputSlot, generator: np.random.Generator) -> Array:
    if slot.dtype == BOOL:
        return in_layout(slot, generator.integers(0, 2, slot.shape).astype(bool))
    if slot.dtype in WHOLE:
        return in_layout(slot, generator.integers(0, 3, slot.shape).astype(slot.dtype))
    numbers = np.asarray(generator.normal(size=slot.shape), as_numpy_dtype(slot.dtype))
    return in_layout(slot, numbers)


def first_float(slots: Sequence[InputSlot]) -> str:
    """Return the dtype of the first float tensor, which T stands for."""
    return next((slot.dtype for slot in slots if "float" in slot.dtype), "float32")


def expanded(array: Array) -> Array:
    """Return an array of its first number, with strides of 0, as the gradient of a sum has them."""
    number = array.ravel()[:1].copy()
    return np.lib.stride_tricks.as_strided(number, array.shape, (0,) * array.ndim)


def is_small(shape: Sequence[Any]) -> bool:
    """Return whether a shape is known and of few elements, but of some."""
    return all(isinstance(n, int) for n in shape) and 0 < math.prod(shape) <= SMALL


def float_dtype(name: str, facts: Mapping[str, Any], first: str = "") -> str:
    """Return the dtype that a symbolic one stands for in a proof."""
    return str(facts.get("dtype", first or "float32")) if name == T else name
