"""What differs between releases of jax: each name in one form, for all releases that are supported.

docs/versions.md says which these are.
"""

from __future__ import annotations

from typing import Any

import jax._src.core
import jax._src.distributed
import jax.extend
import jax.numpy as jnp
from jax.scipy import special

distributed: Any = jax._src.distributed
take_current_trace: Any = (
    jax.extend.core.take_current_trace
    if hasattr(jax.extend.core, "take_current_trace")
    else jax._src.core.take_current_trace  # before jax 0.9.2
)


def set_everywhere(context: Any, value: str) -> None:
    """Set a user context on all threads; before jax 0.10.2 the object within does that."""
    (context if hasattr(context, "set_global") else context._obj).set_global(value)


def axes_of_shard_map(params: dict[str, Any]) -> frozenset[str]:
    """Return the axes that a shard_map makes manual; before jax 0.10.2 they have another name."""
    return frozenset(params.get("newly_manual_axes", params.get("manual_axes", ())))


def floor_divide_by_zero(a: Any, b: Any) -> Any:
    """Floats are not NaN, but infinite, where they are divided by zero."""
    result = jnp.floor_divide(a, b)
    is_float = jnp.issubdtype(result.dtype, jnp.floating)
    return jnp.where(b == 0, a / b, result) if is_float else result


def xlogy_of_nan(x: Any, y: Any) -> Any:
    """NaN is not dropped where x is 0."""
    return jnp.where(jnp.isnan(y), y, special.xlogy(x, y))


# What the two above mend.
MENDED = jax.__version_info__ >= (0, 10, 2)
floor_divide: Any = jnp.floor_divide if MENDED else floor_divide_by_zero
xlogy: Any = special.xlogy if MENDED else xlogy_of_nan

__all__ = [
    "axes_of_shard_map", "distributed", "floor_divide", "set_everywhere", "take_current_trace",
    "xlogy",
]  # fmt: skip
