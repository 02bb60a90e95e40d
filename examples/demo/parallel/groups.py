"""The processes of `--devices`: started, watched and ended, whatever happens.

Each has a session of its own, so that an interrupt from the terminal reaches only this process,
which ends them; and a pipe from it, whose end tells them when it was killed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..results import Options
from ..runs import Configuration, Gap, Watcher
from ..task import Weights
from .rank import DONE, GROUP, PROGRESS

POLL, GRACE = 0.05, 2.0
# The line of a traceback that names the error; frameworks write more below it, torch its rank.
ERROR_PREFIX = re.compile(r"^\[rank\d+\]: ")
ERROR_LINE = re.compile(r"[\w.]+(Error|Exception|Warning|Interrupt)\b.*: ")


@dataclass(frozen=True, slots=True)
class Group:
    """One framework on a number of devices."""

    framework: str
    devices: int
    processes: int
    environment: Mapping[str, str]

    @property
    def label(self) -> str:
        return f"{self.framework} on {self.devices}"


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A finished run."""

    group: Group
    configuration: Configuration
    weights: Weights
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    predictions: np.ndarray
    step: float
    """Median seconds of a step."""
    seconds: float


def make_group(framework: str, devices: int) -> Group:
    """Return what runs a framework on a number of devices: processes, or jax's forced ones."""
    if framework == "jax":
        forced = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
        return Group(framework, devices, processes=1, environment=forced)
    return Group(framework, devices, processes=devices, environment={})


def run_group(
    group: Group, runs: Sequence[Configuration], options: Options, watcher: Watcher
) -> Iterator[Trained | Gap]:
    """Train every run on a group; yield each as it is finished, or why it is not."""
    with TemporaryDirectory(prefix="multigrad-demo-") as name:
        folder = Path(name)
        pairs = [(run.forward, run.backward) for run in runs]
        settings = {"framework": group.framework, "devices": group.devices, "runs": pairs}
        task = (options.epochs, options.seed, options.learning_rate)
        text = json.dumps({**settings, "task": task})
        (folder / GROUP).write_text(text, encoding="utf-8")
        with started(group, folder) as processes:
            for index, run in enumerate(runs):
                watcher.begin_run(group.label, run)
                reason = wait(folder, index, options.epochs, processes, watcher)
                if reason is not None:
                    rest = runs[index:]
                    yield from (Gap(group.label, row, reason, failed=True) for row in rest)
                    return
                yield read_run(folder / DONE.format(index), group, run)


@contextmanager
def started(
    group: Group, folder: Path, module: str = f"{__package__}.rank"
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the processes of a group, and leave none behind."""
    command = [sys.executable, "-m", module, str(folder)]
    # They find what this process finds.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **group.environment}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(group.processes):
            with (folder / f"{rank}.out").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [*command, str(rank)],
                        stdin=subprocess.PIPE,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        end(processes)


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def wait(
    folder: Path,
    index: int,
    epochs: int,
    processes: Sequence[subprocess.Popen[bytes]],
    watcher: Watcher,
) -> str | None:
    """Wait until a run is finished; return why it never will be, if a process has failed."""
    heard = index * epochs
    done = folder / DONE.format(index)
    while True:
        # Asked before the file is looked for: the last thing that rank 0 does is to write it.
        codes = [process.poll() for process in processes]
        is_done = done.exists()
        for accuracy in read_progress(folder)[heard : (index + 1) * epochs]:
            heard += 1
            watcher.end_epoch(accuracy)
        if is_done:
            return None
        failed = [rank for rank, code in enumerate(codes) if code is not None]
        if failed:
            return explain(folder, failed[0], codes[failed[0]])
        time.sleep(POLL)


def read_progress(folder: Path) -> list[float]:
    """Return the accuracy after each epoch so far; a line that is not whole yet is left out."""
    path = folder / PROGRESS
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [float(line) for line in text.split("\n")[:-1]]


def explain(folder: Path, rank: int, code: int | None) -> str:
    """Return what a process that failed said last."""
    text = (folder / f"{rank}.out").read_text(encoding="utf-8", errors="replace")
    lines = [ERROR_PREFIX.sub("", line).strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if ERROR_LINE.match(line)] or lines or ["no message"]
    return f"rank {rank} ended with code {code}: {named[-1]}"


def read_run(path: Path, group: Group, configuration: Configuration) -> Trained:
    with np.load(path) as arrays:
        return Trained(
            group,
            configuration,
            weights=tuple(arrays[f"arr_{i}"] for i in range(4)),
            losses=tuple(arrays["losses"].tolist()),
            accuracies=tuple(arrays["accuracies"].tolist()),
            predictions=arrays["predictions"],
            step=float(np.median(arrays["steps"])),
            seconds=float(arrays["seconds"]),
        )
