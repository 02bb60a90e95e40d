"""The decision whether a Function's parts run as fused kernels; loads `fused.py` when they do.

Tensors are of a kind (`Kind`), which is in one of these states: unseen; counted, while its first
large calls run unfused; compiling, in another thread; unproven, until kernels are compared with
plain code; proven; or without kernels, for good. With fused=True the first call compiles. See
tests/lowering/fused/test_fused_situations.py.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from multigrad.core.support.threads import make_lock
from multigrad.engine.lowering.kernel_code.passes import (
    COLUMN,
    ONE,
    ROW,
    WHOLE,
    CannotFuseError,
    KernelLayout,
    NothingToFuseError,
)
from multigrad.engine.support.c_libraries import VARIABLE, read_setting

from ...core.attach import attach
from ...core.versions import top_hooks
from ..memory import is_memory

if TYPE_CHECKING:
    from .fused import CompiledKernels, KernelCall

Tensor: TypeAlias = torch.Tensor
# What kernels are specialized for: dtype, kind of device, and each tensor's layout.
Kind: TypeAlias = tuple[torch.dtype, str, tuple[KernelLayout, ...]]
FLOATS = {float}
THREAD = "multigrad kernels"  # the thread in which kernels are made while plain code runs
FIRST = 3  # large calls that run unfused before a compiler starts
_lock = make_lock()


class Fusing:
    """The state of a Function's fused kernels.

    Attributes:
        waits: whether the first call waits for the compiler, and warns if there is no kernel.
        kernels: by kind of tensors; None while they are compiled, or if there are none.
        calls: how many calls of a kind have run unfused, before a compiler starts.
        known: the previous call.
    """

    __slots__ = ("calls", "is_warned", "kernels", "known", "native", "waits")

    def __init__(self, native: Any, waits: bool) -> None:
        self.native = native
        self.waits = waits
        self.kernels: dict[Kind, CompiledKernels | None] = {}
        self.calls: dict[Kind, int] = {}
        self.is_warned = False
        # The tensors' dtypes, devices and shapes; the values; their text, which distinguishes -0.0
        # from 0.0; the type of device; and what `fit` returned. One tuple, so that threads never
        # see half of it; plain, as a named one takes longer to unpack.
        self.known: tuple[Any, ...] = (None, None, None, None, None)

    def apply(self, tensors: tuple[Tensor, ...], values: tuple[Any, ...]) -> Any:
        """Apply the Function, by kernels if some fit, otherwise by plain code."""
        pair = self.fit(tensors, values)
        if pair is not None:
            kernels, call = pair
            return kernels.apply(*tensors, call)
        return attach.apply_plainly(self.native, tensors, values)

    def fit(
        self, tensors: tuple[Tensor, ...], values: tuple[Any, ...]
    ) -> tuple[CompiledKernels, KernelCall] | None:
        """Return kernels that may run on these tensors, and the arguments of their call."""
        # Under saved-tensor hooks (a checkpoint) forward may run again: both run plain code.
        if top_hooks(False) is not None:
            return None
        key, is_plain = [], True
        for each in tensors:
            key += each.dtype, each.device, each.shape
            is_plain = is_plain and is_memory(each) and each.is_contiguous()
        last_key, last_values, last_text, device_type, pair = self.known
        is_same = values is last_values or (
            FLOATS.issuperset(map(type, values)) and repr(values) == last_text
        )
        if not (is_plain and is_same and key == last_key):
            pair = self.fit_anew(tensors, values, key)
        elif torch.is_autocast_enabled(device_type):
            return None
        # Kernels for rows of a new length are compiled, which breaks a CUDA graph's recording.
        if pair is not None and pair[0].is_by_rows and is_recorded(tensors[0]):
            return None
        return pair

    def fit_anew(
        self, tensors: tuple[Tensor, ...], values: tuple[Any, ...], key: Any
    ) -> tuple[CompiledKernels, KernelCall] | None:
        """Return the result of `fit` if tensors or values differ from the previous call's."""
        x = tensors[0]
        device = x.device
        if device.type not in attach.LARGE:
            self.warn(f"a tensor on {device}")
            return None
        is_small = x.numel() < attach.LARGE[device.type]
        if not self.waits and (is_small or read_setting() not in ("auto", "on")):
            return None
        if torch.is_autocast_enabled(device.type):
            return None
        reason = ""
        if values and any(type(value) is not float or math.isnan(value) for value in values):
            draws = "key" in self.native.emitted.names.params
            reason = "it draws random numbers" if draws else "a param that is a tensor, or NaN"
        for each in tensors:
            if not is_memory(each):
                reason = f"a tensor that is not plain memory, on {each.device}"
            elif each.dtype is not x.dtype or each.device != device:
                reason = "tensors of several dtypes or devices"
            elif not each.is_contiguous():
                reason = "a tensor that is not contiguous"
        shapes = [each.shape for each in tensors]
        largest_shape = max(shapes, key=torch.Size.numel)
        layouts: Any = tuple([layout_in(largest_shape, shape) for shape in shapes])
        if not reason and None in layouts:
            reason = "tensors of several shapes, other than numbers, rows and the last axis"
        if reason:
            self.warn(reason)
            return None
        pair, kernels = None, self.kernels_for(x, values, layouts)
        if kernels is not None:
            try:
                pair = kernels, kernels.prepare_call(values, largest_shape, device)
            except NothingToFuseError:
                pass
            except CannotFuseError as error:  # for these values
                self.warn(str(error))
        if pair is not None or (self.waits and not is_recorded(x)):
            self.known = key, values, repr(values), device.type, pair
        return pair

    def kernels_for(
        self, x: Tensor, values: tuple[Any, ...], layouts: tuple[KernelLayout, ...]
    ) -> CompiledKernels | None:
        """Return the kernels for such tensors and layouts if they are compiled and proven."""
        kind = x.dtype, x.device.type, layouts
        kernels = self.kernels.get(kind)
        if kernels is not None and kernels.is_proven:
            return kernels
        # Compiling and comparing would break a CUDA graph that is being recorded.
        if is_recorded(x):
            return None
        # Looked up again under the lock, as another thread may have settled the kind meanwhile.
        with _lock:
            kernels = self.kernels.get(kind)
            if kernels is not None and not kernels.is_proven:
                return self.settle(kind, partial(kernels.prove, values))
            if kind in self.kernels:
                return kernels
            if self.waits:
                return self.settle(kind, partial(self.compile_kernels, x, values, layouts))
            calls = self.calls[kind] = self.calls.get(kind, 0) + 1
            if calls >= FIRST:
                self.kernels[kind] = None
                # An empty tensor, or the thread would keep the caller's memory alive.
                build = partial(self.compile_kernels, x.new_empty(0), values, layouts)
                thread = threading.Thread(None, self.settle, THREAD, (kind, build))
                thread.daemon = True
                thread.start()
            return None

    def compile_kernels(
        self, like: Tensor, values: tuple[Any, ...], layouts: tuple[KernelLayout, ...]
    ) -> CompiledKernels:
        """Return new kernels for tensors like this one, proven unless a later call has to do it."""
        from . import fused

        if read_setting() == "off":
            raise fused.CannotFuseError(f"{VARIABLE}=off")
        kernels = fused.CompiledKernels(self.native, like, self.waits, layouts)
        if not self.waits and not kernels.pays:
            raise fused.CannotFuseError("plain code is faster")
        # CUDA kernels are compared by a later call, in its own thread: see COMPARES_BESIDE.
        if kernels.compares_beside and not kernels.is_proven:
            kernels.prove(values)
        return kernels

    def settle(self, kind: Kind, build: Callable[[], CompiledKernels]) -> CompiledKernels | None:
        """Keep the kernels that `build` returns, or None if it fails, and report the reason."""
        kernels = None
        try:
            kernels = build()
        except NothingToFuseError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a kernel lacks, plain code is there
            self.warn(str(error) or type(error).__name__)
        self.kernels[kind] = kernels
        return kernels

    def warn(self, reason: str) -> None:
        """Warn once why plain code runs, if kernels were asked for."""
        if self.waits and not self.is_warned:
            self.is_warned = True
            warnings.warn(
                f"{self.native.subject!r} has fused=True, and runs as plain code, with the same "
                f"results: {reason}",
                RuntimeWarning,
                stacklevel=depth_of_call(),
            )


def begin_fusing(native: Any, waits: bool) -> Callable[..., Any]:
    """Return a function that applies a Function to large tensors, by kernels once it has some."""
    return Fusing(native, waits).apply


def is_recorded(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def layout_in(shape: torch.Size, part: torch.Size) -> KernelLayout | None:
    """Return how a tensor's shape relates to the elements' shape; None if kernels refuse it."""
    if part == shape:
        return WHOLE
    if len(part) > len(shape):
        return None
    if part.numel() == 1:
        return KernelLayout(ONE, len(part))
    if part == shape[-1:]:
        return KernelLayout(COLUMN, 1)
    rows = [KernelLayout(ROW, axes) for axes in range(1, len(shape))]
    return next((layout for layout in rows if part == layout.shape(shape)), None)


def depth_of_call() -> int:
    """Return the stack level at which a warning names the caller's line."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("multigrad"):
        frame, depth = frame.f_back, depth + 1
    return depth
