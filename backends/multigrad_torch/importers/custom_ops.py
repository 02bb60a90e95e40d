"""Calls of operators of `torch.library.custom_op` in captured code, by their author's functions.

The operator's kernel and its registered gradient are read back from torch, and become the class
that the author might have written (`class_of`), which `autograd_functions.py` imports.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._library.utils import fill_defaults

from multigrad.capture.copies.run_or_import import run_written_in
from multigrad.functions.importer_api import import_once
from multigrad.graph.support.trees import optree
from multigrad.trace.python_protocols import place_of
from multigrad.trace.trace import Trace, Value

from .autograd_classes import FunctionClass
from .autograd_functions import make_function


def find_custom_op(function: Any) -> Callable[..., Any] | None:
    """Return a handler for an operator in Python that writes to nothing; None for others."""
    name = getattr(function, "_qualified_op_name", None)
    schema = getattr(function, "_schema", None)
    definition = OPDEFS.get(name or getattr(schema, "name", ""))
    if definition is None or getattr(function, "_overloadname", "default") != "default":
        return None
    if definition._opoverload._schema.is_mutable:
        return None
    return functools.partial(record_custom_op, definition)


def record_custom_op(definition: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a call by the kernel for the tensors' device, with the gradient that it registers."""
    # The dispatcher has removed arguments that equal their defaults.
    args, kwargs = fill_defaults(definition._opoverload._schema, args, kwargs)
    leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
    trace = next(leaf.trace for leaf in leaves if isinstance(leaf, Value))
    kernel = kernel_for(trace, definition)
    if definition._backward_fn is not None:
        own_class = class_of(definition, kernel, tuple(kwargs))
        return import_once(make_function, own_class)(*args, *kwargs.values())
    if trace.kind != "imported function":
        raise TypeError("it registers no gradient")
    # Only values, as in a class: a derivative of its backward ends here.
    trace.backward.is_once |= trace.backward.is_running
    return run_written_in("torch", kernel, trace, *args, **kwargs)


def kernel_for(trace: Trace, definition: Any) -> Callable[..., Any]:
    """Return the author's function for the device of the tensors; asks for it only if it counts."""
    kernels = definition._backend_fns  # by kind of device; None: for all others
    distinct = {id(kernel) for kernel in kernels.values()}
    device = place_of(trace) if len(distinct) > 1 or None not in kernels else None
    kernel = unwrapped_kernel(kernels.get(device, kernels.get(None)))
    if kernel is None:
        raise TypeError(f"it runs on {', '.join(map(str, kernels))} alone")
    return kernel


def unwrapped_kernel(kernel: Any) -> Any:
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
) -> FunctionClass:
    """Return an operator as a class its author might have written; keyword-only arguments last.

    Args:
        keywords: the names of the keyword-only arguments, which a class takes by position.
    """
    author_setup, author_backward = definition._setup_context_fn, definition._backward_fn

    def split(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = len(values) - len(keywords)
        return values[:count], dict(zip(keywords, values[count:], strict=True))

    def forward(*values: Any) -> Any:
        args, options = split(values)
        return kernel(*args, **options)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if author_setup is not None:
            args, options = split(inputs)
            named = {"keyword_only_inputs": options} if keywords else {}
            author_setup(ctx=ctx, inputs=args, output=output, **named)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        gradients = author_backward(ctx, *cotangents)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        return (*gradients, *(None for _ in keywords))

    methods = {
        "forward": staticmethod(forward if keywords else kernel),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward if keywords else author_backward),
    }
    name = definition._qualname.replace("::", ".")
    return type(name, (torch.autograd.Function,), methods)
