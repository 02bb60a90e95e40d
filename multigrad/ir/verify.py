"""What makes a graph legal: a table of rows, each a named check of one node."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Callable
from typing import TypeGuard

from ..errors import MultigradError
from . import ops
from .constants import ArrayValue
from .graph import Graph, Node
from .types import BOOL, FLOATS, INTEGERS, T

Check = Callable[[Node, Graph], str | None]


def op_is_in_the_table(node: Node, graph: Graph) -> str | None:
    return None if ops.OPS.get(node.op.name) is node.op else f"{node.op.name} is no op of the table"


def operands_are_counted(node: Node, graph: Graph) -> str | None:
    given, expected = len(node.operands), len(node.op.operands)
    if node.op.variadic:
        return None if given >= expected else f"it has {given} operands, not {expected} or more"
    return None if given == expected else f"it has {given} operands, not {expected}"


def attrs_are_named(node: Node, graph: Graph) -> str | None:
    given, expected = {name for name, _ in node.attrs}, set(node.op.attrs)
    return None if given == expected else f"its attributes are {given}, not {expected}"


def inputs_are_declared(node: Node, graph: Graph) -> str | None:
    if node.op is not ops.INPUT:
        return None
    name = node.attr("name")
    if node not in graph.inputs:
        return f"input {name!r} is not declared"
    if [i.attr("name") for i in graph.inputs].count(name) > 1:
        return f"two inputs are called {name!r}"
    return None


def constants_are_numbers(node: Node, graph: Graph) -> str | None:
    if node.op is ops.CONST and not isinstance(node.attr("value"), bool | int | float):
        return f"{node.attr('value')!r} is no number"
    if node.op is ops.ARRAY and not isinstance(node.attr("value"), ArrayValue):
        return f"its value is a {type(node.attr('value')).__name__}, not an ArrayValue"
    return None


def attrs_have_legal_values(node: Node, graph: Graph) -> str | None:
    for name, value in node.attrs:
        legal = LEGAL_ATTRS.get(name)
        if legal is not None and not legal(value):
            return f"{name} is {value!r}"
    return None


def is_axis(value: object) -> bool:
    axes = value if isinstance(value, tuple) else (value,)
    return value is None or all(type(axis) is int for axis in axes)


def is_bool(value: object) -> bool:
    return isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_number_or_none(value: object) -> bool:
    return value is None or is_number(value)


def is_dtype(value: object) -> bool:
    return value is None or value in (T, BOOL, *INTEGERS, *FLOATS)


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**32


def is_order(value: object) -> bool:
    return is_number(value) and value > 0  # type: ignore[operator]


def is_fraction(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def is_integer(value: object) -> bool:
    return type(value) is int


def is_places(value: object) -> bool:
    return value is None or are_integers(value)


def are_integers(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(n) is int for n in value)


def is_shape(value: object) -> bool:
    return are_integers(value) and all(n >= -1 for n in value) and value.count(-1) < 2


def are_widths(value: object) -> bool:
    return isinstance(value, tuple) and all(
        are_integers(pair) and len(pair) == 2 and min(pair) >= 0 for pair in value
    )


def is_index(value: object) -> bool:
    return isinstance(value, tuple) and all(map(is_index_item, value))


def is_index_item(item: object) -> bool:
    if isinstance(item, tuple):
        return len(item) == 3 and all(n is None or type(n) is int for n in item)
    return item is None or item == "..." or type(item) is int


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value may be a variable's name in emitted code."""
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        return False
    # Python itself reads an identifier in this normal form.
    plain = value.isascii() or unicodedata.normalize("NFKC", value) == value
    return (
        plain
        and value.isidentifier()
        and not keyword.iskeyword(value)
        and not value.startswith("__")
    )


def is_subscripts(value: object) -> bool:
    return (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z.,]{0,100}->[A-Za-z.]{0,60}", value) is not None
    )


LEGAL_ATTRS: dict[str, Callable[[object], bool]] = {
    "name": is_name,
    "subscripts": is_subscripts,
    "axis": is_axis,
    "keepdims": is_bool,
    "approximate": is_bool,
    "correction": is_number,
    "slope": is_number,
    "alpha": is_number,
    "dtype": is_dtype,
    "n": is_count,
    "ord": is_order,
    "q": is_fraction,
    "k": is_count,
    "reverse": is_bool,
    "descending": is_bool,
    "shape": is_shape,
    "axes": is_places,
    "axis1": is_integer,
    "axis2": is_integer,
    "source": is_axis,
    "destination": is_axis,
    "shift": is_axis,
    "offset": is_integer,
    "index": is_index,
    "indices": are_integers,
    "position": is_count,
    "repetitions": are_integers,
    "repeats": is_count,
    "widths": are_widths,
    "fill": is_number,
    "b": is_number,
    "lambd": is_number,
    "threshold": is_number,
    "default": is_number,
    "min": is_number,
    "max": is_number,
    "nan": is_number,
    "posinf": is_number_or_none,
    "neginf": is_number_or_none,
}


def type_follows_from_operands(node: Node, graph: Graph) -> str | None:
    if node.op in (ops.INPUT, ops.CONST):
        return None
    try:
        expected = node.op.result(*(o.type for o in node.operands), **dict(node.attrs))
    except (TypeError, ValueError) as error:
        return str(error)
    return None if expected == node.type else f"its type is {node.type}, not {expected}"


def logic_takes_bools(node: Node, graph: Graph) -> str | None:
    wrong = [o.type for o in node.operands if o.type.dtype != BOOL]
    if node.op.coerce == "bool" and wrong:
        return f"it needs bools, not {wrong[0]}"
    if node.op is ops.WHERE and node.operands[0].type.dtype != BOOL:
        return f"its condition must be bool, not {node.operands[0].type}"
    return None


def float_operands_share_a_dtype(node: Node, graph: Graph) -> str | None:
    if node.op.coerce not in ("float", "where"):
        return None
    values = node.operands[1:] if node.op is ops.WHERE else node.operands
    dtypes = {o.type.dtype for o in values if o.type.kind == "tensor"}
    return None if len(dtypes) < 2 else f"its operands have the dtypes {sorted(dtypes)}"


def arithmetic_takes_numbers(node: Node, graph: Graph) -> str | None:
    bools = [o for o in node.operands if o.type.kind == "tensor" and o.type.dtype == BOOL]
    if node.op.coerce != "float" or not bools:
        return None
    compares = node.op in (ops.EQ, ops.NE) and all(o.type.dtype == BOOL for o in node.operands)
    return None if compares else f"it needs numbers, not {bools[0].type}"


def integers_are_for_integer_ops(node: Node, graph: Graph) -> str | None:
    tensors = [o.type.dtype for o in node.operands if o.type.kind == "tensor"]
    if node.op.coerce == "int":
        wrong = [o.type for o in node.operands if o.type.dtype not in (*INTEGERS, "int")]
        return f"it needs integers, not {wrong[0]}" if wrong else None
    integers = next((dtype for dtype in tensors if dtype in INTEGERS), None)
    mistaken = integers and node.op.coerce == "float" and node.op not in ops.INTEGER_OPS
    return f"it needs floats, not {integers}" if mistaken else None


def keys_are_for_draws(node: Node, graph: Graph) -> str | None:
    for name, operand in zip(node.op.operand_names(len(node.operands)), node.operands, strict=True):
        if (operand.type.kind == "key") != (name == "key"):
            return f"its {name} is {operand.type}"
    return None


def dtypes_are_known(node: Node, graph: Graph) -> str | None:
    tensors, scalars = {T, BOOL, *INTEGERS, *FLOATS}, {"float", "int", "bool"}
    known = {"tensor": tensors, "scalar": scalars, "key": {"uint32"}}
    if node.type.dtype in known[node.type.kind]:
        return None
    return f"{node.type.dtype} is no dtype of a {node.type.kind}"


CHECKS: tuple[Check, ...] = (
    op_is_in_the_table,
    operands_are_counted,
    attrs_are_named,
    inputs_are_declared,
    attrs_have_legal_values,
    constants_are_numbers,
    keys_are_for_draws,
    dtypes_are_known,
    logic_takes_bools,
    arithmetic_takes_numbers,
    integers_are_for_integer_ops,
    float_operands_share_a_dtype,
    type_follows_from_operands,
)


class InvalidGraph(MultigradError):
    """A graph breaks a rule of the IR."""


def verify(graph: Graph) -> None:
    """Check every node against every row.

    Raises:
        InvalidGraph: names the graph, the node and the broken rule.
    """
    for node in graph.nodes():
        for check in CHECKS:
            problem = check(node, graph)
            if problem:
                raise InvalidGraph(
                    f"{graph.name}: {node.op.name} is illegal ({check.__name__}): {problem}"
                )
