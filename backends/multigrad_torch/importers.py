"""torch's custom gradients, unchanged, as Functions: `torch.autograd.Function` classes, operators.

A class's code runs on symbolic values with a context of ours, in the old style (`forward(ctx,
...)`) and with `setup_context`. On torch, a class that cannot be captured runs by its own `apply`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._library.utils import fill_defaults
from torch.autograd.function import once_differentiable

from multigrad.capture.copies.run_or_import import run_written_in
from multigrad.capture.meanings.places import Extremes
from multigrad.capture.user_code.inspection import contents, mentioned, nested_codes
from multigrad.errors import GradientError
from multigrad.functions.calls.arguments import owner_of, signature_of
from multigrad.functions.calls.gradients import make_tangent
from multigrad.functions.calls.recipe import Pushed, Recipe, Recorded, is_users_own
from multigrad.functions.function import Function
from multigrad.functions.importer_api import import_once
from multigrad.functions.object_arguments import MayTakeObjects
from multigrad.graph.ir import questions
from multigrad.graph.ir.types import FLOATS, UNKNOWN, dtype_name, is_float
from multigrad.graph.support.class_bases import dataclass
from multigrad.graph.support.trees import optree
from multigrad.trace.assertions import AUTOCAST, FORWARD_MODE, TWICE
from multigrad.trace.python_protocols import needs_gradient, place_of
from multigrad.trace.trace import Trace, Value, cast_node, setting
from multigrad.trace.xp import all as xp

Tensor: TypeAlias = Any


# Wrappers of torch are recognized by their code objects, as they leave no other mark.
ONCE = frozenset(nested_codes(once_differentiable.__code__))
AMP_BACKWARD = frozenset(nested_codes(torch.amp.custom_bwd.__code__))
AMP = AMP_BACKWARD.union(nested_codes(torch.amp.custom_fwd.__code__))


class Context:
    """The `ctx` of a class's code: it keeps symbolic values or tensors."""

    def __init__(self, trace: Trace | None, args: Sequence[Any]) -> None:
        self._trace = trace
        self._saved: tuple[Any, ...] = ()
        self._marked: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._missing: Callable[[Any], Any] | None = None
        self._saved_for_forward: tuple[Any, ...] = ()
        self.is_pushing = False
        self._args = args

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Which arguments need a gradient; reading it makes a fact in a capture."""
        floats = [isinstance(x, Value) and may_have_gradient(x) for x in self._args]
        if self._trace is None or not any(floats):
            return tuple(map(may_have_gradient, self._args))
        # With one float argument backward runs only if that needs a gradient: no fact.
        if self._trace.backward.is_running and sum(floats) == 1:
            return tuple(floats)
        symbols = [x for x, is_float in zip(self._args, floats, strict=True) if is_float]
        names = [x.node.attr("name") for x in symbols]
        needed = iter(needs_gradient(self._trace, tuple(names)))
        return tuple(is_float and next(needed) for is_float in floats)

    def save_for_backward(self, *tensors: Tensor) -> None:
        self._saved = tensors

    def save_for_forward(self, *tensors: Tensor) -> None:
        self._saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return self._saved_for_forward if self.is_pushing else self._saved

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        self._marked = outputs

    def mark_dirty(self, *inputs: Tensor) -> None:
        self._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether a missing cotangent is zeros; otherwise it is None."""
        self._missing = None if value else no_cotangent

    def __getattr__(self, name: str) -> Any:
        if name == "saved_variables":  # `saved_tensors` before torch 0.4
            return self._saved
        if self._trace is not None and hasattr(torch.autograd.function.BackwardCFunction, name):
            raise self._trace.error(f"uses ctx.{name}, which is not captured")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Gathering(torch.autograd.Function):
    """Returns the gradients that a backward adds to the `.grad` of tensors.

    The backward of a class that is given a module adds gradients to the module's parameters. Where
    a copy of the module holds other tensors instead, these are the gradients of those tensors.
    """

    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[Tensor]], Any], *tensors: Tensor) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
            outputs = run(leaves)
        ctx.leaves, ctx.outputs = leaves, outputs if isinstance(outputs, tuple) else (outputs,)
        shown = tuple(y.detach() if isinstance(y, torch.Tensor) else y for y in ctx.outputs)
        return shown if isinstance(outputs, tuple) else shown[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        for x in ctx.leaves:
            x.grad = None
        pairs = zip(ctx.outputs, cotangents, strict=True)
        active = [(y, g) for y, g in pairs if isinstance(y, torch.Tensor) and y.requires_grad]
        torch.autograd.backward(*zip(*active, strict=True), retain_graph=True)
        return None, *[x.grad for x in ctx.leaves]


def modules_of(value: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules that an argument is, or refers to."""
    if isinstance(value, torch.nn.Module):
        yield value
    elif isinstance(value, types.MethodType):
        yield from modules_of(value.__self__)
    elif isinstance(value, types.FunctionType):
        referred = [each for _, each in mentioned(value)]
        referred += map(contents, value.__closure__ or ())
        yield from (each for each in referred if isinstance(each, torch.nn.Module))


def no_cotangent(output: Any) -> None:
    """Return None, as the cotangent of an unused output if backward does not want zeros."""


def may_have_gradient(value: Any) -> bool:
    """Return whether a value is a float tensor, symbolic or real."""
    if isinstance(value, Value):
        return value.node.type.kind == "tensor" and is_float(value.node.type)
    return owner_of(value) is not None and dtype_name(value.dtype) in FLOATS


def recipe_of_class(function_class: type[torch.autograd.Function], copies: bool = False) -> Recipe:
    """Return the recipe of a class, which may write on copies."""
    code = ClassCode(function_class, _signature_of(function_class), copies)

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        problem = _find_problem(function_class)
        if problem:
            raise trace.error(problem)

        def call_captured(function: Callable[..., Any], *values: Any) -> Any:
            with torch.no_grad():  # as torch runs forward and backward
                return run_written_in("torch", function, trace, *values)

        return code.run_class(call_captured, trace, args, kwargs)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        def call_without_grad(function: Callable[..., Any], *values: Any) -> Any:
            with torch.no_grad():
                return function(*values)

        return code.run_class(call_without_grad, None, args, kwargs)

    def run_primal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return code.run_class(call_plainly, None, args, kwargs).outputs

    def apply(*args: Any, **kwargs: Any) -> Any:
        return function_class.apply(*code.bind(args, kwargs))

    return Recipe(
        code.name,
        run,
        record,
        functions=_functions_of(function_class),
        written_in="torch",
        signature=code.signature,
        copies=copies,
        gives_tangents=code.gives_tangents,
        origin=function_class,
        apply=apply,
        on_copies=partial(recipe_of_class, function_class, copies=True),
        bound_to=stay_unbound,
        run_primal=run_primal,
        has_setup=code.has_setup,
        holds=holds_parameters,
        gather=gather,
    )


def call_plainly(function: Callable[..., Any], *values: Any) -> Any:
    return function(*values)


def gather(run: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> Any:
    """Apply a class within `run`, whose backward adds to the `.grad` of some tensors."""
    return Gathering.apply(run, *tensors)


def stay_unbound(instance: Any) -> None:
    """Return None: `apply` is not bound to the object that holds the class."""


def holds_parameters(value: Any) -> bool:
    """Return whether an argument is a module with parameters, or a callable that uses one."""
    return callable(value) and any(
        next(each.parameters(), None) is not None for each in modules_of(value)
    )


def has_setup(cls: type[torch.autograd.Function]) -> bool:
    """Return whether forward gets no ctx, because `setup_context` does."""
    return cls.setup_context is not torch.autograd.Function.setup_context


def _signature_of(cls: type[torch.autograd.Function]) -> inspect.Signature | None:
    # That of `apply`: of forward without ctx.
    signature = signature_of(cls.forward)
    if signature is None or has_setup(cls):
        return signature
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def _functions_of(cls: type[torch.autograd.Function]) -> tuple[Any, ...]:
    setup = (cls.setup_context,) if has_setup(cls) else ()
    return (cls.forward, *setup, unwrap_once(_backward_of(cls))[0])


def _backward_of(cls: type[torch.autograd.Function]) -> Any:
    # torch knows it by two names.
    return cls.vjp if cls.backward is torch.autograd.Function.backward else cls.backward


def _find_problem(cls: type[torch.autograd.Function]) -> str:
    base = torch.autograd.Function
    if cls.forward is base.forward:
        return "has no forward; define it as a static method"
    has_backward, has_vjp = cls.backward is not base.backward, cls.vjp is not base.vjp
    if not (has_backward or has_vjp):
        return "has no backward; define it as a static method"
    return "has both a backward and a vjp; keep one of them" if has_backward and has_vjp else ""


@dataclass(frozen=True, slots=True, eq=False)
class ClassCode:
    """A class, and how its code is called.

    Attributes:
        signature: of `apply`; None: it is not known.
        copies: whether it may write into its arguments, which are copies.
    """

    function_class: type[torch.autograd.Function]
    signature: inspect.Signature | None
    copies: bool

    @property
    def name(self) -> str:
        return self.function_class.__name__

    @property
    def has_setup(self) -> bool:
        return has_setup(self.function_class)

    @property
    def gives_tangents(self) -> bool:
        return self.function_class.jvp is not torch.autograd.Function.jvp

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return a call's arguments by position; with `setup_context` torch adds defaults, too."""
        # The common case first: each call of a class that runs unchanged comes here.
        if not (kwargs or self.has_setup):
            return args
        signature = self.signature
        if signature is None:
            return args
        bound = signature.bind(*args, **kwargs)
        if self.has_setup:
            bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(
                f"{self.name}: forward's arguments {sorted(bound.kwargs)} are keyword-only"
            )
        return bound.args

    def run_class(
        self,
        call: Callable[..., Any],
        trace: Trace | None,
        positional: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Recorded:
        """Run forward by `call(function, *values)`; return its outputs and what backward does."""
        args = self.bind(positional, kwargs)
        cls, ctx = self.function_class, Context(trace, args)
        backward, once = unwrap_once(unwrap_amp(_backward_of(cls), trace))
        backward = unwrap_amp(backward, trace)
        if self.has_setup:
            outputs = call(unwrap_amp(cls.forward, trace), *args)
            call(cls.setup_context, ctx, args, outputs)
        else:
            outputs = call(unwrap_amp(cls.forward, trace), ctx, *args)
        # `Value` first: asked for another class, a symbol answers by the code that asks.
        is_one = isinstance(outputs, Value)
        outputs = tuple(outputs) if not is_one and isinstance(outputs, Extremes) else outputs
        several = not is_one and isinstance(outputs, tuple)
        results: tuple[Any, ...] = tuple(outputs) if several else (outputs,)
        if trace is not None and len(set(map(id, results))) < len(results):
            trace.omit(TWICE)
        watched = [value for value in (*args, *results) if isinstance(value, Value)]

        def pull(upstream: Any) -> Any:
            nodes = [value.node for value in watched]
            returned = call(backward, ctx, *(upstream if several else (upstream,)))
            is_written = [value.node for value in watched] != nodes
            if trace is not None and is_written and not self.copies:
                advice = trace.words.advise("work on a copy: x.clone()")
                raise trace.error(
                    "updates an input or an output in place in backward, which the caller would "
                    f"see in one framework only{advice}. xg.convert({self.name}, "
                    "capture=xg.Capture(copies=True)) has it do so"
                )
            gradients = self.checked_gradients(returned, len(args))
            gradients = tuple(map(fit, gradients, args))
            if not kwargs:
                return gradients[: len(positional)]  # defaults get none
            assert self.signature is not None  # `bind` has used it for the keywords
            named = dict(zip(self.signature.parameters, gradients, strict=False))
            return (*gradients[: len(positional)], {name: named[name] for name in kwargs})

        def push() -> Pushed | None:
            assert trace is not None
            tangents = [make_tangent(trace, i, x) for i, x in enumerate(args)]
            pairs = zip(args, tangents, strict=True)
            moved = [(x.node, tangent.node) for x, tangent in pairs if tangent is not None]
            before = questions.count()
            ctx.is_pushing = True
            try:
                with setting(trace, draws=trace.draws):
                    tangents_out = call(cls.jvp, ctx, *tangents)
            except Exception as error:  # noqa: BLE001 (a jvp that is no graph works on torch only)
                questions.forget(before)
                if not (isinstance(error, NotImplementedError) or is_users_own(trace, error)):
                    trace.omit(FORWARD_MODE)
                return None
            finally:
                ctx.is_pushing = False
            changes = tangents_out if several else (tangents_out,)
            # torch accepts None for a tangent, but a jvp of nothing else is a stub.
            is_stub = tangents_out is None or all(each is None for each in changes)
            return None if is_stub else Pushed(moved, changes)

        return Recorded(
            outputs,
            pull,
            push=push if self.gives_tangents else None,
            first_order=once,
            second_order=not once,
            keeps_output=True,  # backward reads only outputs that ctx keeps
            undifferentiable=ctx._marked,
            dirty=ctx._dirty,
            missing=ctx._missing,
        )

    def checked_gradients(self, returned: Any, count: int) -> tuple[Any, ...]:
        gradients = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        # torch accepts more gradients than arguments if the rest are None.
        extra = gradients[count:]
        if len(gradients) < count or any(each is not None for each in extra):
            given = "1 gradient" if len(gradients) == 1 else f"{len(gradients)} gradients"
            called = "1 argument" if count == 1 else f"{count} arguments"
            raise GradientError(
                f"{self.name}.backward returned {given} for {called} of {self.name}.apply; "
                "expected one for each, None where there is none"
            )
        return gradients[:count]


def fit(gradient: Any, argument: Any) -> Any:
    """Return a gradient as torch's engine would: cast to the dtype, summed over broadcast axes."""
    if not (isinstance(gradient, Value) and may_have_gradient(argument)):
        return gradient
    actual, expected = gradient.node.type, argument.node.type
    if actual.kind != "tensor":
        return gradient
    if actual.dtype != expected.dtype and is_float(actual):
        gradient = gradient.trace.value(cast_node(gradient.node, expected.dtype))
    if UNKNOWN in (actual.shape, expected.shape):
        gradient = xp.sum_to(gradient, argument)
    return gradient


def unwrap_once(backward: Any) -> tuple[Any, bool]:
    """Return a backward without `once_differentiable`, and whether it had that."""
    if getattr(backward, "__code__", None) in ONCE:
        return backward.__wrapped__, True
    return backward, False


def unwrap_amp(function: Any, trace: Trace | None) -> Any:
    """Return a forward or backward without `custom_fwd` or `custom_bwd`."""
    is_plain = inspect.isfunction(function) and function.__code__ in AMP
    if trace is None or not is_plain:
        return function
    # Without autocast these do nothing; under it backward uses the autocast of forward.
    casts = inspect.getclosurevars(function).nonlocals.get("cast_inputs")
    if casts or function.__code__ in AMP_BACKWARD:
        trace.omit(AUTOCAST)
    return function.__wrapped__


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


def make_function(function_class: type[torch.autograd.Function]) -> Function:
    return MayTakeObjects(import_function(function_class))


# --- operators of torch.library.custom_op, as classes with their registered gradients -------------
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
    kernels = definition._backend_fns
    distinct = {id(kernel) for kernel in kernels.values()}
    place = place_of(trace) if len(distinct) > 1 or None not in kernels else None
    kernel = unwrapped_kernel(kernels.get(place, kernels.get(None)))
    if kernel is None:
        raise TypeError(f"it runs on {', '.join(map(str, kernels))} alone")
    if definition._backward_fn is not None:
        own_class = class_of(definition, kernel, tuple(kwargs))
        return import_once(make_function, own_class)(*args, *kwargs.values())
    if trace.kind != "imported function":
        raise TypeError("it registers no gradient")
    # Only values, as in a class: a derivative of its backward ends here.
    trace.backward.is_once |= trace.backward.is_running
    return run_written_in("torch", kernel, trace, *args, **kwargs)


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
) -> type[torch.autograd.Function]:
    """Return an operator as a class its author might have written; keyword-only arguments last."""
    setup, pull = definition._setup_context_fn, definition._backward_fn

    def split(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = len(values) - len(keywords)
        return values[:count], dict(zip(keywords, values[count:], strict=True))

    def forward(*values: Any) -> Any:
        args, options = split(values)
        return kernel(*args, **options)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if setup is not None:
            args, options = split(inputs)
            named = {"keyword_only_inputs": options} if keywords else {}
            setup(ctx=ctx, inputs=args, output=output, **named)

    def backward(ctx: Any, *grads: Any) -> Any:
        slopes = pull(ctx, *grads)
        return (*(slopes if isinstance(slopes, tuple) else (slopes,)), *(None for _ in keywords))

    methods = {
        "forward": staticmethod(forward if keywords else kernel),
        "setup_context": staticmethod(keep),
        "backward": staticmethod(backward if keywords else pull),
    }
    name = definition._qualname.replace("::", ".")
    return type(name, (torch.autograd.Function,), methods)


# --- operators with a gradient, as functions ------------------------------------------------------
AUTOGRAD_KEYS = ("Autograd", "AutogradCPU")
TORCH_NAMESPACES = (
    "aten",
    "debug_mode_ops",
    "export",
    "mkldnn",
    "prim",
    "prims",
    "quantized",
    "rngprims",
)


def operators() -> Iterator[str]:
    """Yield the names of operators with a gradient, as namespace::name, without torch's own."""
    seen = set()
    for key in AUTOGRAD_KEYS:
        for entry in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            name = entry.partition(".")[0]
            definition = OPDEFS.get(name)
            has_gradient = definition is None or definition._backward_fn is not None
            if (
                name not in seen
                and has_gradient
                and name.partition("::")[0] not in TORCH_NAMESPACES
            ):
                seen.add(name)
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
