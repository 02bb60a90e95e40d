"""Triton kernels for GPUs, with the bits of torch's own code there.

They do not use `torch.library.triton_op`, which lets a compiler look into a kernel: compiled code
takes the plain code, which the compiler fuses itself, and each call of such an op costs more than
the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

import torch

from multigrad.backend import Pattern, kernel
from multigrad.core import ops
from multigrad.core.backend.rows import FastKernels
from multigrad.core.ir.graph import Node, make_node
from multigrad.core.ir.op import Op, elementwise
from multigrad.core.lowering.lower import compile_source
from multigrad.engine.lowering.kernel_code import triton_code
from multigrad.engine.lowering.kernel_code.kernels import (
    COMPUTED,
    Kernel,
    KernelTensor,
    Language,
    Parts,
)
from multigrad.engine.lowering.kernel_code.passes import COLUMN, ONE
from multigrad.engine.lowering.kernel_code.triton_code import (
    COLUMNS,
    MOST,
    PARTS,
    given,
    is_plain,
    stages_of,
)
from multigrad.engine.support.c_libraries import VARIABLE, NoLibraryError, read_setting

from ...core.kernels.fast import divide_by_reciprocal

Tensor: TypeAlias = torch.Tensor
OLDEST = (3, 6)  # Triton 3.5.1: exact division flushes subnormals to 0
BLOCK, LONG = 1024, 1 << 31  # elements: of a program, and beyond an index of 32 bits
TILES = ((32, 32), (128, 8), (BLOCK, 1))  # columns and rows of a program
MEMORY = 1 << 22  # partial sums of all programs, for each sum of columns
# A fused multiply-add would round differently, and CUDA's fast functions flush subnormals.
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False, "enable_reflect_ftz": False}
# Never in another thread: the program may be recording a CUDA graph, which our launch would break.
COMPARES_BESIDE = False
ON_NUMBERS: dict[Op, Any] = {}
SCALED = kernel("torch.scaled", "x number", lambda x, number: elementwise(x))


def divide_by_number(node: Node) -> Node | None:
    """Rewrite a tensor divided by a number as torch (2.13) does it on GPUs: times 1 / number."""
    x, number = node.operands
    if x.type.kind != "tensor" or number.type.kind != "scalar":
        return None
    return make_node(SCALED, (x, number), {}, node.type)


# Without the rows that fast code has for CPUs only.
ROUNDING = FastKernels(
    patterns=(
        Pattern("torch.reciprocal", "", {ops.DIV: divide_by_reciprocal}),
        Pattern("torch.scaled", "", {ops.DIV: divide_by_number}),
    )
)


def language(dtype: str) -> Language:
    plain = triton_code.language(dtype)
    inverse = triton_code.QUOTIENTS[COMPUTED[dtype]].format("1.0", "{1}")
    return replace(plain, rows={**plain.rows, SCALED: f"{{0}} * ({inverse})"})


class TritonLaunch:
    """One kernel, launched on the tensors' device in the current stream."""

    def __init__(self, parts: Parts, functions: Sequence[Any], like: Tensor) -> None:
        """Compile the kernel for a tensor's device, unless it needs to know the length of rows."""
        self.is_plain, self.is_by_rows = is_plain(parts), parts.is_by_rows
        self.ones, self.columns = len(given(parts, ONE)), len(given(parts, COLUMN))
        self.device = like.get_device()
        self.stages = [
            (stage, CompiledTriton(function))
            for stage, function in zip(stages_of(parts), functions, strict=True)
        ]
        kinds = [stored(place, like.dtype) for place in (*parts.inputs, *parts.results)]
        kinds += [torch.float64] * bool(self.ones) + [0.0] * parts.numbers
        if not self.is_by_rows:
            with torch.cuda.device_of(like):
                # Triton specializes on whether 16 divides a length: 16 and 17 compile both forms.
                for (_, launch), n in product(self.stages, (16, 17)):
                    launch.compile((BLOCK,), kinds, (n,) if self.is_plain else (n, n, 2))

    def pack(self, numbers: Sequence[float], n: int, columns: int) -> Any:
        return tuple(numbers), n, columns

    def __call__(self, tensors: Sequence[Tensor], packed: Any) -> None:
        numbers, n, columns = packed
        if not n:
            return
        device = tensors[0].get_device()
        # Triton launches on the current device, whichever one the tensors are on.
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(tensors, packed)
        # Compiled for this device, 32-bit indices and pointers that 16 divides; else anew.
        is_fast = device == self.device and n < LONG
        is_fast = is_fast and not any(tensor.data_ptr() % 16 for tensor in tensors)
        blocks = (n + BLOCK - 1) // BLOCK
        if self.is_plain:
            self.stages[0][1](is_fast, blocks, (BLOCK,), (*tensors, *numbers), (n,))
            return
        tile: Sequence[int] = (BLOCK,)
        if self.is_by_rows:
            block, rows, is_all = tile_of(columns)
            tile = block, rows, is_all
            blocks = (n // columns + rows - 1) // rows
        programs = min(blocks, MOST)
        # Each program has memory of its own for each column, which bounds their number.
        if self.columns:
            programs = min(programs, max(PARTS, MEMORY // columns))
        if self.ones or self.columns:
            # Partial sums in float64: columns add to theirs, hence zeros; others write each once.
            size = self.ones * MOST + self.columns * programs * columns
            allocate = torch.zeros if self.columns else torch.empty
            tensors = [*tensors, allocate(size, dtype=torch.float64, device=tensors[0].device)]
        grids = {ONE: 1, COLUMN: (columns + COLUMNS - 1) // COLUMNS}
        for stage, launch in self.stages:
            grid_size = programs if stage.gives else grids.get(stage.over, blocks)
            launch(is_fast, grid_size, tile, (*tensors, *numbers), (n, columns, programs))


def tile_of(columns: int) -> tuple[int, int, bool]:
    """Return how many columns and rows a program takes at once, and whether that is all columns."""
    for block, rows in TILES:
        if columns <= block:
            return block, rows, True
    return BLOCK, 1, False


class CompiledTriton:
    """One Triton function and its compiled forms: `known` halves the time of a look-up."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.known: dict[Any, Any] = {}

    def compile(self, tile: Sequence[int], kinds: Sequence[Any], sizes: Sequence[int]) -> None:
        arguments = *kinds, *sizes, *tile
        self.known[tile, divides(sizes)] = self.function.warmup(*arguments, grid=(1,), **OPTIONS)

    def __call__(
        self,
        is_fast: bool,
        many: int,
        tile: Sequence[int],
        arguments: Sequence[Any],
        sizes: Sequence[int],
    ) -> None:
        grid, key = (many, 1, 1), (tile, divides(sizes))
        # Triton's interpreter compiles nothing, so `known` may hold None.
        compiled = self.known.get(key) if is_fast else None
        if compiled is not None:
            compiled[grid](*arguments, *sizes, *tile)
            return
        compiled = self.function[grid](*arguments, *sizes, *tile, **OPTIONS)
        if is_fast and key not in self.known:
            self.known[key] = compiled


def divides(sizes: Sequence[int]) -> bool:
    return not any(size % 16 for size in sizes[:2])


def load(kernels: Sequence[Kernel], like: Tensor) -> list[TritonLaunch]:
    """Compile the kernels for a tensor's device, without a launch, and return their launchers."""
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
        names = [f"{each.name}_{i}" for i, _ in enumerate(stages_of(each.parts))]
        # The number of programs changes with the length; Triton would compile for each.
        options = {} if is_plain(each.parts) else {"do_not_specialize": ["programs"]}
        stages = [triton.jit(functions[name], **options) for name in names]
        launches.append(TritonLaunch(each.parts, stages, like))
    return launches


def stored(place: KernelTensor, dtype: torch.dtype) -> torch.dtype:
    if place.is_packed:
        return torch.uint8
    return torch.bool if place.is_mask else dtype
