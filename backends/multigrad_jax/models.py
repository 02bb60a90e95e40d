"""What this framework's users have: functions, for `xg.override`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

leaves = jax.tree_util.tree_leaves


def is_operation(selector: Any) -> bool:
    """Return whether a selector of `override` is an operation of jax."""
    from .override_operations import is_operation

    return is_operation(selector)


def override(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls; see `multigrad.override`."""
    # The rules of attribution make Functions, which ask for this backend; and most never override.
    from .override import override_calls

    return override_calls(function, rules)
