"""What each rule of the library exchanges between shards, read off its graph."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from multigrad.core import ops
from multigrad.core.ir.graph import Node
from multigrad.core.ir.op import PER_ELEMENT
from multigrad.core.rules.rule import Rule
from multigrad.core.support.params import read_shards
from multigrad.engine.passes.shapes import computed_shape
from multigrad.engine.rules.model.rule_graphs import likely_graph
from multigrad.engine.trace.derived.shards import over_shards
from multigrad.errors import MultigradError, UnsupportedOp

KINDS = {
    "elementwise": "acts on each element separately: nothing is exchanged",
    "draws": "draws its part of the entire array's draws: nothing is exchanged",
    "own axes": "reduces axes that are not split: nothing is exchanged",
    "reduces": "reduces the split axis: numbers are exchanged",
    "refused": "an error: it needs the entire array, or runs as native code",
    "not known": "the rule needs a param that is known only in a call",
}
ROWS, COLUMNS = 6, (4, 8)  # of the arrays for which exchanges are counted
# A length is an int64 where it is asked for at run time (torch); jax knows it when it compiles.
FLOAT_BYTES, LENGTH_BYTES = 4, 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective: its op, and how many numbers each shard sends: in all, or per column."""

    op: str
    numbers: int
    per_column: bool


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What one rule does over shards: a kind of KINDS, what it exchanges, and why it is refused."""

    kind: str
    collectives: tuple[Exchange, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"refused: {self.reason}"
        if not self.collectives:
            return self.kind
        counts = Counter(each.op for each in self.collectives)
        words = (f"{n} x `{op}`" if n > 1 else f"`{op}`" for op, n in counts.items())
        return f"{', '.join(words)}: {self.bytes_per_step()}"

    def bytes_per_step(self) -> str:
        """Return how much each shard sends for one float32 tensor, in words."""
        single = sum(bytes_of(each) for each in self.collectives if not each.per_column)
        columns = sum(bytes_of(each) for each in self.collectives if each.per_column)
        texts = [f"{columns} bytes per column"] if columns else []
        return " and ".join([*texts, *([f"{single} bytes"] if single or not columns else [])])


def bytes_of(exchange: Exchange) -> int:
    return exchange.numbers * (LENGTH_BYTES if exchange.op == "all_dim" else FLOAT_BYTES)


def exchanged_by(rule: Rule) -> Exchanged:
    """Return the data that a rule exchanges when used with over="global"."""
    try:
        graph, facts = likely_graph(rule.bound_rule(), True)
    except MultigradError:
        return Exchanged("not known")
    if graph is None:
        return Exchanged("refused", reason="it runs as written, on the tensor in hand")
    shards = read_shards("global")
    assert shards is not None
    try:
        shard_graph = over_shards(graph, shards, {**facts, "ndim": len((ROWS, 0))})
    except UnsupportedOp as error:
        # The error is "name: reason. Use ...", of which a table needs the reason.
        reason = str(error).partition(": ")[2].partition(". Use")[0]
        return Exchanged("refused", reason=reason)
    collectives = tuple(exchange_of(node) for node in shard_graph.nodes if node.op.collective)
    if collectives:
        return Exchanged("reduces", collectives)
    if any(node.op.random for node in graph.nodes):
        return Exchanged("draws")
    are_elementwise = (not node.operands or node.op.result in PER_ELEMENT for node in graph.nodes)
    return Exchanged("elementwise" if all(are_elementwise) else "own axes")


def exchange_of(node: Node) -> Exchange:
    if node.op is ops.ALL_DIM:
        return Exchange(node.op.name, 1, per_column=False)
    # Two widths tell numbers per column from numbers in all.
    shapes = [computed_shape({"shape": (ROWS, n)}, node.operands[0]) for n in COLUMNS]
    narrow, wide = (math.prod(shape) for shape in shapes)
    if narrow == wide:
        return Exchange(node.op.name, narrow, per_column=False)
    return Exchange(node.op.name, narrow // COLUMNS[0], per_column=True)
