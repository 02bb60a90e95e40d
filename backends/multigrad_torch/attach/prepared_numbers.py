"""Numbers of a call as operands of its ops: 0-d tensors on the CPU, elsewhere as they are.

Fast code takes a rule's params prepared: what depends on them alone is computed once for equal
calls. Numbers become tensors at the first call already: torch rounds some ops with a Python number
differently, and equal calls must give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from multigrad.backend.emitted import find_like

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor


class PreparedNumbers:
    """The prepared numbers of a Function's previous call.

    Attributes:
        known: (numbers, whether 0.0 is among them, dtype, whether on the CPU, prepared numbers):
            one tuple, so that threads see all of it or none.
        like: the position of the tensor whose dtype and device the numbers get.
        literals: the numbers in the source of `prepare`.
        prepare: the emitted function `prepare(wrap, *numbers)`.
        wraps: the functions that make tensors of numbers on the CPU, by dtype.
    """

    __slots__ = ("known", "like", "literals", "prepare", "wraps")

    def __init__(self, prepare: Callable[..., Any], emitted: Emitted) -> None:
        self.like = find_like(emitted.origin.input_types) or 0
        self.prepare = prepare
        self.literals = frozenset(prepare.__code__.co_consts)
        self.known: tuple[Any, ...] = (None, False, None, None, None)
        self.wraps: dict[torch.dtype, Callable[[Any], Any]] = {}

    def of(self, like: Tensor, values: tuple[Any, ...]) -> Any:
        """Return the prepared numbers for a call on a tensor like this one."""
        for value in values:
            if type(value) is not float:  # tensors may change in place
                return self.prepare(as_number, *values)
        numbers, has_zero, dtype, on_cpu, prepared = self.known
        if (
            values == numbers
            and like.dtype is dtype
            and like.is_cpu is on_cpu
            and not (has_zero and repr(values) != repr(numbers))  # -0.0 equals 0.0
        ):
            return prepared
        dtype, on_cpu = like.dtype, like.is_cpu
        wrap = self.wraps.get(dtype) if on_cpu else as_number
        if wrap is None:
            wrap = self.wraps[dtype] = wrapping(like, self.literals)
        prepared = self.prepare(wrap, *values)
        self.known = values, 0.0 in values, dtype, on_cpu, prepared
        return prepared


# In 16 bits torch computes with a number in float32; a tensor of that dtype is rounded first.
CONSTANT_DTYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")
BIG = 1e38  # well below the largest float32


def wrapping(x: Tensor, literals: Collection[Any] = ()) -> Callable[[Any], Any]:
    """Return a function that makes a prepared number an operand for ops on tensors like x.

    Tensors of `literals`, the numbers in the source, are cached.
    """
    if not x.is_cpu or x.dtype not in CONSTANT_DTYPES:
        return as_number
    dtype, constants = x.dtype, {}

    def as_tensor(value: Any) -> Any:
        if type(value) is float and -BIG < value < BIG and value not in literals:
            # Three times as fast as torch.tensor, but it refuses numbers beyond the dtype.
            constant = torch.scalar_tensor(value, dtype=dtype, device=CPU)
            # A mode may have returned another type.
            return constant if type(constant) is Tensor else value
        if isinstance(value, Tensor):
            return value
        key = value or repr(value)  # -0.0 equals 0.0
        constant = constants.get(key)
        if constant is not None:
            return constant
        constant = torch.tensor(value, dtype=dtype, device=CPU)
        if type(constant) is not Tensor:
            return value
        if value in literals:
            constants[key] = constant
        return constant

    return as_tensor


def as_number(value: Any) -> Any:
    return value
