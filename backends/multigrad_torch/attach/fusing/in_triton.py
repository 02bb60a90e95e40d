"""Kernels on GPUs: Triton, with the bits of torch's own code there.

Not by `torch.library.triton_op`, by which a compiler sees into a kernel: what is compiled takes the
plain code, which the compiler fuses itself, and each call of such an op costs more than the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from multigrad.backend import Pattern, kernel
from multigrad.backend.fast import FastKernels, disabled
from multigrad.graph import ops
from multigrad.graph.ir.graph import Graph, Node, make_node
from multigrad.graph.ir.op import Op
from multigrad.graph.machine.compiled import VARIABLE, NoLibraryError, read_setting
from multigrad.graph.ops.results import elementwise
from multigrad.lowering import triton_code
from multigrad.lowering.emit import compile_source
from multigrad.lowering.kernels import COMPUTED, Kernel, Language, Place
from multigrad.lowering.patterns import apply_patterns

from ...kernels.fast.alone import divide_by_reciprocal

Tensor: TypeAlias = torch.Tensor
OLDEST = (3, 6)  # in 3.5.1 the division that is exact makes 0 of subnormals
BLOCK = 1024
# Products and sums in one would round otherwise.
OPTIONS = {"BLOCK": BLOCK, "num_warps": 4, "enable_fp_fusion": False}
# Not beside the program: it may be recording a CUDA graph, which a launch of ours would break.
COMPARES_BESIDE = False
ON_NUMBERS: dict[Op, Any] = {}
SCALED = kernel("torch.scaled", "x number", lambda x, number: elementwise(x))


def divide_by_number(node: Node) -> Node | None:
    """A tensor divided by a number, as torch (2.13) does it on GPUs: a product with 1 / number."""
    x, number = node.operands
    if x.type.kind != "tensor" or number.type.kind != "scalar":
        return None
    return make_node(SCALED, (x, number), {}, node.type)


# Without the rows that fast code has for processors alone.
ROUNDING = FastKernels(
    patterns=(
        Pattern("torch.reciprocal", "", {ops.DIV: divide_by_reciprocal}),
        Pattern("torch.scaled", "", {ops.DIV: divide_by_number}),
    )
)


def language(dtype: str) -> Language:
    """Return Triton, with torch's own ops."""
    found = triton_code.language(dtype)
    inverse = triton_code.QUOTIENTS[COMPUTED[dtype]].format("1.0", "{1}")
    return replace(found, rows={**found.rows, SCALED: f"{{0}} * ({inverse})"})


def rounding_as_eager(graph: Graph) -> Graph:
    """Return a graph that rounds where fast code does."""
    return apply_patterns(graph, ROUNDING, disabled())


def as_eager(graph: Graph) -> Graph:
    """Return a graph of the ops that plain code calls."""
    return graph


class Launch:
    """One kernel; it runs on the tensors' device, in the current stream."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.pack = tuple

    def __call__(self, tensors: Sequence[Tensor], numbers: Any, n: int, columns: int) -> None:
        if n:
            with torch.cuda.device_of(tensors[0]):
                grid = ((n + BLOCK - 1) // BLOCK,)
                self.function[grid](*tensors, *numbers, n, **OPTIONS)


def load(kernels: Sequence[Kernel], like: Tensor) -> list[Launch]:
    """Return what runs the kernels, compiled for the device of a tensor; nothing is launched.

    Raises:
        NoLibraryError: Triton is not installed, or too old.
    """
    if read_setting() == "off":
        raise NoLibraryError(f"{VARIABLE}=off")
    try:
        import triton
    except ImportError:
        raise NoLibraryError("Triton is not installed; type: pip install triton") from None
    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise NoLibraryError(f"Triton {triton.__version__} is older than {oldest}")
    source = "".join([triton_code.BEGIN, *[each.source for each in kernels]])
    functions = compile_source(source, "kernels", {"__name__": "multigrad_kernels"})
    launches = []
    for each in kernels:
        function = triton.jit(functions[each.name])
        dtypes = [stored(place, like.dtype) for place in (*each.parts.inputs, *each.parts.results)]
        numbers = [0.0] * each.parts.numbers
        with torch.cuda.device_of(like):
            for n in (16, 17):  # of a number of elements Triton asks whether 16 divides it
                function.warmup(*dtypes, *numbers, n, grid=(1,), **OPTIONS)
        launches.append(Launch(function))
    return launches


def stored(place: Place, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a tensor that a kernel reads or writes."""
    if place.is_packed:
        return torch.uint8
    return torch.bool if place.is_mask else dtype
