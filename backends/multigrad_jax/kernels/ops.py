"""JAX's rows: op to callable. An op with a symbol that is left out is written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.backend import compositions
from multigrad.graph.ir.op import Op

from ..distributed import collectives
from . import activations, arrays, elementwise, shapes

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **activations.OPS,
    **arrays.OPS,
    **collectives.OPS,
}
OPS = {**compositions(OWN, elementwise.widened), **OWN}
NAMES = f"{elementwise.NAMES}; {activations.NAMES}; {shapes.NAMES}"

UNSUPPORTED: dict[Op, str] = {}
