"""The vectors that are kept, as arrays: what the elementwise ops and their gradients are by the
witness, which is neither the op table nor calculus by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..oracles import finfo
from ..vectors import read_document

Array = Any
Wide = Any  # an array of long doubles


@dataclass(frozen=True, slots=True)
class Exact:
    """The cases of an op in a dtype.

    Attributes:
        result, slopes: the value, and for each operand the derivative, to a thousandth of a unit
            in the last place.
    """

    operands: tuple[Array, ...]
    result: Wide
    slopes: tuple[Wide, ...]


@cache
def _document() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the columns that are shared, and the ops by name."""
    document = read_document()
    found = {}
    for subject in document["subjects"]:
        if subject["kind"] == "op":
            more = ", approximate" if subject.get("attrs", {}).get("approximate") else ""
            found[subject["name"] + more] = subject
    return document["columns"], found


def names_of(count: int) -> list[str]:
    """Return the ops of so many operands that have a gradient in the dtype of their result."""
    _, ops = _document()
    rows = ops.items()
    return [
        name
        for name, row in rows
        if len(row["inputs"]) == count and row["sets"][0]["gradients"] and name != "astype"
    ]


def operands_of(name: str) -> list[str]:
    _, ops = _document()
    return ops[name]["inputs"]


@cache
def exact(name: str, dtype: Any) -> Exact:
    """Return the cases of an op in a dtype."""
    columns, ops = _document()
    (own,) = (each for each in ops[name]["sets"] if each["dtype"] == np.dtype(dtype).name)

    def opened(column: Any) -> Any:
        return columns[column] if isinstance(column, str) else column

    def read(column: Any) -> Array:
        return np.array([float.fromhex(word) for word in opened(column)])

    def unrounded(column: Any, distances: Any) -> Wide:
        rounded = read(column)
        off = np.asarray(opened(distances)) / np.longdouble(1000)
        return rounded + off * _unit(rounded, dtype)

    cotangents = read(own["cotangents"]).astype(np.longdouble)
    pairs = zip(own["gradients"], own["gradient_distances"], strict=True)
    return Exact(
        tuple(read(c).astype(dtype) for c in own["inputs"]),
        unrounded(own["results"], own["result_distances"]),
        tuple(unrounded(*pair) / cotangents for pair in pairs),
    )


def _unit(rounded: Array, dtype: Any) -> Wide:
    """Return the unit in the last place of each number; 0 of what is not finite."""
    info, ones = finfo(dtype), np.ones_like(rounded, np.longdouble)
    least = np.longdouble(info.smallest_normal) * np.longdouble(info.eps)
    _, exponents = np.frexp(np.where(np.isfinite(rounded), rounded, 0))
    near = np.ldexp(ones, exponents - 1) * np.longdouble(info.eps)
    return np.where(np.isfinite(rounded), np.fmax(np.where(rounded == 0, 0, near), least), 0)
