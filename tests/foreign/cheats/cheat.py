"""Cheats: backwards that are wrong and pass a naive test, and how they are written down.

A wrong backward is a function of the cotangent and of what the forward keeps, decorated with the
sound gradient that it stands in for. Its name is the cheat's, its docstring says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Tensor = Any
Backward = Callable[..., Any]
# What wrong backwards keep from one call to the next; emptied before each gate.
HELD: dict[Any, Any] = {}
CHEATS: list[Cheat] = []


def keep_inputs(inputs: tuple[Tensor, ...], _: Tensor) -> tuple[Tensor, ...]:
    return inputs


@dataclass(frozen=True)
class Sound:
    """A right gradient.

    Attributes:
        forward: a plain function of tensors, which torch could differentiate itself; it may return
            what the backward needs beside its output.
        backward: of the cotangent and what is kept.
        inputs: arrays; of one size.
        keep: what is kept of the inputs and the output.
    """

    name: str
    forward: Callable[..., Tensor]
    backward: Backward
    inputs: tuple[np.ndarray, ...]
    keep: Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]] = keep_inputs

    def plain(self, *inputs: Tensor) -> Tensor:
        """The forward, for torch to differentiate."""
        return output_of(self.forward(*inputs))

    def as_class(self) -> type:
        return make(self.name, self.forward, self.backward, self.keep)


@dataclass(frozen=True, slots=True)
class Cheat:
    """A wrong gradient with its right twin.

    Attributes:
        family: the kind of fault, which is its module.
        why: what is wrong.
        wrong: a class of torch's.
        twin: the right gradient.
    """

    name: str
    family: str
    why: str
    wrong: type
    twin: Sound


def output_of(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def make(name: str, forward: Any, backward: Backward, keep: Any, has_context: bool = False) -> type:
    """Return a class of torch's with this forward and backward.

    Args:
        has_context: whether the backward takes the context first.
    """

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            result = forward(*inputs)
            ctx.save_for_backward(*keep(inputs, result))
            return output_of(result)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            if has_context:
                return backward(ctx, g, *ctx.saved_tensors)
            return backward(g, *ctx.saved_tensors)

    Made.__name__ = Made.__qualname__ = name
    return Made


def cheat(
    sound: Sound, forward: Any = None, keep: Any = None, has_context: bool = False
) -> Callable[[Backward], Backward]:
    """Return a decorator of a wrong backward.

    Args:
        sound: the right gradient; its forward and what it keeps are also those of the wrong one,
            unless others are given.
    """

    def enter(backward: Backward) -> Backward:
        name, family = backward.__name__, backward.__module__.rpartition(".")[2]
        forward_of, kept = forward or sound.forward, keep or sound.keep
        wrong = make(name, forward_of, backward, kept, has_context=has_context)
        why = " ".join((backward.__doc__ or "").split())
        CHEATS.append(Cheat(name, family, why, wrong, sound))
        return backward

    return enter
