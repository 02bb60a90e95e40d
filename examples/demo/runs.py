"""Runs, planned, executed and recorded: one framework with one activation and one rule each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

import multigrad as xg
from multigrad.lowering.forwards import ActivationName

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


class Watcher(Protocol):
    """Is told how the runs go on."""

    def begin_framework(self, framework: str) -> None: ...  # before it is imported

    def begin_run(self, framework: str, configuration: Configuration) -> None: ...

    def end_epoch(self, accuracy: float) -> None: ...

    def end_framework(self, framework: str) -> None: ...


def check_rules(names: Sequence[str]) -> list[str]:
    """Return the rules to run, without repetitions; an unknown one raises RuleError."""
    chosen = list(dict.fromkeys(names)) or list(RULES)
    for name in chosen:
        if name != TRUE_DERIVATIVE:
            xg.get(name)
    return chosen


def plan(rules: Sequence[str]) -> list[Configuration]:
    return [Configuration(forward, rule) for forward in FORWARDS for rule in rules]


def run_all(
    task: Task,
    frameworks: Sequence[Framework],
    configurations: Sequence[Configuration],
    watcher: Watcher,
    versions: dict[str, str],
) -> Iterator[Outcome]:
    """Yield one outcome per framework and configuration; note each framework's version."""
    for framework in frameworks:
        watcher.begin_framework(framework.name)
        try:
            loop = load(framework)
            versions[framework.name] = loop.describe()
        except Exception as error:  # noqa: BLE001 - a broken framework must not stop the others
            reason = summarize(error)
            yield from (Gap(framework.name, row, reason, failed=True) for row in configurations)
        else:
            for configuration in configurations:
                watcher.begin_run(framework.name, configuration)
                yield run_one(task, framework.name, loop, configuration, watcher)
        watcher.end_framework(framework.name)


def run_one(
    task: Task, framework: str, loop: TrainingLoop, configuration: Configuration, watcher: Watcher
) -> Outcome:
    """Train once and return what came of it."""
    explain_absence = getattr(loop, "explain_absence", None)
    if explain_absence is not None:
        reason = explain_absence(configuration.forward, configuration.backward)
        if reason is not None:
            return Gap(framework, configuration, reason, failed=False)
    try:
        return execute(task, framework, loop, configuration, watcher.end_epoch)
    except Exception as error:  # noqa: BLE001 - reported, and the exit code tells
        return Gap(framework, configuration, summarize(error), failed=True)


class Recorder:
    """Keeps what a training loop reports of each epoch, and passes the test accuracy on."""

    def __init__(self, task: Task, hear: Callable[[float], object]) -> None:
        self.task, self.hear = task, hear
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.predictions = np.empty(0, np.int64)

    def __call__(self, loss: float, predicted: np.ndarray) -> None:
        self.losses.append(loss)
        self.accuracies.append(float(np.mean(predicted == self.task.test_y)))
        self.predictions = predicted
        self.hear(self.accuracies[-1])


def execute(
    task: Task,
    framework: str,
    loop: TrainingLoop,
    configuration: Configuration,
    hear: Callable[[float], object],
) -> Run:
    """Train once, on the clock; `hear` gets the test accuracy after each epoch."""
    report = Recorder(task, hear)
    forward, backward = configuration.forward, configuration.backward
    gradients = loop.first_gradients(task, forward, backward)
    start = time.perf_counter()
    loop.train(task, forward, backward, report)
    seconds = time.perf_counter() - start
    return Run(
        framework,
        configuration,
        seconds,
        losses=tuple(report.losses),
        accuracies=tuple(report.accuracies),
        predictions=report.predictions,
        gradients=gradients,
    )


def summarize(error: Exception) -> str:
    """Return an error's class and its first line; TensorFlow puts the message last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    text = lines[-1] if lines[0] == "in user code:" else lines[0]
    return f"{type(error).__name__}: {text}"
