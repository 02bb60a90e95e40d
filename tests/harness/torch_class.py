"""A class of torch's, made of its two functions: what tests need of one is often no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def torch_class(
    backward: Callable[..., Any], **others: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an autograd Function of a forward, with this backward, and with
    other methods.
    """

    def make(forward: Callable[..., Any]) -> Any:
        import torch

        functions = {"forward": forward, "backward": backward, **others}
        methods = {name: staticmethod(function) for name, function in functions.items()}
        named = {"__module__": forward.__module__, "__qualname__": forward.__qualname__}
        return type(forward.__name__, (torch.autograd.Function,), {**methods, **named})

    return make
