"""Exact results of rules, ops and Functions as data, computed by `tools/vectors`: plain JSON for
any language; `vectors.schema.json` specifies it. `multigrad.testing.vectors` is the public name.

The document that ships is packed: columns that several sets share are in `columns`, by name.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from multigrad.core.rules import registry
from multigrad.core.rules.rule import Rule
from multigrad.errors import MultigradError, suggest
from multigrad.estimators.declared import Estimator, catalogue

Data = dict[str, Any]
FILE = Path(__file__).with_name("vectors.json.xz")
DTYPES = ("float16", "bfloat16", "float32", "float64")
NO_FLOATS = ("bool", "int32")  # the one dtype of an op of masks or integers
OF_XP, OF_OURS = "xp.", "estimators."
# Ops whose name in `xp` differs from that in the table of ops.
TABLE_NAMES = {"divide": "div", "astype": "cast"}
IN_SETS = ("cotangents", "results", "result_distances")
IN_LISTS = ("inputs", "gradients", "gradient_distances")


class NoVectors(MultigradError, ValueError):
    """There is no exact result of an object, or in a dtype."""


def vectors_of(*objects: Any, dtypes: Sequence[str] | None = None) -> Data:
    """Return the part of the document that is about some objects, in some dtypes."""
    chosen_dtypes = (*read_dtypes(dtypes), *NO_FLOATS)
    document = read_document()
    subjects_by_name = {name_of(subject): subject for subject in document["subjects"]}
    names = [find_name(each, subjects_by_name) for each in objects] or list(subjects_by_name)
    subjects = [
        {**row, "sets": [s for dtype in chosen_dtypes for s in row["sets"] if s["dtype"] == dtype]}
        for row in map(subjects_by_name.__getitem__, names)
    ]
    used_columns = {column for subject in subjects for column in _columns_of(subject)}
    ops = {TABLE_NAMES.get(s["name"], s["name"]) for s in subjects if s["kind"] == "op"}
    return {
        **document,
        "conventions": {op: row for op, row in document["conventions"].items() if op in ops},
        "columns": {name: row for name, row in document["columns"].items() if name in used_columns},
        "subjects": subjects,
    }


@cache
def read_document() -> Data:
    """Return the document that ships, cached and shared: callers must not change it."""
    return json.loads(lzma.decompress(FILE.read_bytes()))


def read_dtypes(names: Sequence[str] | None) -> Sequence[str]:
    for name in names or ():
        if name not in DTYPES:
            raise NoVectors(f"no dtype {name!r}; there are {', '.join(DTYPES)}")
    return names or DTYPES


def name_of(subject: Data) -> str:
    """Return the name of a subject: an op as `xp.softplus`, a Function as `estimators.x`."""
    suffix = ", approximate" if subject.get("attrs", {}).get("approximate") else ""
    prefix = {"op": OF_XP, "function": OF_OURS, "rule": ""}[subject["kind"]]
    return f"{prefix}{subject['name']}{suffix}"


def find_name(obj: Any, known: Collection[str]) -> str:
    """Return the name of a rule, an op or a Function of the library."""
    name = obj
    # The library's own object, not a user's rule of the same name.
    if isinstance(obj, Rule) and obj.name in registry.rules() and registry.get(obj.name) is obj:
        name = obj.name
    elif isinstance(obj, Estimator) and catalogue().get(obj.name) is obj:
        name = f"{OF_OURS}{obj.name}"
    for each in (name, f"{OF_XP}{name}"):
        if each in known:
            return each
    if isinstance(obj, str) and obj not in registry.rules():
        raise NoVectors(f"no rule and no elementwise op is named {obj!r}{suggest(obj, known)}")
    raise NoVectors(
        f"the vectors that ship are of the library's rules, ops and Functions, and none of "
        f"{obj!r}; tools/vectors in a clone of multigrad's repository computes others"
    )


def _columns_of(subject: Data) -> Iterator[str]:
    # A string is the name of a shared column; a list is a column itself.
    for each in subject["sets"]:
        columns = [each[key] for key in IN_SETS]
        columns += [column for key in IN_LISTS for column in each[key]]
        yield from (column for column in columns if isinstance(column, str))


def write(document: Data) -> str:
    """Return the text of a document, with a line for each field of a set of cases."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # Line breaks at these fields keep diffs of the document small.
    for mark in ('"conventions":', '"columns":', '"subjects":', '{"name":', '{"dtype":'):
        text = text.replace(mark, f"\n{mark}")
    return f"{text}\n"
