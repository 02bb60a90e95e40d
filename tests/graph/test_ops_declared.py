"""What the op table declares is legal, up to date and enough: a new op has its cases from it."""

from __future__ import annotations

import inspect
import pickle
import re
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multigrad import xp
from multigrad.functions.proof.bounded import run_bounded
from multigrad.graph import ops
from multigrad.graph.ir.graph import Graph
from multigrad.graph.ir.op import REQUIRED, Op
from multigrad.graph.ir.types import T, Type
from multigrad.graph.ops.properties import Domain
from multigrad.graph.passes.simplify import simplify
from multigrad.graph.passes.verify import verify
from multigrad.trace.derived.derivatives import pullbacks
from multigrad.trace.trace import Trace, apply
from multigrad.trace.xp import ops as recorded
from multigrad.trace.xp import transposes


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


def test_declarations_stand_on_data_alone() -> None:
    folder = Path(ops.__file__).parent
    for file in folder.rglob("*.py"):
        package = file.relative_to(folder).parts[:-1]
        imports = re.findall(
            r"^ *from (\.+)(\S*) import", file.read_text(encoding="utf-8"), re.MULTILINE
        )
        above = {rest for dots, rest in imports if len(dots) > len(package) + 1}
        known = {"errors", "ir.graph", "ir.op", "ir.types", "support.versions"}
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


@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_no_name_of_a_framework_stands_at_two_ops(framework: str) -> None:
    pytest.importorskip(framework)
    names = import_module(f"multigrad_{framework}.kernels.ops").NAMES
    words = [word for each in names.split(";") for word in (each.partition(":")[2] or each).split()]
    assert len(words) == len(set(words)) > 50
