"""Which frameworks the experiment knows, which can run here, and how each is brought in.

Nothing is imported to answer the first two: a missing or broken framework must not stop the others.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol, cast

from multigrad.command.options import prepare_environment
from multigrad.core.lowering.forwards import ActivationName
from multigrad.engine.support.extras import extra_line
from multigrad.errors import BackendNotFound, suggest

from .task import EpochReport, Task, Weights


class TrainingLoop(Protocol):
    """What each `training/in_<framework>.py` offers."""

    def describe(self) -> str:
        """Return what runs here and in which version."""
        ...

    def train(
        self, task: Task, forward: ActivationName, rule: str | None, report: EpochReport
    ) -> Weights:
        """Train with SGD, report each epoch, and return the first step's gradients."""
        ...


@dataclass(frozen=True, slots=True)
class Framework:
    """A column of the tables: its name, the modules it needs, and how to install them."""

    name: str
    needs: tuple[str, ...]
    otherwise: str = ""

    @property
    def install(self) -> str:
        return self.otherwise or extra_line(self.name)


FRAMEWORKS = (
    Framework("numpy", ("numpy",)),
    Framework("torch", ("torch",)),
    Framework("jax", ("jax",)),
    Framework("tensorflow", ("tensorflow",)),
    Framework("keras", ("keras",)),
    # freegrad 1.0.1 requires torchvision, which would replace the installed torch.
    Framework("freegrad", ("torch", "freegrad"), "pip install --no-deps freegrad==1.0.1"),
    Framework("mlx", ("mlx", "multigrad_mlx"), "pip install ./backends/multigrad_mlx"),
)
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
    module = importlib.import_module(f".training.in_{framework.name}", __package__)
    return cast(TrainingLoop, module)


def find_keras_backend() -> str | None:
    wanted = os.environ.get("KERAS_BACKEND")
    candidates = KERAS_BACKENDS if wanted is None else (wanted,)
    return next((name for name in candidates if find_spec(name) is not None), None)
