"""A graph of a whole array rewritten for its shards: each runs the result on its own part.

The placement of every value (the mesh axes or groups over which each of its axes is split) is
followed from the inputs (`ShardRewrite`). A reduction over a split axis becomes the shard's own and
a collective, a draw takes its part of the counter, and an op that needs no other shard is
unchanged. For an array whose first axis is split over the group "data":

    norm(x, axis=None)   x: {0: ("data",)}   ->   all_norm(norm(x), names=("data",))  not split
    norm(x, axis=1)      x: {0: ("data",)}   ->   norm(x, axis=1)                     {0: ("data",)}

`HANDLERS` and `ARRANGED` have the ops that need more than `ShardRewrite` knows by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ....core import ops
from ....core.ir.graph import Graph, Node, with_operands
from ....core.ir.op import BOOL, INPUT_SHAPE, PER_ELEMENT, SCALAR_SHAPE, Op
from ....core.passes.simplify import substitute
from ....core.support.records import record
from ....core.trace.trace import NeedsConcrete, Trace, Value, apply
from ....core.trace.xp import all as xp
from ....errors import UnsupportedOp
from ...support.shards import EVERY, Names, Shards

MOST_RANK = 8  # ranks for which one graph is tried before the rank is asked for


def over_shards(graph: Graph, shards: Shards, facts: Mapping[str, Any]) -> Graph:
    """Return the graph that each shard runs on its part of `grad_out` and `tin`.

    Raises:
        NeedsConcrete: the rank must be known.
        UnsupportedOp: an op has no meaning on a part of its input.
    """
    if shards.alone:
        return _alone(graph)
    if not shards.split or all(_is_per_element(node) for node in graph.nodes):
        return graph
    split = {i: names for i, names in enumerate(shards.split) if names is not None}
    rank = facts["ndim"] if "ndim" in facts else len(facts["shape"]) if "shape" in facts else None
    if rank is None:
        return _of_any_rank(graph, shards, split, facts)
    if max(split) >= rank:
        raise UnsupportedOp(
            f"rule {graph.name!r} is used {shards}, which splits axis {max(split)}, on an array of "
            f"{rank} axes. Name the axes that it has, or use over=None for it"
        )
    return ShardRewrite(graph, shards, ArrayPart(rank, split), facts).run()


def _of_any_rank(
    graph: Graph, shards: Shards, split: Mapping[int, Names], facts: Mapping[str, Any]
) -> Graph:
    # One graph for every rank if all ranks give the same outputs; otherwise the rank becomes a
    # fact.
    graphs: list[Graph] = []
    for rank in range(1, MOST_RANK + 1):
        if max(split) >= rank:  # an array may lack the axis
            raise NeedsConcrete("ndim", noted=False)
        try:
            graphs.append(ShardRewrite(graph, shards, ArrayPart(rank, split), facts).run())
        except UnsupportedOp:
            raise NeedsConcrete("ndim", noted=False) from None
        if graphs[-1].outputs != graphs[0].outputs:
            raise NeedsConcrete("ndim", noted=False)
    return graphs[0]


def _is_per_element(node: Node) -> bool:
    return not node.operands or (node.op.result in PER_ELEMENT and node.op is not ops.ARRAY)


def _alone(graph: Graph) -> Graph:
    # over="shard": the graph runs on the shard's part as on an array of its own.
    if all(_is_per_element(node) for node in graph.nodes):
        return graph
    trace = Trace(graph.name)
    inputs = [n for n in graph.nodes if n.op is ops.INPUT and n.type.shape == INPUT_SHAPE]
    part = substitute(graph, {node: xp.to_shard(trace.value(node)).node for node in inputs})
    like = trace.value(graph.inputs[0])
    outputs = [xp.from_shard(trace.value(node), like).node for node in part.outputs]
    return Graph(graph.name, graph.inputs, tuple(outputs), part.locations)


@record(eq=True)
class ArrayPart:
    """The part of an array that a shard's value is.

    Attributes:
        rank: its number of axes; None: not known.
        split: the mesh axes over which each split axis is split.
        ones: the axes of one element, which broadcast against every part alike.
    """

    rank: int | None
    split: Mapping[int, Names] = field(default_factory=dict)
    ones: frozenset[int] = frozenset()

    def axes(self, axis: Any) -> tuple[int, ...]:
        """Return axes counted from 0; None means all."""
        assert self.rank is not None
        if axis is None:
            return tuple(range(self.rank))
        given = axis if isinstance(axis, tuple) else (axis,)
        return tuple(i % self.rank for i in given) if self.rank else ()

    def over(self, axis: Any) -> Names | None:
        """Return the mesh axes over which these axes are split; None if they are not."""
        names = [self.split[i] for i in self.axes(axis) if i in self.split]
        if not names:
            return None
        return EVERY if EVERY in names else tuple(name for each in names for name in each)


def mesh_names(names: Names) -> Names | None:
    """Return mesh axes as the collective ops take them: None for `EVERY`, the empty tuple."""
    return names or None


def placement_when_unsplit(node: Node, parts: list[ArrayPart]) -> ArrayPart:
    if node.type.kind != "tensor" or node.type.shape == SCALAR_SHAPE:
        return ArrayPart(0)
    if node.op is ops.ARRAY:
        shape = node.attr("value").shape
        return ArrayPart(len(shape), ones=frozenset(i for i, n in enumerate(shape) if n == 1))
    if node.op.result in PER_ELEMENT and all(part.rank is not None for part in parts):
        return broadcast(parts)
    if "keepdims" in dict(node.attrs) and parts[0].rank is not None:
        return reduced(parts[0], node)
    return ArrayPart(None)


def broadcast(parts: list[ArrayPart]) -> ArrayPart:
    rank = max((part.rank or 0 for part in parts), default=0)
    split: dict[int, Names] = {}
    ones = set(range(rank))
    for part in parts:
        offset = rank - (part.rank or 0)
        for i, names in part.split.items():
            split.setdefault(i + offset, names)
        ones -= {i + offset for i in range(part.rank or 0) if i not in part.ones}
    return ArrayPart(rank, split, frozenset(ones))


def reduced(part: ArrayPart, node: Node) -> ArrayPart:
    assert part.rank is not None
    removed_axes = set(part.axes(node.attr("axis")))
    if node.attr("keepdims"):
        split = {i: names for i, names in part.split.items() if i not in removed_axes}
        return ArrayPart(part.rank, split, part.ones | removed_axes)
    return kept_axes(part, [i for i in range(part.rank) if i not in removed_axes])


def kept_axes(part: ArrayPart, order: list[int]) -> ArrayPart:
    """Return the placement of a value with only these axes left, in this order."""
    split = {order.index(i): names for i, names in part.split.items() if i in order}
    return ArrayPart(len(order), split, frozenset(order.index(i) for i in part.ones if i in order))


def rebuilt(node: Node, done: Mapping[Node, Node]) -> Node:
    return with_operands(node, map(done.__getitem__, node.operands))


class ShardRewrite:
    """The rewrite of one graph for a shard: `run` follows the placement of every value."""

    def __init__(
        self, graph: Graph, shards: Shards, given: ArrayPart, facts: Mapping[str, Any]
    ) -> None:
        self.graph = graph
        self.shards = shards
        self.given = given
        self.trace = Trace(graph.name, facts)
        self.parts: dict[Node, ArrayPart] = {}  # of which part of an array each node is the value
        self.done: dict[Node, Node] = {}  # what replaces each node

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.done[node], self.parts[node] = self._rewrite(node)
        outputs = tuple(self.done[node] for node in self.graph.outputs)
        # The source lines of the nodes, also of those that replace others now.
        locations = dict(self.graph.locations)
        locations |= {self.done.get(n, n): place for n, place in self.graph.locations.items()}
        return Graph(self.graph.name, self.graph.inputs, outputs, locations)

    def value(self, node: Node) -> Value:
        return self.trace.value(self.done[node])

    def _rewrite(self, node: Node) -> tuple[Node, ArrayPart]:
        if not node.operands:
            if node.op is ops.INPUT and node.type.shape == INPUT_SHAPE:
                return node, self.given
            return node, ArrayPart(0 if node.type.shape == SCALAR_SHAPE else None)
        parts = [self.parts[operand] for operand in node.operands]
        if node.op in HANDLERS:
            return HANDLERS[node.op](self, node, parts)
        if node.op in ARRANGED:
            return rebuilt(node, self.done), ARRANGED[node.op](self, node, parts[0])
        if node.op is ops.ARRAY or not any(part.split for part in parts):
            return rebuilt(node, self.done), placement_when_unsplit(node, parts)
        if node.op.random:
            return self._draw(node, parts)
        if node.op.result in PER_ELEMENT:
            return rebuilt(node, self.done), self.joined(node, parts)
        attrs = dict(node.attrs)
        axis = attrs.get("axis", "")
        if axis != "" and len(parts) == 1 and parts[0].over(axis) is None:
            keeps = node.op is ops.EXPAND_DIMS or not isinstance(attrs.get("keepdims"), bool)
            return rebuilt(node, self.done), parts[0] if keeps else reduced(parts[0], node)
        raise self.error(node)

    def error(self, node: Node, why: str = "") -> UnsupportedOp:
        where = self.graph.locations.get(node)
        end = f" ({where})" if where else ""
        why = why or f"{node.op.name} needs the whole array"
        return UnsupportedOp(
            f"rule {self.graph.name!r}{end} has no meaning {self.shards}: {why}. Use over='shard', "
            "where each shard may be taken as an array of its own, or gather the array first"
        )

    def joined(self, node: Node, parts: list[ArrayPart]) -> ArrayPart:
        """Return the placement of an elementwise op's result; its operands must be split alike."""
        pairs = zip(node.operands, parts, strict=True)
        tensor_parts = [part for operand, part in pairs if operand.type.kind == "tensor"]
        if any(part.rank is None for part in tensor_parts):
            raise self.error(node, f"{node.op.name} meets a value whose shape is not known")
        part = broadcast(tensor_parts)
        assert part.rank is not None
        for each in tensor_parts:
            offset = part.rank - (each.rank or 0)
            for i in range(each.rank or 0):
                names = part.split.get(i + offset)
                if names is not None and i not in each.ones and each.split.get(i) != names:
                    raise self.error(node, f"{node.op.name} meets values that are split otherwise")
        return part

    def _draw(self, node: Node, parts: list[ArrayPart]) -> tuple[Node, ArrayPart]:
        key, like, *others = node.operands
        part = parts[1]
        if any(each.split for each in parts[2:]) and part != self.joined(node, parts[1:]):
            raise self.error(node, f"{node.op.name} meets values that are split otherwise")
        # The key is placed by the shard's position, so that all shards draw one whole array
        # together.
        split = tuple(part.split.get(i) for i in range(max(part.split) + 1))
        if self.done[key].op is ops.PLACE_KEY:
            raise self.error(node, f"{node.op.name} takes a key that has its place already")
        placed = apply(ops.PLACE_KEY, self.value(key), self.value(like), split=split).node
        operands = (placed, *(self.done[each] for each in (like, *others)))
        return with_operands(node, operands), part


Handler = Callable[[ShardRewrite, Node, list[ArrayPart]], tuple[Node, ArrayPart]]


# --- reductions --------------------------------------------------------------------------------


def _count(x: Value, part: ArrayPart, axis: Any, of_all: bool) -> Any:
    # How many elements each result of a reduction combines, in the shard or in the whole array.
    total: Any = 1
    for i in part.axes(axis):
        if of_all and i in part.split:
            total = total * apply(ops.ALL_DIM, x, axis=i, names=mesh_names(part.split[i]))
        else:
            total = total * apply(ops.DIM, x, axis=i)
    return total


def _over_all(op: Op, of_shards: Op) -> Callable[..., Value]:
    # First the shard's own reduction, then that of the shards' results.

    def reduce(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
        return apply(of_shards, apply(op, x, **attrs), x, names=names)

    return reduce


def _mean(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
    # Each shard's mean weighted by its share of the elements: no sum can overflow.
    axes = tuple(i for i in part.axes(attrs["axis"]) if i in part.split)
    share = _count(x, part, axes, of_all=False) / _count(x, part, axes, of_all=True)
    return apply(ops.ALL_SUM, apply(ops.MEAN, x, **attrs) * share, x, names=names)


def _min(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
    return -apply(ops.ALL_MAX, -apply(ops.MIN, x, **attrs), x, names=names)


def _norm(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
    local, order = apply(ops.NORM, x, **attrs), attrs["ord"]
    if order == math.inf:
        return apply(ops.ALL_MAX, local, x, names=names)
    return apply(ops.ALL_NORM, local, x, names=names, ord=order)


def _var(x: Value, names: Any, part: ArrayPart, correction: Any, **attrs: Any) -> Value:
    centered = x - _mean(x, names, part, axis=attrs["axis"], keepdims=True)
    square = _mean(centered * centered, names, part, **attrs)
    if correction == 0:
        return square
    number = _count(x, part, attrs["axis"], of_all=True)
    return square * (number / xp.maximum(number - correction, 0))


def _std(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
    return xp.sqrt(_var(x, names, part, **attrs))


def _any(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
    number = xp.where(apply(ops.ANY, x, **attrs), 1.0, 0.0)
    return apply(ops.ALL_MAX, number, x, names=names) > 0.5


def _all(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
    number = xp.where(apply(ops.ALL, x, **attrs), 0.0, 1.0)
    return apply(ops.ALL_MAX, number, x, names=names) < 0.5


def _logsumexp(x: Value, names: Any, part: ArrayPart, **attrs: Any) -> Value:
    local = apply(ops.LOGSUMEXP, x, **attrs)
    # Shifted by the largest, and not by an infinity: inf - inf is NaN.
    largest = apply(ops.ALL_MAX, local, x, names=names)
    shift = xp.where(xp.isfinite(largest), largest, 0.0)
    return xp.log(apply(ops.ALL_SUM, xp.exp(local - shift), x, names=names)) + shift


REDUCTIONS: dict[Op, Callable[..., Value]] = {
    ops.SUM: _over_all(ops.SUM, ops.ALL_SUM),
    ops.MEAN: _mean,
    ops.MAX: _over_all(ops.MAX, ops.ALL_MAX),
    ops.MIN: _min,
    ops.NORM: _norm,
    ops.VAR: _var,
    ops.STD: _std,
    ops.COUNT_NONZERO: _over_all(ops.COUNT_NONZERO, ops.ALL_SUM),
    ops.ANY: _any,
    ops.ALL: _all,
    ops.LOGSUMEXP: _logsumexp,
}


def _reduce(run: ShardRewrite, node: Node, parts: list[ArrayPart]) -> tuple[Node, ArrayPart]:
    (part,) = parts
    if not part.split:
        return rebuilt(node, run.done), placement_when_unsplit(node, parts)
    names, attrs = part.over(node.attr("axis")), dict(node.attrs)
    if names is None:
        return rebuilt(node, run.done), reduced(part, node)
    if node.type.dtype not in (BOOL, "T") and node.type.dtype.startswith(("int", "uint")):
        raise run.error(node, f"{node.op.name} of integers is not taken over shards")
    x = run.value(node.operands[0])
    result = REDUCTIONS[node.op](x, mesh_names(names), part, **attrs)
    return result.node, reduced(part, node)


def _softmax(run: ShardRewrite, node: Node, parts: list[ArrayPart]) -> tuple[Node, ArrayPart]:
    (part,) = parts
    names = part.over(node.attr("axis")) if part.split else None
    if names is None:
        return rebuilt(node, run.done), part
    x = run.value(node.operands[0])
    logs = x - _logsumexp(x, mesh_names(names), part, axis=node.attr("axis"), keepdims=True)
    return (xp.exp(logs) if node.op is ops.SOFTMAX else logs).node, part


def _dim(run: ShardRewrite, node: Node, parts: list[ArrayPart]) -> tuple[Node, ArrayPart]:
    (part,) = parts
    if not part.split:
        return rebuilt(node, run.done), ArrayPart(0)
    axis = None if node.op is ops.SIZE else node.attr("axis")
    return _count(run.value(node.operands[0]), part, axis, of_all=True).node, ArrayPart(0)


def _broadcast_or_sum_to(
    run: ShardRewrite, node: Node, parts: list[ArrayPart]
) -> tuple[Node, ArrayPart]:
    # `broadcast_to`, and `sum_to`, which undoes it, take the shape of another value.
    x, like = parts
    if not x.split and not like.split:
        return rebuilt(node, run.done), like
    if x.rank is None or like.rank is None:
        raise run.error(node)
    small, large = (x, like) if node.op is ops.BROADCAST_TO else (like, x)
    offset = (large.rank or 0) - (small.rank or 0)
    for i in range(small.rank or 0):
        if i not in small.ones and small.split.get(i) != large.split.get(i + offset):
            raise run.error(node, f"{node.op.name} meets values that are split otherwise")
    result = run.trace.value(rebuilt(node, run.done))
    removed_axes = tuple(i for i in x.split if i - offset not in like.split)
    names = x.over(removed_axes) if node.op is ops.SUM_TO else None
    if names is not None:
        result = apply(ops.ALL_SUM, result, run.value(node.operands[0]), names=mesh_names(names))
    return result.node, like


HANDLERS: dict[Op, Handler] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys((ops.SOFTMAX, ops.LOG_SOFTMAX), _softmax),
    **dict.fromkeys((ops.DIM, ops.SIZE), _dim),
    **dict.fromkeys((ops.SUM_TO, ops.BROADCAST_TO), _broadcast_or_sum_to),
}

# --- ops that arrange the axes of their first operand: the placement of the result ----------------


def _permuted(run: ShardRewrite, node: Node, part: ArrayPart) -> ArrayPart:
    if part.rank is None:
        return part
    attrs, order = dict(node.attrs), list(range(part.rank))
    if node.op is ops.PERMUTE_DIMS:
        order = order[::-1] if attrs["axes"] is None else list(part.axes(attrs["axes"]))
    elif node.op is ops.SWAPAXES:
        a, b = part.axes((attrs["axis1"], attrs["axis2"]))
        order[a], order[b] = b, a
    else:
        sources, targets = part.axes(attrs["source"]), part.axes(attrs["destination"])
        order = [i for i in order if i not in sources]
        for target, source in sorted(zip(targets, sources, strict=True)):
            order.insert(target, source)
    return kept_axes(part, order)


def _reshaped(run: ShardRewrite, node: Node, part: ArrayPart) -> ArrayPart:
    # Only flattening an array split along its first axis keeps each shard's elements together.
    if not part.split:
        return ArrayPart(len(node.attr("shape")))
    if node.attr("shape") != (-1,) or set(part.split) != {0}:
        raise run.error(node)
    return ArrayPart(1, part.split)


def _expanded(run: ShardRewrite, node: Node, part: ArrayPart) -> ArrayPart:
    if part.rank is None:
        return part
    axis = node.attr("axis") % (part.rank + 1)
    split = {i + (i >= axis): names for i, names in part.split.items()}
    ones = frozenset({axis, *(i + (i >= axis) for i in part.ones)})
    return ArrayPart(part.rank + 1, split, ones)


def _squeezed(run: ShardRewrite, node: Node, part: ArrayPart) -> ArrayPart:
    axis = node.attr("axis")
    if part.rank is None or (axis is None and not part.split):
        return ArrayPart(None)
    if axis is None or part.over(axis) is not None:
        raise run.error(node)
    removed_axes = part.axes(axis)
    return kept_axes(part, [i for i in range(part.rank) if i not in removed_axes])


def _collected(run: ShardRewrite, node: Node, part: ArrayPart) -> ArrayPart:
    return part


ARRANGED: dict[Op, Callable[[ShardRewrite, Node, ArrayPart], ArrayPart]] = {
    **dict.fromkeys((ops.PERMUTE_DIMS, ops.SWAPAXES, ops.MOVEAXIS), _permuted),
    **dict.fromkeys((ops.ALL_SUM, ops.ALL_MAX, ops.ALL_NORM), _collected),
    ops.RESHAPE: _reshaped,
    ops.EXPAND_DIMS: _expanded,
    ops.SQUEEZE: _squeezed,
}
