"""The example of each function of `xg.xp` that is made from a row of the op table, as source.

Operands are taken from the row's domain and kind, and the result is what its meaning in NumPy
gives: an example is true when it is written, and a test runs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir.op import Op, reduced
from multigrad.core.ops.properties import (
    ABOVE_MINUS_ONE,
    ABOVE_ONE,
    ABOVE_ZERO,
    BETWEEN_ZERO_AND_ONE,
    REALS,
    WITHIN_ONE,
    Domain,
)
from multigrad.core.trace.xp import all as xp
from multigrad.core.trace.xp.ops import LIST

DIGITS = 4
HEAD = "# The examples of `ops.py`, which reads them; written by `python tools/write_sources.py`."
# Numbers by domain: of the first operand, the second and the third.
NUMBERS = {
    REALS: ([-1.5, 0.5, 2.0], [2.0, -0.5, 1.0], [0.5, 0.25, 1.0]),
    ABOVE_ZERO: ([0.5, 1.0, 4.0], [0.5, 1.0, 4.0]),
    ABOVE_ONE: ([1.0, 1.5, 3.0],),
    ABOVE_MINUS_ONE: ([-0.5, 0.0, 2.0], [-0.5, 0.0, 2.0]),
    WITHIN_ONE: ([-0.5, 0.0, 0.5],),
    BETWEEN_ZERO_AND_ONE: ([0.1, 0.5, 0.9],),
}
MASKS = ([True, True, False], [True, False, False])
INTEGERS = ([1, 5, 12], [1, 2, 3])
TABLE = "[[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]"
TIES = "[[3.0, 1.0], [4.0, 4.0]]"
MATRIX = "[[4.0, 2.0], [2.0, 3.0]]"
# Arguments that the row does not tell: shapes that fit each other, attributes without a default.
ARGUMENTS = {
    "lerp": "[0.0, 1.0], [1.0, 3.0], [0.5, 0.25]",
    "where": "[True, False], [1.0, 2.0], [3.0, 4.0]",
    "matmul": f"{MATRIX}, [[1.0], [2.0]]",
    "sum_to": f"{TABLE}, np.zeros((2, 1))",
    "reshape_like": f"{TABLE}, np.zeros(6)",
    "squeeze": "[[1.0, 2.0]]",
    "expand_dims": "[1.0, 2.0]",
    "swapaxes": f"{TABLE}, 0, 1",
    "moveaxis": f"{TABLE}, 0, -1",
    "flip": "[1.0, 2.0, 3.0]",
    "threshold": "[-1.5, 0.5, 2.0], 1.0, -9.0",
    "glu": "[1.0, 2.0, 0.0, -1.0]",
    "nextafter": "[1.0], [2.0]",
    "isnan": "[1.0, np.nan, np.inf]",
    "isinf": "[1.0, np.nan, np.inf]",
    "isfinite": "[1.0, np.nan, np.inf]",
    "signbit": "[-1.0, -0.0, 0.0]",
    "fmax": "[1.0, np.nan], [2.0, 3.0]",
    "fmin": "[1.0, np.nan], [2.0, 3.0]",
    "equal": "[0.0, 1.0], [-0.0, 2.0]",
    "not_equal": "[0.0, np.nan], [-0.0, np.nan]",
    "sinc": "[-0.5, 0.0, 0.5]",
    "lgamma": "[-1.5, 0.5, 3.0]",
    "any": "[[True, False], [False, False]], axis=1",
    "all": "[[True, True], [True, False]], axis=1",
    "rad2deg": "[0.0, np.pi]",
    "deg2rad": "[0.0, 180.0]",
    **dict.fromkeys(
        ("det", "inv", "pinv", "expm", "cholesky", "logabsdet", "signdet", "svdvals", "eigvalsh"),
        MATRIX,
    ),
    **dict.fromkeys(("sort", "argsort"), "[3.0, 1.0, 2.0]"),
    **dict.fromkeys(("softmax", "log_softmax"), "[0.0, 1.0, 1.0]"),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), "[1.0, 3.0, 2.0]"),
    **dict.fromkeys(("argmax", "argmin", "argmax_mask", "argmin_mask"), f"{TIES}, axis=1"),
}


def render_examples() -> str:
    rows = [row for row in ops.CALLABLE_OPS if not row.composed and not row.in_vjps]
    return "\n".join([HEAD, *map(example_of, rows)]) + "\n"


def example_of(row: Op) -> str:
    """Return the line of a function's example, of which `write_example` makes what Python shows."""
    code = f"{row.in_xp}({ARGUMENTS.get(row.in_xp) or arguments_of(row)})"
    code = f"{code} - 1.0" if row.in_xp == "nextafter" else code
    result = eval(LIST.sub(r"np.array(\g<0>)", f"xp.{code}"), {"np": np, "xp": xp})
    equals = "~" if is_long(result) else "="
    printed = repr(np.round(result, DIGITS) if equals == "~" else result)
    if printed.startswith("array(["):
        printed = " ".join(printed.removeprefix("array(").removesuffix(")").split("\n       "))
    return f"{code} {equals} {printed}"


def arguments_of(row: Op) -> str:
    """Return operands inside of the row's domains, as source."""
    if row.result is reduced:
        return f"{TABLE}, axis=1"
    return ", ".join(str(numbers_of(row, i)) for i in range(len(row.operands)))


def numbers_of(row: Op, position: int) -> Any:
    if row.coerce == "bool" or row.operands[position] in ("mask", "condition"):
        return MASKS[position]
    if row.coerce == "int":
        return INTEGERS[position]
    domain = REALS if row.domain is None else row.domain
    domain = domain if isinstance(domain, Domain) else domain[position]
    return NUMBERS[domain][position]


def is_long(result: Any) -> bool:
    """Return whether a result prints with more digits than a reader wants."""
    given = np.asarray(result)
    if given.dtype.kind != "f" or not np.isfinite(given).all():
        return False
    rounded = np.round(given, DIGITS)
    return not np.array_equal(rounded, given) and bool(np.abs(given).max() > 10.0**-DIGITS)
