"""Operators of `torch.library` with a gradient, as functions: listed, and found by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef

# The dispatch keys under which gradients are registered.
AUTOGRAD_KEYS = ("Autograd", "AutogradCPU")
TORCH_NAMESPACES = (
    "aten", "debug_mode_ops", "export", "mkldnn", "prim", "prims", "quantized", "rngprims",
)  # fmt: skip


def operators() -> Iterator[str]:
    """Yield the names of operators with a gradient, as namespace::name, without torch's own."""
    listed = set()
    for key in AUTOGRAD_KEYS:
        for entry in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            name = entry.partition(".")[0]
            definition = OPDEFS.get(name)
            # A definition in Python always registers, even without a gradient.
            has_gradient = definition is None or definition._backward_fn is not None
            is_torchs = name.partition("::")[0] in TORCH_NAMESPACES
            if has_gradient and not is_torchs and name not in listed:
                listed.add(name)
                yield name


def find_operator(what: Any) -> Callable[..., Any] | None:
    """Return an operator, given by itself or by name, as a function; None for anything else."""
    if isinstance(what, CustomOpDef):
        return as_function(what._opoverload)
    operator: Any = what
    if isinstance(what, str) and "::" in what:
        space, _, name = what.partition("::")
        operator = getattr(getattr(torch.ops, space), name, None)
    if operator is not None and isinstance(operator, torch._ops.OpOverloadPacket):
        operator = getattr(operator, operator.overloads()[0], None)
    return as_function(operator) if isinstance(operator, torch._ops.OpOverload) else None


def as_function(overload: Any) -> Callable[..., Any]:
    """Return a function that calls an operator; its signature is that of the schema."""

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
