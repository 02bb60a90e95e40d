"""No rule and no Function of ours is accused: each is audited as what it states to be."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..support.sampling import WHOLE
from .audited import accused

X = np.array([[0.3, -0.7, 1.4], [-1.5, 0.011, 2.0]], np.float32)


def accusations(subject: Any, *inputs: Any) -> list[str]:
    report = xg.audit(subject, *inputs)
    return [report.problem, *map(str, report.findings)] if not report.ok else []


def state_of(subject: Any, law: str, x: Any = X) -> tuple[str, str]:
    (finding,) = xg.audit(subject, x, laws=[law]).laws
    return finding.state, finding.reason


@pytest.mark.filterwarnings("ignore")
def test_no_rule_is_accused() -> None:
    homes = ("multigrad.core.rules.", "multigrad.engine.rules.")
    names = [name for name in xg.rules() if xg.get(name).__module__.startswith(homes)]
    assert len(names) == 170
    found = {name: accusations(name, X) for name in names}
    assert {name: said for name, said in found.items() if said} == {}


@pytest.mark.filterwarnings("ignore")
def test_no_function_is_accused() -> None:
    found = {
        name: accusations(f, *(f.examples or ())) for name, f in xg.estimators.catalogue().items()
    }
    assert {name: said for name, said in found.items() if said} == {}


def test_a_rule_that_limits_gradients_is_not_linear_and_says_so() -> None:
    state, reason = state_of("clip_value", "linear")
    assert state == "does not apply"
    assert "not linear in the cotangent, as its graph says" in reason


def test_a_rule_that_draws_is_given_one_seed() -> None:
    assert state_of("noise", "repeatable")[0] == "kept"
    assert state_of("noise", "seeded") == (
        "kept",
        "it draws, and is given the same seed before each run",
    )


def test_a_function_that_means_to_be_a_derivative_has_to_be_linear() -> None:
    clipped = xg.function(lambda x: x * 1.0, lambda grad_out, x: np.clip(grad_out, -1.0, 1.0))
    assert state_of(clipped, "linear")[0] == "broken"


@pytest.mark.needs("torch")
def test_a_mean_that_counts_as_a_constant_has_no_second_derivative() -> None:
    torch: Any = import_module("torch")
    state, reason = state_of("magnitude_aware_sign", "second derivative", torch.from_numpy(X))
    assert state == "does not apply"
    assert reason == "it counts a number as a constant, by stop_gradient"


# No function of a framework itself is said to break a law; a sample of what `python -m
# tests.audit.audited` runs whole.


PART = 1.0 if WHOLE else 0.3  # of each share below
SHARES = {"torch": 0.1, "jax": 0.03, "tensorflow": 0.15}
# The slopes of a factorization take as long as all others together.
BUT_FACTORS = r"^(?!.*\.linalg\.qr$)"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=pytest.mark.needs(name)) for name in SHARES]
)
def test_no_function_of_a_framework_is_accused(library: str) -> None:
    found = dict(accused(library, BUT_FACTORS, PART * SHARES[library]))
    assert len(found) >= 3
    assert {name: findings for name, findings in found.items() if findings} == {}
