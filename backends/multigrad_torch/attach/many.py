"""A rule on many gradients at once, outside of autodiff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ..kernels.fast.many import over_many
from .state import BATCHED, KINDS, count_modes, tracing_state, transforms_active

if TYPE_CHECKING:
    from multigrad.backend import Graph

Tensor: TypeAlias = torch.Tensor
BLOCK = 1 << 22
is_included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[..., list[Tensor] | None] | None:
    """Return a rule on gradients by torch's `_foreach` kernels; see `Autodiff.many`."""
    rewritten = over_many(graph, in_place)
    if rewritten is None:
        return None
    function = emit(rewritten)

    def run(
        gradients: Sequence[Tensor], values: Sequence[Any], tries: bool = False
    ) -> list[Tensor] | None:
        first = gradients[0]
        if type(first) not in KINDS or transforms_active() or count_modes():
            return None
        if tracing_state() is not None or is_included(BATCHED):
            return None
        device = first.device
        if any(each.device != device or each.layout is not torch.strided for each in gradients):
            return None
        if torch.is_grad_enabled() and any(each.requires_grad for each in gradients):
            return None
        if tries:
            return []
        blocks = blocks_of(gradients) if device.type == "cpu" else [list(gradients)]
        return [each for block in blocks for each in function(block, *values)]

    return run


def blocks_of(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return gradients in blocks that stay in a processor's cache from one op to the next: 161 of a
    ResNet-50 are clipped in 15.1 ms so, in 18.7 all at once.
    """
    blocks, size = [[gradients[0]]], gradients[0].nbytes
    for gradient in gradients[1:]:
        if size > BLOCK:
            blocks.append([])
            size = 0
        blocks[-1].append(gradient)
        size += gradient.nbytes
    return blocks
