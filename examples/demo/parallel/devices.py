"""`--devices N`: each framework trains on one device and on N, and is compared.

The processes share nothing with this one, which imports no framework: an interrupt ends them, and
what is finished is shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multigrad.command import STOPPED
from multigrad.command.options import FAILED, Interruption, prepare_environment
from multigrad.errors import MultigradError, suggest

from ..experiment import describe_task
from ..frameworks import FRAMEWORKS, choose, explain_absence
from ..results import Options
from ..runs import RULES, Gap, check_rules, plan
from ..task import BATCH, load_task
from .groups import Group, Trained, make_group, run_group

SHARDED = ("torch", "jax")
# Beside those that act on single elements, a norm of the whole batch.
SHARDED_RULES = (*RULES, "normalize")
RESULTS, PICTURE = "devices.json", "devices.png"


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The same training on one device and on several."""

    one: Trained
    several: Trained

    @property
    def weights(self) -> float:
        pairs = zip(self.one.weights, self.several.weights, strict=True)
        return max(float(np.abs(one - several).max()) for one, several in pairs)

    @property
    def losses(self) -> tuple[float, ...]:
        pairs = zip(self.one.losses, self.several.losses, strict=True)
        return tuple(abs(one - several) for one, several in pairs)

    @property
    def predictions(self) -> int:
        """The number of test images that the two label differently."""
        return int(np.sum(self.one.predictions != self.several.predictions))


def check_devices(devices: int) -> int:
    """Return the number of devices; one that no batch can be split over is an error."""
    if not 2 <= devices <= BATCH:
        raise MultigradError(
            f"--devices {devices}: a batch has {BATCH} images, so give 2 to {BATCH}"
            " (one device is always trained beside them)"
        )
    return devices


def choose_sharded(names: Sequence[str]) -> list[str]:
    for name in names:
        if name.lower() not in SHARDED:
            raise MultigradError(
                f"--devices is for {' and '.join(SHARDED)}, not {name!r}{suggest(name, SHARDED)}"
            )
    if names:
        return [framework.name for framework in choose(names)]
    known = [framework for framework in FRAMEWORKS if framework.name in SHARDED]
    installed = [framework.name for framework in known if explain_absence(framework) is None]
    if not installed:
        raise MultigradError(
            f"neither is installed; type: {' or: '.join(f.install for f in known)}"
        )
    return installed


def run(options: Options, devices: int) -> int:
    """Run the experiment on one device and on several; return the exit code."""
    from rich.console import Console

    from .. import display
    from . import devices_shown

    configurations = plan(check_rules(options.rules or SHARDED_RULES))
    frameworks = choose_sharded(options.frameworks)
    options.out.mkdir(parents=True, exist_ok=True)
    prepare_environment()
    console = Console()
    task = load_task(options.epochs, options.seed, options.learning_rate)
    console.print(describe_task(task, options), highlight=False, soft_wrap=True)
    console.print(describe_devices(devices), highlight=False, soft_wrap=True)
    groups = [make_group(name, count) for name in frameworks for count in (1, devices)]
    live = display.LiveProgress(console, len(groups) * len(configurations), options.epochs)
    outcomes: list[Trained | Gap] = []
    with Interruption() as interruption, live:
        for group in groups:
            live.begin_framework(group.label)
            for outcome in run_group(group, configurations, options, live):
                outcomes.append(outcome)
                live.count_run()
                live.print(devices_shown.describe(outcome))
    pairs = pair_up(outcomes)
    devices_shown.show_pairs(console, pairs, options.epochs)
    for path in write_files(options, devices, outcomes, pairs):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    if interruption.requested:
        console.print("Interrupted: the table and files hold the runs that were finished.")
        return STOPPED
    return FAILED if any(isinstance(outcome, Gap) for outcome in outcomes) else 0


def describe_devices(devices: int) -> str:
    """Say what the devices are, and what their times are worth on this machine."""
    cores = count_cores()
    text = f"On 1 and on {devices}: processes of torch (gloo), forced devices of JAX; {cores} cores"
    if devices <= cores:
        return text
    return f"{text}, fewer than devices, so the times of a step say nothing of a real machine"


def count_cores() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no such call
        return os.cpu_count() or 1


def pair_up(outcomes: Sequence[Trained | Gap]) -> list[Pair]:
    """Return the runs of which there are both."""
    trained = [outcome for outcome in outcomes if isinstance(outcome, Trained)]
    alone = {key_of(run): run for run in trained if run.group.devices == 1}
    return [
        Pair(alone[key_of(run)], run)
        for run in trained
        if run.group.devices > 1 and key_of(run) in alone
    ]


def key_of(run: Trained) -> tuple[Any, ...]:
    return run.group.framework, run.configuration


def write_files(
    options: Options, devices: int, outcomes: Sequence[Trained | Gap], pairs: Sequence[Pair]
) -> list[Path]:
    from . import devices_shown

    numbers = options.out / RESULTS
    document = {
        "settings": {
            "epochs": options.epochs,
            "seed": options.seed,
            "learning_rate": options.learning_rate,
            "devices": devices,
        },
        "cores": count_cores(),
        "pairs": [pair_to_document(pair) for pair in pairs],
        "failed": [
            {"group": gap.framework, "rule": gap.configuration.rule, "reason": gap.reason}
            for gap in outcomes
            if isinstance(gap, Gap)
        ],
    }
    numbers.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if not pairs:
        return [numbers]
    picture = options.out / PICTURE
    devices_shown.draw_pairs(pairs, picture)
    return [numbers, picture]


def pair_to_document(pair: Pair) -> dict[str, Any]:
    return {
        "framework": pair.one.group.framework,
        "forward": pair.one.configuration.forward,
        "rule": pair.one.configuration.rule,
        "weights": pair.weights,
        "predictions": pair.predictions,
        "runs": [run_to_document(run) for run in (pair.one, pair.several)],
    }


def run_to_document(run: Trained) -> dict[str, Any]:
    group: Group = run.group
    return {
        "devices": group.devices,
        "processes": group.processes,
        "losses": run.losses,
        "accuracies": run.accuracies,
        "step_seconds": run.step,
        "seconds": run.seconds,
    }
