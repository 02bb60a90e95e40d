"""Constant arrays: `torch.tensor([...])`, `np.array([...])` and whatever arrays a rule closes over.

Their values are copied when the rule is captured: an array that changes later does not change the rule. As numbers,
they are weak: the floats and integers of a constant take the dtype of the tensor that they meet, so that a float64
`np.array([0.5, 1.0])` does not tie a rule to float64; bools stay bools.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from ..errors import BackendNotFound
from . import ops
from .graph import Node, make_node
from .types import BOOL, UNKNOWN, T, Type

if TYPE_CHECKING:
    from .record import Trace

MOST_ELEMENTS = 65_536
_serials = itertools.count()
_arrays: WeakValueDictionary[int, ArrayValue] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ArrayValue:
    """The values of a constant array, frozen; `repr` is equal for equal values, and short.

    Attributes:
        native: what backends made of it, by what they made it for; they alone look inside.
        serial: a number under which `find_array` finds it again while it lives.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str
    digest: str
    serial: int = field(default_factory=lambda: next(_serials))
    native: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} {self.digest}>"

    def as_numpy(self, dtype: Any) -> np.ndarray[Any, Any]:
        """Return the values in a NumPy dtype, read-only."""
        known = self.native.get(dtype)
        if known is None:
            stored = np.frombuffer(self.data, np.dtype(self.dtype)).reshape(self.shape)
            with np.errstate(all="ignore"):
                known = stored.astype(dtype)
            known.flags.writeable = False
            self.native[dtype] = known
        return known


def freeze(array: np.ndarray[Any, Any]) -> ArrayValue:
    """Return the values of a NumPy array, frozen."""
    if array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)  # holds both, and has a buffer that NumPy reads back
    array = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    data = array.tobytes()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    value = ArrayValue(data, array.shape, array.dtype.name, digest)
    _arrays[value.serial] = value
    return value


def find_array(serial: int) -> ArrayValue:
    """Return the living array value of that serial."""
    return _arrays[serial]


def lift_array(trace: Trace, operand: Any) -> Node:
    """Return the node of a constant array or tensor; of its number, where it has no axes.

    Raises:
        TraceError: it is no array of numbers, it is too large, or it waits for a gradient.
    """
    array = _read(trace, operand)
    given = f"a constant {type(operand).__name__} of shape {array.shape}"
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise trace.error(
            f"uses {given} and dtype {array.dtype}: rules compute in bool and float dtypes"
        )
    if array.size > MOST_ELEMENTS:
        raise trace.error(
            f"uses {given}, {array.size} elements, which is not captured: at most {MOST_ELEMENTS} "
            f"become part of a rule. Register the rule with native=True to run it as it is"
        )
    if array.ndim == 0:
        from .coercion import constant

        return constant(array.item())
    dtype = BOOL if array.dtype.kind == "b" else T
    return array_node(trace.like(), freeze(array), dtype)


def array_node(like: Node, value: ArrayValue, dtype: str) -> Node:
    """Return the node of a constant array, on the device of `like`."""
    attrs = {"dtype": dtype, "value": value}
    return make_node(ops.ARRAY, (like,), attrs, Type("tensor", dtype, UNKNOWN))


def _read(trace: Trace, operand: Any) -> np.ndarray[Any, Any]:
    """Return a constant as a NumPy array."""
    from ..lowering.backend import backend_of

    kind = type(operand).__name__
    if isinstance(operand, complex):
        raise trace.error(
            "uses a complex number: rules compute in float dtypes. Apply the rule to the real and the "
            "imaginary part"
        )
    if isinstance(operand, list | tuple):
        array = np.asarray(operand, dtype=None if _numbers_only(operand) else object)
        if array.dtype != object:
            return array
        raise trace.error(f"uses a {kind} that is no array of numbers, which is not captured")
    if getattr(operand, "requires_grad", False) is True or getattr(operand, "trainable", False):
        raise trace.error(
            f"uses a {kind} that waits for a gradient, which a rule does not give. Pass a number "
            f"as a param of the rule, or take the tensor's values: .detach()"
        )
    try:
        backend = backend_of(operand)
    except BackendNotFound:
        raise trace.error(
            f"uses a {kind}, which is not captured: write it as a Python number or an array, "
            f"or register the rule with native=True to run it as it is"
        ) from None
    if backend.name != "numpy":
        trace.lifted.append(operand)
    # Not `is_traced`: a compiler may be reading along while a rule makes a constant all the same.
    try:
        return np.asarray(backend.to_numpy(operand))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise trace.error(
            f"uses a {kind} whose values are known at run time only. Pass it as a param of the rule"
        ) from error


def _numbers_only(items: Any) -> bool:
    """Return whether nested lists hold Python and NumPy numbers alone."""
    return all(
        _numbers_only(item)
        if isinstance(item, list | tuple)
        else isinstance(item, bool | int | float | np.generic)
        for item in items
    )


__all__ = ["ArrayValue", "array_node", "find_array", "freeze", "lift_array"]
