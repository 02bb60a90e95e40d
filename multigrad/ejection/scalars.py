"""Ops on Python numbers, as a file holds them; `passes/scalars.py` has the same for what is lowered
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.op import Op


def scalar_form(op: Op, native: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes `op` on Python numbers, on others by `native`."""
    exact, meaning = op.on_numbers, op.numpy

    def on_numbers(*args: Any) -> Any:
        """Compute on Python numbers, or by the framework where a tensor is among them."""
        if all(isinstance(a, (int, float)) for a in args):
            return exact(*args)  # type: ignore[misc]
        return native(*args)

    def by_numpy(*args: Any, **attrs: Any) -> Any:
        """Compute on Python numbers, or by the framework where a tensor is among them."""
        if not all(isinstance(a, (int, float)) for a in args):
            return native(*args, **attrs)
        with np.errstate(all="ignore"):
            result = meaning(*(np.float64(a) for a in args), **attrs)
        return result.item() if hasattr(result, "item") else result

    return by_numpy if exact is None or op.attrs else on_numbers
