"""Rules on functions of TensorFlow that exist: the door of this room.

What is behind it is imported where it is used: the rules of attribution make Functions, which ask
for this backend; and most never override.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_operation(selector: Any) -> bool:
    """Return whether a selector is a function of TensorFlow or Keras."""
    module = getattr(selector, "__module__", None) or ""
    return callable(selector) and module.partition(".")[0] == "tensorflow"


def kept_by_call(*args: Any) -> Any:
    """Tell what layers of a Keras model keep for backward; see `multigrad.memory`."""
    from .layer_memory import kept_by_call

    return kept_by_call(*args)


def override_function(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls; see `multigrad.override`."""
    from .override import override_calls

    return override_calls(function, rules)
