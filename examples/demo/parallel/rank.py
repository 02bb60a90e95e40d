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

from ..runs import Recorder
from ..task import load_task

GROUP, PROGRESS, DONE = "group.json", "progress.txt", "run-{}.npz"
ORPHANED = 3


def main(folder: Path, rank: int) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    group = json.loads((folder / GROUP).read_text(encoding="utf-8"))
    loop: Any = importlib.import_module(f".sharded_{group['framework']}", __package__)
    task = load_task(*group["task"])
    loop.join(folder, rank, group["devices"])

    def note(accuracy: float) -> None:
        if rank == 0:
            with (folder / PROGRESS).open("a", encoding="utf-8") as lines:
                lines.write(f"{accuracy}\n")

    for index, (forward, rule) in enumerate(group["runs"]):
        report = Recorder(task, note)
        start = time.perf_counter()
        weights, seconds = loop.train(task, forward, rule, group["devices"], report)
        if rank == 0:
            path = folder / DONE.format(index)
            write(path, report, weights, seconds, time.perf_counter() - start)


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(ORPHANED)


def write(path: Path, report: Recorder, weights: Any, seconds: list[float], whole: float) -> None:
    """Write a run that is finished; its file is there only when it is whole."""
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        np.savez(
            file,
            *weights,
            losses=report.losses,
            accuracies=report.accuracies,
            predictions=report.predictions,
            steps=seconds,
            seconds=whole,
        )
    unfinished.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
