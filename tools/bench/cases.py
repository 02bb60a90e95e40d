"""What can be measured, rules and sizes and frameworks, and what the command line calls it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.frameworks import FRAMEWORKS, KERAS_BACKENDS, explain_absence
from multigrad.core.lowering.forwards import ActivationName
from multigrad.errors import BackendNotFound, MultigradError, RuleError, suggest

BACKENDS = ("numpy", "torch", "jax", "tensorflow")
WITH_RIVALS = (*BACKENDS, "keras")
OURS, PLAIN, HAND_WRITTEN, SHORTCUT, FREEGRAD = (
    "multigrad",
    "plain",
    "hand-written",
    "shortcut",
    "freegrad",
)
NATIVE, UNFUSED, FUSED = "native", "unfused", "fused"
PARTS = RULES_PART, BRIDGES_PART, KERAS_PART, PACKAGES_PART = (
    "rules",
    "bridges",
    "keras",
    "packages",
)
# Measured alone, and where it is named: the other parts hide GPUs from the frameworks.
GPU_PART, GPU = "gpu", "cuda"
GPU_SIZES = (1_000, 1_000_000, 100_000_000)
THREADS = ("one", "all", "both")
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
QUICK_SIZES = (1_000, 100_000)
BRIDGE_SIZES = (1_000, 1_000_000)
PACKAGE_SIZES = (1_000, 100_000, 1_000_000)
LARGEST = 1_000_000_000


class OptionError(MultigradError, ValueError):
    """An option of the command has a value that cannot be measured."""


@dataclass(frozen=True, slots=True)
class Case:
    """A rule under an activation."""

    forward: ActivationName
    rule: str

    @property
    def label(self) -> str:
        return f"{self.forward} + {self.rule}"


CASES = (
    Case("Heaviside", "triangular"),
    Case("ReLU", "rectangular"),
    Case("Heaviside", "rectangular"),
    Case("Heaviside", "arctan"),
    Case("ReLU", "d(ReLU)"),
    Case("Linear", "clip_norm"),
)
STEP = CASES[0]
"""What bridges and Keras are measured with: little work, so that what is around it shows."""

RULES = tuple(dict.fromkeys(case.rule for case in CASES))


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often a cell is measured.

    Attributes:
        seconds: time for all rounds of a cell, once every rival has run.
        fewest, most: rounds; the fewest are run even where they take longer.
        block: seconds of calls that one figure is the mean of.
    """

    seconds: float
    fewest: int
    most: int
    block: float

    @classmethod
    def of_rounds(cls, number: int) -> Effort:
        """Return the effort of so many rounds, however long they take."""
        return cls(seconds=0.0, fewest=number, most=number, block=0.0)


THOROUGH = Effort(seconds=1.5, fewest=15, most=200, block=2e-3)
QUICK = Effort(seconds=0.1, fewest=5, most=25, block=5e-4)
THOROUGH_FITS = Effort(seconds=20.0, fewest=21, most=101, block=0.0)
QUICK_FITS = Effort.of_rounds(3)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for, checked."""

    cases: Sequence[Case] = CASES
    sizes: Sequence[int] = SIZES
    backends: Sequence[str] = BACKENDS
    threads: str = "one"
    quick: bool = False
    overheads: bool = True
    numbers: Path | None = None
    earlier: Path | None = None
    picture: Path | None = None
    parts: Sequence[str] = PARTS
    bridge_sizes: Sequence[int] = BRIDGE_SIZES
    package_sizes: Sequence[int] = PACKAGE_SIZES
    gpu_sizes: Sequence[int] = GPU_SIZES
    absences: Sequence[str] = ()

    @property
    def effort(self) -> Effort:
        return QUICK if self.quick else THOROUGH

    @property
    def fit_effort(self) -> Effort:
        return QUICK_FITS if self.quick else THOROUGH_FITS


def choose_cases(rules: Sequence[str]) -> list[Case]:
    """Return the cases of these rules; all of them where none is named."""
    for rule in rules:
        if rule not in RULES:
            known = ", ".join(RULES)
            raise RuleError(f"no rival for a rule named {rule!r}{suggest(rule, RULES)} ({known})")
    return [case for case in CASES if not rules or case.rule in rules]


def choose_parts(words: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Return the parts to measure: those named, or all that these cases have."""
    if not words:
        return [part for part in PARTS if part == RULES_PART or STEP in cases]
    known = (*PARTS, GPU_PART)
    for word in words:
        if word not in known:
            hint = suggest(word, known)
            raise OptionError(f"--only takes {', '.join(known)}, not {word!r}{hint}")
    if GPU_PART in words:
        check_gpu(words)
        return [GPU_PART]
    if STEP not in cases and {BRIDGES_PART, KERAS_PART} & set(words):
        raise OptionError(
            f"bridges and keras are measured with {STEP.label}; leave --rules out or type:"
            f" --rules {STEP.rule}"
        )
    return [part for part in PARTS if part in words]


def check_gpu(parts: Sequence[str]) -> None:
    if set(parts) != {GPU_PART}:
        raise OptionError("gpu is measured alone; type: python tools/bench --only gpu")
    choose_backends(["torch"])
    import torch

    if not torch.cuda.is_available():
        raise OptionError(f"--only gpu needs a GPU, and torch {torch.__version__} sees none")


def choose_sizes(words: Sequence[str], default: Sequence[int]) -> list[int]:
    """Return numbers of elements in ascending order: "1e3" and "1000" are the same."""
    return sorted({read_size(word) for word in words}) if words else list(default)


def read_size(word: str) -> int:
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not (1 <= number <= LARGEST and number.is_integer()):
        raise OptionError(
            f"--sizes takes numbers of elements from 1 to {LARGEST:.0e}, not {word!r};"
            f" type for example: --sizes 1e3,1e6"
        )
    return int(number)


def choose_backends(names: Sequence[str]) -> list[str]:
    """Return the named frameworks, which must be there, or all that are installed."""
    absences = {
        framework.name: explain_absence(framework)
        for framework in FRAMEWORKS
        if framework.name in BACKENDS
    }
    if not names:
        return [name for name in BACKENDS if absences[name] is None]
    for name in names:
        check_backend_name(name)
        reason = absences[name]
        if reason is not None:
            raise BackendNotFound(reason)
    return list(dict.fromkeys(names))


def list_absences(names: Sequence[str], parts: Sequence[str]) -> list[str]:
    wanted: list[str] = [] if names else list(BACKENDS)
    if KERAS_PART in parts and (not names or set(names) & set(KERAS_BACKENDS)):
        wanted.append("keras")
    reasons = [explain_absence(framework) for framework in FRAMEWORKS if framework.name in wanted]
    return [reason for reason in reasons if reason is not None]


def check_backend_name(name: str, known: Sequence[str] = BACKENDS) -> None:
    if name not in known:
        hint = suggest(name, known)
        raise BackendNotFound(f"no backend named {name!r}{hint} ({', '.join(known)})")


def check_threads(word: str) -> str:
    if word not in THREADS:
        hint = suggest(word, THREADS)
        raise OptionError(f"--threads takes {', '.join(THREADS)}, not {word!r}{hint}")
    return word


def count_threads(word: str) -> int:
    return 1 if word == "one" else os.cpu_count() or 1
