"""What differs between releases of jax: each name in one form, for all releases that are supported.

docs/versions.md says which these are.
"""

from __future__ import annotations

from jax._src import distributed

try:
    from jax.extend.core import take_current_trace
except ImportError:  # before jax 0.9.2
    from jax._src.core import take_current_trace

__all__ = ["distributed", "take_current_trace"]
