"""The `ctx` that the code of a `torch.autograd.Function` class gets while it is run by us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from multigrad.functions.calls.arguments import owner_of
from multigrad.graph.ir.types import FLOATS, dtype_name, is_float
from multigrad.trace.python_protocols import needs_gradient
from multigrad.trace.trace import Trace, Value

Tensor: TypeAlias = Any


class Context:
    """The `ctx` of one call. It keeps symbolic values in a capture, tensors elsewhere.

    The class's code may set any attribute, so that ours begin with an underscore.

    Attributes:
        _trace: the capture; None: the code runs on tensors.
        _args: the arguments of the call.
        _saved, _saved_for_forward: what backward and jvp see as `saved_tensors`.
        _undifferentiable: outputs without a gradient.
        _dirty: arguments that forward has updated in place.
        _missing: gives the cotangent of an unused output; None: zeros.
        _in_jvp: whether jvp is running.
    """

    def __init__(self, trace: Trace | None, args: Sequence[Any]) -> None:
        self._trace = trace
        self._args = args
        self._saved: tuple[Any, ...] = ()
        self._saved_for_forward: tuple[Any, ...] = ()
        self._undifferentiable: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._missing: Callable[[Any], Any] | None = None
        self._in_jvp = False

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Which arguments need a gradient; a capture that reads it holds for this answer alone."""
        floats = [isinstance(x, Value) and may_have_gradient(x) for x in self._args]
        if self._trace is None or not any(floats):
            return tuple(map(may_have_gradient, self._args))
        # With one float argument backward runs only if that needs a gradient: nothing to ask.
        if self._trace.backward.is_running and sum(floats) == 1:
            return tuple(floats)
        symbols = [x for x, is_float in zip(self._args, floats, strict=True) if is_float]
        names = [x.node.attr("name") for x in symbols]
        needed = iter(needs_gradient(self._trace, tuple(names)))
        return tuple(is_float and next(needed) for is_float in floats)

    def save_for_backward(self, *tensors: Tensor) -> None:
        self._saved = tensors

    def save_for_forward(self, *tensors: Tensor) -> None:
        self._saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return self._saved_for_forward if self._in_jvp else self._saved

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        self._undifferentiable = outputs

    def mark_dirty(self, *inputs: Tensor) -> None:
        self._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether a missing cotangent is zeros; otherwise it is None."""
        self._missing = None if value else no_cotangent

    def __getattr__(self, name: str) -> Any:
        if name == "saved_variables":  # `saved_tensors` before torch 0.4
            return self._saved
        if self._trace is not None and hasattr(torch.autograd.function.BackwardCFunction, name):
            raise self._trace.error(f"uses ctx.{name}, which is not captured")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def no_cotangent(output: Any) -> None:
    """Return None, as the cotangent of an unused output if backward does not want zeros."""


def may_have_gradient(value: Any) -> bool:
    """Return whether a value is a float tensor, symbolic or real."""
    if isinstance(value, Value):
        return value.node.type.kind == "tensor" and is_float(value.node.type)
    return owner_of(value) is not None and dtype_name(value.dtype) in FLOATS
