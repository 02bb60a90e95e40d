"""A training that is interrupted: a model with all that must come back, in torch.

The batches of a step are the same on any number of ranks, each of which has its part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

import multigrad as xg

STEPS, FIRST = 10, 5


class Network(nn.Module):
    """Spikes under a schedule, a weight quantized by a learned step, a layer of somebody else's."""

    def __init__(self, width: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.spikes = xg.Activation("Heaviside", "triangular", {"width": width})
        self.step = nn.Parameter(torch.tensor([0.3]))
        self.second = nn.Linear(6, 6)
        self.relu = nn.ReLU()
        self.last = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        weight = xg.estimators.lsq(self.second.weight, self.step, bits=3)
        x = nn.functional.linear(self.spikes(self.first(x)), weight, self.second.bias)
        return self.last(self.relu(x))


class Training:
    """A model on this many ranks, with its optimizer and its schedules."""

    def __init__(self, kind: str = "plain", width: Any = None, first: bool = True) -> None:
        torch.manual_seed(0 if first else 1)
        self.width = xg.schedule.linear(3.0, 0.5, steps=20) if width is None else width
        self.attached = xg.schedule.cosine(3.0, 0.5, steps=20)
        network = Network(self.width)
        rule = xg.get("triangular").with_params(width=self.attached)
        self.handle = xg.attach(network, {nn.ReLU: rule})
        self.model = wrap(kind, network)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

    def run(self, first: int, last: int) -> None:
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        generator = torch.Generator().manual_seed(7)
        for step in range(last):
            x = torch.randn(8, 4, generator=generator).chunk(world)[rank]
            y = torch.randn(8, 2, generator=generator).chunk(world)[rank]
            if step >= first:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
                for schedule in (self.width, self.attached):
                    if isinstance(schedule, xg.schedule.Schedule):
                        schedule.step()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: a schedule that no module has is an entry by itself."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "attached": self.attached}

    def save(self, folder: Path) -> None:
        checkpoint.save(self.state(), checkpoint_id=folder)

    def load(self, folder: Path, planner: Any = None) -> None:
        state = self.state()
        checkpoint.load(state, checkpoint_id=folder, planner=planner)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def found(self) -> dict[str, Any]:
        """Return all parameters, whole, and where the schedules stand."""
        whole = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        return {
            **{name: value.tolist() for name, value in whole.items()},
            "counts": [getattr(self.width, "count", None), self.attached.count],
        }


def wrap(kind: str, network: Any) -> Any:
    if kind == "compiled":
        return torch.compile(network, backend="eager")
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(network)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(network)
    return network
