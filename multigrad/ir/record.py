"""Recording: symbolic values whose operators build nodes, and the neutral functions over them.

Every coercion (a bool that becomes a float, a Python number that becomes a weak scalar) happens in `apply` and
nowhere else. The functions of the neutral dialect (`neutral.py`) and the framework dialects all end here.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from types import CodeType
from typing import Any

from ..errors import TraceError
from . import ops
from .answers import Answers
from .bools import on_bools
from .coercion import NeedFact, cast_node, coerce, constant
from .constants import lift_array
from .facts import computed_shape, is_tensor_input, shape_fact
from .graph import Location, Node, make_node, walk
from .ops import Op
from .questions import note
from .scalars import on_numbers
from .types import (
    BOOL,
    FLOATS,
    INT32,
    INT64,
    INTEGERS,
    KEY,
    ROW,
    T,
    Type,
    dtype_name,
)
from .wording import rephrase

__all__ = [
    "NeedFact",
    "Trace",
    "Value",
    "apply",
    "are_bools",
    "cast",
    "cast_node",
    "constant",
    "dtype_name",
    "known_shape",
    "native_dtype",
    "pow",
]


class Trace:
    """One capture in progress: the facts fixed so far, where nodes were written, the draws made.

    `kind` says what is captured, for messages; `lifted` are the framework tensors that became constants.
    """

    def __init__(
        self,
        name: str,
        facts: Mapping[str, Any] | None = None,
        value_class: type[Value] | None = None,
        kind: str = "rule",
    ) -> None:
        self.kind = kind
        self.lifted: list[Any] = []
        self.name = name
        self.facts = dict(facts or {})
        self.value_class = value_class or Value
        self.locations: dict[Node, Location] = {}
        self.codes: set[CodeType] = set()
        self.numbers: set[float] = set()  # floats that the user's functions refer to
        self.witness: Any = None  # looks for what the capture does beside the graph
        self.by_identity = False  # they compare dtypes by `is`
        self.draws = 0
        self.key: Node | None = None
        self.dialect = ""
        self.readings: tuple[str, ...] = ()  # the libraries that the code now running may mean
        self.latest: tuple[str, ...] = ()  # the same of the function that ran last
        self.routes: dict[str, str] = {}  # dialect: how its calls reached us
        self.lost_gradient = ""  # a function whose ops were recorded without its own gradient
        self._like: Node | None = None

    def value(self, node: Node) -> Value:
        """Wrap a node as a symbolic value of this trace."""
        value = self.value_class(self, node)
        if self.witness is not None:
            self.witness.made.append(weakref.ref(value))
        return value

    def input(self, name: str, type_: Type) -> Value:
        """Return a new input."""
        node = make_node(ops.INPUT, (), {"name": name}, type_)
        if self._like is None and type_.kind == "tensor":
            self._like = node
        return self.value(node)

    def like(self) -> Node:
        """Return the tensor input that says on which device a constant lies."""
        if self._like is None:
            raise self.error("uses a constant array without a tensor among its inputs")
        return self._like

    def next_key(self) -> Value:
        """Return the key of the next draw: the application's own first, then fold_in(key, j)."""
        if self.key is None:
            self.key = make_node(ops.INPUT, (), {"name": "key"}, KEY)
        j, self.draws = self.draws, self.draws + 1
        own = self.value(self.key)
        return own if j == 0 else apply(ops.FOLD_IN, own, n=j)

    def location(self) -> Location | None:
        """Return the innermost line of the user's code now running."""
        frame = sys._getframe(1)
        while frame is not None:
            # By identity: the code that Dynamo makes to resume after a graph break cannot be hashed.
            if any(frame.f_code is code for code in self.codes):
                import linecache

                file, line = frame.f_code.co_filename, frame.f_lineno
                return Location(file, line, linecache.getline(file, line).strip())
            frame = frame.f_back
        return None

    def error(self, problem: str) -> TraceError:
        """Return a TraceError that names the rule and the line."""
        where = self.location()
        at = f" ({where})" if where else ""
        place = (where.file, where.line) if where else None
        problem = rephrase(problem, self.kind)
        return note(TraceError(f"{self.kind} {self.name!r}{at} {problem}", place))


class Value(Answers):
    """A symbolic value: a node of the graph under construction. It holds no numbers."""

    __slots__ = ("__weakref__", "base", "is_certain", "node", "trace", "views")
    __hash__ = Answers.__hash__

    def __init__(self, trace: Trace, node: Node) -> None:
        self.trace = trace
        self.node = node
        self.base: Value | None = None  # what this is a view of
        self.is_certain = True  # that it is a view: a library may have made a copy
        self.views: list[weakref.ref[Value]] = []

    def __round__(self, digits: int | None = None) -> Any:
        if not digits:
            return apply(ops.ROUND, self)
        return round(float(self), digits)

    def __floor__(self) -> Any:
        return self._rounded(ops.FLOOR)

    def __ceil__(self) -> Any:
        return self._rounded(ops.CEIL)

    def __trunc__(self) -> Any:
        return self._rounded(ops.TRUNC)

    def _rounded(self, op: Op) -> Any:
        """Round a number; of a tensor, Python makes one."""
        if self.node.type.kind == "scalar":
            return apply(op, self)
        return self._concrete("rounds a tensor to a Python number", "Use xp.floor(...)")

    def __floordiv__(self, other: Any) -> Any:
        return apply(ops.FLOOR_DIVIDE, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return apply(ops.FLOOR_DIVIDE, other, self)

    def __mod__(self, other: Any) -> Any:
        return apply(ops.REMAINDER, self, other)

    def __rmod__(self, other: Any) -> Any:
        return apply(ops.REMAINDER, other, self)

    def __matmul__(self, other: Any) -> Any:
        return apply(ops.MATMUL, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return apply(ops.MATMUL, other, self)

    def __add__(self, other: Any) -> Any:
        return apply(ops.ADD, self, other)

    def __radd__(self, other: Any) -> Any:
        return apply(ops.ADD, other, self)

    def __sub__(self, other: Any) -> Any:
        return apply(ops.SUB, self, other)

    def __rsub__(self, other: Any) -> Any:
        return apply(ops.SUB, other, self)

    def __mul__(self, other: Any) -> Any:
        return apply(ops.MUL, self, other)

    def __rmul__(self, other: Any) -> Any:
        return apply(ops.MUL, other, self)

    def __truediv__(self, other: Any) -> Any:
        return apply(ops.DIV, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return apply(ops.DIV, other, self)

    def __pow__(self, other: Any) -> Any:
        return pow(self, other)

    def __rpow__(self, other: Any) -> Any:
        return pow(other, self)

    def __neg__(self) -> Any:
        return apply(ops.NEG, self)

    def __pos__(self) -> Any:
        return copy_of(self)

    def __abs__(self) -> Any:
        return apply(ops.ABS, self)

    def __invert__(self) -> Any:
        if self.node.type.kind == "scalar" and self.node.type.dtype == BOOL:
            raise self.trace.error(
                "inverts a test of a number by ~, which gives -1 or -2 in Python. Write xp.logical_not(...)"
            )
        return apply(ops.NOT if are_bools(self) else ops.BITWISE_INVERT, self)

    def __and__(self, other: Any) -> Any:
        return apply(ops.AND if are_bools(self, other) else ops.BITWISE_AND, self, other)

    def __rand__(self, other: Any) -> Any:
        return apply(ops.AND if are_bools(self, other) else ops.BITWISE_AND, other, self)

    def __or__(self, other: Any) -> Any:
        return apply(ops.OR if are_bools(self, other) else ops.BITWISE_OR, self, other)

    def __ror__(self, other: Any) -> Any:
        return apply(ops.OR if are_bools(self, other) else ops.BITWISE_OR, other, self)

    def __xor__(self, other: Any) -> Any:
        return apply(ops.XOR if are_bools(self, other) else ops.BITWISE_XOR, self, other)

    def __rxor__(self, other: Any) -> Any:
        return apply(ops.XOR if are_bools(self, other) else ops.BITWISE_XOR, other, self)

    def __lshift__(self, other: Any) -> Any:
        return apply(ops.BITWISE_LEFT_SHIFT, self, other)

    def __rlshift__(self, other: Any) -> Any:
        return apply(ops.BITWISE_LEFT_SHIFT, other, self)

    def __rshift__(self, other: Any) -> Any:
        return apply(ops.BITWISE_RIGHT_SHIFT, self, other)

    def __rrshift__(self, other: Any) -> Any:
        return apply(ops.BITWISE_RIGHT_SHIFT, other, self)

    def __lt__(self, other: Any) -> Any:
        return apply(ops.LT, self, other)

    def __le__(self, other: Any) -> Any:
        return apply(ops.LE, self, other)

    def __gt__(self, other: Any) -> Any:
        return apply(ops.GT, self, other)

    def __ge__(self, other: Any) -> Any:
        return apply(ops.GE, self, other)

    def __eq__(self, other: object) -> Any:
        return apply(ops.EQ, self, other)

    def __ne__(self, other: object) -> Any:
        return apply(ops.NE, self, other)


def are_bools(*operands: Any) -> bool:
    """Return whether `&`, `|`, `^` and `~` of these are logic: none of them is an integer."""
    types = (x.node.type if isinstance(x, Value) else x for x in operands)
    return not any(type(x) is int or "int" in str(getattr(x, "dtype", "")) for x in types)


# Results that share memory with their operand in some framework: an update would reach the operand too.
VIEWS = frozenset({
    "broadcast_to", "broadcast_to_shape", "expand_dims", "flip", "getitem", "half", "moveaxis", "part",
    "permute_dims", "reshape", "reshape_like", "squeeze", "stop_gradient", "swapaxes",
})  # fmt: skip
# Those that are a copy in some libraries, or of some strides.
UNCERTAIN_VIEWS = (
    ops.BROADCAST_TO_SHAPE, ops.FLIP, ops.HALF, ops.PART, ops.RESHAPE, ops.RESHAPE_LIKE,
)  # fmt: skip
EXACT_POWERS: dict[float, Op] = {
    2: ops.SQUARE, 0.5: ops.SQRT, -1: ops.RECIPROCAL, -0.5: ops.RSQRT,
}  # fmt: skip


def pow(a: Any, b: Any) -> Any:
    """a to the power b; squares and square roots take their own ops, which are exact."""
    if isinstance(b, int | float) and not isinstance(b, bool):
        if b in EXACT_POWERS:
            return apply(EXACT_POWERS[b], a)
        if b in (1, 3):
            return copy_of(a) if b == 1 else a * a * a
    return apply(ops.POW, a, b)


# --- from arguments to a node --------------------------------------------------------------------


def apply(op: Op, *operands: Any, **attrs: Any) -> Any:
    """Record `op`, or compute it at once where no operand is symbolic."""
    trace = next((o.trace for o in operands if isinstance(o, Value)), None)
    if trace is None:
        return _compute(op, operands, attrs)
    nodes = [lift(trace, operand) for operand in operands]
    try:
        op, is_bool = on_bools(op, nodes)
        nodes = coerce(op, nodes, trace.facts)
        type_ = op.result(*(node.type for node in nodes), **attrs)
    except TypeError as error:
        raise trace.error(f"uses {op.name} wrongly: {error}") from error
    if nodes and all(n.op is ops.CONST for n in nodes) and type_.kind == "scalar":
        number = on_numbers(op, tuple(n.attr("value") for n in nodes), attrs)
        return trace.value(constant(number))
    node = make_node(op, nodes, attrs, type_)
    if node not in trace.locations and (where := trace.location()):
        trace.locations[node] = where
    value = trace.value(node)
    if is_bool:
        return apply(ops.NE, value, 0)
    if op.name in VIEWS and isinstance(operands[0], Value):
        mark_view(value, operands[0], op not in UNCERTAIN_VIEWS)
    return value


def mark_view(value: Value, base: Value, is_certain: bool) -> None:
    """Say that a value shares its memory with another, or may do so."""
    value.base = base
    value.is_certain = is_certain
    base.views.append(weakref.ref(value))


def copy_of(x: Any) -> Any:
    """Return the same value under a new name: an update of one does not reach the other."""
    return x.trace.value(x.node) if isinstance(x, Value) else x


def known_shape(x: Any) -> tuple[int, ...] | None:
    """Return the shape of a symbolic value where this capture has it fixed."""
    if not isinstance(x, Value) or x.node.type.kind != "tensor" or not x.trace.facts:
        return None
    fact = shape_fact(x.node, "shape")
    if fact is not None:
        return x.trace.facts.get(fact)
    if x.node.type.shape == ROW:
        return ()
    facts = [shape_fact(node, "shape") for node in walk((x.node,)) if is_tensor_input(node)]
    if not facts or any(fact not in x.trace.facts for fact in facts):
        return None
    return computed_shape(x.node, x.trace.facts)


def _compute(op: Op, operands: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    # The neutral functions also work on arrays and tensors; backends are found above the IR.
    from ..lowering.backend import compute

    return compute(op, operands, attrs)


def lift(trace: Trace, operand: Any) -> Node:
    """Return the node of an operand: a value's own, or a constant."""
    if isinstance(operand, Value):
        return operand.node
    if isinstance(operand, bool | int | float):
        return constant(operand)
    return lift_array(trace, operand)


def cast(x: Any, dtype: Any) -> Any:
    """x in another dtype: bool, int32, float16, bfloat16, float32, float64, or that of a symbolic value.

    A bool tensor cast to any float dtype takes the input's: 0 and 1 are exact in all of them, so
    `mask.float()` does not tie a rule to float32.
    """
    if isinstance(x, bool | int | float):
        return x
    if not isinstance(x, Value):
        return apply(ops.CAST, x, dtype=native_dtype(x, dtype))
    name = dtype_name(dtype)
    own = x.node.type
    if own.kind == "scalar":
        return x
    fixed = x.trace.facts.get("dtype")
    if name in FLOATS and (own.dtype == BOOL or name == fixed):
        name = T
    if name == own.dtype:
        return x
    if name == BOOL:
        return apply(ops.NE, x, 0)
    widens = name == INT64 and own.dtype in (BOOL, *INTEGERS)
    if name not in (T, INT32, *FLOATS) and not widens:
        advice = "Cast to one of these"
        if name.startswith(("complex", "cfloat", "cdouble")):
            advice = "Cast to a float dtype, or apply the rule to the real and the imaginary part"
        raise x.trace.error(
            f"casts to {name}: rules compute in bool, int32 and float dtypes. {advice}"
        )
    result = apply(ops.CAST, x, dtype=name)
    if (
        fixed is None and T in (name, own.dtype) and own.dtype in (T, *FLOATS)
    ):  # perhaps its own, which makes no copy
        mark_view(result, x, False)
    return result


def native_dtype(x: Any, dtype: Any) -> Any:
    """Return the dtype object of x's own library for a dtype given in any form."""
    from ..lowering.backend import backend_of

    name = dtype_name(dtype)
    return x.dtype if name == T else backend_of(x).dtype(name)
