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

from ...kernels.fast.alone import FAST, divide_by_reciprocal

Tensor: TypeAlias = torch.Tensor
OLDEST = (3, 6)  # in 3.5.1 the division that is exact makes 0 of subnormals
BLOCK, MOST = 1024, 1 << 31  # elements: of a program, and of what an index of 32 bits tells
# Products and sums in one would round otherwise; CUDA's functions would lose subnormals.
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False, "enable_reflect_ftz": False}
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
    return apply_patterns(graph, FAST, disabled())


class Launch:
    """One kernel; it runs on the tensors' device, in the current stream.

    `compiled` is for one device, and lengths that 16 divides, and others: to call these takes
    Python half of the time that Triton needs to find them.
    """

    def __init__(self, function: Any, device: int | None, compiled: Sequence[Any]) -> None:
        self.function, self.device, self.compiled = function, device, tuple(compiled)
        self.pack = tuple

    def __call__(self, tensors: Sequence[Tensor], numbers: Any, n: int) -> None:
        if not n:
            return
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(tensors, numbers, n)
        grid = ((n + BLOCK - 1) // BLOCK, 1, 1)
        is_known = device == self.device and n < MOST
        if is_known and not any(tensor.data_ptr() % 16 for tensor in tensors):
            self.compiled[n % 16 > 0][grid](*tensors, *numbers, n, BLOCK)
        else:
            self.function[grid](*tensors, *numbers, n, BLOCK=BLOCK, **OPTIONS)


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
        given = [*dtypes, *numbers]
        with torch.cuda.device_of(like):
            # Of a number of elements Triton asks whether 16 divides it; its interpreter, nothing.
            compiled = [
                function.warmup(*given, n, BLOCK=BLOCK, grid=(1,), **OPTIONS) for n in (16, 17)
            ]
        device = None if None in compiled else like.get_device()
        launches.append(Launch(function, device, compiled))
    return launches


def stored(place: Place, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a tensor that a kernel reads or writes."""
    if place.is_packed:
        return torch.uint8
    return torch.bool if place.is_mask else dtype
