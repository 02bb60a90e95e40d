"""What a person meets first: names that complete, misspelled ones, help, what a notebook shows."""

from __future__ import annotations

import importlib
import inspect
import io
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.graph.support import html
from multigrad.look.notebook import MOST_NODES

from ..harness.formats import Markup

X = np.linspace(-1.0, 1.0, 5)
EVIL = "<script>alert(1)</script>"


# --- names ----------------------------------------------------------------------------------------


def test_completion_lists_public_names_and_rooms_that_can_be_had() -> None:
    shown = set(dir(xg))
    others = {name for name in xg.__all__ if name.startswith("from_")} - {"from_dict"}
    others |= {"Activation", "override", "transforms"}
    assert {"optax", "testing", "compat"} | set(xg.__all__) - others <= shown
    assert not shown & (others | {"hook", "functional", "wrappers"}) - {"Activation"}
    assert not {name for name in shown if name.startswith("_")} - {"__version__"}
    for name in shown:
        assert getattr(xg, name) is not None


def test_the_dialect_lists_its_functions_alone() -> None:
    assert set(dir(xp)) == set(xp.__all__)


MISSPELLED = [
    ("", "actvation", "activation"),
    ("", "schedul", "schedule"),
    ("estimators", "ste_rund", "ste_round"),
    ("schedule", "linera", "linear"),
    ("attribution", "epsilom", "epsilon"),
    ("attribution", "epsilon_gamma_box", "composites.epsilon_gamma_box"),
    ("attribution", "epsilon_gama_box", "composites.epsilon_gamma_box"),
    ("attribution", "EpsilonPlus", "composites.epsilon_plus"),
    ("attribution.composites", "epsilon_pls", "epsilon_plus"),
    ("", "rule", "register"),
    ("transforms", "triangluar", "triangular"),
    ("optax", "aply_rule", "apply_rule"),
    ("testing", "assert_gradint", "assert_gradient"),
    ("hook", "attach_param_hook", "attach_param_hooks"),
    ("wrappers", "Activaton", "Activation"),
    ("compat", "sntorch", "snntorch"),
    ("compat.snntorch", "fast_sigmod", "fast_sigmoid"),
    ("functional", "vjpp", "vjp"),
    ("xp", "sigmod", "sigmoid"),
]


@pytest.mark.parametrize(("room", "name", "meant"), MISSPELLED)
def test_a_misspelled_name_is_told_with_the_right_one(room: str, name: str, meant: str) -> None:
    module = importlib.import_module(f"multigrad.{room}".rstrip("."))
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean '{meant}'"):
        getattr(module, name)


@pytest.mark.parametrize("name", ["use", "activation", "register", "Rule", "get", "check", "jit"])
def test_help_shows_the_signature_and_what_arguments_mean(name: str) -> None:
    with redirect_stdout(io.StringIO()) as shown:
        help(getattr(xg, name))
    text = shown.getvalue()
    assert ">>>" in text and ("Args:" in text or "Attributes:" in text)
    assert inspect.signature(getattr(xg, name)).parameters
    signature = text.partition("\n\n")[2].partition("\n")[0]
    assert (
        signature.replace("*inputs: 'Any'", "").replace("**options: 'Any'", "").count("'Any'") == 0
    )


# --- prompts --------------------------------------------------------------------------------------


def test_reports_and_texts_stand_at_a_prompt_as_they_are_printed() -> None:
    act = xg.activation("Heaviside", "triangular")
    for shown in (xg.check(act), xg.parity("scale", backends=["numpy"]), xg.show("scale")):
        assert repr(shown) == str(shown)
    assert repr(xg.source("scale", "numpy")).startswith("def ")
    assert repr(xg.get("triangular")) == "<Rule triangular(width=1.0)>"
    assert repr(xg.backends()).startswith("name")
    assert repr(xg.function(lambda x, limit=2.0: x)).endswith("(x, limit=2.0)>")
    assert xg.rules() == sorted(xg.rules()) and repr(xg.rules()).startswith("['")


# --- notebooks ------------------------------------------------------------------------------------


@xg.custom_gradient
def log1pexp(x: Any) -> Any:
    """log(1 + exp(x)), for <script>alert(1)</script> too."""
    e = xp.exp(x)
    return xp.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))


@xg.custom_gradient
def branching(x: Any) -> Any:
    return (x if float(x.sum()) > 0 else -x), lambda upstream: upstream


@xg.custom_gradient
def long_chain(x: Any) -> Any:
    y = x
    for i in range(3 * MOST_NODES):
        y = xp.sin(y + float(i))
    return y, lambda upstream: upstream


@xg.register(EVIL, override=True)
def evil(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
    """<img src=x onerror=alert(2)>"""
    return grad_out * width


@xg.register("test_first_minutes_native", native=True, override=True)
def native(ctx: Any, grad_out: Any, tin: Any, label: str = EVIL) -> Any:
    return grad_out


for _rule in (evil, native):
    xg.unregister(_rule.name)  # no other test meets them


SHOWN = {
    "rule": lambda: xg.get("triangular"),
    "bound rule": lambda: xg.get("rectangular").with_params(a=-2.0),
    "rule of several graphs": lambda: xg.get("centralize"),
    "random rule": lambda: xg.compose("clip_norm", "noise"),
    "native rule": lambda: native,
    "evil rule": lambda: evil,
    "function": lambda: log1pexp,
    "function that is not captured": lambda: branching,
    "large function": lambda: long_chain,
    "estimator": lambda: xg.estimators.lsq,
    "chain": lambda: xg.compose(xg.activation("Tanh"), xg.estimators.ste_round),
    "bound function": lambda: xg.get("triangular").under("Heaviside").bind({"width": 2.0}),
    "activation": lambda: xg.activation("Heaviside", evil),
    "bare activation": lambda: xg.activation("GELU"),
    "activation of code": lambda: xg.activation(xp.hard_tanh),
    "rules": xg.rules,
}


@pytest.mark.parametrize("kind", SHOWN)
def test_a_page_is_whole_small_and_asks_nobody(kind: str) -> None:
    text = SHOWN[kind]()._repr_html_()
    page = Markup(text)
    asked = [v for k, v in page.attributes if k in ("src", "href") or k.startswith("on")]
    assert not page.open and not asked
    assert not page.tags & {"script", "img", "link", "iframe", "style"}
    assert "url(" not in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert len(text) < (200_000 if kind == "rules" else 60_000)
    assert "Error: " not in page.words


def test_pages_show_what_their_object_is() -> None:
    rule = Markup(xg.get("triangular")._repr_html_())
    for words in ("triangular(width=1.0)", "grad_out * max", "maximum(·, 1e-06)", ">= 0", "tin"):
        assert words in rule.words
    assert "svg" in rule.tags
    assert "kept for backward" in Markup(log1pexp._repr_html_()).words
    assert "runs as written" in Markup(native._repr_html_()).words
    assert "branch" in Markup(branching._repr_html_()).words
    assert EVIL in Markup(evil._repr_html_()).words


def test_a_large_graph_is_cut_text_in_the_place_of_a_picture() -> None:
    text = long_chain._repr_html_()
    assert "sin" in Markup(text).words
    assert len(text) < 3 * html.MAX_CHARACTERS


def test_texts_in_a_table_are_escaped() -> None:
    assert "&lt;a&gt;" in html.table(("name", "formula"), [("<a>", "x"), ("b", "y")])
