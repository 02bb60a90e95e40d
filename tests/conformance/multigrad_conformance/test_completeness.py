"""Nothing is missing in silence: every op is lowered by every backend, or listed as unsupported
with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.op import BOOL, FLOAT8, FLOATS, INT32, PER_ELEMENT
from multigrad.errors import UnsupportedOp

from .vectors import name_of, read_document

TABLE = ops.CALLABLE_OPS


@pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
def test_every_op_is_lowered_or_listed_with_a_reason(backend: Any, op: ops.Op) -> None:
    native = load_backend(backend.name)
    lowered = op in native.kernels.rows or op.symbol is not None
    reason = native.kernels.unsupported.get(op, "")
    if isinstance(reason, Mapping):
        # For some dtypes only: the op is lowered, and each of those dtypes has a reason.
        assert lowered, (
            f"{backend.name} gives reasons by dtype for {op.name}, and does not lower it"
        )
        assert reason and set(reason) <= {*FLOATS, *FLOAT8, BOOL, INT32}, (
            f"{op.name}: {sorted(reason)}"
        )
        assert all(text.strip() for text in reason.values()), op.name
        assert not set(FLOATS) <= set(reason), f"{op.name} lacks every float dtype: say so in words"
    else:
        assert lowered or reason.strip(), f"{backend.name} neither lowers {op.name} nor says why"
        assert not (op in native.kernels.rows and reason), "listed although it is lowered"


def test_no_backend_has_rows_for_ops_that_do_not_exist(backend: Any) -> None:
    native = load_backend(backend.name)
    assert set(native.kernels.rows) | set(native.kernels.unsupported) <= {*TABLE, ops.MEMORY}


def test_backend_callables_have_names_of_their_own(backend: Any) -> None:
    # A lambda says nothing in a traceback or a profile.
    for op, function in load_backend(backend.name).kernels.rows.items():
        assert callable(function), op
        assert getattr(function, "__name__", "") != "<lambda>", op


@pytest.mark.parametrize("name", FLOATS)
def test_every_float_dtype_of_the_ir_has_a_native_one(backend: Any, name: str) -> None:
    assert name in str(load_backend(backend.name).tensors.dtype(name))


@pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
def test_every_row_of_the_table_is_documented_and_has_a_derivative(op: ops.Op) -> None:
    assert op.doc.endswith(".")
    derivative = op.made_of if op.vjp is None else op.vjp
    assert derivative is not None
    assert derivative.__name__ != "<lambda>"
    assert op.operands


OF_LIBRARY = [name for name in xg.rules() if xg.get(name).__module__.startswith("multigrad.")]
ELEMENTWISE = [op for op in TABLE if op.result in PER_ELEMENT and op.in_xp]


@pytest.mark.parametrize("name", [*OF_LIBRARY, *(f"xp.{op.in_xp}" for op in ELEMENTWISE)])
def test_every_rule_and_elementwise_op_has_exact_vectors(name: str) -> None:
    known = {name_of(subject) for subject in read_document()["subjects"]}
    file = "elementwise.py" if name.startswith("xp.") else "rules.py"
    assert name in known, f"add the formula to tools/vectors/{file}, and type: python tools/vectors"


def test_an_op_that_a_backend_lacks_is_named_with_the_reason() -> None:
    from multigrad.core.lowering.lower import emit_rule

    def smooth(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xg.xp.erf(tin)

    numpy = load_backend("numpy")
    rows = {op: native for op, native in numpy.kernels.rows.items() if op is not ops.ERF}
    kernels = replace(numpy.kernels, rows=rows, unsupported={ops.ERF: "it has no erf kernel"})
    lacking = replace(numpy, name="toy", kernels=kernels)
    graph = xg.compose(smooth).bound_rule().specialization.graph(True, {})
    with pytest.raises(UnsupportedOp, match=r"smooth.*erf.*toy lacks: it has no erf kernel"):
        emit_rule(graph, lacking)


def test_an_op_that_a_backend_lacks_for_a_dtype_is_refused_on_tensors_too(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = load_backend(backend.name)
    reasons = {"float16": "no CPU kernel"}
    monkeypatch.setitem(native.kernels.unsupported, ops.EXPM1, reasons)  # type: ignore[arg-type]
    half, single = (backend.array(np.ones(2, dtype)) for dtype in ("float16", "float32"))
    with pytest.raises(
        UnsupportedOp, match=rf"expm1.*{backend.name} for float16: no CPU kernel\. C"
    ):
        xg.xp.expm1(half)
    with pytest.raises(UnsupportedOp, match="for float16"):
        xg.xp.exp(xg.xp.expm1(xg.xp.negative(half)))
    np.testing.assert_allclose(backend.numpy(xg.xp.expm1(single)), np.expm1([1.0, 1.0]), rtol=1e-6)


def test_layer_without_a_rule_refuses_a_dtype_for_which_its_op_is_lacking(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = load_backend(backend.name)
    reasons = {"float16": "no CPU kernel"}
    monkeypatch.setitem(native.kernels.unsupported, ops.SOFTPLUS, reasons)  # type: ignore[arg-type]
    monkeypatch.setattr(import_module("multigrad.core.rules.activation"), "_lacking", {})
    act = xg.activation("Softplus")
    message = (
        rf"activation 'Softplus' uses softplus, which {backend.name} lacks for float16: no CPU"
    )
    for _ in range(2):
        with pytest.raises(UnsupportedOp, match=message):
            act(backend.array(np.ones(2, "float16")))
        assert tuple(act(backend.array(np.ones(2, "float32"))).shape) == (2,)


def test_lowered_object_refuses_a_dtype_for_which_an_op_is_lacking(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bent(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xg.xp.expm1(tin)

    native = load_backend(backend.name)
    reasons = {"float16": "no CPU kernel"}
    monkeypatch.setitem(native.kernels.unsupported, ops.EXPM1, reasons)  # type: ignore[arg-type]
    x = np.ones(2, "float32")
    lowered = xg.lower(bent, backend.name)
    np.testing.assert_allclose(backend.vjp(lowered, x, x)[1], np.expm1(x), rtol=1e-6)
    message = rf"rule 'bent' .*uses expm1, which {backend.name} lacks for float16: no CPU kernel"
    with pytest.raises(UnsupportedOp, match=message):
        backend.vjp(lowered, x.astype("float16"), x.astype("float16"))
