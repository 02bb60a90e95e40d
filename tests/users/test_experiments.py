"""The experiments of `examples/experiments`, cut short: each learns in each framework from the same
numbers, and writes its picture. Whether a full run's figures hold is checked by each script itself.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "examples" / "experiments"
pytestmark = pytest.mark.needs("sklearn", "matplotlib")
# What a few epochs of seed 0 reach, well over chance: the least value of some figures.
REACHED = {
    "suc": {"tied": 0.85, "untied": 0.95},
    "bnn_step": {"Step / 1": 0.8, "Step / 1, whole batches": 0.9},
    "lsq_qat": {"float": 0.45, "2 bits, LSQ": 0.65},
    "dann": {"turned, source only": 0.3, "turned, scheduled": 0.3},
    "vq_vae": {"near, rotation trick, perplexity": 2.0},
    "learnable_width": {"width 10, learned": 0.6},
    "coarse_gradients": {"ReLU, mean of z^2": 0.2, "identity, at the spurious minimum": 0.35},
    "yin_yang": {"no surrogate": 0.7, "fast_sigmoid": 0.75},
    "sanity_checks": {"guided backprop, last layer": 0.6, "z-plus, last layer": 0.95},
    "surrogate_scale": {"fast_sigmoid, best slope": 0.2},
}
# The greatest value of others.
AT_MOST = {
    "coarse_gradients": {
        "identity, mean of z^2": 2.2,  # 1 and three standard deviations for 12 components
        "ReLU, mean of z^2": 2.2,
        "clipped ReLU, mean of z^2": 2.2,
        "ReLU, at the spurious minimum": 0.04,
    },
    "sanity_checks": {"gradient, last layer": 0.5, "gradient, next class": 0.5},
    "surrogate_scale": {"fast_sigmoid, scale 30": 0.24},
}
# The first three losses of one method, the same in each framework: two steps along the gradients.
FIRST_LOSSES = {
    "suc": ("untied", [0.762108, 0.748720, 0.729332]),
    "bnn_step": ("Step / 1", [0.140625, 0.390625, 0.28125]),
    "lsq_qat": ("2 bits, LSQ", [1.673435, 1.767543, 1.681358]),
    "dann": ("turned, scheduled", [2.993035, 2.999185, 2.996139]),
    "vq_vae": ("near, rotation trick", [0.188400, 0.181147, 0.181652]),
    "learnable_width": ("width 10, learned", [2.329691, 2.411641, 2.391742]),
    "yin_yang": ("fast_sigmoid", [1.712831, 3.501961, 2.604306]),
    "surrogate_scale": ("fast_sigmoid, scale", [2.617172, 2.390318, 2.329583]),
}
FRAMEWORKS = ("torch", "jax", "tensorflow")
IN_ALL = ("suc", "bnn_step", "coarse_gradients", "yin_yang")
IN_TORCH = ("sanity_checks",)
CASES = [
    pytest.param(name, framework, marks=pytest.mark.needs(framework), id=f"{name}-{framework}")
    for name in REACHED
    for framework in FRAMEWORKS[: 3 if name in IN_ALL else 1 if name in IN_TORCH else 2]
]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    return import_module(name)


@pytest.mark.parametrize(("name", "framework"), CASES)
def test_an_experiment_learns_from_the_same_numbers_in_each_framework(
    name: str, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load(name, monkeypatch)
    options = ["--quick", "--framework", framework, "--out", str(tmp_path)]
    (outcome,) = experiment.main(options)[framework]
    known = import_module("course").expected(experiment.__doc__)
    assert set(outcome.figures) <= set(known)
    for figure, least in REACHED[name].items():
        assert outcome.figures[figure] > least, figure
    for figure, most in AT_MOST.get(name, {}).items():
        assert outcome.figures[figure] < most, figure
    if name in FIRST_LOSSES:
        method, losses = FIRST_LOSSES[name]
        assert outcome.losses[method][:3] == pytest.approx(losses, rel=1e-5)
    (picture,) = tmp_path.glob(f"{name}.*")
    assert picture.stat().st_size > 10_000


def test_a_figure_that_is_not_reached_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    course = load("course", monkeypatch)
    doc = "What it is.\n\n    near, error    0.024 ± 0.002\n    far, error     0.030 ± 0.002\n"
    found = [
        course.Outcome({"near, error": 0.025, "far, error": far}, {}, {}) for far in (0.03, 0.04)
    ]
    assert course.holds(doc, {"torch": found[:1]})
    assert not course.holds(doc, {"torch": found})
    assert "torch: far, error is 0.0350, not 0.03 ± 0.002" in capsys.readouterr().out
