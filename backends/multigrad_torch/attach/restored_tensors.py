"""Tensors that are put back into the state that they had before a run of the user's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch

from ..core.state import KINDS, is_memory, without_modes

Tensor: TypeAlias = torch.Tensor


def keep(x: Tensor, whole: bool) -> Callable[[], str] | None:
    """Return a function that restores a tensor to its present state and describes any change, "" if
    there is none. None for a tensor of another kind, or without memory of its own.

    Unless `whole`, values are not copied, and a write is only detected.
    """
    if type(x) not in KINDS or not is_memory(x) or x.is_meta:
        return None
    return TensorState(x, whole).put_back


class TensorState:
    """The state of a tensor at one time: memory, values, attributes, requires_grad and grad."""

    def __init__(self, x: Tensor, whole: bool) -> None:
        self.tensor = x
        # `.data` shares the memory but not the version counter, so restoring is no write.
        with plainly(x):
            self.memory, self.values = x.data, x.data.clone() if whole else None
        self.version = None if x.is_inference() else x._version
        self.requires_grad, self.attributes = x.requires_grad, dict(vars(x))
        self.grad = x.grad if x.is_leaf else None
        self.put_back_grad = None if self.grad is None else keep(self.grad, whole)

    def put_back(self) -> str:
        """Restore the tensor; return what was changed, the last of it, "" if nothing was."""
        x = self.tensor
        change = "" if self.put_back_grad is None else self.put_back_grad()
        change = self._put_back_values() or change
        has_same_names = vars(x).keys() == self.attributes.keys()
        if not (has_same_names and all(vars(x)[n] is each for n, each in self.attributes.items())):
            change = "sets an attribute of a tensor"
            vars(x).clear()
            vars(x).update(self.attributes)
        if x.requires_grad != self.requires_grad and x.is_leaf:
            change = "changes requires_grad of a tensor"
            x.requires_grad_(self.requires_grad)
        if x.is_leaf and x.grad is not self.grad:
            change = "sets the grad of a tensor"
            x.grad = self.grad
        return change and f"{change} from outside it"

    def _put_back_values(self) -> str:
        x, memory, values, change = self.tensor, self.memory, self.values, ""
        with plainly(x):
            if x.data_ptr() != memory.data_ptr() or x.shape != memory.shape:
                change = "gives other memory to a tensor"
                x.data = memory
            if values is not None:
                # NaN is unequal to itself, so unchanged NaN would look like a write.
                both_nan = memory.isnan() & values.isnan()
                if not ((memory == values) | both_nan).all():
                    change = "writes into a tensor"
                    memory.copy_(values)
        if values is None and self.version not in (None, x._version):
            change = "writes into a tensor of too many elements to be put back,"
        return change


@contextmanager
def plainly(x: Tensor) -> Iterator[None]:
    with without_modes(), torch.inference_mode(x.is_inference()), torch.no_grad():
        yield
