"""Recording: a trace with its records, and the symbolic values whose operators build nodes.

Every coercion (a bool that becomes a float, a Python number that becomes a weak scalar) happens in
`apply` and nowhere else. The functions of the dialect `xg.xp` (`xp/all.py`) and the framework
dialects all end here. Tests of coercion: `tests/graph/test_small_dtypes.py` and, where a library
decides on dtypes, `tests/capture/types`.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import TraceError
from .. import ops
from ..backend.discovery import backend_of
from ..backend.values import compute
from ..ir.graph import TYPE, Location, Node, make_node, walk
from ..ir.op import (
    BOOL,
    DTYPES,
    FLOATS,
    INPUT_SHAPE,
    INT32,
    KEY,
    WHOLE,
    Op,
    T,
    Type,
    dtype_name,
    is_float,
)
from ..ir.questions import note
from ..passes.facts import Shapes, needed_shapes, shape_fact
from ..passes.simplify import ALIAS, COPY, constant, on_numbers
from ..support.lazy_modules import provided
from .coercion import (
    NeedsConcrete,
    are_floats,
    cast_node,
    coerce,
    is_exact,
    lift_array,
    on_bools,
    small_result,
)
from .source import WORDS, Reading, Source, Words

if TYPE_CHECKING:  # what engine code finds in a value; in plain code it is a `Trace`
    from ...engine.trace.code_trace import CodeTrace

__all__ = [
    "NeedsConcrete",
    "Trace",
    "Value",
    "apply",
    "are_bools",
    "cast",
    "cast_node",
    "constant",
    "dtype_name",
    "native_dtype",
    "pow",
]


@contextmanager
def setting(record: object, **values: Any) -> Iterator[None]:
    """Give attributes of an object other values; put them back at the end."""
    old_values = {name: getattr(record, name) for name in values}
    for name, value in values.items():
        setattr(record, name, value)
    try:
        yield
    finally:
        for name, value in old_values.items():
            setattr(record, name, value)


class Facts(dict[str, Any]):
    """What is fixed for one capture, by a fact's name: "ndim", "dtype", "shape:x", "param:p"."""

    __slots__ = ("carried", "find", "gives_dtype", "is_fresh", "lengths", "named_dtypes", "told")

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(facts)
        self.find: Any = None  # looks facts up in the arguments of the call; None without a call
        # Looks shapes up there and in the captures around it, with a number for open lengths.
        self.lengths: Any = None
        self.told: dict[str, Any] = {}  # the facts that it returned
        self.named_dtypes: set[str] = set()  # the graph may differ between these
        self.is_fresh = False  # only the inputs are recorded so far
        self.gives_dtype = False  # code got a symbol where it expects a dtype of its library
        # How many carried values of loops have a name. Each capture must give them the same names,
        # or it asks for facts under new names for ever.
        self.carried = 0

    def has_dtype(self, *dtypes: str) -> bool:
        """Return whether the input's dtype is fixed to one of these; note them if it is open."""
        dtype = self.get("dtype")
        if dtype is None:
            self.named_dtypes.update(dtypes)
        return dtype in dtypes

    def tell(self, names: Iterable[str]) -> bool:
        """Look facts up in the call; return False if there is no call. Only for facts on which no
        node depends yet: others raise NeedsConcrete, which repeats the capture.
        """
        if self.find is None:
            return False
        self.told.update(values := self.find(tuple(names)))
        self.update(values)
        return True


@dataclass(slots=True, eq=False, repr=False)
class TraceMemory:
    """Constants from arrays, updates in place, and how tensors lie in memory."""

    like: Node | None = None  # the tensor input on whose device constants lie
    lifted: list[Any] = field(default_factory=list)  # frameworks' tensors that became constants
    scattered: set[Node] = field(default_factory=set)  # constants whose array is not contiguous
    outside: dict[int, Any] = field(default_factory=dict)  # by id: facts about other tensors
    updates: dict[Node, Location | None] = field(default_factory=dict)  # of inputs, and where
    is_dense: bool = True  # what a tensor answers if code asks whether it is contiguous
    is_asked: bool = False  # code did; then both answers must give the same graph


class Trace:
    """One capture in progress: what is captured, for messages, and its records."""

    # What the library says of the calls of a function; None: all floats are the input's.
    types: Any = None

    def __init__(
        self,
        name: str,
        facts: Mapping[str, Any] | None = None,
        value_class: type[Value] | None = None,
        kind: str = "rule",
        namespace: Any = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.namespace = namespace  # that of the Array API
        self.value_class = value_class or Value
        self.facts = Facts(facts or {})
        self.shapes = Shapes(self.facts)
        self.source = Source()
        self.reading = Reading()
        self.memory = TraceMemory()
        self.draws = 0
        self.key: Node | None = None  # of the draws

    @property
    def words(self) -> Words:
        return WORDS[self.kind]

    def value(self, node: Node) -> Value:
        self.facts.is_fresh = False
        return self.value_class(self, node)

    def record(self, op: Op, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Record an op; of numbers that are all known, compute it."""
        nodes = [o.node if isinstance(o, Value) else lift(self, o) for o in operands]
        try:
            found = self.coerced(op, nodes, operands)
            if isinstance(found, Value):
                return found
            op, nodes, becomes = found
            type_ = op.result(*map(TYPE, nodes), **attrs)
        except TypeError as error:
            raise self.error(f"uses {op.name} wrongly: {error}") from error
        if type_.kind == "scalar" and nodes and all(n.op is ops.CONST for n in nodes):
            number = on_numbers(op, tuple(n.attr("value") for n in nodes), attrs)
            return self.value(constant(number))
        node = make_node(op, nodes, attrs, type_)
        if node not in self.source.locations and (place := self.source.location()):
            self.source.locations[node] = place
        value = self.value(node)
        if becomes == BOOL or (becomes and type_.dtype == INT32):
            return cast(value, becomes)
        if op.view and isinstance(operands[0], Value):
            mark_view(value, operands[0], op.view == "always")
        return self.named(value)

    def coerced(
        self, op: Op, nodes: list[Node], operands: tuple[Any, ...]
    ) -> tuple[Op, list[Node], str | None] | Value:
        """Return the op, on bools perhaps another; the operands as it takes them; and the dtype
        that its result is cast to: of small integers, which are computed in int32, or bools, of
        the numbers 0 and 1. Or the value, where it is recorded otherwise.
        """
        # All tensors are floats of one dtype, as most are: `x * 2.5`, where the number stays weak.
        if op.coerce == "float" and are_floats(nodes):
            return op, nodes, None
        # Bools, integers and several dtypes: `mask * x`, `a_uint8 + b_uint8`.
        op, is_bool = on_bools(op, nodes)
        becomes = BOOL if is_bool else small_result(op, nodes)
        return op, coerce(op, nodes, self.facts), becomes

    def confirmed(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        record: Callable[..., Any],
    ) -> Any:
        """Apply an operator."""
        return record(*args)

    def named(self, value: Value) -> Value:
        """Return a computed value under a name of its own, where code takes gradients."""
        return value

    def input(self, name: str, type_: Type) -> Value:
        node = make_node(ops.INPUT, (), {"name": name}, type_)
        if self.memory.like is None and type_.kind == "tensor":
            self.memory.like = node
        return self.value(node)

    def like(self) -> Node:
        if self.memory.like is None:
            raise self.error("uses a constant array without a tensor among its inputs")
        return self.memory.like

    def next_key(self) -> Value:
        """Return the key of the next draw: the application's own first, then fold_in(key, j)."""
        if self.key is None:
            self.key = make_node(ops.INPUT, (), {"name": "key"}, KEY)
        j, self.draws = self.draws, self.draws + 1
        key = self.value(self.key)
        return key if j == 0 else apply(ops.FOLD_IN, key, n=j)

    def error(self, problem: str, where: Location | None = None) -> TraceError:
        """Return a TraceError that names the rule and the line, or where its function begins."""
        where = where or self.source.location() or self.source.defined
        suffix = f" ({where})" if where else ""
        place = (where.file, where.line) if where else None
        return note(TraceError(f"{self.kind} {self.name!r}{suffix} {problem}", place))


def infix(function: Callable[..., Any], op: Op | str, logic: Op | None = None) -> tuple[Any, Any]:
    """Return the two methods of a Python operator: for a value on its left, and on its right.

    Args:
        op: or its name in the table, where it is not of the core.
        logic: the op to record instead if no operand is an integer.
    """

    def record(a: Any, b: Any) -> Any:
        if logic is not None and are_bools(a, b):
            return apply(logic, a, b)
        return apply(op if isinstance(op, Op) else getattr(ops, op), a, b)

    def at_left(value: Value, other: Any) -> Any:
        return value.trace.confirmed(function, (value, other), record)

    def at_right(value: Value, other: Any) -> Any:
        return value.trace.confirmed(function, (other, value), record)

    return at_left, at_right


BRANCHES = "branches on a tensor value", "Use xp.where(...)"


class Value:
    """A symbolic value: a node of the graph under construction. It holds no numbers."""

    __slots__ = (
        "__weakref__", "base", "how", "is_certain", "made", "node", "notes", "trace", "twin",
        "views",
    )  # fmt: skip
    is_number = False  # whether it stands for a Python number, though it is a tensor in the graph
    kind: type = float  # the class of that number
    __hash__ = object.__hash__

    trace: CodeTrace
    node: Node
    made: Node  # the node that made its memory; updates in place change `node` only
    base: Value | None  # what this is a view of
    twin: weakref.ref[Value] | None  # a value that this one copies, or shares memory with
    how: str  # the code made it so of another tensor, as `ops.MEMORY` says it; "": by an op
    is_certain: bool  # False where a library may have made a copy instead of a view
    views: list[weakref.ref[Value]]
    notes: dict[str, Any] | None  # attributes that the user's code has set

    def __init__(self, trace: Trace, node: Node) -> None:
        store = object.__setattr__  # a symbol of a function looks at each attribute that code sets
        store(self, "trace", trace)
        store(self, "node", node)
        store(self, "made", node)
        store(self, "base", None)
        store(self, "twin", None)
        store(self, "how", "")
        store(self, "is_certain", True)
        store(self, "views", [])
        store(self, "notes", None)

    def __bool__(self) -> bool:
        return bool(self._concrete(*BRANCHES))

    def __float__(self) -> float:
        return float(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __int__(self) -> int:
        return int(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __index__(self) -> int:
        if self.node.type.dtype == "float" and not is_whole(self.node):
            raise TypeError("a float cannot be used as an index")
        return int(self._concrete("uses a tensor as an index", "Use xp functions"))

    def _concrete(self, problem: str, advice: str) -> Any:
        if self.node.op is ops.CONST:
            return self.node.attr("value")
        if self.node.type.kind == "scalar":
            nodes = walk((self.node,))
            facts = {fact for node in nodes if (fact := _fact(node))}
            for node in nodes:
                if node.op in (ops.DIM, ops.SIZE) and not _fact(node):
                    facts.update(needed_shapes(node.operands[0]))
            if facts:
                raise NeedsConcrete(*sorted(facts))
        raise self._refusal(problem, advice)

    def _refusal(self, problem: str, advice: str) -> TraceError:
        place = self.trace.source.location()
        line = f": {place.text!r}" if place and place.text else ""
        return self.trace.error(f"{problem}{line}{self.trace.words.advise(advice)}")

    def __repr__(self) -> str:
        return f"<symbolic {self.node.type}>"

    __add__, __radd__ = infix(operator.add, ops.ADD)
    __sub__, __rsub__ = infix(operator.sub, ops.SUB)
    __mul__, __rmul__ = infix(operator.mul, ops.MUL)
    __truediv__, __rtruediv__ = infix(operator.truediv, ops.DIV)
    __floordiv__, __rfloordiv__ = infix(operator.floordiv, ops.FLOOR_DIVIDE)
    __mod__, __rmod__ = infix(operator.mod, ops.REMAINDER)
    __matmul__, __rmatmul__ = infix(operator.matmul, "MATMUL")
    __lshift__, __rlshift__ = infix(operator.lshift, "BITWISE_LEFT_SHIFT")
    __rshift__, __rrshift__ = infix(operator.rshift, "BITWISE_RIGHT_SHIFT")
    __and__, __rand__ = infix(operator.and_, "BITWISE_AND", ops.AND)
    __or__, __ror__ = infix(operator.or_, "BITWISE_OR", ops.OR)
    __xor__, __rxor__ = infix(operator.xor, "BITWISE_XOR", ops.XOR)
    __lt__, __gt__ = infix(operator.lt, ops.LT)[0], infix(operator.gt, ops.GT)[0]
    __le__, __ge__ = infix(operator.le, ops.LE)[0], infix(operator.ge, ops.GE)[0]
    __eq__, __ne__ = infix(operator.eq, ops.EQ)[0], infix(operator.ne, ops.NE)[0]

    def __pow__(self, other: Any) -> Any:
        return self.trace.confirmed(operator.pow, (self, other), pow)

    def __rpow__(self, other: Any) -> Any:
        return self.trace.confirmed(operator.pow, (other, self), pow)

    def __neg__(self) -> Any:
        return self.trace.confirmed(operator.neg, (self,), partial(apply, ops.NEG))

    def __pos__(self) -> Any:
        return copy_of(self)

    def __abs__(self) -> Any:
        return apply(ops.ABS, self)

    def __invert__(self) -> Any:
        if self.node.type.kind == "scalar" and self.node.type.dtype == BOOL:
            raise self.trace.error(
                "inverts a test of a number by ~, which gives -1 or -2 in Python. Write "
                "xp.logical_not(...)"
            )
        if is_float(self.node.type):
            raise self.trace.error("inverts floats by ~, which no library does")
        return apply(ops.NOT if are_bools(self) else ops.BITWISE_INVERT, self)


ROUNDINGS = (ops.ROUND, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.FLOOR_DIVIDE)
ON_INTEGERS = (ops.ADD, ops.SUB, ops.MUL, ops.NEG, ops.ABS)


def is_whole(node: Node) -> bool:
    """Return whether a number is an integer in Python, or may be one."""
    if node.op is ops.CONST:
        return float(node.attr("value")).is_integer()
    if node.op in ON_INTEGERS:
        return all(map(is_whole, node.operands))
    return node.op in ROUNDINGS or node.type.dtype == "int"


def _fact(node: Node) -> str | None:
    # The fact that would make a scalar node concrete.
    if node.op is ops.INPUT and node.type.kind == "scalar":
        return f"param:{node.attr('name')}"
    if node.op not in (ops.DIM, ops.SIZE):
        return None
    return shape_fact(node.operands[0], "shape")


def are_bools(*operands: Any) -> bool:
    """Return whether `&`, `|`, `^` and `~` of these are logic: none of them is an integer."""
    types = (x.node.type if isinstance(x, Value) else x for x in operands)
    return not any(type(x) is int or "int" in str(getattr(x, "dtype", "")) for x in types)


@provided
def power_of_integer(a: Value, b: float) -> Any:
    """Return a library's power of an integer or a bool."""
    return apply(ops.POW, a, b)


# Exponents with an op of their own.
EXACT_POWERS = {row.power: row for row in ops.CORE_OPS if row.power is not None}


def pow(a: Any, b: Any) -> Any:
    """a to the power b; squares and square roots take their own ops, which are exact."""
    if isinstance(b, int | float) and not isinstance(b, bool):
        is_integer = isinstance(a, Value) and a.node.type.dtype in (BOOL, *WHOLE)
        if is_integer and isinstance(a, Value) and is_exact(a.trace):
            return power_of_integer(a, b)
        if b == 2 and isinstance(a, Value) and a.node.type.dtype in WHOLE:
            return a * a
        if b in EXACT_POWERS:
            return apply(EXACT_POWERS[b], a)
        if b in (1, 3):
            return copy_of(a) if b == 1 else a * a * a
    return apply(ops.POW, a, b)


# --- from arguments to a node --------------------------------------------------------------------


def apply(op: Op, *operands: Any, **attrs: Any) -> Any:
    """Record `op`, or compute it at once where no operand is symbolic."""
    for operand in operands:
        if isinstance(operand, Value):
            trace = operand.trace
            break
    else:  # the `xp` functions also work on arrays and tensors
        return compute(op, operands, attrs)
    return trace.record(op, operands, attrs)


def mark_view(value: Value, base: Value, is_certain: bool) -> None:
    value.base = base
    value.is_certain = is_certain
    base.views.append(weakref.ref(value))


def copy_of(x: Any) -> Any:
    """Return the same value under a new name: an update of one does not reach the other."""
    if not isinstance(x, Value):
        return x
    copy = x.trace.named(x.trace.value(x.node))
    copy.how = COPY
    return copy


def made_in_memory(x: Any, how: str) -> Any:
    """Return x as the op `MEMORY` does."""
    result = copy_of(x)
    if isinstance(x, Value):
        result.how = how
        if not how.startswith(COPY):
            mark_view(result, x, how == ALIAS)
    return result


def is_symbolic_tensor(value: Any) -> bool:
    return isinstance(value, Value) and value.node.type.kind == "tensor"


def lift(trace: Trace, operand: Any) -> Node:
    if isinstance(operand, Value):
        return operand.node
    if isinstance(operand, bool | int | float):
        return constant(operand)
    return lift_array(trace, operand)


def cast(x: Any, dtype: Any) -> Any:
    """x in another dtype: bool, an integer or a float one, or that of a symbolic value.

    A bool tensor cast to any float dtype takes the input's: 0 and 1 are exact in all of them, so
    `mask.float()` does not tie a rule to float32.
    """
    if isinstance(x, bool | int | float):
        return x
    if not isinstance(x, Value):
        return apply(ops.CAST, x, dtype=native_dtype(x, dtype))
    name = dtype_name(dtype)
    type_ = x.node.type
    if type_.kind == "scalar":
        return x
    fact = x.trace.facts.get("dtype")
    is_input_dtype = name in FLOATS and x.trace.facts.has_dtype(name)
    if is_input_dtype or (name in FLOATS and type_.dtype == BOOL and not is_exact(x.trace)):
        name = T
    if name == type_.dtype:
        return x
    if name == BOOL:
        return apply(ops.NE, x, 0)
    if name not in (T, *DTYPES):
        advice = "Cast to one of these"
        if name.startswith(("complex", "cfloat", "cdouble")):
            advice = "Cast to a float dtype, or apply the rule to the real and the imaginary part"
        raise x.trace.error(
            f"casts to {name}: rules compute in bool, int8, uint8, int16, int32, int64 and float "
            f"dtypes. {advice}"
        )
    result = apply(ops.CAST, x, dtype=name)
    # Perhaps its own, which makes no copy.
    if fact is None and T in (name, type_.dtype) and type_.dtype in (T, *FLOATS):
        mark_view(result, x, False)
    return result


def native_dtype(x: Any, dtype: Any) -> Any:
    name = dtype_name(dtype)
    return x.dtype if name == T else backend_of(x).tensors.dtype(name)


# --- axes and shapes, as far as a capture knows them ----------------------------------------------
Axis = int | tuple[int, ...] | list[int] | None


def axes_of(x: Any, axis: Axis) -> int | tuple[int, ...] | None:
    """Return the attribute for an axis or axes, checked if this capture knows the rank."""
    if axis is None:
        return None
    if isinstance(axis, tuple | list):
        return tuple(one_axis(x, i) for i in axis)
    return one_axis(x, axis)


def one_axis(x: Any, axis: Any) -> int:
    """Return one axis as an int.

    Raises:
        TypeError: it is no integer.
        TraceError: x is symbolic, of a rank known here, and has no such axis.
    """
    axis = operator.index(axis)
    if isinstance(x, Value) and x.node.type.shape == INPUT_SHAPE:
        rank = x.trace.shapes.rank(x.node)
        if rank and not -rank <= axis < rank:
            raise x.trace.error(
                f"names axis {axis} of a tensor that has {rank}: {-rank} to {rank - 1}"
            )
    return axis


def known_shape(x: Any) -> tuple[int, ...] | None:
    """Return the shape of a symbolic value if this capture has fixed it."""
    if not isinstance(x, Value) or x.node.type.kind != "tensor":
        return None
    return x.trace.shapes.known(x.node)
