"""Ranks of torch without MULTIGRAD_CHECK_RANKS, of which one fails and lives on."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from harness.distributed.agreement import RANK, failing
from harness.distributed.ranks import check
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import multigrad as xg

SECONDS = 3.0  # the time-out of the group


def start() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=SECONDS))


def finish() -> None:
    os._exit(0)  # the group's collectives are no more in order


@check()
def errors_that_leave_a_use() -> list[list[str]]:
    found = []
    for error in (ValueError("the user's own"), xg.RuleError("ours")):
        try:
            with xg.use("triangular"):
                raise error
        except Exception as caught:  # noqa: BLE001
            found.append(getattr(caught, "__notes__", []))
    return found


@check()
def a_hook_that_raises_within_backward() -> Any:
    rule = xg.register("failing", native=True)(failing)
    model = DistributedDataParallel(nn.Linear(3, 1))
    began = time.monotonic()
    try:
        with xg.use(rule, scope="params"):
            model(torch.ones(2, 3)).sum().backward()
    except Exception as error:  # noqa: BLE001
        found = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
        found.append(str(time.monotonic() - began))
    if RANK == 1:
        time.sleep(2 * SECONDS)  # it has not ended: nobody is told of it by a closed connection
    return found
