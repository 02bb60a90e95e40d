"""Calls of an emitted `torch.autograd.Function`, outside and under transforms.

`finish` completes the class, once; `call` returns the function that each call runs, `bind` that of
a rule with fixed params. Outside transforms a call takes the fast class (`<name>_eager` in the
emitted source) or fused kernels; under a transform, in forward mode and for tensor subclasses it
takes the class that they can read (`entries` has both).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import Function, forward_ad

from multigrad.errors import GradientError, UnsupportedOp
from multigrad.trace.assertions import FORWARD_MODE

from .. import dynamo
from ..dtensors import (
    is_distributed,
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
from .prepared_numbers import PreparedNumbers, as_number, wrapping

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor


def finish(namespace: dict[str, Any], emitted: Emitted) -> type[Function]:
    """Return the public class of an emitted Function, with the attributes that its calls read.

    `eager` is the fast class, `prepare` and `constants` give its prepared numbers (None: it takes
    none), `tensors` counts the inputs. Calls on DTensors fill `elementwise` and `whole`.
    """
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


def refusing(dual: Callable[[], Any]) -> Callable[..., Any]:
    """Return the `jvp` of a Function without forward mode: it raises an error with the reason."""

    def refuse(ctx: Any, *tangents: Any) -> Any:
        try:
            dual()
        except UnsupportedOp as error:
            raise GradientError(str(error)) from error

    return refuse


# --- calls ----------------------------------------------------------------------------------------
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


def entry(native: Any) -> Callable[..., Any]:
    """Return the `apply` for calls under transforms, in forward mode that of a class with a jvp."""
    derivative = native.emitted.derivative
    if derivative.pushes and derivative.dual is not None and is_pushing():
        native = derivative.dual().native
    # The base class's `apply`: the class's own is the emitted dispatcher, which came here.
    return super(native, native).apply


def around_bare(function: Callable[..., Tensor], elementwise: bool) -> Callable[..., Tensor]:
    """Wrap an emitted bare rule so that it runs on DTensors too."""
    name = function.__name__

    def run(grad_out: Tensor, *args: Any) -> Tensor:
        if type(grad_out) in KINDS:
            return function(grad_out, *args)
        return run_bare(function, elementwise, name, grad_out, args)

    return run


# --- what is in force around a call ---------------------------------------------------------------
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


# --- the globals of emitted source ----------------------------------------------------------------
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
