"""A Function whose parts run as one kernel each: forward, forward with what it keeps, and backward.
Masks are kept as bits.

When backward is differentiated, transformed or recorded, the plain code runs on what the kernels
have kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import empty_like, empty_strided
from torch.autograd import Function

from multigrad.core import ops
from multigrad.core.backend.rows import disabled
from multigrad.core.ir.graph import Graph, Node
from multigrad.core.ir.op import BOOL, T
from multigrad.core.lowering.emit import apply_patterns
from multigrad.core.passes.simplify import substitute
from multigrad.engine.lowering.kernel_code.kernels import Kernel, write_kernel
from multigrad.engine.lowering.kernel_code.passes import (
    WHOLE,
    CannotFuseError,
    KernelLayout,
    NothingToFuseError,
)
from multigrad.engine.passes.residuals import PACK, without_packing

from ...core.kernels.fast import FAST
from ...core.state import BATCHED, KINDS, Like, count_modes, is_included, transforms_active
from ...kernels.arrays import unpack
from ..memory import is_memory
from . import c_kernels, triton_kernels
from .proof import agree, prepared

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor
is_grad_enabled = torch.is_grad_enabled
# By kind of device: a module that rounds as torch does there, and writes and runs kernels.
LANGUAGES: dict[str, Any] = {"cpu": c_kernels, "cuda": triton_kernels}
# A kernel over rows pays only if it replaces at least so many kernels of torch.
MANY = 4


class CompiledKernels:
    """The compiled kernels of a Function for one dtype, one kind of device, and one layout of
    tensors.

    Attributes:
        apply: `apply(*tensors, call)`; `prepare_call` returns the call.
        is_proven: whether they agree with eager code, or need not: see `proof.py`.
        compares_beside: whether another thread may find that out.
        names: what the kernels of forward write, then what they keep.
        saved: the residuals that backward gets as tensors.
        layouts: how tensors relate to the shape of the elements, by name.
        slots: dtypes and layouts of tensors, by name.
        first: the position of the first input that has all elements.
        pays: whether they are faster than plain code on large tensors.
        reduces: whether a kernel needs to know how many elements or rows there are.
        rank: how many axes tensors must have; None: any number.
        row_axes: how many of the last axes form a row.
    """

    def __init__(
        self,
        native: Any,
        like: Tensor,
        is_proven: bool,
        layouts: Sequence[KernelLayout] | None = None,
    ) -> None:
        """Write and compile kernels; raise CannotFuseError or NoLibraryError if there are none."""
        self.native, self.is_proven = native, is_proven
        self.dtype, self.device = like.dtype, like.device
        self.emitted: Emitted = native.emitted
        check(self.emitted)
        # `Fusing` makes kernels only for devices in LARGE, which are those of LANGUAGES.
        language = LANGUAGES[like.device.type]
        self.compares_beside = language.COMPARES_BESIDE
        inputs = self.emitted.names.inputs
        input_layouts = [WHOLE] * len(inputs) if layouts is None else layouts
        self.layouts = dict(zip(inputs, input_layouts, strict=True))
        name = str(like.dtype).removeprefix("torch.")
        kernels = write(self.emitted, name, language, self.layouts)
        self.is_by_rows = any(kernel.parts.is_by_rows for kernel in kernels)
        if self.is_by_rows and not (is_proven or self.compares_beside):
            raise CannotFuseError("rows, whose kernels are compiled by their length in the call")
        launches = iter(language.load([each for each in kernels if each.parts.results], like))
        self.names = [*owned(self.emitted), *self.emitted.residuals.computed]
        self.saved = [
            n for n in self.emitted.residuals.names if n not in self.emitted.residuals.likes
        ]
        # By kernel, as `write` returns them: forward, forward that keeps, backward.
        operands = [inputs, inputs, (*self.saved, *self.emitted.names.cotangents)]
        params, on_numbers = self.emitted.names.params, language.ON_NUMBERS
        self.rank, self.row_axes = axes_of(kernels)
        parts = [
            KernelPart(
                each, names, next(launches) if each.parts.results else None, params, on_numbers
            )
            for each, names in zip(kernels, operands, strict=True)
        ]
        self.forward, self.keep, self.backward = parts
        self.reduces = self.is_by_rows or any(kernel.parts.totals for kernel in kernels)
        self.pays = not any(kernel.parts.repeats for kernel in kernels)
        if self.is_by_rows:  # torch's own loops over rows are faster, and its memory is near
            graphs = self.emitted.origin.graphs or ()
            self.pays &= max(map(count_kernels, graphs)) >= MANY
        self.first = [*self.layouts.values()].index(WHOLE)
        self.slots = {n: KernelSlot(self.dtype, layout) for n, layout in self.layouts.items()}
        for name, place in zip(self.names, self.keep.kernel.parts.results, strict=True):
            if place.is_packed:
                self.slots[name] = KernelSlot(torch.uint8, None)
            elif place.is_mask:
                self.slots[name] = KernelSlot(torch.bool, place.layout)
        base: Any = super(Function, as_function(native, self))
        self.apply = base.apply

    def prepare_call(self, values: Any, shape: torch.Size, device: torch.device) -> KernelCall:
        if self.rank not in (None, len(shape)):
            raise CannotFuseError(f"{len(shape)} axes, where it reduces {self.rank}")
        n, columns = shape.numel(), shape[-self.row_axes :].numel()
        # For a single element torch's norm does not overflow.
        if self.reduces and (n < 2 or (self.is_by_rows and columns < 2)):
            raise NothingToFuseError("one element, of which nothing is reduced")
        emitted, slots = self.emitted, self.slots
        backward_names = [*self.saved, *emitted.names.cotangents]
        carries = [*[True for _ in self.saved], *emitted.carries]
        # A cotangent of an output without gradients is None, and cannot be checked.
        checks = [(i, slots[name]) for i, name in enumerate(backward_names) if carries[i]]
        input_positions = {slots[name]: i for i, name in enumerate(emitted.names.inputs)}
        read_positions = {slot: i for i, slot in checks}

        def made(names: Sequence[str], positions: Mapping[KernelSlot, int]) -> list[Any]:
            result_slots = [slots[name] for name in names]
            templates = [torch.empty(slot.shape(shape), device="meta") for slot in result_slots]
            return [
                (positions.get(slot), slot.dtype, template.shape, template.stride())
                for slot, template in zip(result_slots, templates, strict=True)
            ]

        return KernelCall(
            values=values,
            shape=shape,
            device=device,
            forward=self.forward.pack(values, shape, columns),
            keep=self.keep.pack(values, shape, columns),
            backward=self.backward.pack(values, shape, columns),
            outputs=made(owned(emitted), input_positions),
            written=made(self.names, input_positions),
            read=[(i, slot.dtype, slot.shape(shape)) for i, slot in checks],
            slopes=made(emitted.names.wrt, read_positions),
        )

    def prove(self, values: Any) -> CompiledKernels:
        """Compare the kernels with eager code; return them, or raise CannotFuseError."""
        with torch.inference_mode(False), torch.enable_grad():
            agree(self.native, self, values)
        self.is_proven = True
        return self


class KernelCall(NamedTuple):
    """The arguments of kernels for given values of params, and elements of a given shape.

    Attributes:
        forward, keep, backward: what each kernel takes besides tensors.
        outputs, written, slopes: the tensors that forward makes, alone and with what it keeps, and
            those that backward makes: the position of a given tensor that is alike, if any, dtype,
            shape and strides.
        read: the tensors that backward is given: their positions, dtypes and shapes.
    """

    values: Any
    shape: torch.Size
    device: torch.device
    forward: Any
    keep: Any
    backward: Any
    outputs: list[Any]
    written: list[Any]
    read: list[Any]
    slopes: list[Any]


class KernelPart:
    """One kernel and its launcher; `names` are those of the tensors that it is given."""

    def __init__(
        self,
        kernel: Kernel,
        names: Sequence[str],
        launch: Any,
        params: Sequence[str],
        on_numbers: Mapping[Any, Any],
    ) -> None:
        self.kernel, self.launch, self.params = kernel, launch, params
        self.places = [names.index(name) for name in kernel.inputs]
        self.on_numbers = on_numbers
        self.largest = torch.finfo(getattr(torch, kernel.parts.dtype)).max

    def pack(self, values: Any, shape: torch.Size, columns: int) -> Any:
        """Pack the kernel's non-tensor arguments for given values of the params."""
        params = dict(zip(self.params, values, strict=True))
        numbers = self.kernel.values(params, self.on_numbers, shape)
        # For a number beyond the dtype some ops of torch raise an error, which a kernel would not.
        if any(self.largest < abs(each) < math.inf for each in numbers):
            raise CannotFuseError(f"a number beyond {self.kernel.parts.dtype}")
        return None if self.launch is None else self.launch.pack(numbers, shape.numel(), columns)

    def run(
        self, operands: Sequence[Tensor], likes: Sequence[Any], device: torch.device, packed: Any
    ) -> list[Tensor]:
        results = [
            empty_strided(shape, strides, dtype=dtype, device=device) if i is None
            else empty_like(operands[i])
            for i, dtype, shape, strides in likes
        ]  # fmt: skip
        if results:
            self.launch([*[operands[i] for i in self.places], *results], packed)
        return results


def axes_of(kernels: Sequence[Kernel]) -> tuple[int | None, int]:
    """Return how many axes tensors must have, if that matters, and how many of them form a row."""
    ranks = {rank for kernel in kernels for rank in kernel.ranks}
    row_axes = {kernel.row_axes for kernel in kernels if kernel.parts.is_by_rows}
    if len(ranks) > 1 or len(row_axes) > 1:
        raise CannotFuseError("sums over several numbers of axes")
    return min(ranks, default=None), min(row_axes, default=1)


def check(emitted: Emitted) -> None:
    """Raise CannotFuseError for outputs that kernels cannot return, or if kernels have no use."""
    if emitted.origin.graphs is None:
        raise CannotFuseError("a loop, or what cost time is kept, as tanh: see residuals=")
    candidates = {*emitted.aliasing.passed, *emitted.aliasing.views} - passed_on(emitted).keys()
    outputs = emitted.origin.graphs[0].outputs
    aliases = [i for i in candidates if i in emitted.aliasing.passed or outputs[i].op.view]
    if aliases or emitted.aliasing.shared or emitted.residuals.histories:
        raise CannotFuseError("an output that may be an input, or lie in its memory")
    if "key" in emitted.names.params:
        raise CannotFuseError("it draws random numbers")
    if not emitted.names.wrt:
        raise CannotFuseError("no input gets a gradient")
    if any(type_ is not None and type_.dtype != T for type_ in emitted.origin.input_types):
        raise CannotFuseError("an input of another dtype")


def passed_on(emitted: Emitted) -> dict[int, str]:
    """Return the outputs that are an unchanged input, which no kernel computes, with its name."""
    assert emitted.origin.graphs is not None
    outputs = enumerate(zip(emitted.names.outputs, emitted.origin.graphs[0].outputs, strict=True))
    excluded = {
        *emitted.residuals.names,
        *[emitted.names.outputs[i] for i in emitted.derivative.undifferentiable],
    }
    return {
        i: node.attr("name")
        for i, (name, node) in outputs
        if node.op is ops.INPUT and i in emitted.aliasing.passed and name not in excluded
    }


def owned(emitted: Emitted) -> list[str]:
    passed = passed_on(emitted)
    return [name for i, name in enumerate(emitted.names.outputs) if i not in passed]


def write(
    emitted: Emitted, dtype: str, language: Any, layouts: dict[str, KernelLayout] | None = None
) -> tuple[Kernel, Kernel, Kernel]:
    """Return the kernels of forward, of forward with what it keeps, and of backward. Also complete
    `layouts`, given for the inputs, with those of all other tensors.
    """
    assert emitted.origin.graphs is not None
    layouts = dict.fromkeys(emitted.names.inputs, WHOLE) if layouts is None else layouts
    forward, *packing = emitted.origin.graphs
    keep, backward = without_packing(*packing)
    outputs = dict(zip(emitted.names.outputs, forward.outputs, strict=True))
    substitutes: dict[Node, Node] = {}
    for node in keep.nodes:
        if node.op is ops.INPUT and node.attr("name") in outputs:
            substitutes[node] = outputs[node.attr("name")]
    residuals = substitute(keep, substitutes).outputs if substitutes else keep.outputs
    passed = passed_on(emitted)
    own_names = owned(emitted)
    forward_graph = Graph("forward", forward.inputs, tuple([outputs[name] for name in own_names]))
    keep_graph = Graph("keep", forward.inputs, (*forward_graph.outputs, *residuals))
    names = [*own_names, *emitted.residuals.computed]
    backward = Graph("backward", backward.inputs, backward.outputs)
    code_language = language.language(dtype)

    def written(graph: Graph, **options: Any) -> Kernel:
        rounded = apply_patterns(graph, language.ROUNDING, disabled())
        return write_kernel(graph.name, rounded, dtype, code_language, layouts=layouts, **options)

    packs: list[int] = []
    # Which masks are bits depends on layouts, which writing finds out: repeat until both agree.
    while True:
        kernels = [written(forward_graph), written(keep_graph, packs=packs)]
        places = kernels[1].parts.results
        layouts |= {emitted.names.outputs[i]: layouts[name] for i, name in passed.items()}
        layouts |= {name: place.layout for name, place in zip(names, places, strict=True)}
        pairs = zip(emitted.names.cotangents, emitted.names.outputs, strict=True)
        layouts |= {cotangent: layouts[name] for cotangent, name in pairs}
        kernels.append(written(backward, packed=[names[i] for i in packs]))
        # Masks over rows stay bytes, as a row need not end where a byte of bits does.
        is_by_rows = any(kernel.parts.is_by_rows for kernel in kernels)
        masks = [i for i, each in enumerate(places) if each.is_mask and i >= len(own_names)]
        masks = [i for i in masks if places[i].layout == WHOLE and not is_by_rows]
        if packs == masks:
            break
        packs = masks
    bits = {i for i, node in enumerate(packing[0].outputs, len(own_names)) if node.op is PACK}
    if not bits.issubset(packs):
        raise CannotFuseError("residuals='packed' of rows")
    pairs = zip(emitted.names.wrt, kernels[2].parts.results, strict=True)
    if any(layouts[name] != slope.layout for name, slope in pairs):
        raise CannotFuseError("a gradient of another shape")
    if all(count_kernels(graph) < 2 for graph in (keep_graph, backward)):
        raise NothingToFuseError("each part is a kernel of torch already")
    return kernels[0], kernels[1], kernels[2]


def count_kernels(graph: Graph) -> int:
    """Return how many kernels of torch compute a graph in fast code: one for each tensor."""
    nodes = apply_patterns(graph, FAST, disabled()).nodes
    return sum(node.op is not ops.INPUT and node.type.kind == "tensor" for node in nodes)


class Restored:
    """A ctx for the plain backward, with what the plain forward would have saved."""

    def __init__(self, ctx: Any, saved: list[Tensor]) -> None:
        self.ctx = ctx
        self.saved_tensors = saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


class KernelSlot(NamedTuple):
    """A tensor that is kept or made; without a layout it holds masks of all elements as bits."""

    dtype: torch.dtype
    layout: KernelLayout | None = WHOLE

    def shape(self, shape: torch.Size) -> tuple[int, ...]:
        if self.layout is WHOLE:
            return shape
        return ((shape.numel() + 7) // 8,) if self.layout is None else self.layout.shape(shape)


def _restorer(native: Any, kernels: CompiledKernels) -> Callable[[Any, list[Tensor]], Restored]:
    """Return a function that adds to a ctx what the plain forward would have saved."""
    emitted, slots = kernels.emitted, kernels.slots
    assert emitted.origin.graphs is not None
    nodes = emitted.origin.graphs[1].outputs
    computed = zip(emitted.residuals.computed, nodes, strict=True)
    packed_names = {name for name, node in computed if node.op is PACK}
    bit_positions = [i for i, name in enumerate(kernels.saved) if slots[name].layout is None]
    unpacked_positions = [i for i in bit_positions if kernels.saved[i] not in packed_names]

    def restore(ctx: Any, saved: list[Tensor]) -> Restored:
        call = ctx.call
        plain_ctx = Restored(ctx, saved)

        def like(slot: KernelSlot) -> Tensor:
            element = torch.empty((), dtype=slot.dtype, device=call.device)
            return element.expand(slot.shape(call.shape))

        for i in unpacked_positions:
            saved[i] = unpack(saved[i], like(KernelSlot(kernels.dtype)))
        for name in emitted.residuals.shapes:
            setattr(plain_ctx, f"shape_of_{name}", like(slots[name]).shape)
        for name in emitted.residuals.likes:
            setattr(plain_ctx, f"like_{name}", Like(like(slots[name])))
        values = prepared(native, like(KernelSlot(kernels.dtype)), call.values)
        params = ("values",) if native.prepare is not None else emitted.names.params
        for name, value in zip(params, values, strict=True):
            setattr(plain_ctx, name, value)
        return plain_ctx

    return restore


def as_function(native: Any, kernels: CompiledKernels) -> type[Function]:
    emitted, eager = kernels.emitted, native.eager
    # What forward has: the inputs, and what it writes.
    names = [*emitted.names.inputs, *kernels.names]
    passed = passed_on(emitted)
    outputs_at = [names.index(passed.get(i, name)) for i, name in enumerate(emitted.names.outputs)]
    pick_outputs = itemgetter(*outputs_at)
    saved_at = list(map(names.index, kernels.saved))
    types = emitted.origin.output_types
    undifferentiable = emitted.derivative.undifferentiable
    constants_at = [outputs_at[i] for i in undifferentiable if types[i].dtype != BOOL]
    # Of what backward returns: gradients, or None, which stands last.
    count = len(emitted.names.inputs)
    slope_at = {name: i for i, name in enumerate(emitted.names.wrt)}
    pick_gradients = itemgetter(*[slope_at.get(name, -1) for name in emitted.names.inputs], -1)

    restore = _restorer(native, kernels)

    class FusedFunction(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            *tensors, call = args
            if True in ctx.needs_input_grad:
                tensors += kernels.keep.run(tensors, call.written, call.device, call.keep)
                ctx.save_for_backward(*[tensors[i] for i in saved_at])
                ctx.call = call
            else:
                tensors += kernels.forward.run(tensors, call.outputs, call.device, call.forward)
            if constants_at:
                ctx.mark_non_differentiable(*[tensors[i] for i in constants_at])
            return pick_outputs(tensors)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            call = ctx.call
            device, residuals = call.device, ctx.saved_tensors
            operands = [*residuals, *cotangents]
            fits = not (is_grad_enabled() or transforms_active() or is_included(BATCHED))
            fits = fits and not count_modes()
            # `x.data = ...` may have put another in its place.
            for i, dtype, shape in call.read:
                x = operands[i]
                is_alike = type(x) in KINDS and x.dtype is dtype and x.shape == shape
                if not (is_alike and x.device == device and is_memory(x)):
                    fits = False
                    break
                operands[i] = x.contiguous()
            if fits:
                results = kernels.backward.run(operands, call.slopes, device, call.backward)
                return pick_gradients([*results, None])
            gradients = eager.backward(restore(ctx, [*residuals]), *cotangents)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return *gradients[:count], None

    FusedFunction.__name__ = eager.__name__
    FusedFunction._backward_cls.__name__ = eager._backward_cls.__name__  # type: ignore[attr-defined]
    return FusedFunction
