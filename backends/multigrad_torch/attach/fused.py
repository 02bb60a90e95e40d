"""A Function whose parts run as one kernel of C each: forward, forward with what it keeps, and
backward. Masks are kept as bits.

Where backward is differentiated, transformed or recorded, the plain code runs, on what the kernels
have kept.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd import Function

from multigrad.backend.fast import FastKernels, disabled
from multigrad.graph import ops
from multigrad.graph.ir.graph import Graph, Node
from multigrad.graph.ir.types import BOOL, T
from multigrad.graph.machine.compiled import Compiled
from multigrad.graph.passes.simplify import substitute
from multigrad.lowering.c_code import FLAGS, CannotFuseError, Kernel, begin, write_kernel
from multigrad.lowering.packing import PACK, without_packing
from multigrad.lowering.patterns import apply_patterns

from ..kernels.bits import unpack
from ..kernels.fast import fused as fast
from ..kernels.fast.alone import FAST
from .state import (
    BATCHED,
    PROCESS,
    count_modes,
    eager_of,
    is_included,
    is_memory,
    transforms_active,
)

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor
is_grad_enabled = torch.is_grad_enabled
is_batched = partial(is_included, BATCHED)
GRAIN = 1 << 15  # elements that a thread gets at least, as of torch's own loops
# The rows by which fast code rounds otherwise than the ops: its bits are those of the kernels.
ROUNDING = ("torch.one_plus_square", "torch.divided", "torch.reciprocal")
OWN_ROWS = {
    # torch's own kernel (2.13) is compiled to a fused multiply-add; where it is not, bits differ.
    fast.ONE_PLUS_SQUARE: "{2} == {2} ? FMA({2} * {0}, {0}, 1) : 1 + ({0} * {1}) * ({0} * {1})",
    fast.DIVIDED: "{2} == {2} ? ({0} / {3}) * {1} : ((1 / {3}) * {1}) * {0}",
}
ON_NUMBERS = {fast.SQUARED: fast.squared, fast.FACTOR: fast.factor}
EDGES = (0.0, float("inf"), float("nan"), 1e-45, 1e-40, 1.1754944e-38, 0.5, 1.0, 1.5, 2.5, 3e38)


class Kernels:
    """What is compiled of a Function for one dtype.

    Attributes:
        apply: `apply(*tensors, values, rest)`: the values of the params, and as the eager class
            takes them.
    """

    def __init__(self, native: Any, dtype: torch.dtype) -> None:
        self.emitted: Emitted = native.emitted
        check(self.emitted)
        name = str(dtype).removeprefix("torch.")
        kernels = write(self.emitted, name)
        if all(kernel.count < 2 for kernel in kernels):
            raise CannotFuseError  # each is a kernel already
        source = "".join([begin(name), *[kernel.source for kernel in kernels]])
        library = Compiled("kernels", lambda: source, lambda found: found, 0, flags=FLAGS).load()
        params = self.emitted.params
        parts = [Part(library, kernel, params) for kernel in kernels]
        self.forward, self.keep, self.backward = parts
        base: Any = super(Function, as_function(native, self, dtype))
        self.apply = base.apply


class Part:
    """One kernel, loaded.

    `known` is the values of the params at the call before, and the numbers that they gave: one
    tuple, so that threads see both or none.
    """

    def __init__(self, library: ctypes.CDLL, kernel: Kernel, params: Sequence[str]) -> None:
        self.kernel, self.params = kernel, params
        self.function = getattr(library, kernel.name)
        self.function.restype = None
        pointers, numbers = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_double)
        self.function.argtypes = (pointers, numbers, ctypes.c_int64, ctypes.c_int32)
        self.known: tuple[str, Any] = ("", None)

    def run(self, named: Mapping[str, Tensor], results: Sequence[Tensor], values: Any) -> None:
        """Run on tensors by their names."""
        places = [named[name].data_ptr() for name in self.kernel.inputs]
        places += [result.data_ptr() for result in results]
        known, numbers = self.known
        text = repr(values)  # which tells -0.0 from 0.0
        if text != known:
            params = dict(zip(self.params, values, strict=True))
            found = self.kernel.values(params, ON_NUMBERS)
            numbers = (ctypes.c_double * len(found))(*found)
            self.known = text, numbers
        n = results[0].numel()  # an output or a gradient, which no mask is packed of
        most = torch.get_num_threads() if os.getpid() == PROCESS else 1
        threads = max(1, min(most, n // GRAIN))
        self.function((ctypes.c_void_p * len(places))(*places), numbers, n, threads)


def check(emitted: Emitted) -> None:
    """Check what a kernel cannot give: an output that is an input, a view, a number.

    Raises:
        CannotFuseError: it is one of these.
    """
    if emitted.passed or emitted.shared or emitted.views or emitted.viewed or emitted.histories:
        raise CannotFuseError("an output that may be an input, or lie in its memory")
    if emitted.likes:
        raise CannotFuseError("a tensor of which backward reads the shape alone")
    if "key" in emitted.params:
        raise CannotFuseError("it draws random numbers")
    if any(type_ is not None and type_.dtype != T for type_ in emitted.input_types):
        raise CannotFuseError("an input of another dtype")


def write(emitted: Emitted, dtype: str) -> tuple[Kernel, Kernel, Kernel]:
    """Return the kernels of forward, of forward with what it keeps, and of backward.

    Raises:
        CannotFuseError: there are none.
    """
    assert emitted.graphs is not None
    forward, *packing = emitted.graphs
    keep, backward = without_packing(*packing)
    outputs = dict(zip(emitted.outputs, forward.outputs, strict=True))
    known: dict[Node, Node] = {}
    for node in keep.nodes:
        if node.op is ops.INPUT and node.attr("name") in outputs:
            known[node] = outputs[node.attr("name")]
    kept = substitute(keep, known).outputs if known else keep.outputs
    both = Graph("keep", forward.inputs, (*forward.outputs, *kept))
    masks = [i for i, node in enumerate(both.outputs) if node.type.dtype == BOOL]
    packs = [i for i in masks if i >= len(forward.outputs)]
    types = zip(emitted.computed, kept, strict=True)
    packed = [name for name, node in types if node.type.dtype == BOOL]
    return (
        write_kernel("forward", rounding_as_eager(forward), dtype, OWN_ROWS),
        write_kernel("keep", rounding_as_eager(both), dtype, OWN_ROWS, packs=packs),
        write_kernel("backward", rounding_as_eager(backward), dtype, OWN_ROWS, packed=packed),
    )


def rounding_as_eager(graph: Graph) -> Graph:
    """Return a graph that rounds where fast code does."""
    rows = tuple([row for row in FAST.patterns if row.name in ROUNDING])
    return apply_patterns(graph, FastKernels(patterns=rows), disabled())


class Restored:
    """What the plain backward reads of a call: what was kept, as it would have been."""

    def __init__(self, ctx: Any, saved: tuple[Tensor, ...]) -> None:
        self.ctx = ctx
        self.saved_tensors = saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


def as_function(native: Any, kernels: Kernels, dtype: torch.dtype) -> type[Function]:
    """Return the class that runs the kernels."""
    emitted, eager = kernels.emitted, native.eager
    count, saved_names = len(emitted.inputs), emitted.residuals
    kinds = [torch.bool if t.dtype == BOOL else dtype for t in emitted.output_types]
    assert emitted.graphs is not None
    packs = [node.op is PACK for node in emitted.graphs[1].outputs]
    as_bits = {name for name, is_packed in zip(emitted.computed, packs, strict=True) if is_packed}
    keep, _ = without_packing(*emitted.graphs[1:])
    computed = dict(zip(emitted.computed, [n.type.dtype for n in keep.outputs], strict=True))
    packed = [name for name in saved_names if computed.get(name) == BOOL]
    kept_kinds = dict(zip(emitted.outputs, kinds, strict=True)) | dict.fromkeys(packed, torch.uint8)
    differentiable = [i for i, carries in enumerate(emitted.carries) if carries]
    constant = [i for i in emitted.undifferentiable if kinds[i] is dtype]

    def empty_kept(x: Tensor, kind: str) -> Tensor:
        if kind == BOOL:
            return torch.empty((x.numel() + 7) // 8, dtype=torch.uint8, device="cpu")
        return torch.empty_like(x)

    class Run(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            *tensors, values, rest = args
            x = tensors[0]
            named = dict(zip(emitted.inputs, tensors, strict=True))
            outputs = [torch.empty_like(x, dtype=kind) for kind in kinds]
            if True not in ctx.needs_input_grad:
                kernels.forward.run(named, outputs, values)
            else:
                more = {name: empty_kept(x, kind) for name, kind in computed.items()}
                kernels.keep.run(named, [*outputs, *more.values()], values)
                named |= dict(zip(emitted.outputs, outputs, strict=True)) | more
                ctx.save_for_backward(*[named[name] for name in saved_names])
                for name in emitted.shapes:
                    setattr(ctx, f"shape_of_{name}", x.shape)
                if native.prepare is not None:
                    (ctx.values,) = rest
                else:
                    for name, value in zip(emitted.params, values, strict=True):
                        setattr(ctx, name, value)
                ctx.given, ctx.shape = values, x.shape
                ctx.mark_non_differentiable(*[outputs[i] for i in constant])
            return outputs[0] if emitted.single else tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            saved, shape = dict(zip(saved_names, ctx.saved_tensors, strict=True)), ctx.shape
            anywhere = is_grad_enabled() or transforms_active() or is_included(BATCHED)
            anywhere = anywhere or count_modes()
            for name, each in saved.items():  # `x.data = ...` may have put another in its place
                of_bits = torch.Size([(shape.numel() + 7) // 8])
                expected = (kept_kinds.get(name, dtype), of_bits if name in packed else shape)
                anywhere = anywhere or (each.dtype, each.shape) != expected
                anywhere = anywhere or not (each.is_contiguous() and is_memory(each))
            for i in differentiable:
                each = cotangents[i]
                anywhere = anywhere or type(each) is not Tensor or each.dtype is not dtype
                if anywhere or each.shape != shape or not is_memory(each):
                    anywhere = True
                    break
                saved[emitted.cotangents[i]] = each.contiguous()
            if anywhere:
                like = torch.empty((), device="cpu").expand(shape)
                for name in packed:
                    if name not in as_bits:
                        saved[name] = unpack(saved[name], like)
                kept = tuple([saved[name] for name in saved_names])
                found = eager.backward(Restored(ctx, kept), *cotangents)
                found = found if isinstance(found, tuple) else (found,)
                return *found[:count], None, None
            results = [torch.empty(shape, dtype=dtype, device="cpu") for _ in emitted.wrt]
            kernels.backward.run(saved, results, ctx.given)
            by_name = dict(zip(emitted.wrt, results, strict=True))
            pairs = zip(emitted.inputs, ctx.needs_input_grad, strict=False)
            return *[by_name.get(name) if asked else None for name, asked in pairs], None, None

    Run.__name__ = eager.__name__
    Run._backward_cls.__name__ = eager._backward_cls.__name__  # type: ignore[attr-defined]
    return Run


def make_kernels(native: Any, dtype: torch.dtype, values: Any, exact: bool) -> Kernels:
    """Return the kernels for a dtype; `exact`: they give the bits of eager code, on edge values.

    Raises:
        CannotFuseError: there are none, or they give others.
        NoLibraryError: there is no compiler, or it fails.
    """
    kernels = Kernels(native, dtype)
    if exact and not same_bits(native, kernels, dtype, values):
        raise CannotFuseError("the bits would be others than those of plain code")
    return kernels


def same_bits(native: Any, kernels: Kernels, dtype: torch.dtype, values: Any) -> bool:
    """Compare forward and backward with eager code."""
    numbers = [*values, *[-value for value in values]]
    edges = torch.tensor([*EDGES, *[-each for each in EDGES], *numbers], dtype=dtype)
    more = torch.nextafter(edges.float(), torch.tensor(1.0)).to(dtype)
    edges = torch.cat([edges, more])
    draws = torch.Generator().manual_seed(0)
    count = len(edges) ** 2
    samples = []
    for i in range(len(native.emitted.inputs) + len(native.emitted.outputs)):
        own = edges.repeat(len(edges)) if i % 2 else edges.repeat_interleave(len(edges))
        drawn = torch.randn(3 * GRAIN + 13, generator=draws).to(dtype)
        samples.append(torch.cat([own.roll((i // 2) * 7), drawn]))
    assert len(samples[0]) > count
    prepared = values
    inputs = len(native.emitted.inputs)
    if native.prepare is not None:
        prepared = (native.constants.of(samples[0], values),)
    found = []
    eager = eager_of(native)
    for apply, rest in ((eager, prepared), (kernels.apply, (values, prepared))):
        with torch.enable_grad():
            given = [each.clone().requires_grad_() for each in samples[:inputs]]
            outputs = apply(*given, *rest)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            asked = [i for i, each in enumerate(outputs) if each.requires_grad]
            gradients = torch.autograd.grad(
                [outputs[i] for i in asked],
                given,
                [samples[inputs + i] for i in asked],
                allow_unused=True,
            )
        found.append([each.detach() for each in (*outputs, *gradients) if each is not None])
    return all(map(are_same, *found))


def are_same(a: Tensor, b: Tensor) -> bool:
    """Return whether numbers are the same, zeros' signs too."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    nan = a.isnan() & b.isnan()
    same = (a == b) & (a.signbit() == b.signbit())
    return bool((same | nan).all())
