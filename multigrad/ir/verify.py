"""What makes a graph legal: a table of rows, each a named check of one node."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import MultigradError
from . import ops
from .graph import Graph, Node
from .types import FLOATS, T

Check = Callable[[Node, Graph], str | None]


def op_is_in_the_table(node: Node, graph: Graph) -> str | None:
    return None if ops.OPS.get(node.op.name) is node.op else f"{node.op.name} is no op of the table"


def operands_are_counted(node: Node, graph: Graph) -> str | None:
    given, expected = len(node.operands), len(node.op.operands)
    return None if given == expected else f"it has {given} operands, not {expected}"


def attrs_are_named(node: Node, graph: Graph) -> str | None:
    given, expected = {name for name, _ in node.attrs}, set(node.op.attrs)
    return None if given == expected else f"its attributes are {given}, not {expected}"


def inputs_are_declared(node: Node, graph: Graph) -> str | None:
    if node.op is ops.INPUT and node not in graph.inputs:
        return f"input {node.attr('name')!r} is not declared"
    return None


def constants_are_numbers(node: Node, graph: Graph) -> str | None:
    if node.op is ops.CONST and not isinstance(node.attr("value"), bool | int | float):
        return f"{node.attr('value')!r} is no number"
    return None


def type_follows_from_operands(node: Node, graph: Graph) -> str | None:
    if node.op in (ops.INPUT, ops.CONST):
        return None
    expected = node.op.result(*(o.type for o in node.operands), **dict(node.attrs))
    return None if expected == node.type else f"its type is {node.type}, not {expected}"


def logic_takes_bools(node: Node, graph: Graph) -> str | None:
    wrong = [o.type for o in node.operands if o.type.dtype != "bool"]
    if node.op.coerce == "bool" and wrong:
        return f"it needs bools, not {wrong[0]}"
    if node.op is ops.WHERE and node.operands[0].type.dtype != "bool":
        return f"its condition must be bool, not {node.operands[0].type}"
    return None


def float_operands_share_a_dtype(node: Node, graph: Graph) -> str | None:
    if node.op.coerce not in ("float", "where"):
        return None
    values = node.operands[1:] if node.op is ops.WHERE else node.operands
    dtypes = {o.type.dtype for o in values if o.type.kind == "tensor"}
    return None if len(dtypes) < 2 else f"its operands have the dtypes {sorted(dtypes)}"


def random_ops_take_a_key(node: Node, graph: Graph) -> str | None:
    if node.op.operands[:1] == ("key",) and node.operands[0].type.kind != "key":
        return f"its first operand is {node.operands[0].type}, not a key"
    return None


def dtypes_are_known(node: Node, graph: Graph) -> str | None:
    known = {"tensor": {T, "bool", *FLOATS}, "scalar": {"float", "int", "bool"}, "key": {"uint32"}}
    if node.type.dtype in known[node.type.kind]:
        return None
    return f"{node.type.dtype} is no dtype of a {node.type.kind}"


CHECKS: tuple[Check, ...] = (
    op_is_in_the_table,
    operands_are_counted,
    attrs_are_named,
    inputs_are_declared,
    constants_are_numbers,
    random_ops_take_a_key,
    dtypes_are_known,
    logic_takes_bools,
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
