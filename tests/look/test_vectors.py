"""Vectors: the witness's numbers are those of a formula by hand, and rules and ops keep to them."""

from __future__ import annotations

import functools
import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
import multigrad.testing

pytest.importorskip("mpmath")
pytest.importorskip("sympy")
from multigrad_conformance import vectors as shipped
from multigrad_conformance.oracles import settings
from multigrad_conformance.vectors import IN_LISTS, IN_SETS, NoVectors, read_document, write
from tests.harness.formats import fits
from tests.harness.hidden import python, run_python
from vectors.cases import formula_of_or_none, rule_sets
from vectors.document import vectors_of
from vectors.elementwise import OURS, Formula
from vectors.rounding import FORMATS
from vectors.rules import FACTORS, SAME, WHOLE
from vectors.witness import evaluate, functions_of

xp = xg.xp
SKIPPED = {"convention", "subnormal", "overflow", "kink"}
# Draws are given to a formula, and made of a key by a rule.
RULES = [
    name
    for name in xg.rules()
    if not {"uniform", "normal"} & {*re.findall(r"\w+", formula_of_or_none(name) or "uniform")}
]


def numbers(column: list[str]) -> Any:
    return np.array([float.fromhex(word) for word in column])


def open_columns(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with each shared column copied to where it is used."""
    columns = document["columns"]

    def opened(column: Any) -> Any:
        return columns[column] if isinstance(column, str) else column

    subjects = []
    for subject in document["subjects"]:
        sets = [
            {
                **each,
                **{key: opened(each[key]) for key in IN_SETS},
                **{key: [opened(column) for column in each[key]] for key in IN_LISTS},
            }
            for each in subject["sets"]
        ]
        subjects.append({**subject, "sets": sets})
    return {**document, "subjects": subjects}


ANGLE = 6 * math.pi  # the largest number on the way of a wave of two terms
WAVES = ("squarewave_fourier", "braintools.squarewave_fourier_series")


@functools.cache
def kept_subjects() -> list[dict[str, Any]]:
    return open_columns(read_document())["subjects"]


def test_the_tool_prints_the_vectors_of_what_is_named() -> None:
    tool = Path(__file__).parents[2] / "tools" / "vectors"
    printed = python(tool, "triangular", "xp.relu")
    assert printed == write(vectors_of("triangular", "xp.relu"))


def test_a_formula_may_be_infinite_and_a_word_that_it_does_not_know_is_named() -> None:
    value, slopes = functions_of(Formula("where(x < 0, -inf, where(x == 0, 0, -x * log(x)))"))
    float32 = FORMATS["float32"]
    ends = [evaluate(value, [x], float32) for x in (-math.inf, -1.0, 0.0, 1.0, math.inf)]
    assert ends == [-math.inf, -math.inf, 0, 0, -math.inf]
    assert evaluate(slopes[0], [1.0], float32) == -1
    with pytest.raises(NoVectors, match=r"'-oo [+] x' has oo, which is no word.*inf, lgamma"):
        functions_of(Formula("-oo + x"))


@pytest.mark.parametrize(
    ("tool", "called"),
    [
        ("vectors", "multigrad_conformance.vectors.write"),
        ("write_pages.py", "multigrad.command.options.prepare_environment"),
    ],
)
def test_a_tool_ends_in_one_line_at_an_interrupt(tool: str, called: str) -> None:
    module, _, name = called.rpartition(".")
    code = (
        f"import runpy, sys; sys.path[:0] = ['tools', 'tests/conformance']; import {module} as m\n"
        f"def stop(*_): raise KeyboardInterrupt\nm.{name} = stop\n"
        f"sys.argv = ['tool', 'xp.relu'][: 1 + ('vectors' in '{tool}')]\n"
        f"runpy.run_path('tools/{tool}', run_name='__main__')"
    )
    done = run_python("-c", code, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (130, "stopped\n")


def test_the_rules_with_vectors_are_those_with_a_formula() -> None:
    kept = {each["name"] for each in read_document()["subjects"] if each["kind"] == "rule"}
    texts, others = {*FACTORS, *SAME, *WHOLE}, {base for base, _ in SAME.values()}
    gone = texts - {*xg.rules()} - others
    assert not gone, "no rule has this name now: remove its formula from tools/vectors/rules.py"
    assert kept == texts & {*xg.rules()}, "type: python tools/vectors"


def test_a_triangle_is_that_of_fractions_rounded_once() -> None:
    (subject,) = open_columns(vectors_of("triangular", dtypes=["float64"]))["subjects"]
    (cases,) = subject["sets"]
    rows = zip(
        *(numbers(c) for c in (cases["inputs"][0], cases["cotangents"], cases["gradients"][0])),
        strict=True,
    )
    for x, g, found in rows:
        if math.isfinite(x) and math.isfinite(g):
            exact = Fraction(g) * max(Fraction(0), 1 - abs(Fraction(x)))
            assert found == float(exact), x


def test_a_document_says_what_it_is_and_reads_back() -> None:
    document = vectors_of("triangular", "xp.relu", dtypes=["float16"])
    again = json.loads(write(document))
    assert again == document
    assert (again["format"], again["version"]) == ("multigrad-vectors", 1)
    assert again["conventions"]["relu"]["at 0"]["derivative"] == ["0x0p+0"]
    relu = open_columns(again)["subjects"][1]["sets"][0]
    assert all(relu["gradients"][0][i] == "0x0p+0" for i in relu["flags"]["kink"])


def test_a_sample_of_the_kept_file_is_computed_again() -> None:
    assert shipped.FILE.stat().st_size < 3e5
    kept = kept_subjects()
    assert [each["name"] for each in kept if each["kind"] == "function"] == list(OURS)
    sample = ["gaussian", "swish_sign", "xp.silu", "xp.log1p", "xp.maximum", "xp.clip", "xp.less"]
    for again in open_columns(vectors_of(*sample, dtypes=["bfloat16"]))["subjects"]:
        same = [s for s in kept if (s["name"], s["kind"]) == (again["name"], again["kind"])]
        assert again["sets"] == [s for s in same[0]["sets"] if s["dtype"] == "bfloat16"]


@pytest.mark.parametrize("dtypes", [None, ["float32", "bfloat16"]])
def test_what_is_read_is_what_is_computed(dtypes: list[str] | None) -> None:
    names = (
        "triangular",
        "xp.gelu, approximate",
        "astype",
        "xp.bitwise_and",
        "estimators.ste_round",
    )
    read, computed = xg.testing.vectors(*names, dtypes=dtypes), vectors_of(*names, dtypes=dtypes)
    assert json.loads(write(read)) == read
    for each in (read, computed):
        each["columns"], each["subjects"] = {}, open_columns(each)["subjects"]
    assert read == computed


def test_rules_and_functions_of_the_library_are_read_by_themselves() -> None:
    ours = xg.estimators.ste_round
    read = xg.testing.vectors(xg.get("triangular"), ours, dtypes=["float16"])
    assert read == xg.testing.vectors("triangular", "estimators.ste_round", dtypes=["float16"])
    assert [each["kind"] for each in read["subjects"]] == ["rule", "function"]
    for other in (xg.get("triangular").with_params(width=2.0), xg.function(xp.tanh)):
        with pytest.raises(NoVectors, match="tools/vectors in a clone of multigrad"):
            xg.testing.vectors(other)


def test_the_kept_file_fits_the_schema() -> None:
    schema = json.loads((Path(shipped.__file__).parent / "vectors.schema.json").read_text())
    data = read_document()
    assert fits(data, schema, schema)
    first = data["subjects"][0]
    for wrong in ({"kind": "o"}, {"sets": [{**first["sets"][0], "results": ["0.5"]}]}):
        assert not fits({**data, "subjects": [{**first, **wrong}]}, schema, schema), wrong


# --- Functions ------------------------------------------------------------------------------------


def mixed(x: Any, y: Any, scale: float = 2.0) -> Any:
    return xp.where(x > 0.5, xp.elu(x) * scale, xp.exp(y) / 3.0) + abs(x) * (x > y)


def test_a_function_of_elementwise_ops_has_the_derivative_of_its_forward() -> None:
    function = xg.function(mixed)
    (subject,) = open_columns(vectors_of(function, dtypes=["float64"]))["subjects"]
    assert (subject["kind"], subject["inputs"]) == ("function", ["x", "y"])
    assert "v3 = x > 0.5; " in subject["formula"]
    (cases,) = subject["sets"]
    inputs = [numbers(column) for column in cases["inputs"]]
    y, pull = xg.vjp(function, *inputs)
    np.testing.assert_allclose(y, numbers(cases["results"]), 1e-13)
    for found, column in zip(pull(numbers(cases["cotangents"])), cases["gradients"], strict=True):
        np.testing.assert_allclose(found, numbers(column), 1e-13)
    zeros = [i for i, x in enumerate(inputs[0]) if x == 0]
    assert cases["flags"]["kink"] == zeros  # of abs


def test_a_wrong_backward_does_not_enter_the_vectors_of_its_forward() -> None:
    wrong = xg.function(lambda x: x * x, lambda grad_out, x: grad_out * x)
    (cases,) = open_columns(vectors_of(wrong, dtypes=["float64"]))["subjects"][0]["sets"]
    slopes = numbers(cases["gradients"][0]) / numbers(cases["cotangents"])
    np.testing.assert_allclose(slopes, 2 * numbers(cases["inputs"][0]), 1e-15, 1e-300)


@pytest.mark.parametrize("name", OURS)
def test_a_function_of_ours_gives_the_exact_numbers_within_the_design(name: str) -> None:
    function = xg.estimators.catalogue()[name]
    (subject,) = open_columns(vectors_of(function, dtypes=["float32"]))["subjects"]
    (cases,) = subject["sets"]
    x, g = (numbers(c).astype(np.float32) for c in (cases["inputs"][0], cases["cotangents"]))
    with np.errstate(all="ignore"):
        y, pull = xg.vjp(function, x)
        pairs = zip((y, pull(g)[0]), (cases["results"], cases["gradients"][0]), strict=True)
        for found, column in pairs:
            want = numbers(column)
            close = np.abs(found - want) <= 4 * 2.0**-23 * np.fmax(5, np.abs(want))
            wrong = ~(close | (found == want) | (np.isnan(found) & np.isnan(want)))
            left_out = cases["flags"].get("convention", [])
            assert not [(name, x[i]) for i in np.flatnonzero(wrong) if i not in left_out]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (xg.estimators.lsq, "'lsq' is meant to differ from its forward's derivative"),
        (xg.function(lambda x: xp.sum(x)), "uses 'sum' .* of which the witness has no formula"),
        (xg.function(lambda x: (x, 2 * x)), "has 2 outputs, and not one"),
    ],
)
def test_a_function_without_a_witness_is_refused(function: Any, message: str) -> None:
    with pytest.raises(NoVectors, match=message):
        vectors_of(function)


def test_what_has_no_formula_is_refused_by_name() -> None:
    for of in (vectors_of, xg.testing.vectors):
        with pytest.raises(NoVectors, match="no rule and no elementwise op is named 'triangluar'"):
            of("triangluar")
        with pytest.raises(NoVectors, match="no dtype 'float8'"):
            of("triangular", dtypes=["float8"])


@pytest.mark.parametrize("name", RULES)
def test_rules_give_the_exact_numbers_within_the_design(name: str) -> None:
    """The numbers that are kept, for the defaults; those of the same text, for other params."""
    kept = next(s for s in kept_subjects() if (s["kind"], s["name"]) == ("rule", name))
    assert kept["formula"] == formula_of_or_none(name), "type: python tools/vectors"
    float32, rule = FORMATS["float32"], xg.get(name)
    defaults = [each for each in kept["sets"] if each["dtype"] == "float32"]
    floats = [{k: v for k, v in p.items() if isinstance(v, float)} for p in settings(rule)[:1]]
    others = ((p, rule_sets(name, {**rule.params, **p}, float32)) for p in floats)
    for params, each in [(p, s) for p, sets in (({}, defaults), *others) for s in sets]:
        shape = each.get("shape", [-1])
        x, g = (numbers(c).astype(np.float32) for c in (each["inputs"][0], each["cotangents"]))
        with np.errstate(all="ignore"):
            bound = rule.with_params(**params)
            found = bound(None, g.reshape(shape), x.reshape(shape)).ravel()
            want = numbers(each["gradients"][0])
            peak = np.abs(g) * ANGLE if name in WAVES else np.fmax(np.abs(g), np.abs(want))
            limit = 4 * 2.0**-23 * peak + 2.0**-126
            same = (found == want) | (np.isnan(found) & np.isnan(want))
            wrong = ~(same | (np.abs(found - want) <= limit))
        left_out = {i for flag in SKIPPED for i in each["flags"].get(flag, ())}
        rows = [(x[i], g[i], found[i], want[i]) for i in np.flatnonzero(wrong) if i not in left_out]
        assert not rows, (
            f"{name}({params}) in multigrad/core/rules/library is not {kept['formula']!r} of "
            f"tools/vectors/rules.py: (tin, grad_out, rule, formula): {rows[:5]}"
        )
