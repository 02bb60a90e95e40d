"""Every op on every backend against the meaning that its row declares, by cases made from the row.

The tables of the other test_ops*.py have meanings that are independent of the library, and edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multigrad.core import ops
from multigrad.core.ir.op import PER_ELEMENT, Op, integer
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.trace.trace import apply
from multigrad.core.trace.xp import all as neutral

from ..declared import Case, case_of_any_shape, cases, domain_of
from ..differences import allowed, unsettled
from ..expected.exact import names_of
from ..matrix.test_matrix_ops import BINARY, scale_of
from ..oracles import DTYPES, FLOAT64, edge_values, finfo, spread
from ..programs.bounded import Bounded, known, number
from ..programs.meaning import by_meaning
from ..programs.running import Tally, compare
from ..vjps.test_vjps import X
from .test_ops import REDUCTIONS as BASIC
from .test_ops import special_rows, widen
from .test_ops_arrays import REDUCTIONS
from .test_ops_ordering import ALONG, EXACT
from .test_ops_shapes import MOVES, UNDOING

xp: Any = neutral
TABLES = (names_of(1), BINARY, BASIC, REDUCTIONS, ALONG, EXACT, MOVES, UNDOING)
IN_TABLES = {name.split(" ")[0] for table in TABLES for name in table}
SHAPES = ((), (0,), (3,), (2, 3, 4))
WITHOUT_EDGES = {ops.NAN_TO_NUM: "it gives the largest number of each dtype"}


def is_in_tables(row: Op) -> bool:
    """Return whether a table has the op in every dtype and shape, at edges."""
    return row.in_xp in IN_TABLES or row.name in IN_TABLES


def has_edges(row: Op) -> bool:
    """Return whether any numbers may be its operands."""
    is_numeric = row.coerce in ("float", "raw") and not {"mask", "condition"} & set(row.operands)
    falls = any(domain_of(row, i).falls for i in range(len(row.operands)))
    return is_numeric and not falls and row not in WITHOUT_EDGES


CASES = cases()
OF_ANY_SHAPE = {
    case.name: case
    for row in ops.CALLABLE_OPS
    if not is_in_tables(row) and (case := case_of_any_shape(row)) is not None
}


def run(backend: Any, case: Case, operands: list[Any], view: bool) -> Any:
    """The op on tensors, or on views of larger ones."""

    def tensor(operand: Any) -> Any:
        if not isinstance(operand, np.ndarray):
            return operand
        pair = np.stack([np.ones_like(operand), operand], axis=-1)
        return xp.getitem(backend.array(pair), (..., 1)) if view else backend.array(operand)

    with np.errstate(all="ignore"), ignoring_warnings():
        result = apply(case.row, *map(tensor, operands), **case.attrs)
        return np.asarray(result if case.row.result is integer else backend.numpy(result))


def meaning(backend: Any, case: Case, operands: list[Any], dtype: Any) -> Bounded:
    """What the row means, as close as the backend promises to come."""
    name = case.row.in_xp
    given = [known(x) if isinstance(x, np.ndarray) else number(x, dtype) for x in operands]
    with np.errstate(all="ignore"), ignoring_warnings():
        kind = np.asarray(case.meaning(*operands)).dtype
        result = kind if kind.kind in "bi" else dtype
        ulps = allowed(backend.name, name, "value", dtype)
        bounded = by_meaning(case.row, given, case.attrs, result, ulps)
        error = bounded.error
        if result == dtype and case.row.result in PER_ELEMENT:
            scale = scale_of(name, bounded.value, *(widen(x) for x in operands))
            own = ulps * float(finfo(dtype).eps) * np.abs(scale)
            error = np.fmax(error, np.where(np.isfinite(own), own, 0.0).astype(np.float64))
            error = np.where(unsettled(backend.name, name, operands[0]), np.inf, error)
    return Bounded(bounded.value, error, result)


def check(backend: Any, case: Case, operands: list[Any], dtype: Any) -> None:
    with backend.precision(dtype):
        results = [run(backend, case, operands, view) for view in (False, True)]
    if case.row.result is integer:
        assert results == [case.row.numpy(*operands, **case.attrs)] * 2
        return
    expected = meaning(backend, case, operands, dtype)
    for actual in results:
        problem = compare(actual, expected, Tally())
        assert not problem, f"{case.name}, {dtype}: {problem}"


@pytest.mark.parametrize("name", CASES)
def test_every_op_gives_what_its_row_means(backend: Any, name: str) -> None:
    case = CASES[name]
    for dtype in DTYPES[:1] if is_in_tables(case.row) else DTYPES:
        check(backend, case, case.arrays(X, dtype), dtype)


@pytest.mark.parametrize("name", OF_ANY_SHAPE)
def test_every_op_that_no_table_has_takes_every_shape(backend: Any, name: str, paired: Any) -> None:
    case = OF_ANY_SHAPE[name]
    for shape, dtype in paired(SHAPES, DTYPES):
        if shape != (0,) or not case.needs_elements():
            check(backend, case, case.arrays(np.asarray(spread(shape, FLOAT64)), dtype), dtype)


@pytest.mark.parametrize("name", [n for n, case in OF_ANY_SHAPE.items() if has_edges(case.row)])
def test_every_op_that_no_table_has_is_right_at_edges(backend: Any, name: str) -> None:
    case = OF_ANY_SHAPE[name]
    count = len(case.row.operands)
    for dtype in DTYPES:
        if case.row.result in PER_ELEMENT:
            ends = np.concatenate([edge_values(dtype), spread(20, dtype)])[:: 3 ** (count - 1)]
            operands = [grid.ravel() for grid in np.meshgrid(*[ends] * count)]
        else:
            operands = [special_rows(dtype)] * count
        check(backend, case, operands, dtype)
