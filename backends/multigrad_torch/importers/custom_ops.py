"""Operators of `torch.library.custom_op` as classes with their registered gradients, and all
packages' operators with a gradient as functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._library.utils import fill_defaults

from multigrad.capture.copies.capture import run_written_in
from multigrad.functions.importer_api import find_imported
from multigrad.graph.support.trees import optree
from multigrad.trace.python_protocols import place_of
from multigrad.trace.trace import Value

from .autograd_function import make_function


def find_custom_op(function: Any) -> Callable[..., Any] | None:
    """Return a handler for an operator in Python that writes to nothing; None for others."""
    name = getattr(function, "_qualified_op_name", None)
    schema = getattr(function, "_schema", None)
    definition = OPDEFS.get(name or getattr(schema, "name", ""))
    if definition is None or getattr(function, "_overloadname", "default") != "default":
        return None
    if definition._opoverload._schema.is_mutable:
        return None
    return functools.partial(record, definition)


def record(definition: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a call by the kernel for the tensors' device, with the gradient that it registers."""
    # The dispatcher has removed arguments that equal their defaults.
    args, kwargs = fill_defaults(definition._opoverload._schema, args, kwargs)
    leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
    trace = next(leaf.trace for leaf in leaves if isinstance(leaf, Value))
    kernels = definition._backend_fns
    own = {id(kernel) for kernel in kernels.values()}
    place = place_of(trace) if len(own) > 1 or None not in kernels else None
    kernel = written(kernels.get(place, kernels.get(None)))
    if kernel is None:
        raise TypeError(f"it runs on {', '.join(map(str, kernels))} alone")
    if definition._backward_fn is not None:
        own_class = class_of(definition, kernel, tuple(kwargs))
        return find_imported(make_function, own_class)(*args, *kwargs.values())
    if trace.kind != "imported function":
        raise TypeError("it registers no gradient")
    # Only values, as in a class: a derivative of its backward ends here.
    trace.backward.is_once |= trace.backward.is_running
    return run_written_in("torch", kernel, trace, *args, **kwargs)


def written(kernel: Any) -> Any:
    """Return the author's function from within torch's wrappers."""
    while inspect.isfunction(kernel) and kernel.__module__.startswith("torch."):
        inner = getattr(kernel, "__wrapped__", None)
        inner = inner or inspect.getclosurevars(kernel).nonlocals.get("fn")
        if inner is None:
            break
        kernel = inner
    return kernel


@functools.lru_cache(maxsize=256)
def class_of(
    definition: Any, kernel: Callable[..., Any], keywords: tuple[str, ...]
) -> type[torch.autograd.Function]:
    """Return an operator as a class its author might have written; keyword-only arguments last."""
    setup, pull = definition._setup_context_fn, definition._backward_fn

    def split(given: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = len(given) - len(keywords)
        return given[:count], dict(zip(keywords, given[count:], strict=True))

    def forward(*given: Any) -> Any:
        args, options = split(given)
        return kernel(*args, **options)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if setup is not None:
            args, options = split(inputs)
            named = {"keyword_only_inputs": options} if keywords else {}
            setup(ctx=ctx, inputs=args, output=output, **named)

    def backward(ctx: Any, *grads: Any) -> Any:
        found = pull(ctx, *grads)
        return (*(found if isinstance(found, tuple) else (found,)), *(None for _ in keywords))

    methods = {
        "forward": staticmethod(forward if keywords else kernel),
        "setup_context": staticmethod(keep),
        "backward": staticmethod(backward if keywords else pull),
    }
    name = definition._qualname.replace("::", ".")
    return type(name, (torch.autograd.Function,), methods)


# --- operators with a gradient, as functions ------------------------------------------------------
KEYS = ("Autograd", "AutogradCPU")
OWN = ("aten", "debug_mode_ops", "export", "mkldnn", "prim", "prims", "quantized", "rngprims")


def operators() -> Iterator[str]:
    """Yield the names of operators with a gradient, as namespace::name, without torch's own."""
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
    """Return an operator, given by itself or by name, as a function; None for anything else."""
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
    """Return a function with a signature that calls an operator."""

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
