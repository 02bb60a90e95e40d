"""The example of each function of `xg.xp` that is made from a row of the op table, as source.

Operands are taken from the row's domain and kind, and the result is what its meaning in NumPy
gives: an example is true when it is written, and a test runs it.
"""

from __future__ import annotations

import re
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

DIGITS = 4
MOST_CHARACTERS = 88  # of a line of code
ARRAY = re.compile(r"np\.array\(\[[^()]*\]\)")
HEAD = "# The examples of `ops.py`, written by `python tools/write_sources.py`."
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
TABLE = "np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]])"
TIES = "np.array([[3.0, 1.0], [4.0, 4.0]])"
MATRIX = "np.array([[4.0, 2.0], [2.0, 3.0]])"
# Arguments that the row does not tell: shapes that fit each other, attributes without a default.
ARGUMENTS = {
    "matmul": f"{MATRIX}, np.array([[1.0], [2.0]])",
    "sum_to": f"{TABLE}, np.zeros((2, 1))",
    "reshape_like": f"{TABLE}, np.zeros(6)",
    "squeeze": "np.array([[1.0, 2.0]])",
    "expand_dims": "np.array([1.0, 2.0])",
    "swapaxes": f"{TABLE}, 0, 1",
    "moveaxis": f"{TABLE}, 0, -1",
    "flip": "np.array([1.0, 2.0, 3.0])",
    "threshold": "np.array([-1.5, 0.5, 2.0]), 1.0, -9.0",
    "glu": "np.array([1.0, 2.0, 0.0, -1.0])",
    "nextafter": "np.array([1.0]), np.array([2.0])",
    "isnan": "np.array([1.0, np.nan, np.inf])",
    "isinf": "np.array([1.0, np.nan, np.inf])",
    "isfinite": "np.array([1.0, np.nan, np.inf])",
    "signbit": "np.array([-1.0, -0.0, 0.0])",
    "fmax": "np.array([1.0, np.nan]), np.array([2.0, 3.0])",
    "fmin": "np.array([1.0, np.nan]), np.array([2.0, 3.0])",
    "equal": "np.array([0.0, 1.0]), np.array([-0.0, 2.0])",
    "not_equal": "np.array([0.0, np.nan]), np.array([-0.0, np.nan])",
    "sinc": "np.array([-0.5, 0.0, 0.5])",
    "lgamma": "np.array([-1.5, 0.5, 3.0])",
    "any": "np.array([[True, False], [False, False]]), axis=1",
    "all": "np.array([[True, True], [True, False]]), axis=1",
    "rad2deg": "np.array([0.0, np.pi])",
    "deg2rad": "np.array([0.0, 180.0])",
    **dict.fromkeys(
        ("det", "inv", "pinv", "expm", "cholesky", "logabsdet", "signdet", "svdvals", "eigvalsh"),
        MATRIX,
    ),
    **dict.fromkeys(("sort", "argsort"), "np.array([3.0, 1.0, 2.0])"),
    **dict.fromkeys(("softmax", "log_softmax"), "np.array([0.0, 1.0, 1.0])"),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), "np.array([1.0, 3.0, 2.0])"),
    **dict.fromkeys(("argmax", "argmin", "argmax_mask", "argmin_mask"), f"{TIES}, axis=1"),
}


def render_examples() -> str:
    rows = [row for row in ops.CALLABLE_OPS if not row.composed and not row.in_vjps]
    return "\n\n".join([HEAD, *map(example_of, rows)]) + "\n"


def example_of(row: Op) -> str:
    """Return a function's example: the call, and what it prints."""
    code = f"xp.{row.in_xp}({ARGUMENTS.get(row.in_xp) or arguments_of(row)})"
    code = f"{code} - 1.0" if row.in_xp == "nextafter" else code
    if is_long(evaluate(code)):
        code = f"np.round({code}, {DIGITS})"
    printed = repr(evaluate(code))
    if len(code) > MOST_CHARACTERS:
        array = ARRAY.findall(code)[0]
        code = f"x = {array}\n>>> {code.replace(array, 'x', 1)}"
    return f">>> {code}\n{printed}"


def arguments_of(row: Op) -> str:
    """Return operands inside of the row's domains, as source."""
    if row.result is reduced:
        return f"{TABLE}, axis=1"
    return ", ".join(f"np.array({numbers_of(row, i)})" for i in range(len(row.operands)))


def numbers_of(row: Op, position: int) -> Any:
    if row.coerce == "bool" or row.operands[position] in ("mask", "condition"):
        return MASKS[position]
    if row.coerce == "int":
        return INTEGERS[position]
    domain = REALS if row.domain is None else row.domain
    domain = domain if isinstance(domain, Domain) else domain[position]
    return NUMBERS[domain][position]


def evaluate(source: str) -> Any:
    return eval(source, {"np": np, "xp": xp})


def is_long(result: Any) -> bool:
    """Return whether a result prints with more digits than a reader wants."""
    given = np.asarray(result)
    if given.dtype.kind != "f" or not np.isfinite(given).all():
        return False
    rounded = np.round(given, DIGITS)
    return not np.array_equal(rounded, given) and bool(np.abs(given).max() > 10.0**-DIGITS)
