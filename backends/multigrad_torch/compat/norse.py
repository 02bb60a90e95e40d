"""Our activations as surrogate methods of norse's neurons.

norse (1.1) compares `method` with its own strings, in one function that its modules import by name.
There is no table to extend, so that function is replaced wherever norse has bound it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeAlias

import torch

from multigrad.errors import RuleTypeError

Tensor: TypeAlias = torch.Tensor
Spike = Callable[[Tensor], Tensor]
HOME = "norse.torch.functional.threshold"


@contextmanager
def methods(spikes: Mapping[str, Spike]) -> Iterator[None]:
    """Make activations available to norse's neurons as `method` names, until the context ends.

    Examples:
        >>> import torch
        >>> from multigrad.compat.norse import methods
        >>> def make(lif):  # norse.torch.LIF, its parameters with method="ours"
        ...     with methods({"ours": xg.Activation("Heaviside", "triangular")}):
        ...         return lif()
        >>> with methods({"ours": "triangular"}):  # a word, where a function is meant
        ...     pass
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleTypeError: a method of norse is a name and a function, got 'ours': ...

    Args:
        spikes: what each name means, functions of the membrane minus the threshold. A name of
            norse's own means this here.

    Raises:
        RuleTypeError: a name is not a string, or its meaning cannot be called.
        ModuleNotFoundError: norse is not installed.
    """
    for name, spike in spikes.items():
        if not isinstance(name, str) or not callable(spike):
            raise RuleTypeError(
                f"a method of norse is a name and a function, got {name!r}: {spike!r}"
            )
    original = import_module(HOME).threshold

    def threshold(x: Tensor, method: str, alpha: Any) -> Tensor:
        spike = spikes.get(method)
        return original(x, method, alpha) if spike is None else spike(x)

    try:
        _rebind(original, threshold)
        yield
    finally:
        _rebind(threshold, original)


def _rebind(old: Any, new: Any) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "norse" and vars(module).get("threshold") is old:
            vars(module)["threshold"] = new
