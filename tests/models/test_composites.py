"""Composites as data: which rule each kind of layer gets, under which names."""

from __future__ import annotations

import copy
import pickle

import pytest

import multigrad as xg
from multigrad.models import attribution as lrp

# A network of leaves, in the order of the model.
LEAVES = [
    ("stem.scale", "batch_normalization"),
    ("stem.conv", "convolution"),
    ("stem.act", "relu"),
    ("stem.pool", "max_pooling"),
    ("body.conv", "convolution"),
    ("body.up", "convolution_transpose"),
    ("body.act", "activation"),
    ("body.add", "addition"),
    ("body.pool", "adaptive_average_pooling"),
    ("head.drop", None),
    ("head.fc", "linear"),
]


def chosen(composite: xg.composites.Composite) -> list[str]:
    return [getattr(rule, "name", rule) or "-" for rule in composite.choose(LEAVES)]


MAPS = {
    "epsilon_gamma_box": "pass zbox pass - gamma gamma pass norm norm - epsilon",
    "epsilon_plus": "pass zplus pass - zplus zplus pass norm norm - epsilon",
    "epsilon_alpha2_beta1": (
        "pass alpha_beta pass - alpha_beta alpha_beta pass norm norm - epsilon"
    ),
    "epsilon_plus_flat": "pass flat pass - zplus zplus pass norm norm - epsilon",
    "epsilon_alpha2_beta1_flat": (
        "pass flat pass - alpha_beta alpha_beta pass norm norm - epsilon"
    ),
    "guided_backprop": "- - guided - - - - - - - -",
    "deconvnet": "- - deconvnet - - - - - - - -",
    "excitation_backprop": "- zplus - - zplus zplus - norm norm - zplus",
    "beta_smooth": "- - beta_smooth - - - - - - - -",
}


@pytest.mark.parametrize("name", MAPS)
def test_each_kind_of_layer_gets_the_rule_of_zennits_map(name: str) -> None:
    make = getattr(xg.composites, name)
    composite = make(-1.0, 1.0) if name == "epsilon_gamma_box" else xg.composites.find(name)
    assert chosen(composite) == MAPS[name].split()
    assert chosen(pickle.loads(pickle.dumps(composite))) == chosen(copy.deepcopy(composite))


def test_numbers_reach_the_rules() -> None:
    composite = xg.composites.epsilon_gamma_box(
        -2, 3, epsilon=0.1, gamma=0.5, stabilizer=1e-3, zero_params="bias"
    )
    found = dict(zip([name for name, _ in LEAVES], composite.choose(LEAVES), strict=True))
    assert found["stem.conv"] == lrp.zbox(-2, 3, 1e-3, "bias")
    assert found["body.conv"] == lrp.gamma(0.5, 1e-3, "bias")
    assert found["head.fc"] == lrp.epsilon(0.1, "bias")
    assert found["body.add"] == lrp.norm(1e-3)
    assert xg.composites.beta_smooth(3.0).layers["relu"].bound == {"beta": 3.0}


def test_the_first_layer_is_the_first_of_a_kind_that_has_a_rule_for_it() -> None:
    leaves = [("fc", "linear"), ("one", "convolution"), ("two", "convolution")]
    box = xg.composites.epsilon_gamma_box(0, 1).choose(leaves)
    assert [rule.name for rule in box] == ["epsilon", "zbox", "gamma"]
    flat = xg.composites.epsilon_plus_flat().choose(leaves)
    assert [rule.name for rule in flat] == ["flat", "zplus", "zplus"]


def test_a_layer_that_is_named_gets_its_rule_whatever_its_kind() -> None:
    kinds = {"relu": "pass", "activation": "guided", "linear": lrp.epsilon()}
    mine = xg.composites.Composite(
        "mine", kinds, names={"body.*": "scale", "head.fc": None, "*": "deconvnet"}
    )
    assert chosen(mine) == ["deconvnet"] * 4 + ["scale"] * 5 + ["deconvnet", "-"]
    with pytest.raises(ValueError, match=r"layers that the model does not have: 'tail\.\*'"):
        xg.composites.Composite("mine", kinds, names={"tail.*": "pass"}).choose(LEAVES)


def test_a_composite_prints_as_a_table() -> None:
    text = repr(xg.composites.epsilon_gamma_box(0, 1, canonize=True))
    assert text.splitlines()[0] == "epsilon_gamma_box (canonized)"
    assert "first convolution    zbox(low=0.0, high=1.0, stabilizer=1e-06)" in text
    assert "activation           pass" in text


def test_what_is_unknown_is_said_with_what_is_near() -> None:
    with pytest.raises(ValueError, match="did you mean 'convolution'"):
        xg.composites.Composite("mine", {"convolutions": "pass"})
    with pytest.raises(KeyError, match="guidet"):
        xg.composites.Composite("mine", {"relu": "guidet"})
    with pytest.raises(KeyError, match=r"'ZPlus', but .*: xg.attribution.zplus\(\)"):
        xg.composites.Composite("mine", {"linear": "ZPlus"})
    with pytest.raises(TypeError, match=r"call xg.attribution.zbox\(low, high\)"):
        xg.composites.Composite("mine", {"linear": lrp.zbox})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="True or False, not 'bn'"):
        xg.composites.epsilon_plus(canonize="bn")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"with xg.attach\(model, composite\)"):
        xg.composites.epsilon_plus().__enter__()
    with pytest.raises(TypeError, match="mapping"):
        xg.composites.Composite("mine", ["relu"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes no 'canonise'; did you mean 'canonize'"):
        xg.composites.epsilon_plus(canonise=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="did you mean 'epsilon_plus'"):
        xg.composites.find("epsilon_pluss")
    with pytest.raises(ValueError, match=r"epsilon_gamma_box\(low, high\)"):
        xg.composites.find("epsilon_gamma_box")
