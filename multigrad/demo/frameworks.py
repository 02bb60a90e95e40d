"""Which frameworks the experiment knows, which can run here, and how each is brought in.

Nothing is imported to answer the first two: a missing or broken framework must not stop the others.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Protocol, cast

from multigrad.backend.finding.installed import (
    extra_line,
    install_line,
    package_of,
    requirements_of,
)
from multigrad.errors import BackendNotFound, suggest

from ..lowering.names import ActivationName
from .task import EpochReport, Task, Weights


class TrainingLoop(Protocol):
    """What each `train_<framework>.py` offers."""

    def describe(self) -> str:
        """Return what runs here and in which version."""
        ...

    def first_gradients(self, task: Task, forward: ActivationName, rule: str | None) -> Weights:
        """Return the gradients of the first batch at the initial weights."""
        ...

    def train(
        self, task: Task, forward: ActivationName, rule: str | None, report: EpochReport
    ) -> None:
        """Train with SGD; report each epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Framework:
    """One column of the tables: its name, the modules it needs, and how to get them where that is
    not an extra of the same name.
    """

    name: str
    needs: tuple[str, ...]
    otherwise: str = ""

    @property
    def install(self) -> str:
        """What to type if it is not there."""
        return self.otherwise or extra_line(self.name)


GROUP = "multigrad.demo"
OWN = (
    Framework("numpy", ("numpy",)),
    Framework("torch", ("torch",)),
    Framework("jax", ("jax",)),
    Framework("tensorflow", ("tensorflow",)),
    Framework("keras", ("keras",)),
    # freegrad 1.0.1 requires torchvision, which would replace the installed torch.
    Framework("freegrad", ("torch", "freegrad"), "pip install --no-deps freegrad==1.0.1"),
)


def brought() -> tuple[Framework, ...]:
    """Return the columns that installed backends bring: entry points of the group
    `multigrad.demo`, named as the backend, each a module with a training loop.
    """
    packages = {point.name: package_of(point) for point in entry_points(group=GROUP)}
    return tuple(
        Framework(name, (name,), install_line(name, package, requirements_of(name, package)))
        for name, package in sorted(packages.items())
    )


FRAMEWORKS = (*OWN, *brought())
NAMES = tuple(framework.name for framework in FRAMEWORKS)
KERAS_BACKENDS = ("tensorflow", "jax", "torch")


def explain_absence(framework: Framework) -> str | None:
    """Return why a framework cannot run here and what to type, or None if it can."""
    if any(find_spec(module) is None for module in framework.needs):
        return f"{framework.name} is not installed; type: {framework.install}"
    if framework.name == "keras" and find_keras_backend() is None:
        return f"keras has no framework to run on; type: {extra_line('jax')}"
    return None


def choose(names: Sequence[str]) -> list[Framework]:
    """Return the frameworks to run: those named, which must be there, or all that are installed."""
    if not names:
        return [framework for framework in FRAMEWORKS if explain_absence(framework) is None]
    by_name = {framework.name: framework for framework in FRAMEWORKS}
    chosen = {}
    for name in names:
        framework = by_name.get(name.lower())
        if framework is None:
            hint = suggest(name, NAMES)
            raise BackendNotFound(f"no framework named {name!r}{hint} ({', '.join(NAMES)})")
        absence = explain_absence(framework)
        if absence is not None:
            raise BackendNotFound(absence)
        chosen[framework.name] = framework
    return list(chosen.values())


def load(framework: Framework) -> TrainingLoop:
    """Import a framework's training loop, and with it the framework."""
    prepare_environment()
    if framework.name == "keras":
        # Keras fixes its backend at import and takes tensorflow even where it is not installed.
        os.environ.setdefault("KERAS_BACKEND", find_keras_backend() or KERAS_BACKENDS[0])
    points = {point.name: point for point in entry_points(group=GROUP)}
    if framework not in OWN:
        return cast(TrainingLoop, points[framework.name].load())
    module = importlib.import_module(f".train_{framework.name}", __package__)
    return cast(TrainingLoop, module)


def prepare_environment() -> None:
    """Set what a framework reads once, at import, where the user has not set it."""
    # oneDNN sums in another order, and TensorFlow says so on the screen; numbers are compared here.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # As for NumPy in `experiment.run`: on a busy machine threads cost torch ten times the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Each run builds a new model, which TensorFlow takes for retracing by mistake and warns about.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def find_keras_backend() -> str | None:
    """Return the framework that Keras would run on, or None if there is none."""
    wanted = os.environ.get("KERAS_BACKEND")
    candidates = KERAS_BACKENDS if wanted is None else (wanted,)
    return next((name for name in candidates if find_spec(name) is not None), None)
