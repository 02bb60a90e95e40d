"""Nothing is missing in silence: every op is lowered by every backend, or listed as unsupported with a reason."""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg
from multigrad.ir import ops
from multigrad.ir.types import FLOATS
from multigrad.lowering.backend import load_backend

TABLE = ops.CALLABLE_OPS


@pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
def test_every_op_is_lowered_or_listed_with_a_reason(backend: Any, op: ops.Op) -> None:
    native = load_backend(backend.name)
    lowered = op in native.ops or op.symbol is not None
    reason = native.unsupported.get(op, "")
    assert lowered or reason.strip(), f"{backend.name} neither lowers {op.name} nor says why not"
    assert not (op in native.ops and op in native.unsupported), "listed although it is lowered"


def test_no_backend_has_rows_for_ops_that_do_not_exist(backend: Any) -> None:
    native = load_backend(backend.name)
    assert set(native.ops) | set(native.unsupported) <= set(TABLE)


def test_backend_callables_have_names_of_their_own(backend: Any) -> None:
    # A lambda says nothing in a traceback or a profile.
    for op, function in load_backend(backend.name).ops.items():
        assert callable(function), op
        assert getattr(function, "__name__", "") != "<lambda>", op


@pytest.mark.parametrize("name", FLOATS)
def test_every_float_dtype_of_the_ir_has_a_native_one(backend: Any, name: str) -> None:
    assert name in str(load_backend(backend.name).dtype(name))


@pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
def test_every_row_of_the_table_is_documented_and_has_a_derivative(op: ops.Op) -> None:
    assert op.doc.endswith(".")
    assert op.vjp is not None
    assert op.vjp.__name__ != "<lambda>"
    assert op.operands


def test_an_op_that_a_backend_lacks_is_named_with_the_reason() -> None:
    from dataclasses import replace

    from multigrad.errors import UnsupportedOp
    from multigrad.lowering.lower import emit_rule

    def smooth(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xg.xp.erf(tin)

    numpy = load_backend("numpy")
    rows = {op: native for op, native in numpy.ops.items() if op is not ops.ERF}
    lacking = replace(numpy, name="toy", ops=rows, unsupported={ops.ERF: "it has no erf kernel"})
    graph = xg.compose(smooth).spec().family.graph(True, {})
    with pytest.raises(UnsupportedOp, match=r"smooth.*erf.*toy lacks: it has no erf kernel"):
        emit_rule(graph, lacking)
