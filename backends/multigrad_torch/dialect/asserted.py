"""Functions by which torch's code, its own distributions too, asserts something of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from multigrad.trace.answers import assume
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

Tensor = Any


def _is_all_true(x: Tensor) -> Tensor:
    return xp.all(x)


def _is_any_true(x: Tensor) -> Tensor:
    return xp.any(x)


def _assert(condition: Any, message: Any = "") -> None:
    """Assert a tensor of one element."""
    if isinstance(condition, Value):
        assume(condition)


def _assert_async(x: Tensor, assert_msg: str = "") -> None:
    assume(x)


def _check(cond: Any, message: Any = None) -> None:
    """Check what is known of lengths, which become facts."""
    is_number = isinstance(cond, Value) and cond.node.type.kind == "scalar"
    torch._check(bool(cond) if is_number else cond, message)


HIDDEN: dict[Any, Callable[..., Any]] = {torch._check: _check}
METHODS: dict[str, Callable[..., Any]] = {
    "_is_all_true": _is_all_true,
    "_is_any_true": _is_any_true,
}
# Not among the functions that people know, which docs show.
PRIVATE: dict[Any, Callable[..., Any]] = {
    torch._assert: _assert,
    torch._assert_async: _assert_async,
    torch._is_all_true: _is_all_true,
    torch._is_any_true: _is_any_true,
    torch.Tensor._is_all_true: _is_all_true,
    torch.Tensor._is_any_true: _is_any_true,
}
