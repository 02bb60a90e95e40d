"""One process of `--devices`: `python -m demo.parallel.rank FOLDER RANK`.

It trains what FOLDER/group.json lists, one run after the other. Rank 0 writes each run's numbers,
and a line for each epoch.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..task import Task, load_task

GROUP, PROGRESS, DONE = "group.json", "progress.txt", "run-{}.npz"
ORPHANED = 3


def main(folder: Path, rank: int) -> None:
    """Train every run of the group."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    group = json.loads((folder / GROUP).read_text(encoding="utf-8"))
    loop: Any = importlib.import_module(f".sharded_{group['framework']}", __package__)
    task = load_task(*group["task"])
    loop.join(folder, rank, group["devices"])
    for index, (forward, rule) in enumerate(group["runs"]):
        report = Recorder(task, folder if rank == 0 else None)
        start = time.perf_counter()
        weights, seconds = loop.train(task, forward, rule, group["devices"], report)
        if rank == 0:
            report.write(index, weights, seconds, time.perf_counter() - start)


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(ORPHANED)


class Recorder:
    """Keeps what a run reports, and writes it where there is a folder."""

    def __init__(self, task: Task, folder: Path | None) -> None:
        self.task = task
        self.folder = folder
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.predictions = np.empty(0, np.int64)

    def __call__(self, loss: float, predicted: np.ndarray) -> None:
        """Hear of an epoch."""
        self.losses.append(loss)
        self.accuracies.append(float(np.mean(predicted == self.task.test_y)))
        self.predictions = predicted
        if self.folder is not None:
            with (self.folder / PROGRESS).open("a", encoding="utf-8") as lines:
                lines.write(f"{self.accuracies[-1]}\n")

    def write(self, index: int, weights: Any, seconds: list[float], whole: float) -> None:
        """Write a run that is finished; its file is there only when it is whole."""
        assert self.folder is not None
        path = self.folder / DONE.format(index)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            np.savez(
                file,
                *weights,
                losses=self.losses,
                accuracies=self.accuracies,
                predictions=self.predictions,
                steps=seconds,
                seconds=whole,
            )
        unfinished.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
