"""A class of torch's, made of its two functions: what tests need of one is often no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def torch_class(backward: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an autograd Function of a forward, with this backward."""

    def make(forward: Callable[..., Any]) -> Any:
        import torch

        functions = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        named = {"__module__": forward.__module__, "__qualname__": forward.__qualname__}
        return type(forward.__name__, (torch.autograd.Function,), {**functions, **named})

    return make
