"""Checks that pass, fail, end their process and hang: what `harness.ranks` is tested with."""

from __future__ import annotations

import os
import time
from typing import Any

from harness.distributed.ranks import check

KINDS = ("first", "second")
RANK = int(os.environ["RANK"])


@check(kind=KINDS, number=(1, 2))
def reports_its_place(kind: str, number: int) -> Any:
    names = ("WORLD_SIZE", "RANKS_MORE")
    return [kind, number, RANK, *(os.environ[name] for name in names)]


@check()
def fails_on_the_last_rank() -> None:
    assert RANK == 0, "only the first rank passes"


@check()
def ends_the_last_rank() -> None:
    if RANK > 0:
        os._exit(3)


@check()
def hangs() -> None:
    time.sleep(60.0)
