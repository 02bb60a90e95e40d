"""A training that two ranks take over from one process, and one that they leave to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from harness.distributed.ranks import check
from harness.distributed.resumed_torch import FIRST, STEPS, Training

FOLDER = Path(os.environ["CHECKPOINTS"])
KINDS = ("ddp", "fsdp")


def start() -> None:
    dist.init_process_group("gloo")


def finish() -> None:
    dist.destroy_process_group()


@check(kind=KINDS)
def saves(kind: str) -> dict[str, Any]:
    training = Training(kind)
    training.run(0, FIRST)
    training.save(FOLDER / kind)
    return training.found()


@check(kind=KINDS)
def goes_on(kind: str) -> dict[str, Any]:
    training = Training(kind, first=False)
    training.load(FOLDER / "plain")
    training.run(FIRST, STEPS)
    return training.found()
