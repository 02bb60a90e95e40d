"""Kernels on processors: C, compiled by the system's compiler, with the bits of torch's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from struct import Struct
from typing import Any, TypeAlias

import torch

from multigrad.backend.fast import FastKernels, disabled
from multigrad.graph.ir.graph import Graph
from multigrad.graph.support.compiled import Compiled
from multigrad.lowering.kernel_code.c_code import FLAGS, C, begin
from multigrad.lowering.kernel_code.kernels import Kernel, Language
from multigrad.lowering.patterns import apply_patterns

from ...kernels.fast import fused as fast
from ...kernels.fast.alone import FAST
from ..state import PROCESS
from . import whole
from .whole import GRAIN

Tensor: TypeAlias = torch.Tensor
# The rows by which fast code rounds otherwise than the ops: its bits are those of the kernels.
ROUNDING = ("torch.one_plus_square", "torch.divided", "torch.reciprocal")
OWN_ROWS = {
    # torch's own kernel (2.13) is compiled to a fused multiply-add; where it is not, bits differ.
    fast.ONE_PLUS_SQUARE: "{2} == {2} ? FMA({2} * {0}, {0}, 1) : 1 + ({0} * {1}) * ({0} * {1})",
    fast.DIVIDED: "{2} == {2} ? ({0} / {3}) * {1} : ((1 / {3}) * {1}) * {0}",
}
COMPARES_BESIDE = True
ON_NUMBERS = {fast.SQUARED: fast.squared, fast.FACTOR: fast.factor}


def language(dtype: str) -> Language:
    """Return C, with torch's own ops and functions."""
    by_number = {**C.by_number, **whole.rows_by_number(dtype)}
    return replace(C, rows={**C.rows, **OWN_ROWS, **whole.rows(dtype)}, by_number=by_number)


def as_eager(graph: Graph) -> Graph:
    """Return a graph of the ops that fast code calls."""
    return apply_patterns(graph, FAST, disabled())


def rounding_as_eager(graph: Graph) -> Graph:
    """Return a graph that rounds where fast code does."""
    rows = tuple([row for row in FAST.patterns if row.name in ROUNDING])
    return apply_patterns(graph, FastKernels(patterns=rows), disabled())


class Launch:
    """One kernel, loaded."""

    def __init__(self, library: ctypes.CDLL, kernel: Kernel) -> None:
        self.function = getattr(library, kernel.name)
        self.pointers = Struct(f"{len((*kernel.parts.inputs, *kernel.parts.results))}P").pack

    def pack(self, numbers: Sequence[float], n: int, columns: int) -> Any:
        """Return the elements, and what a call takes of them, as C does."""
        array = (ctypes.c_double * len(numbers))(*numbers)
        return n, (array, ctypes.c_int64(n), ctypes.c_int64(columns))

    def __call__(self, tensors: Sequence[Tensor], packed: Any) -> None:
        n, given = packed
        shares, threads = torch.get_num_threads(), 1
        if n >= 2 * GRAIN and os.getpid() == PROCESS:
            threads = min(shares, n // GRAIN)
        pointers = self.pointers(*map(Tensor.data_ptr, tensors))
        if self.function(pointers, *given, threads, shares):
            raise MemoryError


def load(kernels: Sequence[Kernel], like: Tensor) -> list[Launch]:
    """Return what runs the kernels.

    Raises:
        NoLibraryError: there is no compiler, or it fails.
    """
    dtype = kernels[0].parts.dtype
    text = "".join([kernel.source for kernel in kernels])
    source = begin(dtype) + whole.source(text, dtype) + text
    library = Compiled("kernels", lambda: source, lambda found: found, 0, flags=FLAGS).load()
    whole.give(library, text, dtype)
    return [Launch(library, kernel) for kernel in kernels]
