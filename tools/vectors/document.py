"""The document of vectors, computed: columns that stand in several sets are written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from multigrad import __name__ as package
from multigrad import estimators
from multigrad.core.rules import registry
from multigrad.core.rules.rule import Rule
from multigrad.engine.functions.documents.versions import kinks_of
from multigrad.engine.functions.function import Function
from multigrad.engine.functions.importers import convert
from multigrad.errors import suggest
from multigrad.estimators.declared import Estimator
from multigrad_conformance.vectors import OF_OURS, OF_XP, TABLE_NAMES, NoVectors, read_dtypes

from . import cases, discrete, functions
from .elementwise import FORMULAS, OURS
from .rounding import FORMATS
from .witness import library

Data = dict[str, Any]
FORMAT, VERSION = f"{package}-vectors", 1
LEAST = 8  # a shorter column stands where it is
SOME = 20  # subjects between two lines of progress


def every_subject() -> list[str]:
    """Return the names of all that the witness has a formula of: ops as `xp.softplus`."""
    ops = (name for name in (*FORMULAS, *discrete.ALL) if not name.startswith(OF_OURS))
    ours = (f"{OF_OURS}{name}" for name in OURS)
    known = (name for name in registry.rules() if cases.formula_of_or_none(name) is not None)
    return [*(f"{OF_XP}{name}" for name in ops), *known, *ours]


def vectors_of(
    *objects: Any,
    dtypes: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Data:
    """Return exact results of rules, ops and Functions as plain data, computed by mpmath and sympy.

    Args:
        objects: rules, by name or as they are, ops, as `xp.softplus`, and Functions whose forward
            is elementwise, or what `xg.convert` takes; all rules and ops, and Functions of
            one number among `xg.estimators`, if none is given.
        dtypes: of float16, bfloat16, float32 and float64; all, if none is given.
        progress: is told how many are computed, now and then.

    Raises:
        NoVectors: there is no formula of it.
        TraceError: a Function has not been called, and its signature does not tell how to.
        ImportError: mpmath or sympy is not installed.
    """
    formats = [FORMATS[name] for name in read_dtypes(dtypes) or FORMATS]
    subjects, wanted = [], objects or every_subject()
    for i, each in enumerate(wanted):
        if progress is not None and i % SOME == 0:
            progress(f"{i} of {len(wanted)} computed")
        subjects.append(subject_of(each, formats))
    columns = _share(subjects)
    ops: list[str] = [str(s["name"]) for s in subjects if s["kind"] == "op"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "witness": {name: library(name).__version__ for name in ("mpmath", "sympy")},
        "conventions": _plain(kinks_of(TABLE_NAMES.get(op, op) for op in ops)),
        "columns": columns,
        "subjects": subjects,
    }


def subject_of(obj: Any, formats: Sequence[Any]) -> Data:
    if isinstance(obj, Estimator) and obj is estimators.catalogue().get(obj.name):
        obj = f"{OF_OURS}{obj.name}" if obj.name in OURS else obj
    name = obj.removeprefix(OF_XP) if isinstance(obj, str) else ""
    if obj != name or name not in registry.rules():
        if name in FORMULAS:
            formula, sets = FORMULAS[name], [cases.op_set(name, format) for format in formats]
            kind = "function" if name.startswith(OF_OURS) else "op"
            attrs = {"attrs": formula.attrs} if formula.attrs else {}
            name = name.partition(",")[0].removeprefix(OF_OURS)
            return _subject(name, kind, formula.value, formula.operands, sets, **attrs)
        if name in discrete.ALL:
            operands, sets = discrete.operands_of(name), discrete.sets(name, formats)
            return _subject(name, "op", discrete.ALL[name][0], operands, sets)
    rule = obj
    if callable(obj) and not isinstance(obj, Rule):
        chain = functions.chain_of(obj if isinstance(obj, Function) else convert(obj))
        sets = [functions.set_of(chain, format) for format in formats]
        return _subject(chain.name, "function", chain.formula, chain.inputs, sets)
    if isinstance(obj, str):
        if obj not in registry.rules():
            known = every_subject()
            raise NoVectors(f"no rule and no elementwise op is named {obj!r}{suggest(obj, known)}")
        rule = registry.get(obj)
    if not isinstance(rule, Rule) or rule.parts or cases.formula_of_or_none(rule.name) is None:
        raise NoVectors(
            f"there is no formula of {obj!r}: of the library's rules they are in "
            f"tools/vectors/rules.py, of elementwise ops in tools/vectors/elementwise.py"
        )
    sets = [s for f in formats for s in cases.rule_sets(rule.name, rule.params, f)]
    return _subject(rule.name, "rule", cases.formula_of(rule.name), ["tin"], sets)


def _subject(
    name: str, kind: str, formula: str, inputs: Sequence[str], sets: list[Data], **attrs: Any
) -> Data:
    head = {"name": name, "kind": kind, "formula": formula, "inputs": list(inputs)}
    return {**head, **attrs, "sets": sets}


def _plain(rows: Any) -> Any:
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
