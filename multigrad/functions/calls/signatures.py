"""The signatures of users' functions, as far as they can be read."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a callable's signature, None where it has none that can be read."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return _signature_of_ufunc(function) if isinstance(function, np.ufunc) else None


def _signature_of_ufunc(function: np.ufunc) -> inspect.Signature:
    # NumPy reports this signature itself from 2.4 on.
    count = function.nin
    names = ["x"] if count == 1 else [f"x{i + 1}" for i in range(count)]
    options = {"where": True, "casting": "same_kind", "order": "K", "dtype": None, "subok": True}
    return inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        + [inspect.Parameter("out", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)]
        + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in {**options, "signature": None}.items()
        ]
    )


# By the code: it is the same at each call of the function around it, and holds nothing of that
# call.
_parameters: weakref.WeakKeyDictionary[types.CodeType, Mapping[str, inspect.Parameter]] = (
    weakref.WeakKeyDictionary()
)


def read_parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return a function's parameters; those of a plain function are cached, without defaults."""
    # A `__signature__` of its own would not be that of the code.
    is_bare = isinstance(function, types.FunctionType) and not vars(function)
    known = _parameters.get(function.__code__) if is_bare else None
    if known is None:
        signature = signature_of(function)
        if signature is None:
            return None
        known = signature.parameters
        if is_bare:
            known = {
                name: p.replace(default=p.empty, annotation=p.empty) for name, p in known.items()
            }
            _parameters[function.__code__] = known
    return known


def positional_names(parameters: inspect.Signature | None) -> list[str]:
    if parameters is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters.parameters.values() if p.kind in kinds]
