"""The document of vectors: plain JSON that any language reads; `schema.json` says what is where.

Columns that stand in several sets are written once, in `columns`, and named where they stand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ... import __name__ as package
from ...errors import suggest
from ...functions.function import Function
from ...functions.importers import convert
from ...graph.ops.kinks import kinks_of
from ...rules import estimators, registry
from ...rules.estimators.declared import Estimator
from ...rules.model.rule import Rule
from . import cases, discrete, functions
from .elementwise import FORMULAS, OF_OURS, OURS, Formula
from .functions import NoVectors
from .rounding import FORMATS
from .witness import library

Data = dict[str, Any]
FORMAT, VERSION = f"{package}-vectors", 1
LEAST = 8  # a shorter column stands where it is
OF_XP = "xp."


def every_subject() -> list[str]:
    """Return the names of all that the witness has a formula of: ops as `xp.softplus`."""
    ops = (name for name in (*FORMULAS, *discrete.ALL) if not name.startswith(OF_OURS))
    ours = (f"{OF_OURS}{name}" for name in OURS)
    return [*(f"{OF_XP}{name}" for name in ops), *registry.rules(), *ours]


def vectors_of(*objects: Any, dtypes: Sequence[str] | None = None) -> Data:
    """Return exact results of rules, ops and Functions as plain data, computed by mpmath and sympy.

    Examples:
        >>> from multigrad.testing import vectors
        >>> document = vectors("triangular", "xp.softplus", dtypes=["float32"])
        >>> [subject["name"] for subject in document["subjects"]]
        ['triangular', 'softplus']

    Args:
        objects: rules, by name or as they are, ops, as `xp.softplus`, and Functions whose forward
            is elementwise, or what `xg.convert` takes; all rules and ops, and Functions of
            one number among `xg.estimators`, if none is given.
        dtypes: of float16, bfloat16, float32 and float64; all, if none is given.

    Raises:
        NoVectors: there is no formula of it.
        TraceError: a Function has not been called, and its signature does not tell how to.
        MissingWitness: mpmath or sympy is not installed.
    """
    formats = read_dtypes(dtypes)
    return document_of([subject_of(each, formats) for each in objects or every_subject()])


def read_dtypes(names: Sequence[str] | None) -> Sequence[Any]:
    """Return the formats of numbers that are named, or all.

    Raises:
        NoVectors: there is none of a name.
    """
    for name in names or ():
        if name not in FORMATS:
            raise NoVectors(f"no dtype {name!r}; there are {', '.join(FORMATS)}")
    return cases.all_formats(names)


def document_of(subjects: Sequence[Data]) -> Data:
    """Return the document of subjects, whose columns it shares."""
    columns = _share(subjects)
    ops: list[str] = [str(s["name"]) for s in subjects if s["kind"] == "op"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "witness": {name: library(name).__version__ for name in ("mpmath", "sympy")},
        "conventions": _plain(kinks_of(cases.TABLE_NAMES.get(op, op) for op in ops)),
        "columns": columns,
        "subjects": subjects,
    }


def subject_of(obj: Any, formats: Sequence[Any]) -> Data:
    """Return the exact results of a rule, an op or a Function.

    Raises:
        NoVectors: there is no formula of it.
    """
    if isinstance(obj, Estimator) and obj is estimators.catalogue().get(obj.name):
        obj = f"{OF_OURS}{obj.name}" if obj.name in OURS else obj
    name = obj.removeprefix(OF_XP) if isinstance(obj, str) else ""
    if obj != name or name not in registry.rules():
        if name in FORMULAS:
            return _op(name, FORMULAS[name], formats)
        if name in discrete.ALL:
            return _discrete(name, formats)
    rule = obj
    if callable(obj) and not isinstance(obj, Rule):
        return _function(obj if isinstance(obj, Function) else convert(obj), formats)
    if isinstance(obj, str):
        if obj not in registry.rules():
            known = every_subject()
            raise NoVectors(f"no rule and no elementwise op is named {obj!r}{suggest(obj, known)}")
        rule = registry.get(obj)
    if not isinstance(rule, Rule) or rule.parts or cases.formula_of_or_none(rule.name) is None:
        raise NoVectors(
            f"the witness knows the formulas of the library's rules and of the elementwise ops, "
            f"and none of {obj!r}"
        )
    name = rule.name
    return {
        "name": name,
        "kind": "rule",
        "formula": cases.formula_of(name),
        "inputs": ["tin"],
        "sets": [s for f in formats for s in cases.rule_sets(name, rule.params, f)],
    }


def _op(name: str, formula: Formula, formats: Sequence[Any]) -> Data:
    return {
        "name": name.partition(",")[0].removeprefix(OF_OURS),
        "kind": "function" if name.startswith(OF_OURS) else "op",
        "formula": formula.value,
        "inputs": list(formula.operands),
        **({"attrs": formula.attrs} if formula.attrs else {}),
        "sets": [cases.op_set(name, format) for format in formats],
    }


def _function(function: Function, formats: Sequence[Any]) -> Data:
    chain = functions.chain_of(function)
    return {
        "name": chain.name,
        "kind": "function",
        "formula": chain.formula,
        "inputs": list(chain.inputs),
        "sets": functions.sets(chain, formats),
    }


def _discrete(name: str, formats: Sequence[Any]) -> Data:
    return {
        "name": name,
        "kind": "op",
        "formula": discrete.ALL[name][0],
        "inputs": list(discrete.operands_of(name)),
        "sets": discrete.sets(name, formats),
    }


def _plain(rows: Any) -> Any:
    """Return a table with its numbers as texts."""
    if isinstance(rows, dict):
        return {name: _plain(row) for name, row in rows.items()}
    if isinstance(rows, tuple | list):
        return [_plain(row) for row in rows]
    return cases.hex_of(rows) if isinstance(rows, float) else rows


# --- shared columns -------------------------------------------------------------------------------


def _share(subjects: Sequence[Data]) -> dict[str, list[Any]]:
    """Write columns that stand several times once, and their names where they stood."""
    seen: dict[str, int] = {}
    for holder, key in _places(subjects):
        text = json.dumps(holder[key])
        seen[text] = seen.get(text, 0) + 1
    names: dict[str, str] = {}
    for holder, key in _places(subjects):
        text = json.dumps(holder[key])
        if seen[text] > 1:
            holder[key] = names.setdefault(text, str(len(names)))
    return {name: json.loads(text) for text, name in names.items()}


def _places(subjects: Sequence[Data]) -> Iterator[tuple[Any, Any]]:
    """Yield where a column of some length stands: what holds it, and its key there."""
    for subject in subjects:
        for each in subject["sets"]:
            for key in ("cotangents", "results", "result_distances"):
                if isinstance(each[key], list) and len(each[key]) >= LEAST:
                    yield each, key
            for key in ("inputs", "gradients", "gradient_distances"):
                for i, column in enumerate(each[key]):
                    if isinstance(column, list) and len(column) >= LEAST:
                        yield each[key], i


def write(document: Data) -> str:
    """Return the text of a document: a set of cases stands on a line for each of its fields."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    for mark in ('"conventions":', '"columns":', '"subjects":', '{"name":', '{"dtype":'):
        text = text.replace(mark, f"\n{mark}")
    return f"{text}\n"


def open_columns(document: Data) -> Data:
    """Return a document with each column where it stands: what `vectors_of` did is undone."""
    columns = document["columns"]
    for subject in document["subjects"]:
        for each in subject["sets"]:
            for key in ("cotangents", "results", "result_distances"):
                each[key] = _opened(columns, each[key])
            for key in ("inputs", "gradients", "gradient_distances"):
                each[key] = [_opened(columns, column) for column in each[key]]
    return document


def _opened(columns: dict[str, list[Any]], column: Any) -> Any:
    return columns[column] if isinstance(column, str) else column
