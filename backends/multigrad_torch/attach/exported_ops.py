"""Functions as operators of torch's: what a program that `xg.export` writes calls by name.

An operator is registered once in a process, by the name that holds the hash of its graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch

from multigrad.backend import Emitted
from multigrad.backend.finding.discovery import load_backend
from multigrad.errors import GradientError
from multigrad.functions.recipes.operators import Operator
from multigrad.lowering.lower import lower_graphs

from ..versions import is_exporting
from .render import render_operator

OPERATORS: dict[str, Operator] = {}  # those registered here, by name
# What an export was refused, in the order met; None: no export that asks for operators runs.
_REFUSED: ContextVar[list[Exception] | None] = ContextVar("refused", default=None)


@contextmanager
def asking_for_operators() -> Iterator[list[Exception]]:
    """Have exported calls be operators; gives what cannot be one."""
    refused: list[Exception] = []
    token = _REFUSED.set(refused)
    try:
        yield refused
    finally:
        _REFUSED.reset(token)


def asks_for_operators() -> bool:
    """Return whether an export runs whose calls are to be operators."""
    return is_exporting() and _REFUSED.get() is not None


def note_refused(error: Exception) -> None:
    """Note what cannot be an operator: whoever traces goes on."""
    refused = _REFUSED.get()
    if refused is not None:
        refused.append(error)


def register_operator(name: str, schema: str, forward: Any, keep: Any, backward: Any) -> Any:
    """Return torch's operator of a name, registered where it is not yet: of equal names the graphs
    are, and what is registered anew leaves dangling what programs hold of it (torch 2.13).
    """

    def run(*args: Any) -> Any:
        # torch (2.13) gives the tangent zero for what has none of its own.
        if torch.autograd.forward_ad._current_level >= 0:
            raise GradientError(f"operator {name!r} has no forward mode: use reverse mode")
        return forward(*args)

    if not hasattr(torch.ops.multigrad, name):
        made = torch.library.custom_op(f"multigrad::{name}", run, mutates_args=(), schema=schema)
        made.register_fake(forward)
        made.register_autograd(backward, setup_context=keep)
    return getattr(torch.ops.multigrad, name).default


def operator_render(name: str) -> Callable[[Emitted], str]:
    """Return what renders an operator of this name."""

    def render(emitted: Emitted) -> str:
        return render_operator(emitted, name)

    return render


def register(operator: Operator) -> Callable[..., Any]:
    """Return torch's operator for these graphs, registered where it is not yet."""
    OPERATORS.setdefault(operator.name, operator)
    known = getattr(torch.ops.multigrad, operator.name, None)
    return lower_operator(operator) if known is None else known.default


def lower_operator(operator: Operator) -> Callable[..., Any]:
    """Return torch's operator for these graphs, emitted anew."""
    backend = load_backend("torch")

    def finish(namespace: dict[str, Any], emitted: Emitted) -> Any:
        return namespace[emitted.identifier]

    def call(native: Any, emitted: Emitted) -> Any:
        return native

    autodiff = replace(
        backend.autodiff,
        render=operator_render(operator.name),
        finish=finish,
        call=call,
        namespace={**backend.autodiff.namespace, "register_operator": register_operator},
        forward_mode=False,
    )
    named = replace(operator.graphs, name=operator.name)
    return lower_graphs(named, replace(backend, autodiff=autodiff), fast=False).native
