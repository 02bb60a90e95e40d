"""What differs between releases of jax: each name in one form, for all releases that are supported.

docs/versions.md says which these are.
"""

from __future__ import annotations

from typing import Any

import jax._src.core
import jax._src.distributed
import jax.extend

distributed: Any = jax._src.distributed
take_current_trace: Any = (
    jax.extend.core.take_current_trace
    if hasattr(jax.extend.core, "take_current_trace")
    else jax._src.core.take_current_trace  # before jax 0.9.2
)

__all__ = ["distributed", "take_current_trace"]
