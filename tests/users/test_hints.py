"""A word that does not exist is told with the nearest that does, wherever it is given."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

X = np.linspace(-1.0, 1.0, 5)
TRIANGULAR = xg.get("triangular")


def enter(*args: Any) -> None:
    with xg.use(*args):
        pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: xg.use("triangular", width=2.0), 'params={"width": 2.0}'),
        (lambda: xg.use("triangular", widht=2.0), 'did you mean params={"width": 2.0}'),
        (lambda: xg.use("triangular", alpha=2.0), "params={\"width\": 2.0}, of rule 'triangular'"),
        (lambda: xg.use("clip_norm", qqq=2.0), "rule 'clip_norm' has no such param (it takes eps"),
        (lambda: enter("triangular", {"alpha": 2.0}), "no param 'alpha' (it takes width)"),
        (lambda: xg.use("triangular", scop="all"), "did you mean 'scope'"),
        (lambda: xg.use("triangular", scope="activation"), "did you mean 'activations'"),
        (lambda: enter("triangluar"), "did you mean 'triangular'"),
        (lambda: enter(("triangular", {"width": 2.0})), "xg.get('triangular').with_params(width="),
        (lambda: enter(["clip_norm", "scale"]), "for several in series write xg.compose(...)"),
        (lambda: xg.activation("Heaviside", "triangular", widht=2.0), 'params={"width": 2.0}'),
        (lambda: xg.activation("Heaviside", width=2.0), "beside the rule"),
        (lambda: xg.activation("Heavyside"), "did you mean 'Heaviside'"),
        (lambda: TRIANGULAR.with_params(widht=2.0), "did you mean 'width'"),
        (lambda: TRIANGULAR(None, X, X, widht=2.0), "did you mean 'width'"),
        (lambda: TRIANGULAR.under("Heaviside").bind({"widht": 2.0}), "did you mean 'width'"),
        (lambda: xg.apply_to_gradients(X, "clip_nrom"), "did you mean 'clip_norm'"),
        (lambda: xg.apply_to_gradients(X, "clip_norm", maxnorm=1.0), '{"max_norm": 1.0}'),
        (lambda: xg.compose("clip_nrom", "scale"), "did you mean 'clip_norm'"),
        (lambda: xg.lower("triangular", "numpi"), "did you mean 'numpy'"),
        (lambda: xg.check("triangular", X, backend="numpi"), "did you mean 'numpy'"),
        (lambda: xg.parity("triangular", X, backends="numpi"), "did you mean 'numpy'"),
        (lambda: xg.function(abs, dialect="nump"), "did you mean 'numpy'"),
        (lambda: xg.function("relu"), "expected a function, got str 'relu'; xg.activation(name)"),
        (lambda: xg.function(TRIANGULAR), "xg.get('triangular').under(\"ReLU\")"),
        (lambda: xg.custom_gradient(TRIANGULAR), "xg.get('triangular').under(\"ReLU\")"),
        (lambda: xg.vjp("relu", X), "expected a function, got str 'relu'"),
        (lambda: xg.estimators.ste_sign(X, clp=1.0), "takes no 'clp'; did you mean 'clip'"),
        (lambda: xg.estimators.ste_sign(X, x=X), "got x twice"),
        (lambda: xp.sigmod, "module 'multigrad.xp' has no attribute 'sigmod'; did you mean 'sig"),
    ],
)
def test_the_error_says_the_word_that_was_meant(call: Any, words: str) -> None:
    with pytest.raises((xg.MultigradError, AttributeError), match=re.escape(words)):
        call()


# --- draws of bare tensors ------------------------------------------------------------------------

DRAWS = [
    "bernoulli_like", "exponential_like", "gumbel_like", "rademacher_like", "rand_like",
    "randn_like",
]  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_without_a_key_says_what_to_give(backend: Any, name: str) -> None:
    with pytest.raises(xg.RuleError, match=f"xp.{name} of a tensor needs a key: give key="):
        getattr(xp, name)(backend.array(np.zeros(3, np.float32)))


def test_a_draw_takes_every_form_of_a_key(backend: Any) -> None:
    x = np.zeros(3, np.float32)
    drawn = [
        backend.numpy(xp.rand_like(backend.array(x), key=key))
        for key in (7, (0, 7), np.array([0, 7], np.uint32))
    ]
    for other in drawn:
        np.testing.assert_array_equal(other, xp.rand_like(x, key=7))
    for key in ("seven", 1.5, True, (1, 2, 3)):
        with pytest.raises(xg.RuleError, match="two uint32"):
            xp.rand_like(backend.array(x), key=key)


def test_a_fixed_key_in_a_rule_is_refused_with_what_to_write() -> None:
    fixed = xg.function(lambda x: x + xp.rand_like(x, key=7), native=False)
    with pytest.raises(xg.TraceError, match="with a fixed key, so that each call would draw the"):
        fixed(X)
