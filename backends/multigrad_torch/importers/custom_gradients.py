"""torch's custom gradients, unchanged, as recipes for every framework.

`import_function` makes the recipe of a `torch.autograd.Function` class, which runs forward,
backward and jvp with a `ctx` of ours (`autograd_classes.py`). On torch, a class that cannot be
captured runs by its own `apply`. Operators of `torch.library` with a gradient are listed and found
by name; in captured code they become such a class (`class_of`).
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._library.utils import fill_defaults
from torch.autograd.function import once_differentiable

from multigrad.core.functions.recipe import Options, Recipe, Recorded
from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value
from multigrad.engine.capture.copies.run_or_import import run_written_in
from multigrad.engine.capture.user_code.inspection import contents, mentioned
from multigrad.engine.functions.calls.imported_gradients import ImportedGradient
from multigrad.engine.functions.code_recipes import import_once
from multigrad.engine.functions.object_function import MayTakeObjects
from multigrad.engine.trace.code_trace import CodeTrace, place_of

from ..attach.vjp import as_leaf
from .autograd_classes import (
    ClassCode,
    FunctionClass,
    find_problem,
    record_call,
    signature_of_apply,
)

Tensor: TypeAlias = torch.Tensor


def import_function(function_class: Any) -> Recipe:
    is_class = isinstance(function_class, type)
    if not is_class or not issubclass(function_class, torch.autograd.Function):
        owner = getattr(function_class, "__self__", None)
        hint = f"; give the class itself: {owner.__name__}" if isinstance(owner, type) else ""
        raise TypeError(
            "expected a subclass of torch.autograd.Function, got "
            f"{'class ' if is_class else ''}{function_class!r:.80}{hint}"
        )
    return recipe_of_class(function_class)


def recipe_of_class(function_class: FunctionClass, copies: bool = False) -> Recipe:
    """Return the recipe of a class, which may write into its arguments if these are copies."""
    code = ClassCode(function_class, signature_of_apply(function_class), copies)
    return Recipe(
        code.name,
        partial(run_class, code),
        partial(record_class, code),
        functions=code.functions,
        written_in="torch",
        signature=code.signature,
        origin=function_class,
        options=Options(copies=copies),
        imported=ImportedGradient(
            code.apply,
            partial(run_primal, code),
            on_copies=partial(recipe_of_class, function_class, copies=True),
            bound_to=lambda instance: None,  # `apply` is not bound to the object with the class
            gives_tangents=code.gives_tangents,
            holds=holds_parameters,
            gather=gather,
        ),
    )


def record_class(
    code: ClassCode, trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recorded:
    """Run the class on the symbols of a capture."""
    problem = find_problem(code.function_class)
    if problem:
        raise trace.error(problem)
    return record_call(code, partial(call_captured, trace), trace, args, kwargs)


def run_class(code: ClassCode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    """Run the class on tensors, as torch does."""
    return record_call(code, torch.no_grad()(operator.call), None, args, kwargs)


def run_primal(code: ClassCode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run forward on tensors, where autograd is to see what it computes."""
    return record_call(code, operator.call, None, args, kwargs).outputs


# --- how a function of a class is called: torch runs forward and backward without autograd --------
def call_captured(trace: CodeTrace, function: Callable[..., Any], *values: Any) -> Any:
    with torch.no_grad():
        return run_written_in("torch", function, trace, *values)


# --- gradients of parameters ----------------------------------------------------------------------
# The backward of a class that has a module among its arguments may call autograd itself and return
# nothing for the module: gradients land in the `.grad` of its parameters. `gather` returns them
# instead, when a copy of the module runs.
def gather(run: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> Any:
    """Return `run(tensors)`; its backward gives what would be added to the tensors' `.grad`."""
    return Gathering.apply(run, *tensors)


class Gathering(torch.autograd.Function):
    """Runs code on fresh leaves, and returns what a backward has added to their `.grad`."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[Tensor]], Any], *tensors: Tensor) -> Any:
        with torch.enable_grad():
            leaves = list(map(as_leaf, tensors))
            outputs = run(leaves)
        ctx.leaves, ctx.outputs = leaves, outputs if isinstance(outputs, tuple) else (outputs,)
        results = tuple(y.detach() if isinstance(y, torch.Tensor) else y for y in ctx.outputs)
        return results if isinstance(outputs, tuple) else results[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        for x in ctx.leaves:
            x.grad = None
        pairs = zip(ctx.outputs, cotangents, strict=True)
        active = [(y, g) for y, g in pairs if isinstance(y, torch.Tensor) and y.requires_grad]
        torch.autograd.backward(*zip(*active, strict=True), retain_graph=True)
        return None, *[x.grad for x in ctx.leaves]


def holds_parameters(value: Any) -> bool:
    """Return whether an argument is a module with parameters, or a callable that uses one."""
    return callable(value) and any(
        next(each.parameters(), None) is not None for each in modules_of(value)
    )


def modules_of(value: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules that an argument is, or refers to."""
    if isinstance(value, torch.nn.Module):
        yield value
    elif isinstance(value, types.MethodType):
        yield from modules_of(value.__self__)
    elif isinstance(value, types.FunctionType):
        objects = [each for _, each in mentioned(value)]
        objects += map(contents, value.__closure__ or ())
        yield from (each for each in objects if isinstance(each, torch.nn.Module))


# --- operators of torch.library -------------------------------------------------------------------
# The dispatch keys under which gradients are registered.
AUTOGRAD_KEYS = ("Autograd", "AutogradCPU")
TORCH_NAMESPACES = (
    "aten", "debug_mode_ops", "export", "mkldnn", "prim", "prims", "quantized", "rngprims",
)  # fmt: skip


def operators() -> Iterator[str]:
    """Yield the names of operators with a gradient, as namespace::name, without torch's own."""
    yielded_names = set()
    for key in AUTOGRAD_KEYS:
        for entry in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            name = entry.partition(".")[0]
            definition = OPDEFS.get(name)
            # A definition in Python always registers, even without a gradient.
            has_gradient = definition is None or definition._backward_fn is not None
            is_torchs = name.partition("::")[0] in TORCH_NAMESPACES
            if has_gradient and not is_torchs and name not in yielded_names:
                yielded_names.add(name)
                yield name


def find_operator(what: Any) -> Callable[..., Any] | None:
    """Return an operator, given by itself or by name, as a function; None for anything else."""
    if isinstance(what, CustomOpDef):
        return as_function(what._opoverload)
    operator: Any = what
    if isinstance(what, str) and "::" in what:
        namespace, _, name = what.partition("::")
        operator = getattr(getattr(torch.ops, namespace), name, None)
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


# --- their calls in captured code, by their author's functions ------------------------------------
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
        return import_once(import_function, own_class, MayTakeObjects)(*args, *kwargs.values())
    if trace.kind != "imported function":
        raise TypeError("it registers no gradient")
    # Only values, as in a class: a derivative of its backward ends here.
    trace.backward.is_once |= trace.backward.is_running
    return run_written_in("torch", kernel, trace, *args, **kwargs)


def kernel_for(trace: CodeTrace, definition: Any) -> Callable[..., Any]:
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
    """Return an operator as a class; `keywords`, its keyword-only arguments, come last."""
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
            keyword_options = {"keyword_only_inputs": options} if keywords else {}
            author_setup(ctx=ctx, inputs=args, output=output, **keyword_options)

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
