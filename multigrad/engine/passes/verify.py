"""The checks that make a graph legal: a table of named functions, each for one node."""

from __future__ import annotations

from collections.abc import Callable

from ...core import ops
from ...core.ir.graph import ArrayValue, Graph, Node, regions_in
from ...core.ir.op import BOOL, DTYPES, FLOAT8, INTEGERS, KEY, SMALL, T
from ...errors import FormatError, MultigradError

Check = Callable[[Node, Graph], str | None]


def op_is_in_the_table(node: Node, graph: Graph) -> str | None:
    return None if ops.OPS.get(node.op.name) is node.op else f"{node.op.name} is no op of the table"


def operands_are_counted(node: Node, graph: Graph) -> str | None:
    count, expected = len(node.operands), len(node.op.operands)
    if node.op.variadic:
        return None if count >= expected else f"it has {count} operands, not {expected} or more"
    return None if count == expected else f"it has {count} operands, not {expected}"


def attrs_are_named(node: Node, graph: Graph) -> str | None:
    names, expected = {name for name, _ in node.attrs}, set(node.op.attrs)
    return None if names == expected else f"its attributes are {names}, not {expected}"


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
        if not node.op.attrs[name].legal(value):
            return f"{name} is {value!r}"
    return None


def type_follows_from_operands(node: Node, graph: Graph) -> str | None:
    if node.op in (ops.INPUT, ops.CONST):
        return None
    try:
        expected = node.op.result(*(o.type for o in node.operands), **dict(node.attrs))
    except (TypeError, ValueError) as error:
        return str(error)
    return None if expected == node.type else f"its type is {node.type}, not {expected}"


def logic_takes_bools(node: Node, graph: Graph) -> str | None:
    wrong_types = [o.type for o in node.operands if o.type.dtype != BOOL]
    if node.op.coerce == "bool" and wrong_types:
        return f"it needs bools, not {wrong_types[0]}"
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
    dtypes = [o.type.dtype for o in node.operands if o.type.kind == "tensor"]
    # Narrow integers and float8 can be moved and cast, but no op computes in them.
    narrow = next((dtype for dtype in dtypes if dtype in (*SMALL, *FLOAT8)), None)
    if narrow and node.op.coerce not in ("raw", "indices"):
        return f"no op computes in {narrow}"
    if node.op.coerce == "int":
        wrong_types = [o.type for o in node.operands if o.type.dtype not in (*INTEGERS, "int")]
        return f"it needs integers, not {wrong_types[0]}" if wrong_types else None
    integer = next((dtype for dtype in dtypes if dtype in INTEGERS), None)
    is_mistaken = integer and node.op.coerce == "float" and not node.op.integer
    return f"it needs floats, not {integer}" if is_mistaken else None


def keys_are_for_draws(node: Node, graph: Graph) -> str | None:
    for name, operand in zip(node.op.operand_names(len(node.operands)), node.operands, strict=True):
        if (operand.type.kind == "key") != (name == "key"):
            return f"its {name} is {operand.type}"
    return None


def dtypes_are_known(node: Node, graph: Graph) -> str | None:
    tensors, scalars = {T, *DTYPES}, {"float", "int", "bool"}
    legal = {"tensor": tensors, "scalar": scalars, "key": {"uint32"}}
    if node.type.dtype in legal[node.type.kind]:
        return None
    return f"{node.type.dtype} is no dtype of a {node.type.kind}"


# In this order: later checks rely on earlier ones, as on counted operands.
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
    """Check every node against every row, in regions too.

    Raises:
        InvalidGraph: names the graph, the node and the broken rule.
    """
    for node in graph.nodes:
        for check in CHECKS:
            problem = check(node, graph)
            if problem:
                raise InvalidGraph(
                    f"{graph.name}: {node.op.name} is illegal ({check.__name__}): {problem}"
                )
    for region in regions_in(graph):
        verify(region.graph)


# --- draws ---------------------------------------------------------------------------------------
MOST_DRAWS = 10_000


def draws(graph: Graph) -> dict[Node, int]:
    """Return the keys from which a graph draws, each with its position in the order of draws."""
    positions = {}
    for node in graph.nodes:
        if node.type != KEY:
            continue
        n = 0 if node.op is ops.INPUT else node.attr("n")
        if (node.operands and node.operands[0].op is not ops.INPUT) or n > MOST_DRAWS:
            raise FormatError(
                f"{graph.name}: a draw's key is the key, or fold_in(key, n) with a small n"
            )
        positions[node] = n
    return positions
