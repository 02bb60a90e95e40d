"""Constant arrays: `torch.tensor([...])`, `np.array([...])` and whatever arrays a rule closes over.

Their values are copied when the rule is captured: an array that changes later does not change the
rule. As numbers, they are weak: the floats and integers of a constant take the dtype of the tensor
that they meet, so that a float64 `np.array([0.5, 1.0])` does not tie a rule to float64; bools stay
bools.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend.finding.discovery import backend_of
from ..errors import BackendNotFound
from ..graph import ops
from ..graph.ir.array_values import MOST_ELEMENTS, ArrayValue, freeze
from ..graph.ir.graph import Node, make_node
from ..graph.ir.types import BOOL, UNKNOWN, T, Type
from ..graph.passes.scalars import constant

Trace = Any  # of record.py


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
            f"become part of a rule{trace.words.advise()}"
        )
    if array.ndim == 0:
        return constant(array.item())
    dtype = BOOL if array.dtype.kind == "b" else T
    node = array_node(trace.like(), freeze(array), dtype)
    if not array.flags.c_contiguous:
        trace.scattered.add(node)
    return node


def array_node(like: Node, value: ArrayValue, dtype: str) -> Node:
    """Return the node of a constant array, on the device of `like`."""
    attrs = {"dtype": dtype, "value": value}
    return make_node(ops.ARRAY, (like,), attrs, Type("tensor", dtype, UNKNOWN))


def _read(trace: Trace, operand: Any) -> np.ndarray[Any, Any]:
    """Return a constant as a NumPy array."""
    kind = type(operand).__name__
    if isinstance(operand, complex):
        raise trace.error(
            "uses a complex number: rules compute in float dtypes. Apply the rule to the real and "
            "the imaginary part"
        )
    if isinstance(operand, list | tuple):
        array = np.asarray(operand, dtype=None if _numbers_only(operand) else object)
        if array.dtype != object:
            return array
        raise trace.error(f"uses a {kind} that is no array of numbers, which is not captured")
    if getattr(operand, "requires_grad", False) is True or getattr(operand, "trainable", False):
        raise trace.error(
            f"uses a {kind} that waits for a gradient, which a rule does not give. Pass a number "
            f"as {trace.words.param}, or take the tensor's values: .detach()"
        )
    try:
        backend = backend_of(operand)
    except BackendNotFound:
        raise trace.error(
            f"uses a {kind}, which is not captured: "
            f"{trace.words.ways('write it as a Python number or an array')}"
        ) from None
    if backend.name != "numpy":
        trace.lifted.append(operand)
    # Not `is_traced`: a compiler may be reading along while a rule makes a constant all the same.
    try:
        return np.asarray(backend.tensors.to_numpy(operand))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise trace.error(
            f"uses a {kind} whose values are known at run time only. Pass it as {trace.words.param}"
        ) from error


def _numbers_only(items: Any) -> bool:
    """Return whether nested lists hold Python and NumPy numbers alone."""
    return all(
        _numbers_only(item)
        if isinstance(item, list | tuple)
        else isinstance(item, bool | int | float | np.generic)
        for item in items
    )
