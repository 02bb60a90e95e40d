"""Our rules beside those of published packages, on PyTorch; `tests/peers` compares numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.lowering.forwards import ActivationName

from .cases import NATIVE, OURS, PACKAGES_PART, Case, Effort
from .harness import Array, Harness, Rival, make_values
from .measure import run_race
from .results import Contest

BACKEND = "torch"
IMAGE, CLASSES = (3, 32, 32), 10


@dataclass(frozen=True, slots=True)
class Beside:
    """A function of a package, and ours that gives its numbers.

    Attributes:
        find: imports the package, and returns theirs.
        make_ours: returns ours.
        make_arrays: returns an input and a cotangent of about so many elements.
    """

    package: str
    find: Callable[[], Rival]
    case: Case
    make_ours: Callable[[], Rival]
    make_arrays: Callable[[int], tuple[Array, Array]] = make_values

    @property
    def name(self) -> str:
        return f"{self.package}.{self.find.__name__.rstrip('_')}"


ROWS: list[Beside] = []


def beside(
    package: str, forward: ActivationName, rule: str, **options: Any
) -> Callable[[Callable[[], Rival]], Callable[[], Rival]]:
    """Add a row with an activation of ours to the function that finds theirs."""

    def add(find: Callable[[], Rival]) -> Callable[[], Rival]:
        ours = partial(xg.activation, forward, rule=rule, **options)
        ROWS.append(Beside(package, find, Case(forward, rule), ours))
        return find

    return add


@beside("snntorch", "Heaviside", "arctan", params={"alpha": 2.0})
def atan() -> Rival:
    from snntorch import surrogate

    return surrogate.atan(alpha=2.0)


@beside("snntorch", "Heaviside", "fast_sigmoid", params={"slope": 25.0})
def fast_sigmoid() -> Rival:
    from snntorch import surrogate

    return surrogate.fast_sigmoid(slope=25)


@beside("spikingjelly", "Heaviside", "spikingjelly.atan", params={"alpha": 2.0})
def ATan() -> Rival:
    from spikingjelly.activation_based import surrogate

    return surrogate.ATan(alpha=2.0)


@beside("spikingjelly", "Heaviside", "spikingjelly.sigmoid", params={"alpha": 4.0})
def Sigmoid() -> Rival:
    from spikingjelly.activation_based import surrogate

    return surrogate.Sigmoid(alpha=4.0)


@beside("norse", "Heaviside", "norse.super", params={"alpha": 1.0})
def super_() -> Rival:
    import torch
    from norse.torch.functional.threshold import threshold

    return partial(threshold, method="super", alpha=torch.as_tensor(1.0))


@beside("brevitas", "Round", "straight_through")
def round_ste() -> Rival:
    from brevitas.function import ops_ste

    return ops_ste.round_ste


@beside("brevitas", "Sign", "straight_through", at_zero=1.0)
def binary_sign_ste() -> Rival:
    from brevitas.function import ops_ste

    return ops_ste.binary_sign_ste


# --- a heat map -----------------------------------------------------------------------------------


def make_network() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    ).eval()


def EpsilonPlus() -> Rival:
    from zennit.composites import EpsilonPlus

    network = make_network()
    EpsilonPlus().register(network)
    return network


def make_attached() -> Rival:
    network = make_network()
    xg.attach(network, xg.composites.epsilon_plus())
    return network


def make_images(size: int) -> tuple[Array, Array]:
    """Return images, and a cotangent that asks for the first class."""
    count = max(1, size // int(np.prod(IMAGE)))
    x, _ = make_values(count * int(np.prod(IMAGE)))
    asked = np.zeros((count, CLASSES), np.float32)
    asked[:, 0] = 1.0
    return x.reshape(count, *IMAGE), asked


HEAT_MAP = Case("ReLU", "epsilon_plus")
ROWS.append(Beside("zennit", EpsilonPlus, HEAT_MAP, make_attached, make_images))


# --- measuring ------------------------------------------------------------------------------------


def installed() -> list[Beside]:
    return [each for each in ROWS if find_spec(each.package) is not None]


def list_absent() -> list[str]:
    there = {each.package for each in installed()}
    return [name for name in dict.fromkeys(each.package for each in ROWS) if name not in there]


def measure_package(
    each: Beside, harness: Harness, size: int, threads: int, effort: Effort
) -> Contest:
    tensors = harness.make_inputs(*each.make_arrays(size))
    rivals = {NATIVE: each.find(), OURS: each.make_ours()}
    steps = {name: harness.build_step(rival, *tensors) for name, rival in rivals.items()}
    race = run_race(steps, effort)
    return Contest.of(race, PACKAGES_PART, each.name, each.case, size=size, threads=threads)
