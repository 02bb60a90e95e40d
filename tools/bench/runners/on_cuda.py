"""Rules in PyTorch on a GPU: unfused, as one kernel each, and as `fused="auto"` chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

import torch

import multigrad as xg
from multigrad_torch.attach.fusing.dispatch import THREAD

from ..cases import FUSED, OURS, UNFUSED, Case
from ..harness import Array, Rival
from ..rivals import in_torch
from . import on_torch
from .on_torch import build_copy, count_kept_bytes, set_threads

__all__ = ["build_copy", "count_kept_bytes", "set_threads"]
Tensor: TypeAlias = torch.Tensor
DEVICE = torch.device("cuda")
FIRST = 4  # calls, before kernels compile in the background
xg.enable("kernels")


def describe() -> str:
    try:
        triton = f"Triton {version('triton')}"
    except PackageNotFoundError:
        triton = "no Triton, so nothing is fused"
    return f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}, {triton}"


def enter_rule(case: Case, stack: ExitStack) -> None:
    """Do nothing: the activations have their rules."""


def list_rivals(case: Case) -> dict[str, Rival]:
    in_torch.move(DEVICE)
    return {
        **in_torch.RIVALS[case.forward, case.rule],
        UNFUSED: xg.activation(case.forward, rule=case.rule, fused=False),
        FUSED: xg.activation(case.forward, rule=case.rule, fused=True),
        OURS: xg.activation(case.forward, rule=case.rule),
    }


def make_inputs(x: Array, grad_out: Array) -> tuple[Tensor, Tensor]:
    found = torch.tensor(x, device=DEVICE), torch.tensor(grad_out, device=DEVICE)
    return found[0].requires_grad_(), found[1]


def build_step(rival: Rival, x: Tensor, grad_out: Tensor) -> Callable[[], Any]:
    """Return a call of forward and backward; the kernels that it is going to have are there."""
    step = on_torch.build_step(rival, x, grad_out)
    for _ in range(FIRST):
        step()
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
    step()  # which compares them
    return step


def finish() -> None:
    torch.cuda.synchronize(DEVICE)


def to_numpy(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()
