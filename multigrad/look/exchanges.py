"""What a rule exchanges between shards where it is used over="global": read off its graph.

Of an array of two axes, the first of which is split; a norm of all of it exchanges one number, one
of each column a number per column, however long the split axis is.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..errors import MultigradError, UnsupportedOp
from ..graph import ops
from ..graph.ir.graph import Graph, Node
from ..graph.ops.results import PER_ELEMENT
from ..graph.passes.facts import computed_shape
from ..graph.support.shards import read_shards
from ..rules.model.rule import Rule
from ..trace.derived.shards import over_shards

KINDS = {
    "elementwise": "acts on each element separately: nothing is exchanged",
    "draws": "draws its part of the entire array's draws: nothing is exchanged",
    "own axes": "reduces axes that are not split: nothing is exchanged",
    "reduces": "reduces the split axis: numbers are exchanged",
    "refused": "an error: it needs the entire array, or runs as native code",
    "not known": "the rule needs a param that is known only in a call",
}
ROWS, COLUMNS = 6, (4, 8)
# A length is an int64 where it is asked for at run time (torch); jax knows it when it compiles.
FLOAT_BYTES, LENGTH_BYTES = 4, 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective: its op, and how many numbers each shard sends: in all, or per column."""

    op: str
    numbers: int
    per_column: bool

    def to_dict(self) -> dict[str, Any]:
        """Return this as plain data."""
        return {"op": self.op, "numbers": self.numbers, "per_column": self.per_column}


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What one rule does over shards: a kind of KINDS, what it exchanges, and why it is refused."""

    kind: str
    collectives: tuple[Exchange, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        """Return it as a cell of a table."""
        if self.reason:
            return f"refused: {self.reason}"
        if not self.collectives:
            return self.kind
        counted = Counter(each.op for each in self.collectives)
        words = (f"{n} x `{op}`" if n > 1 else f"`{op}`" for op, n in counted.items())
        return f"{', '.join(words)}: {self.bytes_per_step()}"

    def bytes_per_step(self) -> str:
        """Return what each shard sends for one float32 tensor, in words."""
        single = sum(bytes_of(each) for each in self.collectives if not each.per_column)
        columns = sum(bytes_of(each) for each in self.collectives if each.per_column)
        texts = [f"{columns} bytes per column"] if columns else []
        return " and ".join([*texts, *([f"{single} bytes"] if single or not columns else [])])


def bytes_of(exchange: Exchange) -> int:
    """Return the bytes that a shard sends, in float32."""
    return exchange.numbers * (LENGTH_BYTES if exchange.op == "all_dim" else FLOAT_BYTES)


def exchanged_by(rule: Rule) -> Exchanged:
    """Return what a rule exchanges where it is used over="global"."""
    try:
        graph, facts = rule.bound_rule().likely_graph(True)
    except MultigradError:
        return Exchanged("not known")
    if graph is None:
        return Exchanged("refused", reason="it runs as written, on the tensor in hand")
    shards = read_shards("global")
    assert shards is not None
    try:
        parted = over_shards(graph, shards, {**facts, "ndim": len((ROWS, 0))})
    except UnsupportedOp as error:
        return Exchanged("refused", reason=reason_of(error))
    found = tuple(exchange_of(node) for node in parted.nodes if node.op.collective)
    return Exchanged("reduces" if found else kind_without(graph), found)


def reason_of(error: UnsupportedOp) -> str:
    """Return why a rule is refused, without its name and the way out."""
    return str(error).partition(": ")[2].partition(". Use")[0]


def exchange_of(node: Node) -> Exchange:
    """Return what a collective sends."""
    if node.op is ops.ALL_DIM:
        return Exchange(node.op.name, 1, per_column=False)
    shapes = [computed_shape(node.operands[0], {"shape": (ROWS, n)}) for n in COLUMNS]
    few, many = (math.prod(shape) for shape in shapes)
    if few == many:
        return Exchange(node.op.name, few, per_column=False)
    return Exchange(node.op.name, few // COLUMNS[0], per_column=True)


def kind_without(graph: Graph) -> str:
    """Return the kind of a rule that exchanges nothing."""
    if any(node.op.random for node in graph.nodes):
        return "draws"
    alone = (not node.operands or node.op.result in PER_ELEMENT for node in graph.nodes)
    return "elementwise" if all(alone) else "own axes"
