"""einops on symbolic values: `rearrange`, `reduce`, `repeat`, `pack`, `unpack`, `einsum`.

It does not matter which library the code around them is written in. einops finds the backend of a
tensor by its type, among the subclasses of its `AbstractBackend`; this module is loaded once einops
has been imported. Patterns read lengths, which become facts of the capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops import _backends

from ....core.trace.trace import Value
from ....core.trace.xp import all as xp
from ..values.tracer import V

Tensor = Any
REDUCTIONS = {
    "all": xp.all,
    "any": xp.any,
    "max": xp.max,
    "mean": xp.mean,
    "min": xp.min,
    "prod": xp.prod,
    "sum": xp.sum,
}


class SymbolsBackend(_backends.AbstractBackend):
    """The backend that einops calls with symbolic values."""

    framework_name = __name__.partition(".")[0]

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Value)

    def shape(self, x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return xp.reshape(x, tuple(shape))

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return xp.permute_dims(x, axes)

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        return REDUCTIONS[operation](x, axis=tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: Sequence[Tensor]) -> Tensor:
        return xp.stack(tensors, axis=0)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return xp.expand_dims(x, axis=new_position)

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        return xp.tile(x, tuple(repeats))

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return xp.concat(tensors, axis=axis)

    def is_float_type(self, x: Tensor) -> bool:
        # A mean of bools or integers is refused, as einops does for arrays.
        return "int" not in x.node.type.dtype and x.node.type.dtype != "bool"

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return xp.einsum(pattern, *x)


# Filled ahead of einops: its own search would ask every loaded backend about the symbol first.
_backend = SymbolsBackend()
_backends._loaded_backends[_backend.framework_name] = _backend
_backends._type2backend[V] = _backend
