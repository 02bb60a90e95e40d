"""Calls of an emitted `torch.autograd.Function` outside and under transforms, and of functions that
run unchanged.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import Function, forward_ad

from multigrad.backend.emitted import find_like
from multigrad.errors import GradientError, UnsupportedOp
from multigrad.functions.calls.gradients import pull_delivering
from multigrad.trace.assertions import FORWARD_MODE

from .. import dynamo
from ..dtensors import (
    ShardLayout,
    is_distributed,
    lay_out,
    layout_of,
    refuse_odd,
    run_bare,
    run_distributed,
)
from ..state import (
    BATCHED,
    KINDS,
    Like,
    count_modes,
    eager_of,
    is_included,
    tracing_state,
    transforms_active,
)
from .fusing.dispatch import Fusing
from .vjp import list_nodes

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor


def finish(namespace: dict[str, Any], emitted: Emitted) -> type[Function]:
    """Return the public class of an emitted Function, with the attributes that its calls read."""
    name = emitted.names.identifier
    native = namespace[name]
    native.__doc__ = f"{emitted.origin.name}, as emitted by multigrad."
    native.eager = namespace.get(f"{name}_eager", native)
    # Profiles and the node of a gradient show the public name.
    native.eager._backward_cls.__name__ = native._backward_cls.__name__
    native.prepare = namespace.get(f"{name}_prepare")
    native.constants = None if native.prepare is None else PreparedNumbers(native.prepare, emitted)
    if emitted.derivative.dual is not None and not emitted.derivative.pushes:
        native.jvp = staticmethod(refusing(emitted.derivative.dual))
    # Read by calls on DTensors and in forward mode.
    native.emitted = emitted
    native.elementwise = None
    native.subject = emitted.origin.name
    native.tensors = len(emitted.names.inputs)
    native.whole = None
    native.fusing = Fusing(native)
    # `backward()` may be called inside compiled code.
    for cls in {native, native.eager}:
        cls.backward = staticmethod(dynamo.apart(cls.backward))
    # Under torch.func transforms Dynamo (torch 2.13) would differentiate the forward instead.
    dynamo.allow_in_graph(native)
    return native


def as_number(value: Any) -> Any:
    return value


def is_pushing() -> bool:
    """Return whether forward mode is on, around a call or within it."""
    if forward_ad._current_level >= 0:
        return True
    # Python does not know of the level that compiled code enters (torch 2.13).
    interpreters = get_interpreter_stack() if transforms_active() else None
    return any(each.key() == TransformType.Jvp for each in interpreters or ())


def transform() -> frozenset[str] | None:
    """Return the kinds of omissions that show under the transform around a call; None outside."""
    if is_pushing():
        return frozenset({FORWARD_MODE})
    return frozenset() if transforms_active() else None


def entry(native: Any) -> Callable[..., Any]:
    """Return the `apply` for calls under transforms, in forward mode that of a class with a jvp."""
    derivative = native.emitted.derivative
    if derivative.pushes and derivative.dual is not None and is_pushing():
        native = derivative.dual().native
    # The base class's `apply`: the class's own is the emitted dispatcher, which came here.
    return super(native, native).apply


def refusing(dual: Callable[[], Any]) -> Callable[..., Any]:
    """Return the `jvp` of a Function without forward mode: it raises an error with the reason."""

    def refuse(ctx: Any, *tangents: Any) -> Any:
        try:
            dual()
        except UnsupportedOp as error:
            raise GradientError(str(error)) from error

    return refuse


NAMESPACE = {
    "as_number": as_number,
    "BATCHED": BATCHED,
    "Function": Function,
    "KINDS": KINDS,
    "Like": Like,
    "Tensor": torch.Tensor,
    "count_modes": count_modes,
    "entry": entry,
    "forward_ad": forward_ad,
    "is_included": is_included,
    "enable_forward_mode": forward_ad._set_fwd_grad_enabled,
    "is_grad_enabled": torch.is_grad_enabled,
    "transforms_active": transforms_active,
    # Level 0 is the only one (torch 2.13). Compiled code enters it without telling Python.
    "unpack_dual": partial(forward_ad.unpack_dual, level=0),
}


def warning_of_trace(native: Any, transformed: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call under transforms so that it warns where torch.jit.trace fixes the rule."""
    name = native.__doc__.partition(",")[0]

    def run(tin: Tensor, *values: Any) -> Tensor:
        if tracing_state() is not None:
            warn_of_trace(f"{name} for the gradient")
        return transformed(tin, *values)

    return run


def warn_of_trace(fixed: str) -> None:
    """Warn that torch.jit.trace fixes what is in force; ONNX export has no gradients to warn of."""
    if not torch.onnx.is_in_onnx_export():
        warnings.warn(
            f"torch.jit.trace keeps {fixed}, whatever is in force where the trace runs. Trace once "
            f"for each rule, or use torch.compile, which follows `use`",
            torch.jit.TracerWarning,
            stacklevel=2,
        )


def call(native: Any, emitted: Emitted) -> Callable[..., Any]:
    """Return how a class is called: by its C entry, unless a transform or torch.jit traces it."""
    eager, transformed = entries(native)
    if emitted.origin.is_rule:
        transformed = warning_of_trace(native, transformed)
    count, run = len(emitted.names.inputs), eager
    prepare, constants, fusing = native.prepare, native.constants, native.fusing
    if prepare is not None:
        like, of = constants.like, constants.of

        def run(*args: Any) -> Any:
            return eager(*args[:count], of(args[like], args[count:]))

    def apply_one(x: Tensor, *values: Any) -> Any:
        # Runs at each call: every test reads a flag that torch keeps in C.
        anywhere = type(x) not in KINDS or transforms_active() or count_modes()
        anywhere = anywhere or tracing_state() is not None or forward_ad._current_level >= 0
        if not anywhere and x.numel() >= fusing.least:
            return fusing.apply((x,), values)
        return (transformed if anywhere else eager)(x, *values)

    def apply_prepared(x: Tensor, *values: Any) -> Any:
        assert prepare is not None
        if type(x) not in KINDS or transforms_active() or count_modes():
            return transformed(x, *values)
        if tracing_state() is not None or forward_ad._current_level >= 0:
            return transformed(x, *values)
        if x.numel() >= fusing.least:
            return fusing.apply((x,), values)
        # `PreparedNumbers.of`, inlined, as every application of an activation comes here.
        for value in values:
            if type(value) is not float:
                return eager(x, prepare(as_number, *values))
        numbers, has_zero, dtype, on_cpu, prepared = constants.known
        # Numbers with a zero are prepared anew each time: -0.0 equals 0.0, but gives other bits.
        if has_zero or values != numbers or x.dtype is not dtype or x.is_cpu is not on_cpu:
            wrap = constants.wraps.get(x.dtype) if x.is_cpu else as_number
            if wrap is None:
                return eager(x, of(x, values))
            prepared = prepare(wrap, *values)
            constants.known = values, 0.0 in values, x.dtype, x.is_cpu, prepared
        return eager(x, prepared)

    def apply_several(*args: Any) -> Any:
        tensors = args[:count]
        anywhere = transforms_active() or count_modes() or tracing_state() is not None
        anywhere = anywhere or forward_ad._current_level >= 0
        # A loop takes half the time that a set of their types takes.
        for x in tensors:
            anywhere = anywhere or type(x) not in KINDS
        if not anywhere and tensors[0].numel() >= fusing.least:
            return fusing.apply(tensors, args[count:])
        return (transformed if anywhere else run)(*args)

    if count > 1:
        return apply_several
    return apply_one if prepare is None else apply_prepared


def bind(native: Any, x: Tensor, values: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    """Return how a rule with fixed params is called on tensors of the kind and dtype of x."""
    eager, transformed = entries(native)
    transformed = warning_of_trace(native, transformed)
    prepare, fusing = native.prepare, native.fusing
    # (whether for the CPU, prepared numbers): one tuple, so that threads never see half of it.
    state: tuple[bool | None, Any] = (None, None)
    if type(x) not in KINDS:
        # Tensor subclasses always take the transformable class.
        return lambda tin: transformed(tin, *values)

    def apply(tin: Tensor) -> Tensor:
        if transforms_active() or count_modes() or tracing_state() is not None:
            return transformed(tin, *values)
        if forward_ad._current_level >= 0:
            return transformed(tin, *values)
        if tin.numel() >= fusing.least:
            return fusing.apply((tin,), values)
        return eager(tin, *values)

    def apply_prepared(tin: Tensor) -> Tensor:
        nonlocal state
        if transforms_active() or count_modes() or tracing_state() is not None:
            return transformed(tin, *values)
        if forward_ad._current_level >= 0:
            return transformed(tin, *values)
        if tin.numel() >= fusing.least:
            return fusing.apply((tin,), values)
        on_cpu, prepared = state
        if tin.is_cpu is not on_cpu:
            state = tin.is_cpu, prepare(wrapping(tin), *values)
            prepared = state[1]
        return eager(tin, prepared)

    return apply if prepare is None else apply_prepared


class PreparedNumbers:
    """The prepared numbers of a Function's previous call.

    `known` is (numbers, whether 0.0 is among them, dtype, whether on the CPU, prepared numbers):
    one tuple, so that threads see all of it or none. Numbers become tensors at the first call
    already: torch rounds some ops with a Python number differently, and equal calls must give equal
    bits. `wraps` holds the functions that make these tensors on the CPU, by dtype.
    """

    __slots__ = ("known", "like", "literals", "prepare", "wraps")

    def __init__(self, prepare: Callable[..., Any], emitted: Emitted) -> None:
        self.like = find_like(emitted.origin.input_types) or 0
        self.prepare = prepare
        self.literals = frozenset(prepare.__code__.co_consts)
        self.known: tuple[Any, ...] = (None, False, None, None, None)
        self.wraps: dict[torch.dtype, Callable[[Any], Any]] = {}

    def of(self, like: Tensor, values: tuple[Any, ...]) -> Any:
        for value in values:
            if type(value) is not float:  # tensors may change in place
                return self.prepare(as_number, *values)
        numbers, has_zero, dtype, on_cpu, prepared = self.known
        if (
            values == numbers
            and like.dtype is dtype
            and like.is_cpu is on_cpu
            and not (has_zero and repr(values) != repr(numbers))  # -0.0 equals 0.0
        ):
            return prepared
        dtype, on_cpu = like.dtype, like.is_cpu
        wrap = self.wraps.get(dtype) if on_cpu else as_number
        if wrap is None:
            wrap = self.wraps[dtype] = wrapping(like, self.literals)
        prepared = self.prepare(wrap, *values)
        self.known = values, 0.0 in values, dtype, on_cpu, prepared
        return prepared


# In 16 bits torch computes with a number in float32; a tensor of that dtype is rounded first.
CONSTANT_DTYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")
BIG = 1e38  # well below the largest float32


def wrapping(x: Tensor, literals: Collection[Any] = ()) -> Callable[[Any], Any]:
    """Return a function that makes a prepared number an operand for ops on tensors like x.

    Tensors of `literals`, the numbers in the source, are cached.
    """
    if not x.is_cpu or x.dtype not in CONSTANT_DTYPES:
        return as_number
    dtype, constants = x.dtype, {}

    def as_tensor(value: Any) -> Any:
        if type(value) is float and -BIG < value < BIG and value not in literals:
            # Three times as fast as torch.tensor, but it refuses numbers beyond the dtype.
            constant = torch.scalar_tensor(value, dtype=dtype, device=CPU)
            # A mode may have returned another type.
            return constant if type(constant) is Tensor else value
        if isinstance(value, Tensor):
            return value
        key = value or repr(value)  # -0.0 equals 0.0
        constant = constants.get(key)
        if constant is not None:
            return constant
        constant = torch.tensor(value, dtype=dtype, device=CPU)
        if type(constant) is not Tensor:
            return value
        if value in literals:
            constants[key] = constant
        return constant

    return as_tensor


def entries(native: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two ways to apply a Function: outside transforms, and anywhere."""
    eager = eager_of(native)
    if native.eager is native:
        return eager, eager
    count, prepare = native.tensors, native.prepare

    # Runs on this process's part of a DTensor, which may be a tensor of any kind again.
    def local(x: Tensor, *rest: Any) -> Any:
        if type(x) not in KINDS or transforms_active() or count_modes():
            return entry(native)(x, *rest)
        if prepare is None:
            return eager(x, *rest)
        tensors, values = rest[: count - 1], rest[count - 1 :]
        like = (x, *tensors)[native.constants.like]
        return eager(x, *tensors, native.constants.of(like, values))

    def anywhere(*args: Any) -> Any:
        if any(map(is_distributed, args[:count])):
            return run_distributed(native, args[:count], args[count:], local)
        return entry(native)(*args)

    return eager, anywhere


def around_bare(function: Callable[..., Tensor], elementwise: bool) -> Callable[..., Tensor]:
    """Wrap an emitted bare rule so that it runs on DTensors too."""
    name = function.__name__

    def run(grad_out: Tensor, *args: Any) -> Tensor:
        if type(grad_out) in KINDS:
            return function(grad_out, *args)
        return run_bare(function, elementwise, name, grad_out, args)

    return run


# --- functions that run unchanged, with the user's own code for their backward --------------------
# Such a function runs once, with gradients enabled, so that what its backward reads keeps its
# derivative. Under a torch.func transform, whose tensors die with it, backward runs it again.
PUSHES_NOTHING = "so it has no forward mode"
NO_JVP = (
    "forward mode refuses, as no jvp returns tangents: write one, or take the gradient in "
    "reverse mode"
)
# By a pattern in torch's error message: why a transform refuses a class, and what to write.
REFUSALS = {
    r"must override the setup_context": "torch.func refuses, as forward gets ctx: split it "
    "into forward(*inputs) and setup_context(ctx, inputs, output)",
    r"does not have vmap support": "torch.func.vmap refuses, as the class has no rule for it: "
    "set generate_vmap_rule = True in it",
    r"both generate_vmap_rule=True and": "torch.func.vmap refuses, as the class has two rules "
    "for it: delete its vmap",
    r"vmap staticmethod (to have|returned)": "torch.func.vmap refuses, as the vmap of the "
    "class does not return (output, out_dims): delete it, and set generate_vmap_rule = True",
    r"tensor and its forward grad": "forward mode refuses, as the jvp of the class does not "
    "return a tangent for each output: delete it",
    r"forward (AD|mode)": NO_JVP,
}
Run = Callable[..., tuple[tuple[Any, ...], Callable[..., tuple[Any, ...]], tuple[int, ...]]]


def attach(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply a function whose backward is the user's own code to tensors.

    Args:
        run: `run(*tensors) -> (outputs, pull, positions of outputs without a gradient)`; pull is
            called as `pull(*cotangents, ctx=ctx)`.
        tensors: its inputs.
        name: its name in messages and profiles.
    """
    layouts = [layout_of(x) if is_distributed(x) else None for x in tensors]
    if any(layouts):
        refuse_odd(name, tensors)
    is_traced = tracing_state() is not None
    if is_traced:
        warn_of_trace(f"{name} for the gradient")
    # A trace or transform does not know yet whether a gradient or tangent will be asked for.
    if is_traced or transforms_active() or forward_ad._current_level >= 0:
        return _apply_again(run, tensors, name)
    if not torch.is_grad_enabled():
        with torch.no_grad():
            # An output may be an input that requires grad; a result under no_grad may not.
            return tuple(y.detach() if y.requires_grad else y for y in run(*tensors)[0])
    return _apply_once(run, tensors, name, layouts)


def _apply_once(
    run: Run, tensors: tuple[Tensor, ...], name: str, layouts: Sequence[ShardLayout | None]
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        outputs, pull, undifferentiable = run(*tensors)
        besides = read_besides(outputs, tensors)
        # The engine tells only of non-leaves whether backward reaches them: hence views.
        views = [x.view_as(x) for x in besides]
    count, nodes = len(tensors), [view.grad_fn for view in views]

    class NativeFunction(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
            # So that torch notices if one is written to before backward.
            ctx.save_for_backward(*inputs[:count])
            nonlocal outputs
            detached = tuple(output.detach() for output in outputs)
            ctx.mark_non_differentiable(*(detached[i] for i in undifferentiable))
            outputs = ()  # else their own graph would live as long as this one
            return detached

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
            # Reading them makes torch check their versions.
            _ = ctx.saved_tensors
            # Only leaves that the running backward reaches get a gradient.
            pairs = zip(besides, nodes, strict=True)
            reached = [x for x, node in pairs if torch._C._will_engine_execute_node(node)]
            before = {id(x): (x.grad, x.grad is not None and x.grad._version) for x in reached}

            # The user's backward may call `backward()` itself, which adds to `.grad` of a leaf.
            def is_added(x: Tensor) -> bool:
                grad, version = before[id(x)]
                return x.grad is not grad or (grad is not None and grad._version != version)

            def pull_with(*gradients: Tensor) -> Any:
                return pull(*gradients, ctx=ctx)

            gradients, of_leaves = pull_delivering(pull_with, cotangents, reached, is_added)
            of_asked = dict(zip(map(id, reached), of_leaves, strict=True))
            laid_out = [lay_out(g, layout) for g, layout in zip(gradients, layouts, strict=True)]
            return (*laid_out, *(of_asked.get(id(x)) for x in besides))

    NativeFunction.__name__ = name
    return NativeFunction.apply(*tensors, *views)


def explain_refusal(error: Exception) -> str:
    """Return why torch.func or forward mode refuses code that runs as written, else ""."""
    if not (transforms_active() or is_pushing()):
        return ""
    message = str(error)
    # The message of our own `jvp` says everything already.
    if message.endswith(PUSHES_NOTHING):
        return ""
    for pattern, refusal in REFUSALS.items():
        if re.search(pattern, message):
            return refusal
    if isinstance(error, NotImplementedError) and "implemented for" not in message:  # a jvp's own
        return NO_JVP
    is_about_batches = re.search(r"vmap|[Bb]atching rule|functorch|transform|have storage", message)
    return f"torch.func refuses: {message.splitlines()[0]}" if is_about_batches else ""


def read_besides(outputs: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves that require grad and that outputs depend on apart from these tensors."""
    arguments = {id(x) for x in tensors}
    leaves = {id(y): y for y in outputs if y.is_leaf and y.requires_grad and id(y) not in arguments}
    for node in list_nodes(outputs, {x.grad_fn for x in tensors}):
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in arguments:
            leaves[id(leaf)] = leaf
    return [*leaves.values()]


def _apply_again(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    # Under a transform backward runs the function again on saved inputs, so that any order works.
    marked: tuple[int, ...] = ()

    class DerivedFunction(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
            nonlocal marked
            outputs, _, marked = run(*inputs)
            return tuple(output.clone() for output in outputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
            return run(*ctx.saved_tensors)[1](*cotangents, ctx=ctx)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Any:
            raise NotImplementedError(f"{name!r} runs as written, {PUSHES_NOTHING}")

    DerivedFunction.__name__ = name
    outputs = DerivedFunction.apply(*tensors)
    return tuple(y.detach() if i in marked else y for i, y in enumerate(outputs))
