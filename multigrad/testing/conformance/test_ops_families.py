"""None of the ops over whole arrays is forgotten; see `test_ops_arrays.py`, `test_ops_ordering.py`, `test_ops_shapes.py`."""

from __future__ import annotations

from multigrad.ir import arrays, ops, ordering, shapes
from multigrad.ir.op import Op

from .test_ops_arrays import REDUCTIONS
from .test_ops_ordering import ALONG, EXACT
from .test_ops_shapes import MOVES, UNDOING

# Names that differ from the op's; the last are tested with the older ops in test_ops.py.
NAMED = {
    *REDUCTIONS, *ALONG, *EXACT, *MOVES, *UNDOING, "matmul", "matmul_left", "matmul_right", "einsum",
    "glu", "argmin_mask", "sort_like", "unsort", "hold", "unhold", "quantile_weights", "unpart",
    "bernoulli_like", "rademacher_like", "exponential_like", "gumbel_like",
}  # fmt: skip
OLDER = {
    "sum", "mean", "max", "min", "any", "all", "var", "std", "sum_to", "broadcast_to",
    "expand_dims", "dim", "size", "fold_in", "uniform_like", "normal_like", "array",
}  # fmt: skip


def test_every_op_of_these_families_is_tested() -> None:
    families = (arrays, ordering, shapes)
    rows = {op.name for family in families for op in vars(family).values() if isinstance(op, Op)}
    assert rows <= NAMED | OLDER
    assert rows <= {op.name for op in ops.CALLABLE_OPS}
