"""Operators with a gradient of their own that packages have registered with torch, as functions
with the parameters of their schemas.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef

KEYS = ("Autograd", "AutogradCPU")
OWN = ("aten", "debug_mode_ops", "export", "mkldnn", "prim", "prims", "quantized", "rngprims")


def operators() -> Iterator[str]:
    """Yield their names, as namespace::name."""
    seen = set()
    for key in KEYS:
        for entry in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            name = entry.partition(".")[0]
            definition = OPDEFS.get(name)
            has_gradient = definition is None or definition._backward_fn is not None
            if name not in seen and has_gradient and name.partition("::")[0] not in OWN:
                seen.add(name)
                yield name


def find_operator(what: Any) -> Callable[..., Any] | None:
    """Return the function of an operator, which may be given by its name; None for what is none."""
    if isinstance(what, CustomOpDef):
        return as_function(what._opoverload)
    found: Any = what
    if isinstance(what, str) and "::" in what:
        space, _, name = what.partition("::")
        found = getattr(getattr(torch.ops, space), name, None)
    if found is not None and isinstance(found, torch._ops.OpOverloadPacket):
        found = getattr(found, found.overloads()[0], None)
    return as_function(found) if isinstance(found, torch._ops.OpOverload) else None


def as_function(overload: Any) -> Callable[..., Any]:
    """Return a function that calls an operator, with a signature."""

    def operator(*args: Any, **kwargs: Any) -> Any:
        return overload(*args, **kwargs)

    schema = overload._schema
    operator.__name__ = operator.__qualname__ = schema.name
    operator.__module__ = "torch.ops"
    operator.__dict__["__signature__"] = inspect.Signature([*map(_parameter, schema.arguments)])
    return operator


def _parameter(argument: Any) -> inspect.Parameter:
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(
        argument.name, kinds[argument.kwarg_only], default=default, annotation=str(argument.type)
    )
