"""Runs, planned, executed and recorded: one framework with one activation and one rule each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import multigrad as xg
from multigrad.core.lowering.forwards import ActivationName

from .frameworks import Framework, TrainingLoop, load
from .task import FORWARDS, Task, Weights

TRUE_DERIVATIVE = "true"
RULES = (TRUE_DERIVATIVE, "d(Linear)", "rectangular", "triangular")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a row of the tables stands for."""

    forward: ActivationName
    rule: str

    @property
    def backward(self) -> str | None:
        """The rule's name as the library takes it: None is the true derivative."""
        return None if self.rule == TRUE_DERIVATIVE else self.rule


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished run."""

    framework: str
    configuration: Configuration
    seconds: float
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    predictions: np.ndarray
    gradients: Weights

    @property
    def accuracy(self) -> float:
        return self.accuracies[-1]


@dataclass(frozen=True, slots=True)
class Gap:
    """A run that there is not: left out for a known reason, or failed."""

    framework: str
    configuration: Configuration
    reason: str
    failed: bool


Outcome = Run | Gap


@dataclass(frozen=True, slots=True)
class Doing:
    """What a framework begins."""

    framework: str
    what: str


@dataclass(frozen=True, slots=True)
class Imported:
    """A framework that is ready to train."""

    framework: str
    version: str
    seconds: float


Event = Doing | Imported | Outcome
Tell = Callable[[Event], object]
"""Is called with each event as it happens."""


def check_rules(names: Sequence[str]) -> list[str]:
    """Return the rules to run, without repetitions; an unknown one raises RuleError."""
    chosen = list(dict.fromkeys(names)) or list(RULES)
    for name in chosen:
        if name != TRUE_DERIVATIVE:
            xg.get(name)
    return chosen


def plan(rules: Sequence[str]) -> list[Configuration]:
    return [Configuration(forward, rule) for forward in FORWARDS for rule in rules]


def run_each(
    task: Task,
    frameworks: Sequence[Framework],
    configurations: Sequence[Configuration],
    tell: Tell,
) -> None:
    """Train every configuration in one framework after the other."""
    for framework in frameworks:
        name = framework.name
        tell(Doing(name, "importing"))
        start = time.perf_counter()
        try:
            loop = load(framework)
            version = loop.describe()
        except Exception as error:  # noqa: BLE001 - a broken framework must not stop the others
            for row in configurations:
                tell(Gap(name, row, summarize(error), failed=True))
            continue
        tell(Imported(name, version, time.perf_counter() - start))
        for row in configurations:
            tell(Doing(name, f"{row.forward}, {row.rule}"))
            tell(run_one(task, name, loop, row))


def run_one(
    task: Task, framework: str, loop: TrainingLoop, configuration: Configuration
) -> Outcome:
    """Train once and return what came of it."""
    explain_absence = getattr(loop, "explain_absence", None)
    if explain_absence is not None:
        reason = explain_absence(configuration.forward, configuration.backward)
        if reason is not None:
            return Gap(framework, configuration, reason, failed=False)
    try:
        return execute(task, framework, loop, configuration)
    except Exception as error:  # noqa: BLE001 - reported, and the exit code tells
        return Gap(framework, configuration, summarize(error), failed=True)


def execute(task: Task, framework: str, loop: TrainingLoop, configuration: Configuration) -> Run:
    """Train once, on the clock."""
    losses: list[float] = []
    accuracies: list[float] = []
    predictions = np.empty(0, np.int64)

    def report(loss: float, predicted: np.ndarray) -> None:
        nonlocal predictions
        losses.append(loss)
        accuracies.append(float(np.mean(predicted == task.test_y)))
        predictions = predicted

    start = time.perf_counter()
    gradients = loop.train(task, configuration.forward, configuration.backward, report)
    return Run(
        framework,
        configuration,
        seconds=time.perf_counter() - start,
        losses=tuple(losses),
        accuracies=tuple(accuracies),
        predictions=predictions,
        gradients=gradients,
    )


def summarize(error: Exception) -> str:
    """Return an error's class and its first line; TensorFlow puts the message last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    text = lines[-1] if lines[0] == "in user code:" else lines[0]
    return f"{type(error).__name__}: {text}"
