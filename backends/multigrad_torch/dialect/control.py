"""Torch's dialect, loops and branches that are functions: `torch.cond`, `torch.while_loop`, and the
scan of `torch._higher_order_ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan as torch_associative_scan
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop

from multigrad.capture.control import control, scans
from multigrad.graph.support.trees import optree
from multigrad.trace.xp import all as xp

from ..versions import SCANS

Tensor = Any
Handler = Callable[..., Any]


def cond(pred: Any, true_fn: Handler, false_fn: Handler, operands: Any = ()) -> Any:
    """Both ways and a choice, where no fact decides."""
    return scans.cond(pred, true_fn, false_fn, *operands)


def while_loop(cond_fn: Handler, body_fn: Handler, carried_inputs: Any) -> Any:
    """The loop unrolled, or recorded where values end it."""
    step: Handler = lambda *values: [*body_fn(*values)]
    return tuple(control.turns([*carried_inputs], cond_fn, step))


def scan(combine_fn: Handler, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """A loop over the rows along an axis, of which results are stacked along the first."""
    rows = optree.tree_map(lambda x: xp.moveaxis(x, dim, 0), xs) if dim else xs
    return scans.scan(combine_fn, init, rows, reverse=reverse)


def associative_scan(
    combine_fn: Handler,
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """All partial results of an operation, whichever of its modes says how it is compiled."""
    return scans.associative_scan(combine_fn, xs, reverse, dim)


HIDDEN: dict[Any, Handler] = {
    torch.cond: cond,
    torch_while_loop: while_loop,
    torch_associative_scan: associative_scan,
    **dict.fromkeys(SCANS, scan),
}
