"""Calls of an emitted `torch.autograd.Function`, outside and under transforms.

A Function is emitted as two classes (`render.py`), in this file `native` and `native.eager`:

    fast      `eager.apply`: fast code, for plain tensors outside transforms
    anywhere  `native.apply`: plain code with `setup_context`, which torch.func, vmap, forward mode,
              dispatch modes, torch.jit.trace and tensor subclasses can read

The life of a class: lowering compiles its source. `finish` sets its attributes, once. `call` or
`bind` reads them into the closure that users' calls run, so they are fixed from then on. Calls fill
what `finish` left empty: `constants` and `large` remember the previous call, the first call on a
DTensor sets `elementwise` and `whole`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import Function, forward_ad

from multigrad.core.backend.emitted import find_like
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.core.support.params import in_process
from multigrad.core.trace.source import FORWARD_MODE, ORDERS
from multigrad.errors import GradientError, UnsupportedOp, as_class

from .. import dynamo
from ..state import (
    BATCHED,
    KINDS,
    Like,
    count_modes,
    eager_of,
    is_distributed,
    is_included,
    outside_autocast,
    pack_late,
    read_late,
    tracing_state,
    transforms_active,
)
from ..versions import keeps_graph, top_hooks

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor
# In 16 bits torch computes with a number in float32; a tensor of that dtype is rounded first.
CONSTANT_DTYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")
BIG = 1e38  # well below the largest float32
MOST_PREPARED = 256  # calls whose numbers stay prepared; then they are prepared anew


def finish(namespace: dict[str, Any], emitted: Emitted) -> type[Function]:
    """Return the public class of an emitted Function, with the attributes that its calls read.

    Attributes of the class:
        eager: the fast class; itself if only one class was emitted.
        emitted: what it was emitted from; `subject` is its name for messages.
        tensors: how many of the arguments are tensors.
        prepare, constants: the emitted function that prepares numbers, and its `PreparedNumbers`;
            None if its code takes the numbers themselves.
        large: its `LargeCalls`.
        elementwise, whole: for DTensors; None until `run_distributed` (dtensors.py) sets them.
    """
    name = emitted.names.identifier
    native = namespace[name]
    native.__doc__ = f"{emitted.origin.name}, as emitted by multigrad."
    native.eager = namespace.get(f"{name}_eager", native)
    # Profiles and the node of a gradient show the public name.
    native.eager._backward_cls.__name__ = native._backward_cls.__name__
    native.prepare = namespace.get(f"{name}_prepare")
    constants = None if native.prepare is None else PreparedNumbers(native.prepare, emitted)
    native.constants = native.eager.constants = constants
    dual = emitted.derivative.dual
    if dual is not None and not emitted.derivative.pushes:

        def jvp(ctx: Any, *tangents: Any) -> Any:
            """Raise an error with the reason why there is no forward mode."""
            try:
                dual()
            except UnsupportedOp as error:
                raise as_class(GradientError(str(error)), NotImplementedError) from error

        native.jvp = staticmethod(jvp)
    native.emitted, native.subject = emitted, emitted.origin.name
    native.tensors = len(emitted.names.inputs)
    native.elementwise = native.whole = None
    native.large = LargeCalls(native)  # reads `emitted`
    # `backward()` may be called inside compiled code.
    for cls in {native, native.eager}:
        cls.backward = staticmethod(dynamo.apart(cls.backward))
    # Under torch.func transforms Dynamo (torch 2.13) would differentiate the forward instead.
    dynamo.allow_in_graph(native)
    return native


# --- calls ----------------------------------------------------------------------------------------
# What users' calls run. Each of these functions asks the same, by flags that torch keeps in C:
#
#     type(x) not in KINDS                 a tensor subclass
#     transforms_active()                  grad, jvp or vmap of torch.func
#     count_modes()                        a dispatch mode, which may record a graph
#     tracing_state() is not None          torch.jit.trace or an ONNX export
#     forward_ad._current_level >= 0       forward mode
#
# If one holds, the call is made `anywhere`. Then fused kernels are tried, for large tensors, and
# `fast` is left. The tests are repeated, as calling one function that has them all takes longer.
def call(native: Any, emitted: Emitted) -> Callable[..., Any]:
    """Return the function that calls a class on tensors, followed by the numbers of the call."""
    fast, anywhere = ways_to_apply(native)
    if emitted.origin.is_rule:
        anywhere = with_trace_warning(native, anywhere)
    count, fast_prepared = len(emitted.names.inputs), fast
    prepare, large = native.prepare, native.large
    if prepare is not None:
        constants = native.constants
        position, prepared_for = constants.like, constants.of

        def fast_prepared(*args: Any) -> Any:
            return fast(*args[:count], prepared_for(args[position], args[count:]))

    # One tensor, and the numbers as they are.
    def apply_one(x: Tensor, *values: Any) -> Any:
        is_special = type(x) not in KINDS or transforms_active() or count_modes()
        is_special = is_special or tracing_state() is not None or forward_ad._current_level >= 0
        if not is_special and x.numel() >= large.least:
            return large.apply((x,), values)
        return (anywhere if is_special else fast)(x, *values)

    # One tensor, and prepared numbers: every application of an activation comes here.
    def apply_prepared(x: Tensor, *values: Any) -> Any:
        assert prepare is not None
        if type(x) not in KINDS or transforms_active() or count_modes():
            return anywhere(x, *values)
        if tracing_state() is not None or forward_ad._current_level >= 0:
            return anywhere(x, *values)
        if x.numel() >= large.least:
            return large.apply((x,), values)
        # First what `PreparedNumbers.of` gave last: a look-up in a table would take longer.
        for value in values:
            if type(value) is not float:
                return fast(x, prepare(as_number, *values))
        numbers, dtype, on_cpu, prepared = constants.latest
        if values != numbers or x.dtype is not dtype or x.is_cpu is not on_cpu:
            prepared = prepared_for(x, values)
        return fast(x, prepared)

    def apply_several(*args: Any) -> Any:
        tensors = args[:count]
        is_special = transforms_active() or count_modes() or tracing_state() is not None
        is_special = is_special or forward_ad._current_level >= 0
        # A loop takes half the time that a set of their types takes.
        for x in tensors:
            is_special = is_special or type(x) not in KINDS
        if not is_special and tensors[0].numel() >= large.least:
            return large.apply(tensors, args[count:])
        return (anywhere if is_special else fast_prepared)(*args)

    if count > 1:
        return apply_several
    return apply_one if prepare is None else apply_prepared


def bind(native: Any, x: Tensor, values: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    """Return the function that calls a rule with these params."""
    apply = call(native, native.emitted)
    return lambda tin: apply(tin, *values)


# --- the two ways to apply a class ----------------------------------------------------------------
# `native.apply` is the emitted dispatcher, for code that applies the class itself, such as compiled
# code. It asks what the functions above ask, and takes `apply_transformed` (there: `entry`) or
# `eager.apply`. Calls from here have asked already, and take torch's `apply`, which it overrides.
def ways_to_apply(native: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `fast` and `anywhere`; the numbers of `fast` are prepared if the class does so."""
    fast = eager_of(native)
    if native.eager is native:
        return fast, fast
    count, prepare = native.tensors, native.prepare

    # Runs on this process's part of a DTensor, which may be a tensor of any kind again.
    def local(x: Tensor, *arguments: Any) -> Any:
        if type(x) not in KINDS or transforms_active() or count_modes():
            return apply_transformed(native)(x, *arguments)
        if prepare is None:
            return fast(x, *arguments)
        tensors, values = arguments[: count - 1], arguments[count - 1 :]
        like = (x, *tensors)[native.constants.like]
        return fast(x, *tensors, native.constants.of(like, values))

    def anywhere(*args: Any) -> Any:
        if any(map(is_distributed, args[:count])):
            return run_distributed(native, args[:count], args[count:], local)
        return apply_transformed(native)(*args)

    return fast, anywhere


def apply_transformed(native: Any) -> Callable[..., Any]:
    """Return torch's `apply` of a class under transforms; in forward mode, of one with a jvp."""
    derivative = native.emitted.derivative
    if derivative.pushes and derivative.dual is not None and is_pushing():
        native = derivative.dual().native
    return super(native, native).apply


# --- prepared numbers -----------------------------------------------------------------------------
# Fast code takes a rule's params prepared: what depends on them alone is computed once for equal
# calls. Numbers become 0-d tensors on the CPU, at the first call already: torch rounds some ops
# with a Python number differently, and equal calls must give equal bits.
class PreparedNumbers:
    """The prepared numbers of a Function's calls.

    Attributes:
        known: those of at most `MOST_PREPARED` calls, by numbers, dtype, and whether on the CPU;
            None until a call repeats them, as a number that keeps changing never does.
        latest: the latest key of these, and its prepared numbers: one tuple, so that threads see
            all of it or none.
        like: the position of the tensor whose dtype and device the numbers get.
        literals: the numbers in the source of `prepare`.
        prepare: the emitted function `prepare(wrap, *numbers)`.
        wraps: the functions that make tensors of numbers on the CPU, by dtype.
    """

    __slots__ = ("known", "latest", "like", "literals", "prepare", "wraps")

    def __init__(self, prepare: Callable[..., Any], emitted: Emitted) -> None:
        self.like = find_like(emitted.origin.input_types) or 0
        self.prepare = prepare
        self.literals = frozenset(prepare.__code__.co_consts)
        self.known: dict[tuple[tuple[float, ...] | str, torch.dtype, bool], Any] = {}
        self.latest: tuple[Any, ...] = None, None, None, None
        self.wraps: dict[torch.dtype, Callable[[Any], Any]] = {}

    def of(self, like: Tensor, values: tuple[Any, ...]) -> Any:
        """Return the prepared numbers for a call on a tensor like this one."""
        for value in values:
            if type(value) is not float:  # tensors may change in place
                return self.prepare(as_number, *values)
        numbers = repr(values) if 0.0 in values else values  # -0.0 equals 0.0, but has other bits
        key = numbers, like.dtype, like.is_cpu
        prepared = self.known.get(key)
        if prepared is None:
            wrap = self.wraps.get(like.dtype) if like.is_cpu else as_number
            if wrap is None:
                wrap = self.wraps[like.dtype] = wrapping(like, self.literals)
            prepared = self.prepare(wrap, *values)
            if len(self.known) >= MOST_PREPARED:
                self.known.clear()
            self.known[key] = prepared if key in self.known else None
        self.latest = *key, prepared
        return prepared


def wrapping(x: Tensor, literals: Collection[Any] = ()) -> Callable[[Any], Any]:
    """Return a function that makes a number an operand for ops on tensors like x."""
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


def as_number(value: Any) -> Any:
    return value


# --- large tensors, and tensors on many devices ---------------------------------------------------
# Number of elements from which kernels pay, by kind of device: measured, see docs/fused.md.
# Python takes longer to call a kernel than plain code. On a GPU, which works meanwhile, the work
# has to take longer than that.
LARGE = {"cpu": 1 << 19, "cuda": 1 << 24}


class LargeCalls:
    """Calls on large tensors, which fused kernels may serve.

    Attributes:
        least: the number of elements from which a call is one.
        waits: whether the first call waits for the compiler.
        apply: `apply(tensors, values)`; the first call replaces it.
    """

    __slots__ = ("apply", "least", "native", "waits")

    def __init__(self, native: Any) -> None:
        origin = native.emitted.origin
        fused = in_process(origin.fused)
        if origin.graphs is None and fused is not True:
            fused = False
        self.native, self.waits = native, fused is True
        self.least = 0 if self.waits else min(LARGE.values()) if fused else sys.maxsize
        self.apply: Callable[..., Any] = self.begin

    def begin(self, tensors: tuple[Tensor, ...], values: tuple[Any, ...]) -> Any:
        self.apply = begin_fusing(self.native, self.waits)
        return self.apply(tensors, values)


@provided
def begin_fusing(native: Any, waits: bool) -> Callable[..., Any]:
    """Return a function that applies a Function to large tensors by its plain code."""
    return partial(apply_plainly, native)


def apply_plainly(native: Any, tensors: tuple[Tensor, ...], values: tuple[Any, ...]) -> Any:
    if native.prepare is not None:
        values = (native.constants.of(tensors[native.constants.like], values),)
    return eager_of(native)(*tensors, *values)


@provided
def run_distributed(
    native: Any, tensors: Sequence[Tensor], values: tuple[Any, ...], local: Callable[..., Any]
) -> Any:
    """Apply a class to tensors, one of which is a DTensor."""
    raise UnsupportedOp(f"{native.subject} on a DTensor {NEEDS_ENGINE}")


@provided
def run_bare_distributed(
    function: Callable[..., Tensor], elementwise: bool, grad_out: Tensor, values: tuple[Any, ...]
) -> Tensor:
    """Apply an emitted bare rule to a gradient that is a DTensor."""
    raise UnsupportedOp(f"{function.__name__} on a DTensor {NEEDS_ENGINE}")


def around_bare(function: Callable[..., Tensor], elementwise: bool) -> Callable[..., Tensor]:
    """Wrap an emitted bare rule so that it runs on DTensors too."""

    def run(grad_out: Tensor, *args: Any) -> Tensor:
        if type(grad_out) in KINDS or not is_distributed(grad_out):
            return function(grad_out, *args)
        return run_bare_distributed(function, elementwise, grad_out, args)

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
    if not transforms_active():
        return None
    levels = [each.key() for each in get_interpreter_stack() or ()]
    return frozenset({ORDERS} if levels.count(TransformType.Grad) > 1 else ())


def with_trace_warning(native: Any, anywhere: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call under transforms so that it warns where torch.jit.trace fixes the rule."""
    name = native.__doc__.partition(",")[0]

    def run(tin: Tensor, *values: Any) -> Tensor:
        if tracing_state() is not None:
            warn_of_trace(f"{name} for the gradient")
        return anywhere(tin, *values)

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
    "entry": apply_transformed,
    "forward_ad": forward_ad,
    "is_included": is_included,
    "enable_forward_mode": forward_ad._set_fwd_grad_enabled,
    "is_grad_enabled": torch.is_grad_enabled,
    "keeps_graph": keeps_graph,
    "outside_autocast": outside_autocast,
    "pack_late": pack_late,
    "read_late": read_late,
    "top_hooks": top_hooks,
    "transforms_active": transforms_active,
    # Level 0 is the only one (torch 2.13). Compiled code enters it without telling Python.
    "unpack_dual": partial(forward_ad.unpack_dual, level=0),
}
