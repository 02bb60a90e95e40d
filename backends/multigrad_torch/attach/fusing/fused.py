"""A Function whose parts run as one kernel each: forward, forward with what it keeps, and backward.
Masks are kept as bits.

Where backward is differentiated, transformed or recorded, the plain code runs, on what the kernels
have kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.autograd import Function

from multigrad.graph import ops
from multigrad.graph.ir.graph import Graph, Node
from multigrad.graph.ir.types import BOOL, T
from multigrad.graph.passes.simplify import substitute
from multigrad.graph.support.fused import CannotFuseError
from multigrad.lowering.kernel_code.kernels import Kernel, write_kernel
from multigrad.lowering.kernel_code.passes import WHOLE, Layout
from multigrad.lowering.packing import PACK, without_packing

from ...kernels.bits import unpack
from ..state import BATCHED, Like, count_modes, is_included, is_memory, transforms_active
from . import in_c, in_triton
from .proof import agree

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor
is_grad_enabled = torch.is_grad_enabled
# By the kind of device: how torch rounds there, what kernels are written in, and what runs them.
LANGUAGES: dict[str, Any] = {"cpu": in_c, "cuda": in_triton}
MANY = 4  # kernels of torch for rows that one of ours is faster than


class Kernels:
    """What is compiled of a Function for one dtype, one kind of device, and tensors that lie so.

    Attributes:
        apply: `apply(*tensors, values, rest)`: the values of the params, and as the eager class
            takes them.
        is_proven: whether they agree with eager code, or need not: see `proof.py`.
        compares_beside: whether that may be found out in another thread.
        names: what the kernels of forward write, then what they keep.
        saved: of what backward gets the tensors.
        layouts: how tensors lie to the elements, by their names.
        pays: whether they are faster than plain code where tensors are large.
        reduces: whether one needs to know how many elements or rows there are.
        rank: how many axes tensors must have; None: any number.
        row_axes: how many of them, at the end, are a row.
    """

    def __init__(
        self, native: Any, like: Tensor, is_proven: bool, layouts: Sequence[Layout] | None = None
    ) -> None:
        """Write and compile kernels for tensors like this one, that lie so to the elements.

        Raises:
            CannotFuseError: there are none.
            NoLibraryError: there is no compiler, or it fails.
        """
        self.native, self.is_proven = native, is_proven
        self.dtype, self.device = like.dtype, like.device
        self.emitted: Emitted = native.emitted
        check(self.emitted)
        language = LANGUAGES[like.device.type]
        self.compares_beside = language.COMPARES_BESIDE
        inputs = self.emitted.inputs
        lie = [WHOLE] * len(inputs) if layouts is None else layouts
        self.layouts = dict(zip(inputs, lie, strict=True))
        name = str(like.dtype).removeprefix("torch.")
        kernels = write(self.emitted, name, language, self.layouts)
        self.is_by_rows = any(kernel.parts.is_by_rows for kernel in kernels)
        if self.is_by_rows and not (is_proven or self.compares_beside):
            raise CannotFuseError("rows, whose kernels are compiled by their length in the call")
        launches = iter(language.load([each for each in kernels if each.parts.results], like))
        self.names = [*owned(self.emitted), *self.emitted.computed]
        self.saved = [n for n in self.emitted.residuals if n not in self.emitted.likes]
        given = [inputs, inputs, (*self.saved, *self.emitted.cotangents)]
        params, on_numbers = self.emitted.params, language.ON_NUMBERS
        self.rank, self.row_axes = axes_of(kernels)
        parts = [
            Part(
                each,
                names,
                launch=next(launches) if each.parts.results else None,
                params=params,
                on_numbers=on_numbers,
                row_axes=self.row_axes,
            )
            for each, names in zip(kernels, given, strict=True)
        ]
        self.forward, self.keep, self.backward = parts
        self.reduces = self.is_by_rows or any(kernel.parts.reduces for kernel in kernels)
        self.pays = not any(kernel.parts.repeats for kernel in kernels)
        if self.is_by_rows:  # torch's own loops over rows are faster, and its memory is near
            graphs = self.emitted.graphs or ()
            self.pays &= max(count_kernels(language.as_eager(each)) for each in graphs) >= MANY
        self.first = [*self.layouts.values()].index(WHOLE)
        base: Any = super(Function, as_function(native, self, like.dtype))
        self.apply = base.apply

    def takes(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether there are more elements to reduce than one, of which torch's norm does not
        overflow, and nothing is to be compiled for the length of rows where it cannot be.

        Raises:
            CannotFuseError: they have more or fewer axes than a sum is over.
        """
        x = tensors[self.first]
        if self.is_by_rows and x.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        if self.rank not in (None, x.dim()):
            raise CannotFuseError(f"{x.dim()} axes, where it reduces {self.rank}")
        return x.numel() > 1 and (not self.is_by_rows or x.shape[-self.row_axes :].numel() > 1)

    def prove(self, values: Any) -> Kernels:
        """Return these, compared with eager code on edge values, for these values of params.

        Raises:
            CannotFuseError: the numbers are others.
        """
        with torch.inference_mode(False), torch.enable_grad():
            agree(self.native, self, values)
        self.is_proven = True
        return self


class Part:
    """One kernel, and what runs it; `names` are those of the tensors that it is given.

    `known` is the values of the params and the sizes at the call before, and the numbers that they
    gave: one tuple, so that threads see both or none.
    """

    def __init__(
        self,
        kernel: Kernel,
        names: Sequence[str],
        launch: Any,
        params: Sequence[str],
        on_numbers: Mapping[Any, Any],
        row_axes: int,
    ) -> None:
        self.kernel, self.launch, self.params = kernel, launch, params
        self.places = [names.index(name) for name in kernel.inputs]
        self.on_numbers, self.row_axes = on_numbers, row_axes
        self.largest = torch.finfo(getattr(torch, kernel.parts.dtype)).max
        self.known: tuple[Any, Any] = (None, None)

    def numbers(self, values: Any, shape: torch.Size) -> Any:
        """Return what it takes of numbers for values of the params.

        Raises:
            CannotFuseError: one is beyond the dtype, for which some ops of torch raise.
        """
        known, numbers = self.known
        key = repr(values) if values else "", shape  # which tells -0.0 from 0.0
        if key != known:
            params = dict(zip(self.params, values, strict=True))
            found = self.kernel.values(params, self.on_numbers, shape)
            if any(self.largest < abs(each) < math.inf for each in found):
                raise CannotFuseError(f"a number beyond {self.kernel.parts.dtype}")
            numbers = found if self.launch is None else self.launch.pack(found)
            self.known = key, numbers
        return numbers

    def run(
        self, given: Sequence[Tensor], results: Sequence[Tensor], numbers: Any, shape: torch.Size
    ) -> None:
        """Run on tensors, of elements of this shape."""
        if results:
            n, columns = shape.numel(), shape[-self.row_axes :].numel()
            self.launch([*[given[i] for i in self.places], *results], numbers, n, columns)


def axes_of(kernels: Sequence[Kernel]) -> tuple[int | None, int]:
    """Return how many axes tensors must have, if that matters, and how many of them are a row.

    Raises:
        CannotFuseError: kernels differ.
    """
    ranks = {rank for kernel in kernels for rank in kernel.ranks}
    row_axes = {kernel.row_axes for kernel in kernels if kernel.parts.is_by_rows}
    if len(ranks) > 1 or len(row_axes) > 1:
        raise CannotFuseError("sums over several numbers of axes")
    return min(ranks, default=None), min(row_axes, default=1)


def check(emitted: Emitted) -> None:
    """Check what a kernel cannot give: a view of an input, a number; and whether it has a use.

    Raises:
        CannotFuseError: it is one of these.
    """
    if emitted.graphs is None:
        raise CannotFuseError("a loop, or what cost time is kept, as tanh: see residuals=")
    passed = passed_on(emitted)
    lent = {*emitted.passed, *emitted.views}.difference(passed)
    outputs = emitted.graphs[0].outputs
    lent = [i for i in lent if i in emitted.passed or outputs[i].op.view]
    if lent or emitted.shared or emitted.viewed or emitted.histories:
        raise CannotFuseError("an output that may be an input, or lie in its memory")
    if "key" in emitted.params:
        raise CannotFuseError("it draws random numbers")
    if not emitted.wrt:
        raise CannotFuseError("no input gets a gradient")
    if any(type_ is not None and type_.dtype != T for type_ in emitted.input_types):
        raise CannotFuseError("an input of another dtype")


def passed_on(emitted: Emitted) -> dict[int, str]:
    """Return the outputs that are an input as it is, which no kernel computes, and which."""
    assert emitted.graphs is not None
    found = enumerate(zip(emitted.outputs, emitted.graphs[0].outputs, strict=True))
    kept = {*emitted.residuals, *[emitted.outputs[i] for i in emitted.undifferentiable]}
    return {
        i: node.attr("name")
        for i, (name, node) in found
        if node.op is ops.INPUT and i in emitted.passed and name not in kept
    }


def owned(emitted: Emitted) -> list[str]:
    """Return the outputs that kernels compute."""
    passed = passed_on(emitted)
    return [name for i, name in enumerate(emitted.outputs) if i not in passed]


def write(
    emitted: Emitted, dtype: str, language: Any, layouts: dict[str, Layout] | None = None
) -> tuple[Kernel, Kernel, Kernel]:
    """Return the kernels of forward, of forward with what it keeps, and of backward; and complete
    `layouts`, which are those of the inputs.

    Raises:
        CannotFuseError: there are none.
    """
    assert emitted.graphs is not None
    layouts = dict.fromkeys(emitted.inputs, WHOLE) if layouts is None else layouts
    forward, *packing = emitted.graphs
    keep, backward = without_packing(*packing)
    outputs = dict(zip(emitted.outputs, forward.outputs, strict=True))
    known: dict[Node, Node] = {}
    for node in keep.nodes:
        if node.op is ops.INPUT and node.attr("name") in outputs:
            known[node] = outputs[node.attr("name")]
    kept = substitute(keep, known).outputs if known else keep.outputs
    passed = passed_on(emitted)
    own = owned(emitted)
    alone = Graph("forward", forward.inputs, tuple([outputs[name] for name in own]))
    both = Graph("keep", forward.inputs, (*alone.outputs, *kept))
    names = [*own, *emitted.computed]
    backward = Graph("backward", backward.inputs, backward.outputs)
    rounded, words = language.rounding_as_eager, language.language(dtype)

    def written(graph: Graph, **more: Any) -> Kernel:
        return write_kernel(graph.name, rounded(graph), dtype, words, layouts=layouts, **more)

    packs: list[int] = []
    while True:
        kernels = [written(alone), written(both, packs=packs)]
        places = kernels[1].parts.results
        layouts |= {emitted.outputs[i]: layouts[name] for i, name in passed.items()}
        layouts |= {name: place.layout for name, place in zip(names, places, strict=True)}
        pairs = zip(emitted.cotangents, emitted.outputs, strict=True)
        layouts |= {cotangent: layouts[name] for cotangent, name in pairs}
        kernels.append(written(backward, packed=[names[i] for i in packs]))
        # Of these bytes are kept, as a row need not end where a byte of bits does.
        is_by_rows = any(kernel.parts.is_by_rows for kernel in kernels)
        masks = [i for i, each in enumerate(places) if each.is_mask and i >= len(own)]
        masks = [i for i in masks if places[i].layout == WHOLE and not is_by_rows]
        if packs == masks:
            break
        packs = masks
    as_bits = {i for i, node in enumerate(packing[0].outputs, len(own)) if node.op is PACK}
    if not as_bits.issubset(packs):
        raise CannotFuseError("residuals='packed' of rows")
    places = kernels[2].parts.results
    if any(layouts[name] != each.layout for name, each in zip(emitted.wrt, places, strict=True)):
        raise CannotFuseError("a gradient of another shape")
    if all(count_kernels(language.as_eager(graph)) < 2 for graph in (both, backward)):
        raise CannotFuseError  # each is a kernel of torch already
    return kernels[0], kernels[1], kernels[2]


def count_kernels(graph: Graph) -> int:
    """Return how many kernels of torch compute a graph, one for each tensor."""
    return sum(n.op is not ops.INPUT and n.type.kind == "tensor" for n in graph.nodes)


class Restored:
    """What the plain backward reads of a call: what was kept, as it would have been."""

    def __init__(self, ctx: Any, saved: tuple[Tensor, ...]) -> None:
        self.ctx = ctx
        self.saved_tensors = saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


class Slot(NamedTuple):
    """A tensor that is kept or made; one without a layout holds masks of all elements as bits."""

    dtype: torch.dtype
    layout: Layout | None = WHOLE

    def shape(self, shape: torch.Size) -> tuple[int, ...]:
        """Return its shape, for elements of this one."""
        if self.layout is WHOLE:
            return shape
        return ((shape.numel() + 7) // 8,) if self.layout is None else self.layout.shape(shape)

    def make(self, x: Tensor) -> Tensor:
        """Return a new one beside a tensor of all elements."""
        if self.layout is WHOLE:
            return torch.empty_like(x, dtype=self.dtype)
        return x.new_empty(self.shape(x.shape), dtype=self.dtype)


def slots_of(kernels: Kernels, dtype: torch.dtype) -> dict[str, Slot]:
    """Return what tensors are, by their names."""
    found = {name: Slot(dtype, layout) for name, layout in kernels.layouts.items()}
    for name, place in zip(kernels.names, kernels.keep.kernel.parts.results, strict=True):
        if place.is_packed:
            found[name] = Slot(torch.uint8, None)
        elif place.is_mask:
            found[name] = Slot(torch.bool, place.layout)
    return found


def as_function(native: Any, kernels: Kernels, dtype: torch.dtype) -> type[Function]:
    """Return the class that runs the kernels."""
    emitted, eager, slots = kernels.emitted, native.eager, slots_of(kernels, dtype)
    assert emitted.graphs is not None
    packs = [node.op is PACK for node in emitted.graphs[1].outputs]
    as_bits = {name for name, is_packed in zip(emitted.computed, packs, strict=True) if is_packed}
    # What forward has: the inputs, and what it writes.
    count, owned_count = len(emitted.inputs), len(owned(emitted))
    names = [*emitted.inputs, *kernels.names]
    passed = passed_on(emitted)
    of_outputs = [names.index(passed.get(i, name)) for i, name in enumerate(emitted.outputs)]
    of_saved = list(map(names.index, kernels.saved))
    noted = [(f"shape_of_{name}", names.index(name), Tensor.size) for name in emitted.shapes]
    noted += [(f"like_{name}", names.index(name), Like) for name in emitted.likes]
    written, expected = ([slots[n] for n in each] for each in (kernels.names, kernels.saved))
    bits = [i for i, name in enumerate(kernels.saved) if slots[name].layout is None]
    unpacked = [i for i in bits if kernels.saved[i] not in as_bits]
    differentiable = [i for i, carries in enumerate(emitted.carries) if carries]
    constant = [i for i in emitted.undifferentiable if emitted.output_types[i].dtype != BOOL]
    whole, first = Slot(dtype), kernels.first
    # What backward has.
    upstream = [slots[name] for name in emitted.cotangents]
    full = [i for i, slot in enumerate(expected) if slot == whole]
    full += [len(expected) + i for i in differentiable if upstream[i] == whole]
    slopes = [slots[name] for name in emitted.wrt]
    wrt = {emitted.inputs.index(name): k for k, name in enumerate(emitted.wrt)}

    class Run(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            tensors, values, rest = args[:count], args[count], args[count + 1]
            x = tensors[first]
            if True not in ctx.needs_input_grad:
                results = [slot.make(x) for slot in written[:owned_count]]
                numbers = kernels.forward.numbers(values, x.shape)
                kernels.forward.run(tensors, results, numbers, x.shape)
                known = (*tensors, *results)
            else:
                numbers = kernels.keep.numbers(values, x.shape)
                ctx.numbers = kernels.backward.numbers(values, x.shape)
                results = [slot.make(x) for slot in written]
                kernels.keep.run(tensors, results, numbers, x.shape)
                known = (*tensors, *results)
                ctx.save_for_backward(*[known[i] for i in of_saved])
                for name, i, of in noted:
                    setattr(ctx, name, of(known[i]))
                if native.prepare is not None:
                    (ctx.values,) = rest
                else:
                    for name, value in zip(emitted.params, values, strict=True):
                        setattr(ctx, name, value)
                ctx.shape, ctx.device = x.shape, x.device
            outputs = [known[i] for i in of_outputs]
            if constant:
                ctx.mark_non_differentiable(*[outputs[i] for i in constant])
            return outputs[0] if emitted.single else tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            saved, shape = ctx.saved_tensors, ctx.shape
            given = [*saved, *cotangents]
            anywhere = is_grad_enabled() or transforms_active() or is_included(BATCHED)
            anywhere = anywhere or count_modes()
            # `x.data = ...` may have put another in its place.
            for each, slot in zip(saved, expected, strict=True):
                is_kept = each.dtype is slot.dtype and each.shape == slot.shape(shape)
                if not (is_kept and each.is_contiguous() and is_memory(each)):
                    anywhere = True
            for i in differentiable:
                each = cotangents[i]
                anywhere = anywhere or type(each) is not Tensor or each.dtype is not dtype
                if anywhere or each.shape != upstream[i].shape(shape) or not is_memory(each):
                    anywhere = True
                    break
                given[len(saved) + i] = each.contiguous()
            if anywhere:
                kept = [*saved]
                for i in unpacked:
                    like = torch.empty((), device=ctx.device).expand(shape)
                    kept[i] = unpack(saved[i], like)
                found = eager.backward(Restored(ctx, tuple(kept)), *cotangents)
                found = found if isinstance(found, tuple) else (found,)
                return *found[:count], None, None
            x = given[full[0]] if full else torch.empty(shape, dtype=dtype, device=ctx.device)
            results = [slot.make(x) for slot in slopes]
            kernels.backward.run(given, results, ctx.numbers, shape)
            asked = ctx.needs_input_grad
            own = [results[wrt[i]] if asked[i] and i in wrt else None for i in range(count)]
            return *own, None, None

    Run.__name__ = eager.__name__
    Run._backward_cls.__name__ = eager._backward_cls.__name__  # type: ignore[attr-defined]
    return Run
