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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...errors import TraceError
from .. import ops
from ..backend.discovery import backend_of
from ..backend.values import compute
from ..ir.graph import TYPE, Location, Node, make_node
from ..ir.op import BOOL, DTYPES, FLOATS, INT32, KEY, WHOLE, Op, T, Type, dtype_name, is_float
from ..ir.questions import note
from ..passes.facts import Shapes
from ..passes.simplify import ALIAS, COPY, constant, on_numbers
from .coercion import (
    NeedsConcrete,
    are_floats,
    cast_node,
    coerce,
    in_dtype,
    is_exact,
    lift_array,
    on_bools,
    small_result,
)
from .python_protocols import Answers, Pair
from .source import WORDS, Limits, Reading, Source, Words, names_of

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
class Backward:
    """The gradients that code takes, where gradients stop, and what has no derivative."""

    is_running: bool = False  # the backward of a function runs, or ran
    is_taped: bool = False  # a tape records, which will take gradients
    is_once: bool = False  # the backward is valid for first derivatives only
    lost_gradient: str = ""  # a function whose ops were recorded without its own gradient
    leaves: list[weakref.ref[Value]] = field(default_factory=list)  # whose gradients code takes
    # Returns whether a library's context stops gradients now (`torch.no_grad`).
    is_paused: Callable[[], bool] | None = None
    # Gives a node another name. Where code takes gradients, equal tensors must be told apart.
    rename: Callable[[Node], Node] | None = None

    def plainly(self) -> AbstractContextManager[None]:
        """Record nodes of our own: they need no names, and gradients pass through them."""
        return setting(self, is_paused=None, rename=None)


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

    __slots__ = (
        "__weakref__", "backward", "draws", "facts", "key", "kind", "limits", "memory", "name",
        "namespace", "overriding", "reading", "shapes", "source", "types", "value_class",
    )  # fmt: skip

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
        self.backward = Backward()
        self.memory = TraceMemory()
        self.limits = Limits()
        # What the library says of the calls of a function; None: all floats are the input's.
        self.types: Any = None
        self.overriding: Any = None  # puts rules on what is recorded (`xg.override`)
        self.draws = 0
        self.key: Node | None = None  # of the draws

    @property
    def words(self) -> Words:
        return WORDS[self.kind]

    @property
    def dialect(self) -> str:
        """The library whose names the running code uses, "" if unknown; may raise NeedsConcrete."""
        return names_of(self)

    def omit(self, kind: str, words: str = "") -> None:
        """Note what the graph leaves out, with the line; of each kind the first is kept."""
        if kind not in self.limits.omissions:
            place = self.source.location() or self.source.defined
            self.limits.omissions[kind] = (words or kind) + (f" ({place})" if place else "")

    def value(self, node: Node) -> Value:
        self.facts.is_fresh = False
        value = self.value_class(self, node)
        if self.source.witness is not None:  # which sees whether code keeps it when it ends
            self.source.witness.made.append(weakref.ref(value))
        return value

    def named(self, value: Value) -> Value:
        """Return a computed value under a name of its own, and cut where gradients stop."""
        type_ = value.node.type
        if type_.kind != "tensor" or not is_float(type_):
            return value
        backward = self.backward
        if backward.is_paused is not None and backward.is_paused():
            value = self._seen_by(value, make_node(ops.STOP_GRADIENT, (value.node,), {}, type_))
        rename = backward.rename
        return value if rename is None else self._seen_by(value, rename(value.node))

    def _seen_by(self, value: Value, node: Node) -> Value:
        """Return a node as the value that replaces `value`; it is a view if `value` is one."""
        result = self.value(node)
        if value.base is not None:
            mark_view(result, value, True)
        return result

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


def infix(
    function: Callable[..., Any], op: Op | Callable[..., Any], logic: Op | None = None
) -> tuple[Any, Any]:
    """Return the two methods of a Python operator: for a value on its left, and on its right.

    Args:
        op: or a function that records it.
        logic: the op to record instead if no operand is an integer.
    """

    def record(a: Any, b: Any) -> Any:
        if not isinstance(op, Op):
            return op(a, b)
        return apply(op if logic is None or not are_bools(a, b) else logic, a, b)

    def at_left(value: Value, other: Any) -> Any:
        if Pair.is_made and isinstance(other, Pair):
            return NotImplemented
        return confirmed(value.trace, function, (value, other), record)

    def at_right(value: Value, other: Any) -> Any:
        return confirmed(value.trace, function, (other, value), record)

    return at_left, at_right


def confirmed(
    trace: Trace, function: Callable[..., Any], args: tuple[Any, ...], record: Callable[..., Any]
) -> Any:
    """Apply an operator; its result has the dtype that the library gives it."""
    if trace.types is None:
        return record(*args)
    try:
        return trace.types.confirmed(function, args, {}, record)
    except TypeError as error:
        raise trace.error(f"computes {function.__name__} where {error}") from error


def matmul(a: Any, b: Any) -> Any:
    return apply(ops.MATMUL, a, b)


class Value(Answers):
    """A symbolic value: a node of the graph under construction. It holds no numbers."""

    __slots__ = (
        "__weakref__", "base", "how", "is_certain", "made", "node", "notes", "trace", "twin",
        "views",
    )  # fmt: skip
    is_number = False  # whether it stands for a Python number, though it is a tensor in the graph
    kind: type = float  # the class of that number
    __hash__ = Answers.__hash__

    trace: Trace
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
        if self.node.type.kind == "scalar":
            return apply(op, self)
        return self._concrete("rounds a tensor to a Python number", "Use xp.floor(...)")

    __add__, __radd__ = infix(operator.add, ops.ADD)
    __sub__, __rsub__ = infix(operator.sub, ops.SUB)
    __mul__, __rmul__ = infix(operator.mul, ops.MUL)
    __truediv__, __rtruediv__ = infix(operator.truediv, ops.DIV)
    __floordiv__, __rfloordiv__ = infix(operator.floordiv, ops.FLOOR_DIVIDE)
    __mod__, __rmod__ = infix(operator.mod, ops.REMAINDER)
    __matmul__, __rmatmul__ = infix(operator.matmul, matmul)
    __lshift__, __rlshift__ = infix(operator.lshift, ops.BITWISE_LEFT_SHIFT)
    __rshift__, __rrshift__ = infix(operator.rshift, ops.BITWISE_RIGHT_SHIFT)
    __and__, __rand__ = infix(operator.and_, ops.BITWISE_AND, ops.AND)
    __or__, __ror__ = infix(operator.or_, ops.BITWISE_OR, ops.OR)
    __xor__, __rxor__ = infix(operator.xor, ops.BITWISE_XOR, ops.XOR)
    __lt__, __gt__ = infix(operator.lt, ops.LT)[0], infix(operator.gt, ops.GT)[0]
    __le__, __ge__ = infix(operator.le, ops.LE)[0], infix(operator.ge, ops.GE)[0]
    __eq__, __ne__ = infix(operator.eq, ops.EQ)[0], infix(operator.ne, ops.NE)[0]

    def __pow__(self, other: Any) -> Any:
        return confirmed(self.trace, operator.pow, (self, other), pow)

    def __rpow__(self, other: Any) -> Any:
        return confirmed(self.trace, operator.pow, (other, self), pow)

    def __neg__(self) -> Any:
        return confirmed(self.trace, operator.neg, (self,), partial(apply, ops.NEG))

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


def are_bools(*operands: Any) -> bool:
    """Return whether `&`, `|`, `^` and `~` of these are logic: none of them is an integer."""
    types = (x.node.type if isinstance(x, Value) else x for x in operands)
    return not any(type(x) is int or "int" in str(getattr(x, "dtype", "")) for x in types)


# Exponents with an op of their own.
EXACT_POWERS = {row.power: row for row in ops.CORE_OPS if row.power is not None}


def pow(a: Any, b: Any) -> Any:
    """a to the power b; squares and square roots take their own ops, which are exact."""
    if isinstance(b, int | float) and not isinstance(b, bool):
        is_integer = isinstance(a, Value) and a.node.type.dtype in (BOOL, *WHOLE)
        if is_integer and isinstance(a, Value) and is_exact(a.trace):
            return _power_of_integer(a, b)
        if b == 2 and isinstance(a, Value) and a.node.type.dtype in WHOLE:
            return a * a
        if b in EXACT_POWERS:
            return apply(EXACT_POWERS[b], a)
        if b in (1, 3):
            return copy_of(a) if b == 1 else a * a * a
    return apply(ops.POW, a, b)


def _power_of_integer(a: Value, b: float) -> Any:
    if type(b) is int and b == 0:
        dtype = a.node.type.dtype
        return apply(ops.FULL_LIKE, a, 1, dtype=INT32 if dtype == BOOL else dtype)
    if type(b) is int and b < 0:
        raise TypeError(
            f"an integer is raised to the power {b}, which every library refuses: make it a float"
        )
    if not (type(b) is int and 0 < b <= 64):
        return apply(ops.POW, a, b)
    power, exponent = a, b - 1
    square = a
    while exponent:
        power = power * square if exponent & 1 else power
        exponent >>= 1
        square = square * square if exponent else square
    return copy_of(power) if b == 1 else power


# --- from arguments to a node --------------------------------------------------------------------


def apply(op: Op, *operands: Any, **attrs: Any) -> Any:
    """Record `op`, or compute it at once where no operand is symbolic."""
    for operand in operands:
        if isinstance(operand, Value):
            trace = operand.trace
            break
    else:  # the `xp` functions also work on arrays and tensors
        return compute(op, operands, attrs)
    if trace.overriding is not None:
        replacement = trace.overriding.record(trace, op, operands, partial(apply, op, **attrs))
        if replacement is not None:
            return replacement
    nodes = [o.node if isinstance(o, Value) else lift(trace, o) for o in operands]
    try:
        op, nodes, narrow_dtype, is_bool, recorded = _coerce_operands(trace, op, nodes, operands)
        if recorded is not None:
            return recorded()
        type_ = op.result(*map(TYPE, nodes), **attrs)
    except TypeError as error:
        raise trace.error(f"uses {op.name} wrongly: {error}") from error
    if type_.kind == "scalar" and nodes and all(n.op is ops.CONST for n in nodes):
        number = on_numbers(op, tuple(n.attr("value") for n in nodes), attrs)
        return trace.value(constant(number))
    node = make_node(op, nodes, attrs, type_)
    if node not in trace.source.locations and (place := trace.source.location()):
        trace.source.locations[node] = place
    value = trace.value(node)
    if is_bool:
        return apply(ops.NE, value, 0)
    if narrow_dtype and type_.dtype == INT32:
        return apply(ops.CAST, value, dtype=narrow_dtype)
    if op.view and isinstance(operands[0], Value):
        mark_view(value, operands[0], op.view == "always")
    return trace.named(value) if trace.backward.is_paused or trace.backward.rename else value


def _coerce_operands(
    trace: Trace, op: Op, nodes: list[Node], operands: tuple[Any, ...]
) -> tuple[Op, list[Node], str | None, bool, Callable[[], Any] | None]:
    """Return the op, on bools perhaps another; the operands as it takes them; the dtype of the
    result of small integers, which are computed in int32; whether the result, of numbers 0 and 1,
    becomes bools; and what records it in a library's integers instead, if that is to be.
    """
    if trace.types is None:
        float_dtype = T if are_floats(nodes) else None
    else:
        float_dtype = trace.types.floats_of(operands)
    # All tensors are floats of one dtype, as most are: `x * 2.5`, where the number stays weak.
    if float_dtype and op.coerce == "float":
        return op, in_dtype(nodes, float_dtype), None, False, None
    # A mask chooses among such floats: `where(x > 0, x, 0.0)`.
    chooses = op.coerce == "where" and nodes[0].type.dtype == BOOL
    if chooses and trace.types is not None and (floats := trace.types.floats_of(operands[1:])):
        return op, [nodes[0], *in_dtype(nodes[1:], floats)], None, False, None
    # Bools, integers and several dtypes: `mask * x`, `a_uint8 + b_uint8`, `x_float16 + y_float32`.
    op, is_bool = on_bools(op, nodes)
    types, dtype = None if float_dtype is None else trace.types, None
    if types is not None:
        if recorded := types.on_integers(op, nodes, operands, float_dtype):  # floor(an integer)
            return op, nodes, None, False, recorded
        dtype = types.dtype_of(op, operands, float_dtype)
    narrow_dtype = small_result(op, nodes, dtype)
    return op, coerce(op, nodes, trace.facts, types, dtype), narrow_dtype, is_bool, None


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
