"""Forward and backward in PyTorch on a GPU, where rules run as one kernel each, and unfused."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

import torch

import multigrad as xg

from ..cases import OURS, UNFUSED, Case
from ..harness import Array, Rival
from ..rivals import in_torch
from .on_torch import build_copy, build_step, count_kept_bytes, set_threads

__all__ = ["build_copy", "build_step", "count_kept_bytes", "set_threads"]
Tensor: TypeAlias = torch.Tensor
DEVICE = torch.device("cuda")


def describe() -> str:
    """Return what runs here."""
    try:
        triton = f"Triton {version('triton')}"
    except PackageNotFoundError:
        triton = "no Triton, so nothing is fused"
    return f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}, {triton}"


def enter_rule(case: Case, stack: ExitStack) -> None:
    """Do nothing: the activations have their rules."""


def list_rivals(case: Case) -> dict[str, Rival]:
    """Return the functions to compare."""
    in_torch.move(DEVICE)
    return {
        **in_torch.RIVALS[case.forward, case.rule],
        UNFUSED: xg.activation(case.forward, rule=case.rule, fused=False),
        OURS: xg.activation(case.forward, rule=case.rule, fused=True),
    }


def make_inputs(x: Array, grad_out: Array) -> tuple[Tensor, Tensor]:
    """Return tensors on the GPU."""
    found = torch.tensor(x, device=DEVICE), torch.tensor(grad_out, device=DEVICE)
    return found[0].requires_grad_(), found[1]


def finish() -> None:
    """Wait for the GPU."""
    torch.cuda.synchronize(DEVICE)


def to_numpy(tensor: Tensor) -> Array:
    """Return the values."""
    return tensor.detach().cpu().numpy()
