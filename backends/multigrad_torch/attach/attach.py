"""How an emitted `torch.autograd.Function` is called: its numbers prepared, unless transformed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import Function, forward_ad

from multigrad.backend.emitted import find_like
from multigrad.errors import GradientError, UnsupportedOp
from multigrad.trace.assertions import FORWARD_MODE

from .. import dynamo
from ..distributed.tensors import is_distributed, run_bare, run_distributed
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

if TYPE_CHECKING:
    from multigrad.backend import Emitted
from collections.abc import Sequence

from ..kernels.fast.gradient_lists import over_many

if TYPE_CHECKING:
    from multigrad.backend import Graph


Tensor: TypeAlias = torch.Tensor


def finish(namespace: dict[str, Any], emitted: Emitted) -> type[Function]:
    """Return the public class; its docstring says what it is."""
    native = namespace[emitted.identifier]
    native.__doc__ = f"{emitted.name}, as emitted by multigrad."
    native.eager = namespace.get(f"{emitted.identifier}_eager", native)
    # What people see of it is the name of its node among the gradients.
    native.eager._backward_cls.__name__ = native._backward_cls.__name__
    native.prepare = namespace.get(f"{emitted.identifier}_prepare")
    native.constants = None if native.prepare is None else Constants(native.prepare, emitted)
    if emitted.dual is not None and not emitted.pushes:
        native.jvp = staticmethod(refusing(emitted.dual))
    # Of what runs on DTensors, and of forward mode.
    native.emitted = emitted
    native.elementwise = None
    native.subject = emitted.name
    native.tensors = len(emitted.inputs)
    native.whole = None
    native.fusing = Fusing(native)
    for cls in {native, native.eager}:  # `backward()` may be called inside of compiled code
        cls.backward = staticmethod(dynamo.apart(cls.backward))
    # Dynamo (torch 2.13) would take the forward's own derivative of it under torch.func transforms.
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
    """Return the features that a graph omits and the transform around this call exposes; None
    outside a transform.
    """
    if is_pushing():
        return frozenset({FORWARD_MODE})
    return frozenset() if transforms_active() else None


def entry(native: Any) -> Callable[..., Any]:
    """Return the `apply` for use under transforms; in forward mode, of the class with a jvp."""
    if native.emitted.pushes and native.emitted.dual is not None and is_pushing():
        native = native.emitted.dual().native
    return super(native, native).apply


def refusing(dual: Callable[[], Any]) -> Callable[..., Any]:
    """Return the `jvp` of a Function that has none, which says why."""

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
    # The only level (torch 2.13), which compiled code enters behind Python's back.
    "unpack_dual": partial(forward_ad.unpack_dual, level=0),
}


def saying_what_is_kept(native: Any, transformed: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call under transforms so that it warns where torch.jit.trace fixes the rule."""
    name = native.__doc__.partition(",")[0]

    def run(tin: Tensor, *values: Any) -> Tensor:
        if tracing_state() is not None:
            warn_of_trace(f"{name} for the gradient")
        return transformed(tin, *values)

    return run


def warn_of_trace(kept: str) -> None:
    """Say what torch.jit.trace keeps; what the exporter of ONNX traces has no gradient."""
    if not torch.onnx.is_in_onnx_export():
        warnings.warn(
            f"torch.jit.trace keeps {kept}, whatever is in force where the trace runs. Trace once "
            f"for each rule, or use torch.compile, which follows `use`",
            torch.jit.TracerWarning,
            stacklevel=2,
        )


def call(native: Any, emitted: Emitted) -> Callable[..., Any]:
    """Return how a class is called: the C entry, unless a transform or torch.jit reads along."""
    eager, transformed = entries(native)
    if emitted.is_rule:
        transformed = saying_what_is_kept(native, transformed)
    count, run = len(emitted.inputs), eager
    prepare, constants, fusing = native.prepare, native.constants, native.fusing
    if prepare is not None:
        like, of = constants.like, constants.of

        def run(*args: Any) -> Any:
            return eager(*args[:count], of(args[like], args[count:]))

    def apply_one(x: Tensor, *values: Any) -> Any:
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
        # What `of` does, without a call of it: each application comes here.
        for value in values:
            if type(value) is not float:
                return eager(x, prepare(as_number, *values))
        numbers, has_zero, dtype, on_cpu, prepared = constants.known
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
        for x in tensors:  # half the time that a set of their types takes
            anywhere = anywhere or type(x) not in KINDS
        if not anywhere and tensors[0].numel() >= fusing.least:
            return fusing.apply(tensors, args[count:])
        return (transformed if anywhere else run)(*args)

    if count > 1:
        return apply_several
    return apply_one if prepare is None else apply_prepared


def bind(native: Any, x: Tensor, values: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    """Return the same for a rule's fixed params, and for tensors of the kind and dtype of x."""
    eager, transformed = entries(native)
    transformed = saying_what_is_kept(native, transformed)
    prepare, fusing = native.prepare, native.fusing
    # Whether for a processor, and what is prepared: in one tuple, which threads see whole.
    state: tuple[bool | None, Any] = (None, None)
    if type(x) not in KINDS:
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


class Constants:
    """What a Function's numbers were prepared to at the call before.

    `known` is the numbers, whether 0.0 is among them, the dtype and the place they were prepared
    for, and what they gave: one tuple, so that threads see all of it or none. Numbers are made
    tensors at their first call too: torch rounds some ops with a number otherwise, and equal calls
    give equal bits. `wraps` makes them, by dtype, for processors.
    """

    __slots__ = ("known", "like", "literals", "prepare", "wraps")

    def __init__(self, prepare: Callable[..., Any], emitted: Emitted) -> None:
        self.like = find_like(emitted.input_types) or 0
        self.prepare = prepare
        self.literals = frozenset(prepare.__code__.co_consts)
        self.known: tuple[Any, ...] = (None, False, None, None, None)
        self.wraps: dict[torch.dtype, Callable[[Any], Any]] = {}

    def of(self, like: Tensor, values: tuple[Any, ...]) -> Any:
        """Return the constants of numbers, for tensors like this one."""
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


# In 16 bits torch computes with a number in float32; a tensor of the dtype would be rounded first.
CONSTANT_DTYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")
BIG = 1e38  # far from where float32 ends


def wrapping(x: Tensor, literals: Collection[Any] = ()) -> Callable[[Any], Any]:
    """Return a function that makes a prepared number an operand for ops on tensors like x.

    `literals` are numbers that recur: their tensors are cached.
    """
    if not x.is_cpu or x.dtype not in CONSTANT_DTYPES:
        return as_number
    dtype, kept = x.dtype, {}

    def as_tensor(value: Any) -> Any:
        """Return a prepared number as a tensor without dimensions."""
        if type(value) is float and -BIG < value < BIG and value not in literals:
            # Three times as fast as torch.tensor, but it refuses numbers beyond the dtype.
            constant = torch.scalar_tensor(value, dtype=dtype, device=CPU)
            # A mode may have returned another type.
            return constant if type(constant) is Tensor else value
        if isinstance(value, Tensor):
            return value
        key = value or repr(value)  # -0.0 equals 0.0
        constant = kept.get(key)
        if constant is not None:
            return constant
        constant = torch.tensor(value, dtype=dtype, device=CPU)
        if type(constant) is not Tensor:
            return value
        if value in literals:
            kept[key] = constant
        return constant

    return as_tensor


def entries(native: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two ways to apply a Function: one for outside transforms and one for inside."""
    eager = eager_of(native)
    if native.eager is native:
        return eager, eager
    count, prepare = native.tensors, native.prepare

    def local(x: Tensor, *rest: Any) -> Any:
        """Apply it to this process's part of a DTensor."""
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
    """Return an emitted bare rule that runs on DTensors too."""
    name = function.__name__

    def run(grad_out: Tensor, *args: Any) -> Tensor:
        if type(grad_out) in KINDS:
            return function(grad_out, *args)
        return run_bare(function, elementwise, name, grad_out, args)

    return run


BLOCK = 1 << 22


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[..., list[Tensor] | None] | None:
    """Return a rule on gradients by torch's `_foreach` kernels; see `Autodiff.many`."""
    rewritten = over_many(graph, in_place)
    if rewritten is None:
        return None
    function = emit(rewritten)

    def run(
        gradients: Sequence[Tensor], values: Sequence[Any], tries: bool = False
    ) -> list[Tensor] | None:
        first = gradients[0]
        if type(first) not in KINDS or transforms_active() or count_modes():
            return None
        if tracing_state() is not None or is_included(BATCHED):
            return None
        device = first.device
        if any(each.device != device or each.layout is not torch.strided for each in gradients):
            return None
        if torch.is_grad_enabled() and any(each.requires_grad for each in gradients):
            return None
        if tries:
            return []
        blocks = blocks_of(gradients) if device.type == "cpu" else [list(gradients)]
        return [each for block in blocks for each in function(block, *values)]

    return run


def blocks_of(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return gradients in blocks that stay in a processor's cache from one op to the next: 161 of a
    ResNet-50 are clipped in 15.1 ms so, in 18.7 all at once.
    """
    blocks, size = [[gradients[0]]], gradients[0].nbytes
    for gradient in gradients[1:]:
        if size > BLOCK:
            blocks.append([])
            size = 0
        blocks[-1].append(gradient)
        size += gradient.nbytes
    return blocks
