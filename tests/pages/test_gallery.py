"""The gallery: one page that asks nothing of anybody, whose JavaScript computes what NumPy does."""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.rules.rule_names import OWN
from multigrad.look.curves import observe
from pages.gallery.cards import Card, choose_arguments, make_cards
from pages.gallery.javascript import LACKING, REDUCTIONS, ROWS, RUNTIME, emit, fill
from pages.gallery.page import render_gallery
from pages.gallery.snippets import read_snippets
from pages.gallery.svg import draw_svg

from ..harness.formats import Markup
from ..harness.hidden import python

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="node, which runs JavaScript, is not installed"
)


def run_node(tmp_path: Path, program: str) -> Any:
    """Return what a program logs as JSON, with words for what JSON lacks."""
    path = tmp_path / "program.js"
    path.write_text(f"{RUNTIME.read_text()}\n{program}", encoding="utf-8")
    result = subprocess.run(["node", str(path)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


TOLD = """
const words = (_, x) => (typeof x !== "number" || Number.isFinite(x) ? x : String(x));
console.log(JSON.stringify(results, words));
"""


def as_numbers(row: Any) -> np.ndarray:
    return np.array([float(x) for x in row])


TOOL = Path(__file__).parents[2] / "tools" / "write_gallery.py"
MOST_BYTES = 3_000_000
# Their pictures stand still: they need more than one axis, or are not drawn over what they have a
# gradient for.
HAVE_CODE = {"torch", "jax", "tensorflow", "keras"}
WITHOUT_SCRIPT = {"estimators.gumbel_softmax", "estimators.n2uq", "estimators.replace_grad"}
OF_VECTORS = {"estimators.rotation_trick", "estimators.straight_through", "estimators.vq"}


@pytest.fixture(scope="module")
def every_card() -> list[Card]:
    return [card for card in make_cards() if card.described.family]


@pytest.fixture(scope="module")
def cards(every_card: list[Card]) -> list[Card]:
    """The cards of the library's rules; those that other tests have registered may be anything."""
    return [card for card in every_card if card.described.kind == "rule"]


@pytest.fixture(scope="module")
def of_functions(every_card: list[Card]) -> list[Card]:
    return [card for card in every_card if card.described.kind == "estimator"]


@pytest.fixture(scope="module")
def page() -> str:
    return render_gallery()


def library_rules() -> set[str]:
    return {name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)}


# --- the page -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def read(page: str) -> Markup:
    return Markup(page)


def test_the_page_is_one_balanced_document_of_moderate_size(page: str, read: Markup) -> None:
    assert read.open == []
    assert page.startswith("<!doctype html>")
    assert len(page.encode()) <= MOST_BYTES
    assert "$" not in re.sub(r"\$\{|\$/", "", page.partition("<script>\n")[0])


def test_the_page_asks_nothing_of_anybody(page: str, read: Markup) -> None:
    addresses = [value for name, value in read.attributes if name in ("src", "href", "action")]
    assert all(value and value.startswith(("#", "data:,")) for value in addresses)
    for word in ("url(", "@import", "import(", "fetch(", "XMLHttpRequest", "WebSocket", "http:"):
        assert word not in page
    assert "https:" not in page
    assert "default-src 'none'" in page


def test_every_rule_has_a_card_with_what_is_said_of_it(
    page: str, cards: list[Card], of_functions: list[Card]
) -> None:
    assert {card.described.name for card in cards} == library_rules()
    assert {card.described.name for card in of_functions} == set(xg.estimators.catalogue())
    assert page.count('<article class="card"') >= len(cards) + len(of_functions)
    for name in ("triangular", "snntorch.SSO", "d(ReLU)"):
        _, _, rest = page.partition(f'data-name="{name}"')
        card = rest.partition("</article>")[0]
        assert "<svg" in card and f'rule="{name}"' not in card
        assert not HAVE_CODE or f"&quot;{name}&quot;" in card
        assert ("Params" in card) == bool(xg.get(name).params)


def test_rules_of_yours_stay_words_and_may_have_no_picture(page: str) -> None:
    @xg.register("gallery<script>alert(1)</script>")
    def hostile(ctx: Any, grad_out: Any, tin: Any, gain: float = 1.0) -> Any:
        """grad_out * gain </script><img src="x"> `</code>`. Source: <b>."""
        return grad_out * gain

    @xg.register("gallery_needy")
    def needy(ctx: Any, grad_out: Any, tin: Any, gain: float) -> Any:
        """grad_out * gain."""
        return grad_out * gain

    other = render_gallery()
    assert other.count("<script>") == page.count("<script>")
    assert other.count("</script>") == page.count("</script>")
    assert "<img" not in other and "<b>" not in other
    card = other.partition('data-name="gallery_needy"')[2].partition("</article>")[0]
    assert "It cannot be drawn: rule &#x27;gallery_needy&#x27; needs a value for param" in card
    assert "gain (required)" in card and "<details>" not in card


def test_every_elementwise_rule_moves(every_card: list[Card], cards: list[Card]) -> None:
    still = {card.key for card in every_card if not card.script}
    assert still == WITHOUT_SCRIPT | OF_VECTORS
    assert {card.key for card in every_card if card.picture is None} == OF_VECTORS
    for card in cards:
        names = {slider.name for slider in card.sliders}
        floats = {p.name for p in card.described.params if type(p.default) is float}
        assert {name for name in floats if xg.get(card.key).params[name] > 1e-3} <= names, card.key


def test_a_picture_shows_a_jump_as_a_gap() -> None:
    from multigrad.look.pictures import make_picture

    svg = draw_svg(make_picture("rectangular"))
    (path,) = re.findall(r'<path class="curve c0 surrogate" d="([^"]*)"', svg)
    assert path.count("M") == 3
    assert not re.search(r"[MLHV](nan|inf)|NaN", svg)


def test_code_to_copy_names_the_rule_and_parses(every_card: list[Card]) -> None:
    for card in every_card:
        assert card.code.keys() == read_snippets().keys() == HAVE_CODE
        for text in card.code.values():
            compile(text, card.described.name, "exec")
            name = card.described.name
            assert (f'"{name}"' if card.described.kind == "rule" else f"s.{name}") in text
            assert max(map(len, text.splitlines()[:-1])) <= 120


@pytest.mark.parametrize(
    "framework", [pytest.param(each, marks=pytest.mark.needs(each)) for each in read_snippets()]
)
def test_code_to_copy_runs(
    cards: list[Card], of_functions: list[Card], framework: str, tmp_path: Path, capsys: Any
) -> None:
    names = {"triangular", "positive_jam", "noise", "lsq", "vq"}
    for card in [card for card in (*cards, *of_functions) if card.described.name in names]:
        path = tmp_path / f"{card.key.replace('.', '_')}.py"
        path.write_text(card.code[framework], encoding="utf-8")
        runpy.run_path(str(path))
        assert framework == "keras" or capsys.readouterr().out.strip()


# --- the numbers --------------------------------------------------------------------------------


def settings(card: Card) -> list[dict[str, Any]]:
    """Return two settings of a rule's params: the defaults, and others in their ranges."""
    rule = xg.get(card.described.name)
    other = {}
    for slider in card.sliders:
        value = 0.5 * (slider.value + slider.high)
        value = max(slider.value + 1, math.floor(value)) if slider.is_whole else value
        known = {**rule.params, **other, slider.name: value}
        if slider.name not in rule.ranges or rule.ranges[slider.name].holds(value, known):
            other[slider.name] = value
    return [{}, other]


@needs_node
def test_the_page_computes_what_numpy_does_for_every_rule(
    cards: list[Card], tmp_path: Path
) -> None:
    edges = [0.0, 0.25, 0.5, 1.0, 2.0, 3.7, 5.0, 30.0]
    tin = np.array(sorted({*edges, *(-x for x in edges), 0.499, -0.251}))
    grad_out = np.linspace(-2.0, 2.0, len(tin))
    wanted, calls = [], []
    for card in cards:
        rule = xg.get(card.described.name)
        if not card.script or observe(rule, {}).is_random:
            continue
        for params in settings(card):
            expected = rule(None, grad_out, tin, **params)
            wanted.append((card.described.name, params, expected))
            inputs = {**{k: v for k, v in rule.params.items() if v is not None}, **params}
            call = {**inputs, "grad_out": grad_out.tolist(), "tin": tin.tolist()}
            calls.append(f"[{card.script}, {json.dumps(call)}]")
    program = f"""
const calls = [{",".join(calls)}];
const results = calls.map(([card, p]) => {{
  const result = card.f[card.whole ? String(p[card.whole]) : ""](p, seeded(1));
  return Array.isArray(result) ? result : p.grad_out.map(() => result);
}});
"""
    results = run_node(tmp_path, program + TOLD)
    assert len(results) == len(wanted) > 200
    for (name, params, expected), found in zip(wanted, results, strict=True):
        np.testing.assert_allclose(
            as_numbers(found), expected, rtol=1e-12, atol=1e-15, err_msg=f"{name} {params}"
        )


@needs_node
def test_the_page_computes_what_numpy_does_for_every_estimator(
    of_functions: list[Card], tmp_path: Path
) -> None:
    wanted, calls = [], []
    x = np.linspace(-2.3, 2.6, 50)
    for card in of_functions:
        picture = card.picture
        if not card.script or picture is None or "one draw" in picture.title:
            continue
        function = xg.estimators.catalogue()[card.described.name]
        for params in (choose_arguments(function), moved(card, choose_arguments(function))):
            outputs, pull = xg.vjp(function.bind(params), x)
            wanted.append((card.key, params, outputs, pull(np.ones_like(x))[0]))
            numbers = {k: v for k, v in params.items() if isinstance(v, float | int)}
            first = function.arguments[0].name
            given = {**numbers, first: x.tolist(), "grad_out": [1.0] * len(x)}
            calls.append(f"[{card.script}, {json.dumps(given)}]")
    program = f"""
const results = [{",".join(calls)}].map(([card, p]) =>
  card.f[card.whole ? String(p[card.whole]) : ""].map((f) => {{
    const result = f(p, seeded(1));
    return Array.isArray(result) ? result : p[card.input].map(() => result);
  }}));
"""
    results = run_node(tmp_path, program + TOLD)
    assert len(results) == len(wanted) > 30
    for (name, params, *expected), found in zip(wanted, results, strict=True):
        for one, other in zip(expected, found, strict=True):
            told = f"{name} {params}"
            np.testing.assert_allclose(as_numbers(other), one, 1e-12, 1e-15, err_msg=told)


def moved(card: Card, params: dict[str, Any]) -> dict[str, Any]:
    """Return params with an integer that is one more, and floats that are a little more."""
    by_name = {slider.name: slider for slider in card.sliders}
    return {
        name: (value + 1 if by_name[name].is_whole else value + 0.1 * (by_name[name].high - value))
        if name in by_name
        else value
        for name, value in params.items()
    }


@needs_node
def test_the_page_draws_what_stands_in_it(every_card: list[Card], tmp_path: Path) -> None:
    still = [
        card
        for card in every_card
        if card.script and card.picture and "one draw" not in card.picture.title
    ]
    page = RUNTIME.with_name("gallery.js").read_text()
    program = f"""
const results = [{",".join(card.script for card in still)}].map((card) => {{
  const curves = curvesOf(card, card.params);
  const axes = drawAxes(...scalesOf(curves, card.over === "vector")).join("");
  const lines = curves.map((curve) => linePath(curve.points, (x) => x, (y) => y).split("M").length);
  return [axes.match(/(?<=>)[^<>]+/g), Math.max(...lines)];
}});
"""
    for card, (ticks, parts) in zip(still, run_node(tmp_path, page + program + TOLD), strict=True):
        svg = draw_svg(card.picture)
        assert ticks == re.findall(r'class="tick[^>]*>([^<]*)<', svg), card.described.name
        if card.picture.over != "vector":
            drawn = re.findall(r'<path class="[cfu][^>]* d="([^"]*)"', svg)
            assert parts - 1 == max(path.count("M") for path in drawn), card.described.name


@needs_node
def test_random_rules_draw_from_where_theirs_do(cards: list[Card], tmp_path: Path) -> None:
    random = [card for card in cards if observe(xg.get(card.described.name), {}).is_random]
    assert {card.described.name for card in random} >= {"full_jam", "noise", "stochastic_spike"}
    count = 20_000
    calls = ",".join(card.script for card in random)
    program = f"""
const results = [{calls}].map((card) => {{
  const p = {{...card.params, grad_out: Array({count}).fill(1), tin: Array({count}).fill(-0.5)}};
  const drawn = card.f[""](p, seeded(7));
  return [mean(drawn), Math.sqrt(variance(drawn, 0)), quantile(drawn, 0.1), quantile(drawn, 0.9)];
}});
"""
    for card, found in zip(random, run_node(tmp_path, program + TOLD), strict=True):
        ones = np.ones(count)
        drawn = xg.get(card.described.name)(None, ones, -0.5 * ones, key=0)
        theirs = [drawn.mean(), drawn.std(), *np.quantile(drawn, (0.1, 0.9))]
        room = 0.05 * drawn.std() + 1e-12
        assert as_numbers(found) == pytest.approx(theirs, abs=room), card.described.name


def test_the_tool_writes_the_page_with_the_rules_of_a_module(tmp_path: Path, page: str) -> None:
    (tmp_path / "my_rules.py").write_text(
        "import multigrad as xg\n\n"
        '@xg.register("gallery_mine")\n'
        "def mine(ctx, grad_out, tin):\n    return 2 * grad_out\n"
    )
    found = os.pathsep.join([str(tmp_path), *sys.path])
    python(TOOL, "my_rules", "--out", "rules.html", cwd=tmp_path, PYTHONPATH=found)
    written = (tmp_path / "rules.html").read_text(encoding="utf-8")
    assert set(re.findall('id="([^"]+)"', written)) >= library_rules() | {"gallery_mine"}
    assert written.partition("<section")[0] == page.partition("<section")[0]


# What the gallery's page computes for one op is what the op means in NumPy.


ELEMENTWISE = [op for op in ops.CALLABLE_OPS if op.result in (ops.ADD.result, ops.LT.result)]


def test_every_elementwise_op_has_a_row_or_a_reason() -> None:
    known = {*ROWS, *REDUCTIONS, *LACKING}
    assert {op.name for op in ELEMENTWISE if op not in known and not op.in_vjps} == set()
    assert not ROWS.keys() & LACKING.keys()


COMPARED = [op for op in ROWS if not op.random and op not in (ops.CLIP, ops.WHERE, ops.FULL_LIKE)]


@needs_node
def test_every_row_computes_what_its_op_means(tmp_path: Path) -> None:
    given = np.array([-40.0, -7.0, -2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 2.5, 30.0])
    edges = np.array([math.nan, math.inf, -math.inf])
    lines, wanted = [], []
    for op in COMPARED:
        is_logical = op in (ops.AND, ops.OR, ops.XOR, ops.NOT)
        values = given > 0.4 if is_logical else np.concatenate([given, edges])
        others = [np.roll(values, k) for k in (0, 3, 7)[: len(op.operands)]]
        attrs = {name: attr.samples[0] for name, attr in op.attrs.items()}
        with np.errstate(all="ignore"):
            wanted.append((op, others, op.numpy(*others, **attrs)))
        row = fill(ROWS[op], attrs)
        arrays = ", ".join(map(listed, others))
        lines.append(f"each(({', '.join('abc'[: len(others)])}) => {row}, {arrays}).map(Number)")
    results = run_node(tmp_path, f"const results = [{', '.join(lines)}];" + TOLD)
    for (op, others, expected), found in zip(wanted, results, strict=True):
        told = f"{op.name} of {others}"
        np.testing.assert_allclose(
            as_numbers(found), np.asarray(expected, float), 1e-13, 1e-300, err_msg=told
        )


def listed(values: Any) -> str:
    return json.dumps(values.tolist())


@needs_node
def test_every_reduction_computes_what_its_op_means(tmp_path: Path) -> None:
    values = np.array([0.5, -1.5, 2.0, 0.0, 3.0])
    lines, wanted = [], []
    for op in REDUCTIONS:
        own = {name: attr for name, attr in op.attrs.items() if name not in ("axis", "keepdims")}
        array = values > 0.4 if op in (ops.ANY, ops.ALL) else values
        for i in range(max([1, *(len(attr.samples) for attr in own.values())])):
            attrs = {name: attr.samples[i] for name, attr in own.items()}
            whole = {name: None for name in op.attrs if name == "axis"}
            whole |= {"axis": 0} if op is ops.DIM else {}
            whole |= {"keepdims": False} if "keepdims" in op.attrs else {}
            wanted.append((op, attrs, float(op.numpy(array, **attrs, **whole))))
            lines.append(f"Number(((a) => {fill(REDUCTIONS[op], attrs)})({listed(array)}))")
    found = as_numbers(run_node(tmp_path, f"const results = [{', '.join(lines)}];" + TOLD))
    for (op, attrs, expected), result in zip(wanted, found, strict=True):
        assert result == pytest.approx(expected, rel=1e-13), (op.name, attrs)


def test_a_graph_without_rows_is_refused_by_the_name_of_the_op() -> None:
    @xg.register("gallery_sorted")
    def in_order(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.sort(grad_out)

    with pytest.raises(xg.UnsupportedOp, match="sort has no row in JavaScript"):
        emit(in_order.bound_rule().graph())
