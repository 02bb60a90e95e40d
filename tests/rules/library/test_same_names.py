"""The table of rules that share a name: what is grouped, and what is said of their curves."""

from __future__ import annotations

import numpy as np
import pytest

import multigrad as xg
from pages import same_names

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
