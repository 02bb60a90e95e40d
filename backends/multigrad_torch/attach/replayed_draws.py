"""Draws of torch's own in a proof, by the keys that a graph's draws use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from multigrad.engine.capture.meanings import composites
from multigrad.engine.random import REPLAYED

from ..dialect.table import ALIASES

Tensor: TypeAlias = torch.Tensor


def replaying() -> Replaying:
    """Return a context in which draws are replayed."""
    return Replaying()


class Replaying(TorchFunctionMode):
    """Makes torch's own draws use the keys that a graph's draws use."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        draw = DRAWS.get(func)
        if draw is None or REPLAYED.get() is None:
            return func(*args, **kwargs)
        return draw(*args, **kwargs)


def _in_place(draw: Callable[..., Any]) -> Callable[..., Any]:
    def update(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(draw(x, *args, **kwargs))

    return update


def _of_shape(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(*size: Any, dtype: Any = None, **options: Any) -> Tensor:
        return draw(torch.empty(*size, dtype=dtype))

    return create


def _like(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(input: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
        return draw(torch.empty_like(input, dtype=dtype))

    return create


DRAWS: dict[Any, Callable[..., Any]] = {
    **{f: _like(ALIASES[f]) for f in (torch.rand_like, torch.randn_like)},
    torch.bernoulli: ALIASES[torch.bernoulli],
    torch.nn.functional.dropout: ALIASES[torch.nn.functional.dropout],
    torch.rand: _of_shape(ALIASES[torch.rand_like]),
    torch.randn: _of_shape(ALIASES[torch.randn_like]),
    Tensor.bernoulli: composites.bernoulli,
    Tensor.bernoulli_: _in_place(composites.bernoulli_anew),
    Tensor.uniform_: _in_place(composites.uniform),
    Tensor.normal_: _in_place(composites.normal),
}
