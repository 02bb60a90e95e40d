"""What a person meets first: names that complete, misspelled ones, help, what a prompt shows."""

from __future__ import annotations

import importlib
import inspect
import io
from contextlib import redirect_stdout

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

X = np.linspace(-1.0, 1.0, 5)


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
    # what its files import and define
    assert not any(hasattr(xp, name) for name in ("np", "dataclass", "creation", "vector_norm"))


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
