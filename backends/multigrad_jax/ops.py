"""JAX's rows: op to callable. An op with a symbol that is left out is written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.ir.ops import Op

from . import activations, arrays, elementwise

OPS: dict[Op, Callable[..., Any]] = {**elementwise.OPS, **activations.OPS, **arrays.OPS}

UNSUPPORTED: dict[Op, str] = {}
