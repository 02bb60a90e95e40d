"""When a Function's parts run as one kernel each; `fused.py`, loaded then, has the kernels."""

from __future__ import annotations

import math
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from multigrad.graph.support.fused import in_process
from multigrad.graph.support.threads import make_lock

from ..versions import top_hooks
from .state import eager_of, is_memory

if TYPE_CHECKING:
    from .fused import Kernels

Tensor: TypeAlias = torch.Tensor
# From here on kernels pay: measured, see docs/performance.md.
LARGE = 1 << 19  # elements
FIRST = 3  # large calls that run unfused before a compiler starts
NEVER = sys.maxsize
_lock = make_lock()


class Fusing:
    """What is known of a Function's kernels.

    Attributes:
        least: the elements from which a call asks.
        waits: whether the first call waits for the compiler, and the reason is said where there is
            no kernel.
        kernels: by dtype; None where they are being made, or there are none.
    """

    __slots__ = ("calls", "kernels", "least", "native", "said", "waits")

    def __init__(self, native: Any) -> None:
        emitted = native.emitted
        fused = False if emitted.graphs is None else in_process(emitted.fused)
        self.native = native
        self.waits = fused is True
        self.least = 0 if self.waits else LARGE if fused else NEVER
        self.kernels: dict[torch.dtype, Kernels | None] = {}
        self.calls: dict[torch.dtype, int] = {}
        self.said = False

    def apply(self, tensors: tuple[Tensor, ...], values: tuple[Any, ...]) -> Any:
        """Apply the Function, by kernels where there are some that fit."""
        native = self.native
        rest = values
        if native.prepare is not None:
            rest = (native.constants.of(tensors[native.constants.like], values),)
        kernels = self.find(tensors, values) if self.fit(tensors, values) else None
        if kernels is None:
            return eager_of(native)(*tensors, *rest)
        return kernels.apply(*tensors, values, rest)

    def fit(self, tensors: tuple[Tensor, ...], values: tuple[Any, ...]) -> bool:
        """Return whether kernels may run on these tensors, and what they keep may be kept."""
        # What is recomputed in backward must be what forward kept, by whichever code.
        if top_hooks(False) is not None or torch.is_autocast_enabled("cpu"):
            return False
        x = tensors[0]
        reason = ""
        if any(type(value) is not float or math.isnan(value) for value in values):
            draws = "key" in self.native.emitted.params
            reason = "it draws random numbers" if draws else "a param that is a tensor, or NaN"
        for each in tensors:
            if not is_memory(each):
                reason = f"a tensor that is not plain memory of a processor, on {each.device}"
            elif each.dtype is not x.dtype or each.shape != x.shape:
                reason = "tensors of several shapes or dtypes"
            elif not each.is_contiguous():
                reason = "a tensor that is not contiguous"
        if reason:
            self.say(reason)
        return not reason

    def find(self, tensors: tuple[Tensor, ...], values: tuple[Any, ...]) -> Kernels | None:
        """Return the kernels for a dtype, once they are there."""
        dtype = tensors[0].dtype
        if dtype in self.kernels:
            return self.kernels[dtype]
        with _lock:
            if dtype in self.kernels:
                return self.kernels[dtype]
            if self.waits:
                return self.make(dtype, values)
            calls = self.calls[dtype] = self.calls.get(dtype, 0) + 1
            if calls >= FIRST:
                self.kernels[dtype] = None
                threading.Thread(target=self.make, args=(dtype, values), daemon=True).start()
            return None

    def make(self, dtype: torch.dtype, values: tuple[Any, ...]) -> Kernels | None:
        """Write and compile the kernels for a dtype."""
        from . import fused

        try:
            kernels = fused.make_kernels(self.native, dtype, values, exact=not self.waits)
        except Exception as error:  # noqa: BLE001 - whatever a kernel lacks, plain code is there
            if str(error):  # else there is one operation, which is a kernel already
                self.say(str(error))
            kernels = None
        self.kernels[dtype] = kernels
        return kernels

    def say(self, reason: str) -> None:
        """Say once why plain code runs, to who asked for kernels."""
        if self.waits and not self.said:
            self.said = True
            warnings.warn(
                f"{self.native.emitted.name!r} has fused=True, and runs as plain code, with the "
                f"same results: {reason}",
                RuntimeWarning,
                stacklevel=depth_of_call(),
            )


def depth_of_call() -> int:
    """Return how many frames of ours stand below the code that called."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("multigrad"):
        frame, depth = frame.f_back, depth + 1
    return depth
