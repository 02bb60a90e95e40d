"""`multigrad rules`: families, words, JSON, narrow terminals; and what a wrong name suggests."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.rule_names import FILES, OWN
from pages import same_names

from ...harness import commands

# Of the library: other tests register their own.
LIBRARY = [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]
needs_cli = pytest.mark.needs("typer", "rich")


invoke = partial(commands.invoke, "rules", width=100)


def test_a_rule_of_the_library_loads_with_its_own_file() -> None:
    own_names = [name for name in LIBRARY if "." not in name]
    for family, names in FILES.items():
        home = f"{OWN[0]}{family}"
        assert [n for n in own_names if xg.get(n).__module__ == home] == sorted(names.split())


@pytest.fixture
def needy() -> str:
    @xg.register("listed_needy")
    def needy(ctx: Any, grad_out: Any, tin: Any, gain: float) -> Any:
        """grad_out * gain."""
        return gain * grad_out + 0.0 * tin

    return "listed_needy"


@needs_cli
def test_every_rule_stands_with_its_defaults_above_its_formula() -> None:
    lines = invoke().output.splitlines()
    named = {line.split()[0]: i for i, line in enumerate(lines) if line[:2] == "  " != line[2:4]}
    assert set(LIBRARY) <= named.keys()
    line, formula = lines[named["rectangular"]], lines[named["rectangular"] + 1]
    assert "a=-0.5" in line and "b=0.5" in line
    assert formula.strip() == (xg.get("rectangular").__doc__ or "").splitlines()[0]


@needs_cli
@pytest.mark.parametrize("width", [40, 60, 140])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    output = "".join(
        invoke("--family", each, width=width).output for each in ("surrogate", "peers")
    )
    wide = [line for line in output.splitlines() if len(line) > width and len(line.split()) > 1]
    assert not wide
    assert "grad_out where a <= tin <= b" in " ".join(output.split())


@needs_cli
def test_a_family_is_headed_by_what_its_module_says() -> None:
    from multigrad.core.rules.library import transforms

    lines = invoke("--family", "transforms", width=200).output.splitlines()
    said = " ".join((transforms.__doc__ or "").partition("\n\n")[0].split())
    assert " ".join(lines[: lines.index("")]) == f"transforms: {said.removesuffix('.')}"
    names = {line.split()[0] for line in lines if line[:2] == "  " != line[2:4]}
    assert names >= {"full_jam", "positive_jam", "rectangular_jam"}
    assert names == {name for name in xg.rules() if xg.get(name).__module__ == transforms.__name__}


@needs_cli
@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("atan", {"arctan", "snntorch.atan", "spikingjelly.atan"}),
        ("SuperSpike", {"fast_sigmoid", "snnax.superspike", "spyx.superspike"}),
        ("1308.3432", {"straight_through"}),
        ("triangluar", {"triangular"}),
    ],
)
def test_like_finds_by_name_formula_source_and_spelling(word: str, names: set[str]) -> None:
    result = invoke("--like", word, "--json")
    assert names <= {row["name"] for row in json.loads(result.output)}
    assert len(json.loads(result.output)) < 10


@needs_cli
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--family", "spikng"), "no family 'spikng'; did you mean 'spiking'?"),
        (("--like", "xyzzy"), "no rule like 'xyzzy'"),
        (("zplus",), "no rule named 'zplus', but one that reads what layers hold: xg.attr"),
        (("--like", "lrp"), "which are functions: xg.attribution, xg.composites"),
        (("--family", "transforms", "--like", "arctan"), "no rule like 'arctan' among "),
    ],
)
def test_what_finds_nothing_is_an_error(words: Any, message: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in result.output


@needs_cli
def test_estimators_are_listed_when_asked_for_and_found_by_a_word() -> None:
    rows = json.loads(invoke("--estimators", "--json").output)
    assert {row["name"] for row in rows} == set(xg.estimators.catalogue())
    assert {row["kind"] for row in rows} == {"estimator"}
    (lsq,) = [row for row in rows if row["name"] == "lsq"]
    assert lsq["gradients"].startswith("x: 1 where")
    assert lsq["params"]["bits"] == {"default": 4, "range": ">= 1 and <= 16"}
    found = invoke("--like", "LSQ").output
    assert "xg.estimators, quantizers" in found and "lsq_plus" in found


@needs_cli
def test_json_has_all_that_is_said_of_a_rule() -> None:
    rows = {row["name"]: row for row in json.loads(invoke("--json").output)}
    assert rows.keys() == set(xg.rules())
    row = rows["rectangular"]
    assert row["family"] == "surrogate"
    assert row["formula"].startswith("grad_out where a <= tin <= b, else 0")
    assert {name: param["default"] for name, param in row["params"].items()} == {
        "a": -0.5,
        "b": 0.5,
    }
    assert row["source"].startswith('"rectangular" of FreeGrad')
    assert row["without_tin"] == "`grad_out`, unchanged"


@needs_cli
def test_a_rule_of_yours_comes_first_and_marks_what_must_be_given(needy: str) -> None:
    lines = invoke().output.splitlines()
    assert lines[0] == "Rules of yours"
    (line,) = [line for line in lines if needy in line]
    assert "gain (required)" in line
    (row,) = [row for row in json.loads(invoke("--json").output) if row["name"] == needy]
    assert (row["family"], row["params"]["gain"]["default"]) == ("", None)
    assert row["without_tin"] == "not known"


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("triangluar", ["triangular"]),
        ("superspike", ["fast_sigmoid", "snnax.superspike"]),
        ("atan", ["arctan", "snntorch.atan", "spikingjelly.atan"]),
        ("ste", ["straight_through"]),
        ("GRL", ["gradient_reversal"]),
        ("larq.StraightThrough", ["straight_through"]),
        ("snntorch.atn", ["snntorch.atan"]),
        ("boxcar", ["rectangular", "spyx.boxcar"]),
        ("reversal", ["gradient_reversal"]),
        ("SCALE", ["scale"]),
    ],
)
def test_a_wrong_name_suggests_what_others_call_so(word: str, names: list[str]) -> None:
    with pytest.raises(xg.RuleError) as raised:
        xg.get(word)
    message = str(raised.value)  # without KeyError's quotes
    assert isinstance(raised.value, KeyError)
    assert message.startswith(f"no rule named {word!r}; did you mean {names[0]!r}")
    assert f"{len(xg.rules())} rules: multigrad rules" in message
    assert all(repr(name) in message for name in names)
    assert message.count("'") <= 8


@pytest.mark.parametrize("word", ["xyzzy", "", ".", "grad_out"])
def test_a_name_like_none_suggests_none(word: str) -> None:
    with pytest.raises(xg.RuleError) as raised:
        xg.get(word)
    # Other tests have rules of their own.
    near = {name for name in LIBRARY if repr(name) in str(raised.value)}
    assert not near - {word}


@pytest.mark.parametrize("word", ["lsq", "LSQ", "ste_round", "ste-sign"])
def test_the_name_of_a_function_of_the_library_says_so(word: str) -> None:
    function = word.lower().replace("-", "_")
    with pytest.raises(xg.RuleError, match=rf"a Function .*xg\.estimators\.{function}\("):
        xg.get(word)


@pytest.mark.parametrize(
    ("word", "call"),
    [
        ("z+", "xg.attribution.zplus()"),
        ("lrp_epsilon", "xg.attribution.epsilon()"),
        ("EpsilonRule", "xg.attribution.epsilon()"),
        ("zennit.rules.ZBox", "xg.attribution.zbox(low, high)"),
        ("epsilon_plus", "xg.composites.epsilon_plus()"),
    ],
)
def test_the_name_of_a_relevance_rule_or_a_composite_says_what_to_call(
    word: str, call: str
) -> None:
    with pytest.raises(xg.RuleError, match=re.escape(call)):
        xg.get(word)


# The table of rules that share a name: what is grouped, and what is said of their curves.


GROUPS = same_names.groups()


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("superspike", {"norse.super", "snnax.superspike", "spikingjelly.super_spike"}),
        ("triangular", {"triangular", "snntorch.triangular", "spyx.triangular", "norse.triangle"}),
        ("arctan", {"arctan", "snntorch.atan", "spyx.arctan"}),
        ("qpseudospike", {"q_pseudo_spike", "braintools.q_pseudo_spike"}),
        ("squarewavefourier", {"squarewave_fourier", "spikingjelly.squarewave_fourier_series"}),
        ("sigmoid", {"sigmoid_surrogate", "snntorch.sigmoid", "snnax.sigmoid"}),
    ],
)
def test_what_packages_call_alike_stands_together_ours_first(name: str, members: set[str]) -> None:
    rules = GROUPS[name]
    assert members <= {rule.name for rule in rules}
    assert "." not in rules[0].name
    assert not same_names.is_one_curve(rules)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("snntorch.atan", "the same"),
        ("braintools.arctan", "`alpha=1.0`"),
        ("spyx.arctan", "`alpha=4.0`, times 0.159"),
        ("spyx.triangular", "`width=0.5`"),
        ("snntorch.triangular", "**another curve**"),
        ("snnax.superspike", "**another curve**"),
        ("spikingjelly.squarewave_fourier_series", "`n=1`"),
        ("braintools.q_pseudo_spike", "**another curve**"),
        ("braintools.piecewise_leaky_relu", "but for the edges"),
        ("optax.centralize", "**another curve**"),
        ("optax.clip", "the same"),
        ("larq.swish_sign", "the same"),
    ],
)
def test_what_is_said_of_a_curve_beside_the_first_of_its_name(name: str, said: str) -> None:
    first = GROUPS[same_names.common_name(name)][0]
    assert same_names.as_the_first(xg.get(name), first) == said


def test_the_figures_are_those_of_the_formulas() -> None:
    assert same_names.figures(xg.get("arctan")) == ("1", "0.288", "0.288", "1")
    expected = (f"{25 / 4:.3g}", "0", "0", "1")
    assert same_names.figures(xg.get("snntorch.sigmoid")) == expected
    assert same_names.figures(xg.get("snntorch.heaviside")) == ("0", "1", "0", "none")
    assert same_names.figures(xg.get("stochastic_spike"))[0] == "random"
    for name in ("centralize", "optax.centralize"):
        assert same_names.figures(xg.get(name)) == ("", "", "", "")


@pytest.mark.parametrize("number", [1e-5, 0.0123456, 0.5, 12.5])
def test_a_figure_has_three_digits(number: float) -> None:
    assert float(same_names.shown(number)) == pytest.approx(number, rel=5e-3, abs=5e-4)


def test_a_curve_that_is_not_finite_has_no_area_and_no_multiple() -> None:
    assert same_names.multiple(np.array([1.0, np.nan]), np.array([1.0, 2.0])) is None
    assert same_names.area(xg.get("snnax.superspike")) == "none"
