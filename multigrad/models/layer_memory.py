"""Tensors that a model's layers keep for backward, where a framework shows them in a trace.

Each value that backward reads of forward has the layers that made it and that keep it. A backend
runs each layer in a scope of its own name, which the framework writes to all that is traced within.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Shape = tuple[int, ...]
Within: TypeAlias = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""(name of a layer, its call, args, kwargs) -> its outputs."""
WHOLE = "(model)"  # the owner of ops outside all layers
MASKS = ("bool", "uint8")
SCOPE = re.compile(r"multigrad_layer_(\d+)_")


@dataclass(frozen=True, slots=True)
class Residual:
    """A tensor that forward keeps for backward.

    Attributes:
        name: as in the emitted code: the input's, "output", "kept", ...
        what: "input", "output", "mask" (bools, or bits packed into bytes) or "intermediate".
        shape: of the tensor that is kept.
        dtype: by its name.
        bytes: how many it takes; 0 where only its shape and dtype are noted.
        layer: the name of the layer of a model; "" of anything else.
    """

    name: str
    what: str
    shape: Shape
    dtype: str
    bytes: int
    layer: str = ""


class Scopes:
    """The scopes that layers run in, and what was told of them.

    Attributes:
        names: of the layers, by the numbers of their scopes.
        rows: each tensor.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.rows: list[Residual] = []

    def enter(self, name: str) -> str:
        if name not in self.names:
            self.names.append(name)
        return f"multigrad_layer_{self.names.index(name)}_"

    def layer_of(self, text: str) -> str:
        """Return the innermost layer of a text with scopes."""
        # Outer scopes come first in the text.
        numbers = SCOPE.findall(text)
        return self.names[int(numbers[-1])] if numbers else WHOLE

    def add(
        self,
        layer: str,
        maker: str | None,
        *,
        is_read_elsewhere: bool,
        shape: Sequence[int],
        dtype: str,
        size: int,
    ) -> None:
        """Note a tensor that a layer keeps; its maker is None if it is an input of the model."""
        # What another layer made is an input of this one.
        if maker != layer:
            role = "input"
        elif is_read_elsewhere:
            role = "output"
        else:
            role = "mask" if dtype in MASKS else "intermediate"
        self.rows.append(new_residual(self.rows, layer, role, shape=shape, dtype=dtype, size=size))


def new_residual(
    rows: Sequence[Residual], layer: str, what: str, *, shape: Sequence[int], dtype: str, size: int
) -> Residual:
    count = sum(row.layer == layer for row in rows)
    name = f"saved_{count}" if count else "saved"
    return Residual(name, what, shape=tuple(shape), dtype=dtype, bytes=size, layer=layer)
