"""Rules over shards: what `over=` and `axis_name=` say, what becomes of a rule's graph, and what is
refused. What shards compute is tested with each framework's engine.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node
from multigrad.core.ir.op import T
from multigrad.core.rules.rule_names import OWN
from multigrad.core.trace.trace import NeedsConcrete
from multigrad.engine import random
from multigrad.engine.support.shards import Shards, read_shards

RNG = np.random.default_rng(0)
G, X = RNG.normal(size=(2, 4, 6, 3))
CLIP = xg.get("clip_norm").over("global")


def graph_of(rule: Any, ndim: int = 3) -> Graph:
    return xg.get(rule).bound_rule().specialization.graph(True, {"ndim": ndim})


def talks(rule: Any, ndim: int = 3) -> list[str]:
    return [node.op.name for node in graph_of(rule, ndim).nodes if node.op.collective]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"over": "global"}, "over='global'"),
        ({"over": "shard"}, "over='shard'"),
        ({"axis_name": "data"}, "axis_name='data'"),
        ({"over": "global", "axis_name": "data"}, "axis_name='data'"),
        ({"over": ("data",)}, "axis_name='data'"),
        ({"over": ["data", None]}, "axis_name='data'"),
        ({"over": (None, "model")}, "over=(None, 'model')"),
        ({"over": (("pod", "data"), "model")}, "over=(('pod', 'data'), 'model')"),
    ],
)
def test_words_and_partition_specs_say_what_a_tensor_is_a_part_of(
    given: dict[str, Any], said: str
) -> None:
    assert str(read_shards(**given)) == said
    assert str(xg.get("clip_norm").over(**given).shards) == said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"over": "data"}, r"axis_name='data'"),
        ({"over": "shard", "axis_name": "data"}, r"say two things"),
        ({"over": ("a", "a")}, r"splits two axes"),
        ({"over": 3}, r"partition spec, got 3"),
        ({"axis_name": 3}, r"process group"),
    ],
)
def test_what_says_nothing_known_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(xg.RuleError, match=message):
        xg.get("clip_norm").over(**given)
    with pytest.raises(xg.RuleError, match=message):
        xg.use("clip_norm", **given)


@pytest.mark.parametrize("rule", ["triangular", "d(Linear)", "scale", "arctan", "clip_value"])
def test_a_rule_on_single_elements_communicates_nothing(rule: str) -> None:
    assert graph_of(xg.get(rule).over("global")).outputs == graph_of(rule).outputs
    assert talks(xg.get(rule).over("shard")) == []


def test_a_norm_communicates_one_number() -> None:
    assert talks(CLIP) == ["all_norm"]
    (node,) = (n for n in graph_of(CLIP).nodes if n.op is ops.ALL_NORM)
    assert node.type.shape == ()


def test_one_graph_serves_every_rank_where_the_axes_do_not_tell() -> None:
    assert CLIP.bound_rule().specialization.graph(True, {}).nodes
    assert "all_norm" in xg.source(CLIP, "numpy")
    assert callable(xg.lower(CLIP, "numpy"))


def test_a_mean_along_an_axis_communicates_where_that_axis_is_split() -> None:
    along = xg.get("centralize").with_params(dim=1)
    assert talks(along.over("global")) == []
    assert talks(along.over((None, "model"))) == ["all_dim", "all_sum"]
    assert talks(xg.get("centralize").with_params(dim=-1).over((None, None, "model"))) != []


def test_each_draw_takes_its_place() -> None:
    graph = graph_of(xg.get("noise").over((None, "model")))
    (key,) = (n for n in graph.nodes if n.op is ops.PLACE_KEY)
    assert key.attr("split") == (None, ("model",))


REDUCING: dict[str, Callable[..., Any]] = {
    "sum": lambda xp, x: xp.sum(x),
    "sum along": lambda xp, x: xp.sum(x, axis=(0, 2), keepdims=True),
    "mean": lambda xp, x: xp.mean(x, axis=0),
    "max": lambda xp, x: xp.max(x),
    "min": lambda xp, x: xp.min(x, axis=0, keepdims=True),
    "norm 1": lambda xp, x: xp.norm(x, ord=1),
    "norm 3": lambda xp, x: xp.norm(x, axis=0, ord=3),
    "norm inf": lambda xp, x: xp.norm(x, ord=float("inf")),
    "var": lambda xp, x: xp.var(x, axis=(0, 1), keepdims=True),
    "std": lambda xp, x: xp.std(x, correction=1),
    "logsumexp": lambda xp, x: xp.logsumexp(x, axis=0),
    "softmax": lambda xp, x: xp.softmax(x, axis=0),
    "log_softmax": lambda xp, x: xp.log_softmax(x, axis=0),
    "softmax along": lambda xp, x: xp.softmax(x, axis=-1),
    "mask": lambda xp, x: xp.mean(x > 0.5, axis=0),
    "any": lambda xp, x: xp.where(xp.any(x > 1.5), 1.0, x),
    "all": lambda xp, x: xp.where(xp.all(x > -9.0, axis=0), 1.0, x),
    "count": lambda xp, x: xp.count_nonzero(x > 0.5),
    "size": lambda xp, x: xp.sum(x) / xp.size(x),
    "flat": lambda xp, x: xp.sum(xp.reshape(x, (-1,))),
    "moved": lambda xp, x: xp.sum(xp.moveaxis(x, 0, -1), axis=-1),
    "permuted": lambda xp, x: xp.permute_dims(
        xp.softmax(xp.permute_dims(x, (2, 0, 1)), axis=1), (1, 2, 0)
    ),
    "expanded": lambda xp, x: xp.squeeze(xp.max(xp.expand_dims(x, 0), axis=1), 0),
    "cumsum along": lambda xp, x: xp.cumsum(x, axis=1),
}


def rule_of(function: Callable[..., Any]) -> Any:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * function(xg.xp, tin)

    return xg.compose(rule)


@pytest.mark.parametrize("name", REDUCING)
def test_one_shard_is_the_whole_array(name: str) -> None:
    rule = rule_of(REDUCING[name])
    for split in ("global", (None, None, "model"), ("data", "model")):
        try:
            found = rule.over(split)(None, G, X)
        except xg.UnsupportedOp as error:
            assert "needs the whole array" in str(error)
        else:
            np.testing.assert_allclose(found, rule(None, G, X), rtol=1e-14)


REFUSED: dict[str, Callable[..., Any]] = {
    "sort": lambda xp, x: xp.sort(x, axis=0),
    "cumsum": lambda xp, x: xp.cumsum(x, axis=0),
    "flip": lambda xp, x: xp.flip(x, axis=0),
    "prod": lambda xp, x: xp.prod(x, axis=0),
    "median": lambda xp, x: xp.median(x),
    "reshape": lambda xp, x: xp.reshape_like(xp.sum(xp.reshape(x, (3, -1)), axis=0), x[0]),
    "matmul": lambda xp, x: xp.matmul(xp.permute_dims(x, (1, 2, 0)), xp.sum(x, axis=1)),
    "row": lambda xp, x: x[0],
    "array": lambda xp, x: x * np.arange(4.0).reshape(4, 1, 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_whole_array_is_refused_with_rule_line_and_a_way_out(name: str) -> None:
    rule = rule_of(REFUSED[name]).over("global")
    with pytest.raises(xg.UnsupportedOp) as caught:
        rule(None, G, X)
    message = str(caught.value)
    assert "'compose(rule)'" in message and "over='shard'" in message
    assert "test_shards.py" in message


def test_an_array_that_lacks_the_axis_is_refused() -> None:
    with pytest.raises(xg.UnsupportedOp, match=r"splits axis 1, on an array of 1 axes"):
        xg.get("clip_norm").over((None, "model"))(None, G[0, 0], X[0, 0])


def test_a_rule_that_runs_as_it_is_cannot_reduce_over_shards() -> None:
    def plain(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / np.linalg.norm(grad_out)

    rule = xg.register("plain_of_shards", native=True)(plain)
    with pytest.raises(xg.TraceError, match=r"plain_of_shards.*over='global'"):
        rule.over("global")(None, G, X)


def test_a_part_over_shards_within_a_composition_is_refused() -> None:
    both = xg.compose(CLIP, "scale")
    with pytest.raises(xg.RuleError, match=r"'clip_norm'.*say it of the composed rule"):
        both(None, G, X)
    assert talks(xg.compose("clip_norm", "scale").over("global")) == ["all_norm"]


def test_every_way_of_giving_a_rule_takes_it_over_shards() -> None:
    expected = xg.get("clip_norm")(None, G, X)
    act = xg.activation("Linear", "clip_norm", over="global")
    other = xg.activation("Linear", CLIP)
    for activation in (act, other, copy.deepcopy(act), pickle.loads(pickle.dumps(act))):
        np.testing.assert_allclose(xg.vjp(activation, X)[1](G)[0], expected)
        assert activation.rule.shards == Shards(((),))
    with xg.use("clip_norm", over="global"):
        np.testing.assert_allclose(xg.apply_to_gradients([G])[0], expected)
    found = xg.apply_to_gradients([G], "clip_norm", axis_name="data")[0]
    np.testing.assert_allclose(found, expected)
    with pytest.raises(xg.RuleError, match=r"over='global' needs a rule"):
        xg.activation("ReLU", over="global")


def test_a_name_over_shards_is_looked_up_when_it_is_used() -> None:
    xg.register("later_of_shards")(lambda ctx, g, x: g * 2.0)
    act = xg.activation("Linear", "later_of_shards", over="global")
    np.testing.assert_allclose(xg.vjp(act, X)[1](G)[0], 2 * G)
    xg.register("later_of_shards", override=True)(lambda ctx, g, x: g * 3.0)
    np.testing.assert_allclose(xg.vjp(act, X)[1](G)[0], 3 * G)


@pytest.mark.parametrize(
    "rule",
    [
        CLIP,
        xg.get("clip_norm").over((None, "model")).with_params(max_norm=0.5),
        xg.get("clip_norm").over("shard"),
        xg.compose("clip_norm", "noise").over("global"),
        xg.activation("Linear", "clip_norm", over="global").rule,
    ],
    ids=["rule", "with params", "shard", "composed", "by name"],
)
def test_what_a_rule_is_taken_over_is_saved_with_it(rule: Any) -> None:
    loaded = xg.from_dict(rule.to_dict())
    pickled = pickle.loads(pickle.dumps(rule))
    for other in (loaded, pickled):
        assert other.shards == rule.shards
        assert [n.op for n in graph_of(other).nodes] == [n.op for n in graph_of(rule).nodes]
    assert str(rule.shards) in repr(rule)


@pytest.mark.needs("keras")
def test_a_layer_of_keras_keeps_what_its_rule_is_taken_over() -> None:
    import multigrad.keras as xk

    for rule in (CLIP, xg.compose("triangular", "clip_norm").over((None, "model")), CLIP.over()):
        config = xk.Activation("Heaviside", rule=rule).get_config()
        other = xk.Activation.from_config(config).rule
        assert (other if isinstance(other, str) else other.shards) in ("clip_norm", rule.shards)
        assert "over" in str(config["rule"]) or rule.shards is None


def test_a_damaged_document_says_where() -> None:
    data = CLIP.to_dict()
    for wrong in ("global", 3, ["data"], [[3]], [["a" * 101]]):
        with pytest.raises(xg.FormatError, match="over"):
            xg.from_dict({**data, "over": wrong})


def test_a_rule_over_shards_within_other_code_stays_so() -> None:
    @xg.custom_gradient
    def scaled(x: Any) -> Any:
        return x * 2.0, lambda upstream: CLIP(None, upstream * 2.0, x)

    def twice(ctx: Any, grad_out: Any, tin: Any) -> Any:
        along = xg.get("centralize").with_params(dim=0).over("global")
        return CLIP(None, along(None, grad_out, tin), tin, max_norm=0.5)

    pair = xg.function(lambda x: x * 1.0, lambda grad_out, x: CLIP(None, grad_out, x))
    clip = xg.get("clip_norm")
    for found, g in ((scaled, 2 * G), (pair, G)):
        np.testing.assert_allclose(xg.vjp(found, X)[1](G)[0], clip(None, g, X))
        assert "all_norm" in xg.show(found)
    assert sorted(talks(xg.compose(twice))) == ["all_dim", "all_norm", "all_sum"]
    expected = clip(None, G - G.mean(axis=0), X, max_norm=0.5)
    np.testing.assert_allclose(xg.compose(twice)(None, G, X), expected)


def test_users_rules_name_the_reduction_themselves() -> None:
    def own(ctx: Any, grad_out: Any, tin: Any) -> Any:
        whole = xg.xp.sqrt(xg.xp.all_sum(xg.xp.sum(grad_out * grad_out), "data"))
        return grad_out / xg.xp.maximum(whole, xg.xp.all_max(xg.xp.max(tin)))

    assert talks(xg.compose(own)) == ["all_sum", "all_max"]
    expected = G / max(np.linalg.norm(G), X.max())
    np.testing.assert_allclose(xg.compose(own)(None, G, X), expected)
    np.testing.assert_allclose(xg.xp.all_sum(X), X)


# Rules on all parts of an array at once, op by op in NumPy: together the shards compute what the
# rule computes on the whole array.


Array: TypeAlias = Any
Place = dict[str, int]  # the index of a shard along each mesh axis
MESH = {"data": 2, "model": 3}
KEY = (0, 7)
G_TOGETHER, X_TOGETHER = np.random.default_rng(3).normal(size=(2, 4, 6, 3))


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
    axes = [np.arange(n) for n in X_TOGETHER.shape]
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
                made.append(random.place(operands[0], starts, X_TOGETHER.shape))
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
            known = {"ndim": X_TOGETHER.ndim, "dtype": "float64"}
            known |= {f"param:{name}": value for name, value in bound.params.items()}
            facts |= {fact: known[fact] for fact in need.facts}
    numbers = dict(zip(bound.specialization.runtime, bound.values, strict=True))
    given = [
        {
            "grad_out": part_of(G_TOGETHER, split, mesh, place),
            "tin": part_of(X_TOGETHER, split, mesh, place),
            **numbers,
            "key": random.fold_in(KEY, 0),
        }
        for place in places(mesh)
    ]
    with np.errstate(all="ignore"):
        expected = rule(None, G_TOGETHER, X_TOGETHER, key=KEY)
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
