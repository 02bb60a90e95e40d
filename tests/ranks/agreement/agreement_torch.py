"""Ranks of torch under MULTIGRAD_CHECK_RANKS=1 that do not do the same; each check returns what was
raised on the rank.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from harness.distributed.agreement import RANK, failing, kill_second, mine, said
from harness.distributed.ranks import check
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import multigrad as xg
from multigrad.engine.trace import ranks


def start() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))


def finish() -> None:
    os._exit(0)  # a group in which a rank was killed is not to be left in order


class Training:
    """A small model and its steps."""

    def __init__(self, wrap: Any = DistributedDataParallel, **activation: Any) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(4, 6), xg.Activation("Heaviside", **activation), nn.Linear(6, 1))
        self.model = wrap(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.arange(8.0).reshape(2, 4) / 8 + RANK

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).sum().backward()

    def step(self, rule: Any = None, **use: Any) -> None:
        if rule is None:
            self.backward()
        else:
            with xg.use(rule, **use):
                self.backward()
        self.optimizer.step()


@check()
def ranks_that_agree() -> str:
    def run() -> None:
        training = Training()
        for number in range(3):
            training.step("triangular", params={"width": 1.0 + number})
            training.step(xg.compose("clip_norm", "noise"), scope="params", key=number)
            training.step()

    return said(run)


@check()
def different_rules() -> str:
    return said(lambda: Training().step(mine("triangular", "rectangular")))


@check()
def draws_for_parts_of_other_lengths() -> str:
    def run() -> None:
        training = Training()
        training.x = training.x[: 2 - RANK]
        training.step("full_jam", key=7, over="global")

    return said(run)


@check()
def different_params() -> str:
    return said(lambda: Training().step("triangular", params={"width": mine(1.0, 2.0)}))


@check()
def different_params_under_fully_shard() -> str:
    training = Training(fully_shard)
    return said(
        lambda: training.step("clip_norm", params={"max_norm": mine(1.0, 2.0)}, scope="params")
    )


@check()
def different_keys() -> str:
    return said(lambda: Training().step("noise", key=mine(3, 4), scope="params"))


@check()
def different_scopes() -> str:
    return said(lambda: Training().step("clip_norm", scope=mine("params", "activations")))


@check()
def no_rule_on_one_rank() -> str:
    return said(lambda: Training().step(mine("triangular", None)))


@check()
def different_rules_of_a_layer() -> str:
    return said(lambda: Training(rule=mine("triangular", "rectangular")).step())


@check()
def different_code_by_one_name() -> str:
    def halved(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / 2

    def doubled(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * 2

    rule = xg.register("of_this_rank", override=True)(mine(halved, doubled))
    return said(lambda: Training().step(rule))


@check()
def different_counts() -> str:
    def run() -> None:
        training = Training()
        with xg.use("triangular"):
            for _ in range(mine(1, 2)):
                training.model.module(training.x)

    return said(run)


@check()
def different_counts_where_rules_alone_are_compared() -> str:
    ranks.CHECKED = ranks.RULES
    try:
        return different_counts()
    finally:
        ranks.CHECKED = ranks.EVERYTHING


@check()
def different_order() -> str:
    def run() -> None:
        x = torch.ones(2)
        with xg.use("triangular"):
            for forward in mine(("ReLU", "Sign"), ("Sign", "ReLU")):
                xg.activation(forward)(x)

    return said(run)


@check()
def different_rules_for_gradients() -> str:
    grads = [torch.ones(3)]
    return said(lambda: xg.apply_to_gradients(grads, mine("clip_norm", "centralize")))


@check()
def a_rule_that_raises_on_one_rank() -> str:
    rule = xg.register("failing", native=True, override=True)(failing)
    # The gradients of fully_shard are reduced when the rule acts: no rank waits for another.
    return said(lambda: Training(fully_shard).step(rule, scope="params"))


@check()
def a_rank_that_comes_too_late() -> str:
    time.sleep(mine(0.0, 2.0 * float(os.environ["MULTIGRAD_CHECK_RANKS_TIMEOUT"])))
    return said(lambda: Training(nn.Sequential).step("triangular"))


@check()
def a_rank_that_is_killed() -> str:
    training = Training()
    kill_second()
    return said(lambda: training.step("triangular"))
