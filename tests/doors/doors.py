"""Doors: the ways to run the code of a situation on torch.

Each is called as `door(step, apply, tensors)`, and returns the outputs and the gradients of their
loss. What a converted class gives at a door is what the class itself gives at one that it passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

import multigrad as xg

Tensor = torch.Tensor
Gradients = Sequence[Tensor | None]
Run: TypeAlias = Callable[[Callable[..., Any], Any, Sequence[Tensor]], tuple[Any, Gradients]]


class Door(NamedTuple):
    """A way to run code, and one that any torch class passes, which means the same."""

    run: Run
    instead: Run


def listed(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def loss_of(outputs: Sequence[Tensor]) -> Tensor:
    squares = [y.float().square().sum() * (i + 1) for i, y in enumerate(outputs)]
    return torch.stack(squares).sum()


def asking(tensors: Sequence[Tensor]) -> list[int]:
    return [i for i, each in enumerate(tensors) if each.requires_grad]


def reverse(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Run:
    """Return a door: code is wrapped, and backward runs through it."""

    def run(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
        def around(*given: Tensor) -> Any:
            return step(apply, *given)

        outputs = listed(wrap(around)(*tensors))
        for each in tensors:
            each.grad = None
        loss_of(outputs).backward()
        gradients = [tensors[i].grad for i in asking(tensors)]
        return [y.detach().clone() for y in outputs], gradients

    return run


def compiled(**options: Any) -> Run:
    return reverse(lambda f: torch.compile(f, backend="aot_eager", **options))


def forward(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Run:
    """Return a door through which no gradient passes."""

    def run(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
        def around(*given: Tensor) -> Any:
            return step(apply, *given)

        given = [each.detach() for each in tensors]
        with torch.no_grad():
            return [y.clone() for y in listed(wrap(around)(*given))], ()

    return run


def in_thread(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*tensors: Tensor) -> Any:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(f(*tensors)))
        thread.start()
        thread.join()
        return results[0]

    return run


def exported(f: Callable[..., Any]) -> Callable[..., Any]:
    class Model(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return f(*tensors)

    def run(*tensors: Tensor) -> Any:
        copies = tuple(each.clone() for each in tensors)  # tracing must not leave its mark
        program = torch.export.export(Model(), copies, strict=False)
        return program.module()(*tensors)

    return run


def under_autocast(run: Run) -> Run:
    def door(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return run(step, apply, tensors)

    return door


def by_grad(compile: Callable[..., Any] = lambda f: f) -> Run:
    """Return a door: gradients by `torch.func.grad`, perhaps compiled."""

    def run(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
        def loss(*given: Tensor) -> Tensor:
            return loss_of(listed(step(apply, *given)))

        given = [each.detach() for each in tensors]
        return (), compile(torch.func.grad(loss, tuple(asking(tensors))))(*given)

    return run


def by_vjp(vjp: Callable[..., Any]) -> Run:
    """Return a door: `torch.func.vjp`, or ours, for the tensors that ask for a gradient."""

    def run(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
        def partly(*own: Tensor) -> Any:
            given = [each.detach() for each in tensors]
            for i, each in zip(asking(tensors), own, strict=True):
                given[i] = each
            return tuple(listed(step(apply, *given)))

        outputs, pull = vjp(partly, *(tensors[i].detach() for i in asking(tensors)))
        cotangents = tuple(2 * (i + 1) * y.detach() for i, y in enumerate(outputs))
        return [y.detach() for y in outputs], pull(cotangents)

    return run


def batches(tensors: Sequence[Tensor]) -> list[Tensor]:
    stacked = [each.detach() for each in tensors]
    for i in asking(tensors):
        rows = (stacked[i], stacked[i] * 2, stacked[i] - 1)
        stacked[i] = torch.stack(rows).requires_grad_()
    return stacked


def mapped(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
    def around(*given: Tensor) -> Any:
        return step(apply, *given)

    stacked, own = batches(tensors), asking(tensors)
    dims = tuple(0 if i in own else None for i in range(len(tensors)))
    outputs = listed(torch.func.vmap(around, in_dims=dims)(*stacked))
    gradients = torch.autograd.grad(loss_of(outputs), [stacked[i] for i in own])
    return [y.detach() for y in outputs], gradients


def looped(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
    stacked, own = batches(tensors), asking(tensors)
    rows = []
    for k in range(3):
        given = [each[k] if i in own else each for i, each in enumerate(stacked)]
        rows.append(listed(step(apply, *given)))
    outputs = [torch.stack(each) for each in zip(*rows, strict=True)]
    gradients = torch.autograd.grad(loss_of(outputs), [stacked[i] for i in own])
    return [y.detach() for y in outputs], gradients


def detached(run: Run) -> Run:
    """Return a door for tensors of its own, as functional code has them."""

    def door(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
        own = asking(tensors)
        given = [each.detach() for each in tensors]
        for i in own:
            given[i].requires_grad_()
        return run(step, apply, given)

    return door


def gradients_of(run: Run) -> Run:
    def door(step: Callable[..., Any], apply: Any, tensors: Sequence[Tensor]) -> Any:
        return (), run(step, apply, tensors)[1]

    return door


def checkpointed(*, is_reentrant: bool) -> Run:
    return reverse(lambda f: lambda *given: checkpoint(f, *given, use_reentrant=is_reentrant))


EAGER = reverse(lambda f: f)
FUNCTIONAL = detached(EAGER)
PLAIN = forward(lambda f: f)
CHECKPOINTED, REENTRANT = checkpointed(is_reentrant=False), checkpointed(is_reentrant=True)
DOORS = {
    "eager": Door(EAGER, EAGER),
    "no_grad": Door(PLAIN, PLAIN),
    "thread": Door(reverse(in_thread), EAGER),
    "compile": Door(compiled(), EAGER),
    "compile, fullgraph": Door(compiled(fullgraph=True), EAGER),
    "compile, no_grad": Door(forward(lambda f: torch.compile(f, backend="aot_eager")), PLAIN),
    "compile, autocast": Door(under_autocast(compiled()), under_autocast(EAGER)),
    "xg.jit": Door(reverse(lambda f: xg.jit(f, "torch", backend="aot_eager")), EAGER),
    "export": Door(forward(exported), PLAIN),
    "autocast": Door(under_autocast(EAGER), under_autocast(EAGER)),
    "checkpoint": Door(CHECKPOINTED, CHECKPOINTED),
    "checkpoint, reentrant": Door(REENTRANT, REENTRANT),
    "vmap": Door(mapped, looped),
    "func.grad": Door(by_grad(), gradients_of(FUNCTIONAL)),
    "func.vjp": Door(by_vjp(torch.func.vjp), FUNCTIONAL),
    "compile(func.grad)": Door(
        by_grad(lambda f: torch.compile(f, backend="aot_eager")), gradients_of(FUNCTIONAL)
    ),
    "xg.vjp": Door(by_vjp(xg.vjp), FUNCTIONAL),
}
