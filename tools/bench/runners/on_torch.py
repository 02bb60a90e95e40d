"""Forward and backward in PyTorch: `torch.autograd.grad`, eager, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch

import multigrad as xg

from ..cases import FREEGRAD, OURS, Case
from ..harness import Array, Rival
from ..rivals.in_torch import RIVALS

Tensor: TypeAlias = torch.Tensor


def describe() -> str:
    return f"PyTorch {torch.__version__}"


def set_threads(count: int) -> None:
    torch.set_num_threads(count)


def enter_rule(case: Case, stack: ExitStack) -> None:
    stack.enter_context(xg.use(case.rule))
    if has_freegrad(case):
        import freegrad

        stack.enter_context(freegrad.use(case.rule))


def list_rivals(case: Case) -> dict[str, Rival]:
    rivals: dict[str, Rival] = {**RIVALS[case.forward, case.rule]}
    rivals[OURS] = xg.Activation(case.forward)
    if has_freegrad(case):
        import freegrad

        rivals[FREEGRAD] = freegrad.Activation(case.forward)
    return rivals


def has_freegrad(case: Case) -> bool:
    """Return whether FreeGrad is installed and has the rule."""
    if find_spec("freegrad") is None:
        return False
    import freegrad
    from freegrad.registry import RuleError

    try:
        freegrad.get(case.rule)
    except RuleError:
        return False
    return True


def make_inputs(x: Array, grad_out: Array) -> tuple[Tensor, Tensor]:
    """Return copies, so that the memory is torch's own."""
    return torch.from_numpy(x).clone().requires_grad_(), torch.from_numpy(grad_out).clone()


def build_step(rival: Rival, x: Tensor, grad_out: Tensor) -> Callable[[], Any]:
    grad = torch.autograd.grad

    def step() -> tuple[Tensor, Tensor]:
        output = rival(x)
        return output, grad(output, x, grad_out)[0]

    return step


def build_copy(x: Tensor) -> Callable[[], Any]:
    """Return a call that copies x into memory that is there."""
    source = x.detach()
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return copy


def count_kept_bytes(rival: Rival, x: Tensor, grad_out: Tensor) -> int:
    """Return the bytes of the memory that autograd keeps, each piece once.

    Read off the nodes: under hooks on what is kept nothing is fused.
    """
    kept: dict[int, int] = {}
    output = rival(x)  # with which a node frees what it keeps
    nodes = {output.grad_fn}
    while nodes:
        node = nodes.pop()
        saved = getattr(node, "saved_tensors", None)
        if saved is None:  # a node of torch's own has an attribute for each
            saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        for each in saved:
            if isinstance(each, Tensor):
                kept[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        nodes |= {before for before, _ in getattr(node, "next_functions", ()) if before is not None}
    del output
    return sum(kept.values())


def to_numpy(tensor: Tensor) -> Array:
    return tensor.detach().numpy()
