"""What the op table declares is legal, up to date and enough: a new op has its cases from it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multigrad import ops, xp
from multigrad.cli import xp_functions
from multigrad.ir.graph import Graph
from multigrad.ir.op import REQUIRED, Op
from multigrad.ir.types import T, Type
from multigrad.ops.properties import Domain
from multigrad.passes.simplify import simplify
from multigrad.passes.verify import verify
from multigrad.proof.bounded import run_bounded
from multigrad.tracing.derivatives import pullbacks
from multigrad.tracing.trace import Trace, apply


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
    above = {"..errors", "..ir.graph", "..ir.op", "..ir.types"}
    for file in Path(ops.__file__).parent.glob("*.py"):
        imports = re.findall(
            r"^ *from (\.\.\S*) import", file.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert set(imports) <= above | ({".."} if file.stem == "draws" else set()), file.name


@pytest.mark.parametrize("file", xp_functions.MODULES)
def test_the_functions_of_xp_are_what_the_rows_say_now(file: str) -> None:
    written = (xp_functions.FOLDER / file).read_text(encoding="utf-8")
    assert written == xp_functions.MODULES[file](), "type: python -m multigrad.cli.xp_functions"


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
    names = import_module(f"multigrad_{framework}.ops").NAMES
    words = [word for each in names.split(";") for word in (each.partition(":")[2] or each).split()]
    assert len(words) == len(set(words)) > 50
