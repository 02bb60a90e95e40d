"""Rules on existing functions of TensorFlow: the public functions of this folder.

They import their code when called: attribution rules make Functions, which need this backend, and
most programs never override.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_operation(selector: Any) -> bool:
    """Return whether a selector is a function of TensorFlow or Keras."""
    module = getattr(selector, "__module__", None) or ""
    return callable(selector) and module.partition(".")[0] == "tensorflow"


def kept_by_call(*args: Any) -> Any:
    from .layer_memory import kept_by_call

    return kept_by_call(*args)


def override_function(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    from .override import override_calls

    return override_calls(function, rules)
