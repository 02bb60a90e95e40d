"""Torch's rows: op to callable. An op with a symbol that is left out is written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.ir.ops import Op

from . import activations, arrays, elementwise
from .elementwise import SCALAR_LEFT, SCALAR_RIGHT

__all__ = ["OPS", "SCALAR_LEFT", "SCALAR_RIGHT", "UNSUPPORTED"]

OPS: dict[Op, Callable[..., Any]] = {**elementwise.OPS, **activations.OPS, **arrays.OPS}

UNSUPPORTED: dict[Op, str] = {}
