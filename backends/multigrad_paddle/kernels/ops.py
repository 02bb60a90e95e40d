"""Paddle's rows: op to callable. An op with a symbol that is left out is written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle

from multigrad.backend import Op, compositions, scanning

from ..distributed import collectives
from . import arrays, elementwise, special
from .widening import widened

__all__ = ["OPS", "UNSUPPORTED", "scan"]

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **special.OPS,
    **arrays.OPS,
    **collectives.OPS,
}
OPS = {**compositions(OWN, widened), **OWN}
UNSUPPORTED: dict[Op, Any] = {}

scan = scanning(paddle.unbind, paddle.stack, lambda like, shape: paddle.zeros(shape, like.dtype))
