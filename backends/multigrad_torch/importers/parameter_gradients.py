"""Gradients that a class's backward adds to the parameters of a module among its arguments.

Such a backward calls autograd itself and returns nothing for the module: the gradients land in the
`.grad` of its parameters. `gather` returns them instead, when a copy of the module runs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from multigrad.capture.user_code.inspection import contents, mentioned

Tensor: TypeAlias = Any


def gather(run: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> Any:
    """Return `run(tensors)`; its backward gives what would be added to the tensors' `.grad`."""
    return Gathering.apply(run, *tensors)


class Gathering(torch.autograd.Function):
    """Runs code on fresh leaves, and returns what a backward has added to their `.grad`."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[Tensor]], Any], *tensors: Tensor) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
            outputs = run(leaves)
        ctx.leaves, ctx.outputs = leaves, outputs if isinstance(outputs, tuple) else (outputs,)
        shown = tuple(y.detach() if isinstance(y, torch.Tensor) else y for y in ctx.outputs)
        return shown if isinstance(outputs, tuple) else shown[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        for x in ctx.leaves:
            x.grad = None
        pairs = zip(ctx.outputs, cotangents, strict=True)
        active = [(y, g) for y, g in pairs if isinstance(y, torch.Tensor) and y.requires_grad]
        torch.autograd.backward(*zip(*active, strict=True), retain_graph=True)
        return None, *[x.grad for x in ctx.leaves]


def holds_parameters(value: Any) -> bool:
    """Return whether an argument is a module with parameters, or a callable that uses one."""
    return callable(value) and any(
        next(each.parameters(), None) is not None for each in modules_of(value)
    )


def modules_of(value: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules that an argument is, or refers to."""
    if isinstance(value, torch.nn.Module):
        yield value
    elif isinstance(value, types.MethodType):
        yield from modules_of(value.__self__)
    elif isinstance(value, types.FunctionType):
        referred = [each for _, each in mentioned(value)]
        referred += map(contents, value.__closure__ or ())
        yield from (each for each in referred if isinstance(each, torch.nn.Module))
