"""One equation of a jaxpr while it is imported: its operands, and what it knows of the import.

In a jaxpr every broadcast is an equation, while our ops broadcast implicitly. So an operand keeps
the shape in which it was computed, with ones along repeated axes, until an op needs it whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from multigrad.core import ops
from multigrad.core.ir.op import BOOL, FLOATS, INT32, INT64, SMALL, WHOLE, T
from multigrad.core.ir.questions import count, forget
from multigrad.core.trace.coercion import lift_array
from multigrad.core.trace.trace import Value, cast, constant
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.values.oracle import ModeOf
from multigrad.engine.trace.code_trace import CodeTrace

Shape = tuple[Any, ...]
# The dtype of a tensor that is made of a number of this kind.
WEAK = {"float": T, "int": INT32, "bool": BOOL}


class Unknown(Exception):
    """A jaxpr cannot be imported, for this reason.

    Attributes:
        lacks: the reason, if a primitive has no op, which the user's line does not show.
    """

    def __init__(self, reason: str, *, lacks: str = "") -> None:
        super().__init__(reason)
        self.lacks = lacks


@dataclass(frozen=True, slots=True)
class TrialDtype:
    """The dtype that stands for the input's open dtype while jax traces.

    Attributes:
        is_wide: whether the user has switched 64 bits on, so that int64 is not narrowed.
    """

    dtype: str
    is_wide: bool = field(default_factory=lambda: bool(ModeOf("jax").meaning()[0]))

    def context(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(self.is_wide or self.dtype == "float64")


@dataclass(frozen=True, slots=True)
class Operand:
    """A recorded value, and the shape of its jaxpr variable, with ones along repeated axes, or ().

    `known` holds its numbers if they are constants.
    """

    value: Any
    shape: Shape
    known: Any = None


class ImportScope:
    """One import: its capture, and the meaning of the jaxpr's dtypes and lengths."""

    def __init__(self, trace: CodeTrace, trial: TrialDtype, lengths: Mapping[str, Any]) -> None:
        self.trace = trace
        self.trial = trial
        self.lengths = lengths
        self.examples: dict[Shape, Value] = {}

    def remember(self, operand: Operand) -> None:
        if operand.shape and operand.value.node.type.kind == "tensor":
            self.examples.setdefault(operand.shape, operand.value)

    def lift(self, array: Any) -> Operand:
        array = np.asarray(array)
        if array.dtype == jax.dtypes.float0:  # zeros of no bytes, which no result depends on
            array = np.zeros(array.shape, bool)
        if array.ndim == 0:
            return Operand(self.trace.value(constant(array.item())), (), array)
        value = self.trace.value(lift_array(self.trace, array))
        if array.dtype.kind in "iu":  # never weak: a jaxpr has each cast as an equation
            fits_int32 = not array.size or np.abs(array.astype(np.float64)).max() < 2**31
            name = self.dtype_name(array.dtype)
            value = cast(value, name if name in SMALL else INT32 if fits_int32 else INT64)
        return Operand(value, array.shape, array)

    def noted(self, operand: Operand) -> Operand:
        node = operand.value.node
        if operand.known is not None or operand.shape or node.op is not ops.CONST:
            return operand
        return replace(operand, known=np.asarray(node.attr("value")))

    def whole(self, operand: Operand, shape: Shape) -> Value:
        if operand.shape == shape and (shape or operand.value.node.type.kind == "tensor"):
            return operand.value
        like = self.examples.get(shape)
        if like is not None:
            if operand.value.node.type.kind == "scalar":
                dtype = WEAK[operand.value.node.type.dtype]
                return xp.full_like(like, operand.value, dtype)
            return xp.broadcast_to(operand.value, like)
        if not all(isinstance(n, int) for n in shape):
            raise Unknown(f"a tensor of shape {shape}, which no other has")
        if operand.value.node.type.kind == "scalar":
            return self.filled(operand.value, shape) if shape else operand.value
        return xp.broadcast_to(operand.value, tuple(shape))

    def whole_tensor(self, operand: Operand, shape: Shape) -> Value:
        """Return an operand repeated to a shape, a number as a tensor too."""
        value = self.whole(operand, shape)
        if value.node.type.kind == "tensor":
            return value
        return xp.reshape(self.filled(value, (1,)), integers(shape))

    def filled(self, number: Value, shape: Shape) -> Value:
        ones = self.trace.value(lift_array(self.trace, np.ones(shape)))
        return xp.full_like(ones, number, WEAK[number.node.type.dtype])

    def given_back(self, operand: Operand, struct: Any) -> Value:
        """Return a whole result, with integers cast to the jaxpr's dtype."""
        value = self.whole(operand, tuple(struct.shape))
        dtype, type_ = self.dtype_name(struct.dtype), value.node.type
        if type_.kind == "tensor" and type_.dtype in (T, *FLOATS) and dtype in WHOLE:
            raise Unknown(f"floats where jax gives {dtype}")
        is_other = type_.kind == "tensor" and type_.dtype in WHOLE and dtype in WHOLE
        return cast(value, dtype) if is_other else value

    def length(self, dimension: Any) -> Any:
        """Return a length of the jaxpr: a number, or a value computed from open lengths."""
        if isinstance(dimension, int | np.integer):
            return int(dimension)
        since = count()
        try:
            length = dimension._evaluate(dict(self.lengths))
        except Exception as error:
            raise Unknown(f"the length {dimension}") from error
        forget(since)  # jax compares factors with 1, and goes on if it cannot
        return length

    def dtype_name(self, dtype: Any) -> str:
        name: str = np.dtype(dtype).name
        narrow = {} if self.trial.is_wide else {"int64": "int32"}
        return T if name == self.trial.dtype else narrow.get(name, name)


@dataclass(frozen=True, slots=True)
class EquationStep:
    """One equation: its operands, their shapes and dtypes, its first result's shape, its params."""

    scope: ImportScope
    operands: list[Operand]
    shapes: list[Shape]
    dtypes: list[Any]
    shape: Shape
    params: Mapping[str, Any]

    def whole(self, i: int = 0) -> Value:
        return self.scope.whole(self.operands[i], self.shapes[i])

    def whole_tensor(self, i: int = 0) -> Value:
        return self.scope.whole_tensor(self.operands[i], self.shapes[i])

    def result(self, value: Any) -> Operand:
        return Operand(value, self.shape)


Handler = Callable[[EquationStep], Operand | list[Operand]]


def integers(numbers: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, numbers))
    except Exception as error:  # an open length
        raise Unknown(f"the lengths {tuple(numbers)}") from error
