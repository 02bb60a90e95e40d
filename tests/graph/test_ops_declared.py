"""What the op table declares is legal, up to date and enough: a new op has its cases from it."""

from __future__ import annotations

import inspect
import itertools
import math
import pickle
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import backend as door
from multigrad import xp
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph
from multigrad.core.ir.op import INPUT, REQUIRED, Op, T, Type
from multigrad.core.lowering.derivatives import pullback, pullbacks
from multigrad.core.lowering.lower import emit_rule
from multigrad.core.ops.properties import CONSTANT, LINEAR, Domain
from multigrad.core.ops.table import DECLARED, composite, parts_of
from multigrad.core.passes import decisions
from multigrad.core.passes.simplify import PASSING, simplify
from multigrad.core.trace.trace import Trace, apply
from multigrad.core.trace.xp import all as neutral
from multigrad.core.trace.xp import ops as recorded
from multigrad.engine.functions.proof.meanings import run_bounded
from multigrad.engine.passes import residuals, shapes
from multigrad.engine.passes.verify import verify
from multigrad.engine.trace.xp import transposes
from multigrad_conformance.declared import Case, cases
from multigrad_conformance.ops.test_ops_arrays import REDUCTIONS
from multigrad_conformance.ops.test_ops_declared import OF_ANY_SHAPE
from multigrad_conformance.ops.test_ops_ordering import ALONG, EXACT
from multigrad_conformance.ops.test_ops_shapes import MOVES, UNDOING
from multigrad_conformance.oracles import FLOAT32, spread
from multigrad_conformance.vjps.test_vjps import OTHER, X


def record(row: Op, attrs: dict[str, Any]) -> Graph:
    """Return the graph of one op on inputs of any shape."""
    trace = Trace(row.name)
    values = [trace.input(name, Type("tensor", T, "?")) for name in row.operands]
    result = apply(row, *values, **attrs)
    return Graph(row.name, tuple(value.node for value in values), (result.node,))


def gradients(row: Op, attrs: dict[str, Any], operands: list[Any], cotangent: Any) -> list[Any]:
    """Return what the VJP gives each operand."""
    graph = simplify(pullbacks(record(row, attrs), row.operands, ("grad_out",)))
    verify(graph)
    given = {"grad_out": cotangent, **dict(zip(row.operands, operands, strict=True))}
    return [share.value for share in run_bounded(graph, given, np.float64)]


@pytest.mark.parametrize("row", ops.CALLABLE_OPS, ids=lambda row: row.name)
def test_samples_and_defaults_are_legal(row: Op) -> None:
    for attr in row.attrs.values():
        values = attr.samples if attr.default is REQUIRED else (*attr.samples, attr.default)
        assert all(map(attr.legal, values))
    domains = () if row.domain is None or isinstance(row.domain, Domain) else row.domain
    assert len(domains) in (0, len(row.operands))


def test_passes_name_ops_of_the_table() -> None:
    named = {*shapes.RESIZED_BY_SHARDS, *PASSING, *residuals.COSTLY}
    named |= decisions.ARITHMETIC | decisions.SEPARATE | decisions.DECIDING | decisions.FOLLOWED
    assert named <= ops.OPS.keys()


def test_declarations_stand_on_data_alone() -> None:
    folder = Path(ops.__file__).parent
    for file in folder.rglob("*.py"):
        package = file.relative_to(folder).parts[:-1]
        imports = re.findall(
            r"^from (\.+)(\S*) import", file.read_text(encoding="utf-8"), re.MULTILINE
        )
        above = {rest for dots, rest in imports if len(dots) > len(package) + 1}
        known = {
            "errors",
            "ir",
            "ir.op",
            "ir.graph",
            "random",
            "support.records",
            "support.lazy_modules",
        }
        assert above <= known | ({""} if file.stem == "draws" else set()), file.name


MADE = [row for row in ops.CALLABLE_OPS if not row.composed]


@pytest.mark.parametrize("row", MADE, ids=lambda row: row.name)
def test_a_function_of_xp_is_as_if_it_were_written_out(row: Op) -> None:
    module = transposes if row.in_vjps else recorded
    function = getattr(module, row.in_xp)
    assert pickle.loads(pickle.dumps(function)) is function
    assert (function.__module__, function.__qualname__) == (module.__name__, row.in_xp)
    assert function.__doc__.startswith(row.doc)
    assert f"xp.{row.in_xp}(" in function.__doc__ or row.in_vjps
    parameters = inspect.signature(function).parameters
    assert (*parameters,) == (*row.operands, *row.attrs)
    given = {name: each.default for name, each in parameters.items() if name in row.attrs}
    required = inspect.Parameter.empty
    assert given == {
        name: required if row.in_vjps or attr.default is REQUIRED else attr.default
        for name, attr in row.attrs.items()
    }
    assert {*typing.get_type_hints(function)} == {*parameters, "return"}
    first = row.operands[0]
    with pytest.raises(TypeError, match=rf"^{row.in_xp}\(\) missing .*'{first}'"):
        function()
    with pytest.raises(TypeError, match=rf"^{row.in_xp}\(\) got an unexpected .* 'colour'"):
        function(1.0, colour=1)


def test_a_function_of_xp_records_its_row_with_each_attribute_under_its_name() -> None:
    trace = Trace("all of them")
    x = trace.input("x", Type("tensor", T, "?"))
    value = xp.var(x, (0, -1), 1, keepdims=1)
    assert value.node.op is ops.VAR
    assert dict(value.node.attrs) == {"axis": (0, -1), "keepdims": True, "correction": 1}
    assert dict(xp.swapaxes(x, 0, axis2=1).node.attrs) == {"axis1": 0, "axis2": 1}
    moved = transposes.half(x, position=1, axis=-1)
    assert dict(moved.node.attrs) == {"position": 1, "axis": -1}


def test_logcumsumexp_keeps_infinities_and_its_gradient_is_a_softmax_of_what_came(
    backend: Any,
) -> None:
    inf, nan = np.inf, np.nan
    x = np.array(
        [[-inf, -inf, 1.0, 2.0], [-1e4, 0.0, 1e4, -1e4], [inf, 0.0, inf, -inf], [1, nan, 0, 0]]
    )
    both = 2.0 + np.log1p(np.exp(-1.0))
    expected = [[-inf, -inf, 1.0, both], [-1e4, 0.0, 1e4, 1e4], [inf] * 4, [1.0, nan, nan, nan]]
    with backend.precision(x.dtype), np.errstate(all="ignore"):
        actual = backend.numpy(xp.logcumsumexp(backend.array(x)))
        again = backend.numpy(xp.logcumsumexp(backend.array(x[:, ::-1].copy()), reverse=True))
        empty = backend.numpy(xp.logcumsumexp(backend.array(np.zeros((2, 0)))))
    np.testing.assert_allclose(actual, expected, rtol=1e-14)
    np.testing.assert_allclose(again[:, ::-1], expected, rtol=1e-14)
    assert empty.shape == (2, 0)
    (share,) = gradients(ops.LOGCUMSUMEXP, {"axis": -1, "reverse": False}, [x[:2]], np.ones((2, 4)))
    second = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(share, [[0, 0, 2 - second, second], [1, 1, 2, 0]], atol=1e-15)


# Rows that do not say in what they are linear, and why.
NOT_SAID = {
    **dict.fromkeys((ops.XLOGY, ops.XLOG1PY), "the VJP asks where the operand is zero"),
    **dict.fromkeys((ops.NAN_TO_NUM, ops.NEXTAFTER), "of finite numbers, but for the last bit"),
    **dict.fromkeys((ops.MEDIAN, ops.QUANTILE), "of two elements"),
    **dict.fromkeys((ops.EQ, ops.ISNAN, ops.ISINF), "no numbers here are equal, all are finite"),
}


def test_a_row_says_in_what_its_op_is_linear() -> None:
    generator = np.random.default_rng(0)
    said, found = (dict[tuple[str, tuple[int, ...]], bool]() for _ in range(2))
    for case in cases([row for row in ops.CALLABLE_OPS if row not in NOT_SAID]).values():
        row, operands = case.row, case.arrays(X, np.float64)
        read = [i for i in range(len(operands)) if i not in row.shape_only]
        floats = [i for i in read if np.asarray(operands[i]).dtype.kind == "f"]
        for chosen in itertools.chain(
            *(itertools.combinations(floats, n + 1) for n in range(len(floats)))
        ):
            degrees = [LINEAR if i in chosen else CONSTANT for i in read]
            degree = row.degree and row.degree(SimpleNamespace(attr=case.attrs.get), degrees)
            x, y = (
                [generator.standard_normal(np.shape(o)) if i in chosen else o
                 for i, o in enumerate(operands)]
                for _ in range(2)
            )  # fmt: skip
            both = [2.0 * a - 3.0 * b if i in chosen else a
                    for i, (a, b) in enumerate(zip(x, y, strict=True))]  # fmt: skip
            try:
                whole, first, second = (np.asarray(case.meaning(*z), float) for z in (both, x, y))
            except np.linalg.LinAlgError:  # no factor of what is drawn
                continue
            is_linear = np.allclose(whole, 2.0 * first - 3.0 * second, 1e-7, 1e-9)
            key = row.name, chosen
            said[key] = said.get(key, True) and degree == LINEAR
            found[key] = found.get(key, True) and is_linear
    assert said == found


# Ops over whole arrays in TensorFlow's graphs: lengths known at run time only, and its vectorized
# map.


Wide = Any
Function = Callable[..., Any]


def called(case: Case) -> Function:
    """A case as a plain function, which TensorFlow can refer to weakly."""
    return lambda t: case(t)


COMPILED: dict[str, tuple[tuple[int, ...], Function]] = {
    **{
        name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=(0, 2), keepdims=False))
        for name, row in REDUCTIONS.items()
    },
    **{
        name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=1))
        for name, row in {**ALONG, **EXACT}.items()
    },
    **{name: ((2, 3, 4), called(case)) for name, case in OF_ANY_SHAPE.items()},
    **{name: (row[0], row[1]) for name, row in MOVES.items()},
    **{name: ((2, 3, 4), lambda t, f=row: f[1](f[0](t), t)) for name, row in UNDOING.items()},
    "glu": ((4, 3), lambda t: neutral.glu(t, 0)),
    "unsort": ((2, 3, 4), lambda t: neutral.unsort(t, t, 1, True)),
    "unhold": ((2, 3, 4), lambda t: neutral.unhold(t, t > 0, 1)),
    "hold": ((2, 3, 4), lambda t: neutral.hold(t, t > 0, 2)),
    "quantile_weights": ((2, 3, 4), lambda t: neutral.quantile_weights(t, 0.3, (0, 2))),
    "matmul": ((3, 3), lambda t: neutral.matmul(t, t)),
    "matmul_left": ((3, 3), lambda t: neutral.matmul_left(t, t, t)),
    "einsum": ((3, 3), lambda t: neutral.einsum("ij,kj->ik", t, t)),
    "unpart": ((2, 3), lambda t: neutral.unpart(t, neutral.concatenate([t, t]), 1, 0)),
}


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", COMPILED)
def test_graphs_with_lengths_known_at_run_time_give_the_same(backend: Any, name: str) -> None:
    import tensorflow as tf

    shape, function = COMPILED[name]
    x = spread(shape, FLOAT32)
    graph = tf.function(function, input_signature=[tf.TensorSpec([None] * len(shape), tf.float32)])
    expected = function(tf.constant(x)).numpy()
    np.testing.assert_allclose(graph(tf.constant(x)).numpy(), expected, rtol=1e-6)


@pytest.mark.backends("tensorflow")
def test_padding_keeps_its_value_in_a_vectorized_map(backend: Any) -> None:
    import tensorflow as tf

    stacked = tf.constant(np.stack([X, OTHER]))
    padded = tf.vectorized_map(lambda t: neutral.pad(t, ((1, 0), (0, 2)), 0.5), stacked)
    expected = np.pad(np.stack([X, OTHER]), ((0, 0), (1, 0), (0, 2)), constant_values=0.5)
    np.testing.assert_array_equal(padded, expected)


# Ops that are made of others: a row of the table is their meaning, their kernel and, where it has
# no VJP, their derivative.


COMPOSITES = [op for op in ops.CALLABLE_OPS if op.made_of is not None]


@pytest.mark.parametrize("op", COMPOSITES, ids=lambda op: op.name)
def test_parts_of_a_composite_are_other_ops_down_to_some_that_are_made_of_none(op: Op) -> None:
    below, waiting = set(), [op]
    while waiting:
        parts = {part for part in parts_of(waiting.pop()) if part.made_of is not None} - below
        below |= parts
        waiting += parts
    assert op not in below


def test_backend_without_a_part_has_no_row_for_what_is_made_of_it() -> None:
    own = {op: op.numpy for op in ops.CALLABLE_OPS if op.made_of is None}
    composed = door.compositions(own, lambda row: row)
    assert set(composed) >= set(COMPOSITES)
    lacking = {op: row for op, row in own.items() if op is not ops.ERFC}
    rest = set(door.compositions(lacking, lambda row: row))
    assert set(composed) - rest == {ops.NDTR, ops.LOG_NDTR, ops.GELU}


def test_composite_without_a_vjp_has_the_derivative_of_its_composition() -> None:
    def skewed(x: Any) -> Any:
        # One operand is made of the other, as is one composite of another.
        return xp.frac(xp.deg2rad(x) * x) * xp.rad2deg(x)

    x = np.array([3.25, -7.5, 100.0])
    y, pullback = xg.vjp(xg.function(skewed), x)
    square, turn = math.pi / 180 * x * x, 180 / math.pi
    part = square - np.trunc(square)
    np.testing.assert_allclose(y, part * turn * x, rtol=1e-12)
    expected = turn * (part + 2 * square)
    np.testing.assert_allclose(pullback(np.ones(3))[0], expected, rtol=1e-12)


def test_operand_of_a_composite_may_be_made_of_another() -> None:
    def way(xp: Any, a: Any, b: Any) -> Any:
        return a * xp.sin(b)

    row = composite(way, None, "a sin(b).", "a b")
    del DECLARED["way"]
    trace = Trace("way")
    tin = trace.input("tin", INPUT)
    graph = Graph("way", (tin.node,), (apply(row, tin, tin * tin).node,))
    derivative, _ = emit_rule(pullback(graph), load_backend("numpy"))
    x = np.array([0.5, -1.25])
    expected = np.sin(x * x) + 2 * x * x * np.cos(x * x)
    np.testing.assert_allclose(derivative(np.ones(2), x), expected, rtol=1e-14)


def test_composite_that_asks_for_what_is_no_op_says_so() -> None:
    row = composite(made_of_nothing, None, "Nothing.")
    with pytest.raises(
        AttributeError, match=r"op 'made_of_nothing' is made of xp\.no_such_op, and"
    ):
        row.numpy(np.ones(2))
    del DECLARED["made_of_nothing"]


@pytest.mark.parametrize("operands", ["x y", "ct"])
def test_an_operand_named_like_a_word_of_vjps_is_refused_where_it_is_declared(
    operands: str,
) -> None:
    with pytest.raises(ValueError, match=r"made_of_nothing_vjp: .*rename the operand, or give the"):
        composite(made_of_nothing, "ct", "Nothing.", operands)
    assert "made_of_nothing" not in DECLARED


def made_of_nothing(xp: Any, x: Any) -> Any:
    return xp.no_such_op(x)


ALONE = """
import sys
import multigrad as xg
from multigrad.core import ops
from multigrad.core.lowering.derivatives import pullback
from multigrad.core.trace.trace import Trace
from multigrad.core.ir.graph import Graph
from multigrad.core.ir.op import INPUT

x = Trace("alone").input("tin", INPUT)
result = xg.xp.where(abs(x) < 1, x * xg.xp.mean(x), 0.0)
pullback(Graph("alone", (x.node,), (result.node,)))
families = {f"multigrad.engine.ops.{name}" for name in ("indexing", "loops", "products")}
others = {f"multigrad.core.trace.{name}" for name in ("assertions", "derived.scans", "xp.shapes")}
assert (families | others).isdisjoint(sys.modules)
ops.MATMUL
assert families <= sys.modules.keys()
"""


def test_a_rule_of_elements_loads_no_other_family() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True)
