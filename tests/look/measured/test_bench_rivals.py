"""What the bench measures with: rivals that deserve the name, rounds that are fair, bytes that are
seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from .test_bench import CASES

pytestmark = [
    pytest.mark.needs("typer", "rich"),
    pytest.mark.backends("numpy", "torch", "jax", "tensorflow"),
]


@pytest.fixture
def harness(backend: Any) -> Any:
    from bench.harness import load

    return load(backend.name)


@contextmanager
def rivals_of(harness: Any, forward: str, rule: str) -> Iterator[dict[str, Any]]:
    """Give the rivals of a case while its rule is in force."""
    from bench.cases import Case

    case = Case(forward, rule)
    with ExitStack() as stack:
        harness.enter_rule(case, stack)
        yield harness.list_rivals(case)


def make_values(size: int) -> tuple[Any, Any]:
    """Return inputs on, beside and far from every threshold, and cotangents."""
    generator = np.random.default_rng(3)
    x = generator.standard_normal(size, dtype=np.float32)
    grad_out = generator.standard_normal(size, dtype=np.float32)
    edges = np.float32([0.0, -0.0, -0.5, 0.5, -1.0, 1.0, 2.0, -2.0, 1e-30, 1e19])
    away = np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))
    x[: 3 * len(edges)] = np.concatenate([edges, *away])
    return x, grad_out


# --- the rivals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 200_000])
@pytest.mark.parametrize(("forward", "rule"), CASES)
def test_every_rival_gives_the_numbers_of_multigrad(
    harness: Any, forward: str, rule: str, size: int
) -> None:
    found = {}
    tensors = harness.make_inputs(*make_values(size))
    with rivals_of(harness, forward, rule) as rivals, np.errstate(all="ignore"):
        for name, rival in rivals.items():
            pair = harness.build_step(rival, *tensors)()
            found[name] = tuple(map(harness.to_numpy, pair))
    output, gradient = found.pop("multigrad")
    assert {"plain", "hand-written"} <= set(found)
    for name, (their_output, their_gradient) in found.items():
        np.testing.assert_array_equal(their_output, output, err_msg=name)
        scale = 4 * np.finfo(np.float32).eps * np.abs(gradient).max()
        np.testing.assert_allclose(their_gradient, gradient, rtol=2e-6, atol=scale, err_msg=name)


@pytest.mark.parametrize(
    ("forward", "rule", "plain", "written"),
    [("ReLU", "rectangular", 4, 1), ("ReLU", "d(ReLU)", 4, 1), ("Heaviside", "triangular", 4, 4)],
)
def test_kept_bytes_are_those_of_the_input_or_of_a_mask(
    backend: Any, harness: Any, forward: str, rule: str, plain: int, written: int
) -> None:
    x, grad_out = harness.make_inputs(*make_values(1000))
    with rivals_of(harness, forward, rule) as rivals:
        kept = {name: harness.count_kept_bytes(f, x, grad_out) for name, f in rivals.items()}
    if (backend.name, rule) == ("torch", "d(ReLU)"):
        written = 4  # its output
    assert kept["plain"] == plain * 1000
    assert kept["hand-written"] == written * 1000


# --- the time -------------------------------------------------------------------------------------


def test_contenders_take_turns_and_each_round_begins_with_another() -> None:
    from bench.cases import Effort
    from bench.measure import run_race

    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) for name in "abc"}
    race = run_race(contenders, Effort(0.0, 4, 4, 0.0), calls=1)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert all(race.summarize(name).rounds == 4 for name in "abc")


def test_a_contender_is_called_inside_of_its_surroundings_only() -> None:
    from bench.cases import Effort
    from bench.measure import run_race

    inside = False

    @contextmanager
    def enter() -> Iterator[None]:
        nonlocal inside
        inside = True
        yield
        inside = False

    seen: dict[str, set[bool]] = {"bare": set(), "inside": set()}
    contenders = {name: lambda name=name: seen[name].add(inside) for name in seen}
    run_race(contenders, Effort(0.0, 3, 3, 1e-4), {"inside": enter})
    assert seen == {"bare": {False}, "inside": {True}}


def test_quartiles_and_ratios_come_from_the_rounds() -> None:
    from bench.measure import Race

    race = Race(
        {"ours": [2.0, 4.0, 6.0, 8.0, 90.0], "theirs": [1.0, 2.0, 3.0, 4.0, 45.0]}, {"ours": 7}
    )
    timing = race.summarize("ours")
    assert (timing.minimum, timing.median) == (2.0, 6.0)
    assert (timing.first_quartile, timing.third_quartile) == (4.0, 8.0)
    assert (timing.rounds, timing.calls) == (5, 7)
    assert race.compare("ours", "theirs") == (2.0, 2.0, 2.0)
    assert race.subtract("ours", "theirs") == (2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    ("framework", "row"),
    [
        pytest.param("torch", ("no rule", "times", 1.1), marks=pytest.mark.needs("torch")),
        pytest.param("tensorflow", ("guard", "us", 200.0), marks=pytest.mark.needs("tensorflow")),
    ],
)
def test_a_framework_has_an_overhead_of_its_own(
    framework: str, row: tuple[str, str, float]
) -> None:
    from bench.cases import QUICK
    from bench.harness import load
    from bench.overheads import plan

    backend, measurement = plan([framework])[0]
    found = measurement(backend, load(backend), QUICK)
    assert (found.name, found.unit, found.target) == row
    assert found.value > 0
