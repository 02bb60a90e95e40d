"""Rules on all parts of an array at once, op by op in NumPy: together the shards compute what the
rule computes on the whole array.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.graph import ops, random
from multigrad.graph.ir.graph import Graph, Node
from multigrad.graph.ir.types import T
from multigrad.trace.trace import NeedsConcrete

from .test_shards import REDUCING, rule_of

Array: TypeAlias = Any
Place = dict[str, int]  # the index of a shard along each mesh axis
OWN = "multigrad.rules.library."
MESH = {"data": 2, "model": 3}
KEY = (0, 7)
G, X = np.random.default_rng(3).normal(size=(2, 4, 6, 3))


def places(mesh: Mapping[str, int]) -> list[Place]:
    ranges = [range(n) for n in mesh.values()]
    return [dict(zip(mesh, at, strict=True)) for at in itertools.product(*ranges)]


def part_of(array: Array, split: Any, mesh: Mapping[str, int], place: Place) -> Array:
    for axis, names in enumerate(split):
        for name in tuple(mesh) if names == () else names or ():
            array = np.array_split(array, mesh[name], axis)[place[name]]
    return array


def start_of(split: Any, mesh: Mapping[str, int], place: Place) -> list[int]:
    """Return where a part begins along each axis."""
    axes = [np.arange(n) for n in X.shape]
    for axis, names in enumerate(split):
        for name in tuple(mesh) if names == () else names or ():
            axes[axis] = np.array_split(axes[axis], mesh[name])[place[name]]
    return [int(own[0]) for own in axes]


def run_together(graph: Graph, given: list[dict[str, Any]], mesh: Mapping[str, int]) -> list[Array]:
    """Run a graph on every shard, one op at a time."""
    where, values = places(mesh), [{} for _ in given]  # type: list[Place], list[dict[Node, Any]]

    def partners(i: int, names: Any) -> Iterator[int]:
        alike = set(mesh) - set(mesh if names is None else names)
        return (j for j, p in enumerate(where) if all(p[n] == where[i][n] for n in alike))

    for node in graph.nodes:
        attrs = {name: "float64" if value == T else value for name, value in node.attrs}
        made = []
        for i, own in enumerate(values):
            operands = [own[operand] for operand in node.operands]
            if node.op is ops.INPUT:
                made.append(given[i][attrs["name"]])
            elif node.op is ops.CONST:
                made.append(attrs["value"])
            elif node.op.collective:
                others = [
                    np.asarray(values[j][node.operands[0]]) for j in partners(i, attrs["names"])
                ]
                made.append(exchanged(node, others))
            elif node.op is ops.PLACE_KEY:
                starts = start_of(attrs["split"], mesh, where[i])
                made.append(random.place(operands[0], starts, X.shape))
            else:
                made.append(node.op.numpy(*operands, **attrs))
        for own, value in zip(values, made, strict=True):
            own[node] = value
    return [own[graph.outputs[0]] for own in values]


def exchanged(node: Node, parts: list[Array]) -> Array:
    if node.op is ops.ALL_DIM:
        return sum(part.shape[node.attr("axis")] for part in parts)
    if node.op is ops.ALL_MAX:
        return np.max(parts, axis=0)
    if node.op is ops.ALL_NORM:
        return np.linalg.norm(parts, ord=node.attr("ord"), axis=0)
    return np.sum(parts, axis=0)


def assert_together_as_whole(rule: Any, split: Any, mesh: Mapping[str, int]) -> None:
    spread = rule.over(split if split != ((),) else "global")
    facts: dict[str, Any] = {}
    bound = spread.bound_rule()
    while True:
        try:
            graph = bound.specialization.graph(True, facts)
            break
        except NeedsConcrete as need:
            known = {"ndim": X.ndim, "dtype": "float64"}
            known |= {f"param:{name}": value for name, value in bound.params.items()}
            facts |= {fact: known[fact] for fact in need.facts}
    numbers = dict(zip(bound.specialization.runtime, bound.values, strict=True))
    given = [
        {
            "grad_out": part_of(G, split, mesh, place),
            "tin": part_of(X, split, mesh, place),
            **numbers,
            "key": random.fold_in(KEY, 0),
        }
        for place in places(mesh)
    ]
    with np.errstate(all="ignore"):
        expected = rule(None, G, X, key=KEY)
        found = run_together(graph, given, mesh)
    for place, part in zip(places(mesh), found, strict=True):
        np.testing.assert_allclose(part, part_of(expected, split, mesh, place), rtol=1e-12)


SPLITS = {
    "the batch": (((),), {"data": 2}),
    "another axis": ((None, ("model",)), {"model": 3}),
    "two axes": ((("data",), ("model",)), MESH),
    "one axis over two": ((None, ("data", "model")), MESH),
    "the last axis": ((None, None, ("model",)), MESH),
    "unevenly": (((),), {"data": 3}),
}


def library() -> list[str]:
    return [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", REDUCING)
def test_reductions_over_parts_are_those_of_the_whole(name: str, split: str) -> None:
    try:
        assert_together_as_whole(rule_of(REDUCING[name]), *SPLITS[split])
    except xg.UnsupportedOp as error:
        assert "needs the whole array" in str(error)


@pytest.mark.parametrize("split", SPLITS)
def test_every_rule_of_the_library_is_itself_on_parts(split: str) -> None:
    names = library()
    assert len(names) >= 170
    for name in names:
        assert_together_as_whole(xg.get(name), *SPLITS[split])
