"""What operands become in code that is not plain: constants made of arrays, and results of small
integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import ops
from ...core.backend.discovery import backend_of
from ...core.ir.graph import MOST_ELEMENTS, Node, freeze
from ...core.ir.op import BOOL, Op, T
from ...core.passes.simplify import constant
from ...core.trace.coercion import array_node
from ...core.trace.trace import Trace
from ...errors import BackendNotFound


# --- constants ------------------------------------------------------------------------------------
# Constant arrays (`torch.tensor([...])`, closure values) are copied when the rule is captured: one
# that changes later does not change the rule. Their floats and integers are weak, as numbers are;
# bools stay bools.
def lift_array(trace: Trace, operand: Any) -> Node:
    """Return the node of a constant array or tensor; without axes, of its number.

    Raises:
        TraceError: it is no array of numbers, it is too large, or it waits for a gradient.
    """
    array = _read(trace, operand)
    words = f"a constant {type(operand).__name__} of shape {array.shape}"
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise trace.error(
            f"uses {words} and dtype {array.dtype}: rules compute in bool and float dtypes"
        )
    if array.size > MOST_ELEMENTS:
        raise trace.error(
            f"uses {words}, {array.size} elements, which is not captured: at most {MOST_ELEMENTS} "
            f"become part of a rule{trace.words.advise()}"
        )
    if array.ndim == 0:
        return constant(array.item())
    dtype = BOOL if array.dtype.kind == "b" else T
    node = array_node(trace.like(), freeze(array), dtype)
    # Whether a reshape of it is a view is decided by `capture/values/memory.py`.
    if not array.flags.c_contiguous:
        trace.memory.scattered.add(node)
    return node


def _read(trace: Trace, operand: Any) -> np.ndarray[Any, Any]:
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
        trace.memory.lifted.append(operand)
    # Without asking `is_traced`: a compiler may be tracing while a rule makes a plain constant.
    try:
        return np.asarray(backend.tensors.to_numpy(operand))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise trace.error(
            f"uses a {kind} whose values are known at run time only. Pass it as {trace.words.param}"
        ) from error


def _numbers_only(items: Any) -> bool:
    return all(
        _numbers_only(item)
        if isinstance(item, list | tuple)
        else isinstance(item, bool | int | float | np.generic)
        for item in items
    )


# --- small integers -------------------------------------------------------------------------------
# Ops whose low bits depend only on the low bits of the operands: they may overflow.
MODULAR = (
    ops.ADD,
    ops.SUB,
    ops.MUL,
    ops.NEG,
    ops.WHERE,
    ops.BITWISE_AND,
    ops.BITWISE_OR,
    ops.BITWISE_XOR,
    ops.BITWISE_INVERT,
    ops.BITWISE_LEFT_SHIFT,
    ops.BITWISE_RIGHT_SHIFT,
)


def result_of_small(op: Op, nodes: list[Node], small: str, library_dtype: str | None) -> str | None:
    """Return the small integer dtype of a result that is computed in int32; None: it has none."""
    if not (op.integer or op.coerce == "int"):
        if op is ops.POW and library_dtype is None:
            raise TypeError(f"it computes in floats, not {small}: cast to int32 first")
        return None
    for node in nodes if op not in MODULAR else ():
        if node.type.kind == "scalar" and node.type.dtype == "int":
            number = node.attr("value") if node.op is ops.CONST else None
            if number is None or not _fits(number, small):
                words = "a length" if number is None else number
                raise TypeError(f"{words} beside {small}: cast to int32 first")
    return small


def _fits(number: int, dtype: str) -> bool:
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    low = 0 if dtype.startswith("u") else -(2 ** (bits - 1))
    return low <= number < low + 2**bits
