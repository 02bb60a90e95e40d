"""A Function whose parts run as one kernel each: forward, forward with what it keeps, and backward.
Masks are kept as bits.

Where backward is differentiated, transformed or recorded, the plain code runs, on what the kernels
have kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd import Function

from multigrad.graph import ops
from multigrad.graph.ir.graph import Graph, Node
from multigrad.graph.ir.types import BOOL, T
from multigrad.graph.passes.simplify import substitute
from multigrad.lowering.kernels import CannotFuseError, Kernel, write_kernel
from multigrad.lowering.packing import PACK, without_packing

from ...kernels.bits import unpack
from ..state import BATCHED, count_modes, eager_of, is_included, is_memory, transforms_active
from . import in_c, in_triton

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor
is_grad_enabled = torch.is_grad_enabled
# By the kind of device: how torch rounds there, what kernels are written in, and what runs them.
LANGUAGES: dict[str, Any] = {"cpu": in_c, "cuda": in_triton}
# Elements: of samples, of a short one, and what one thread of torch takes, all by vectors: see
# `whole.SLEEF`.
DRAWN, BLOCK, WINDOW = 3 * in_c.GRAIN + 13, 1 << 10, 1 << 14
EDGES = (0.0, float("inf"), float("nan"), 1e-45, 1e-40, 1.1754944e-38, 0.5, 1.0, 1.5, 2.5, 3e38)


class Kernels:
    """What is compiled of a Function for one dtype and kind of device.

    Attributes:
        apply: `apply(*tensors, numbers, values, rest)`: what the parts take of numbers, the values
            of the params, and as the eager class takes them.
        is_proven: whether they give the bits of eager code, or need not.
        compares_beside: whether that may be found out in another thread.
    """

    def __init__(self, native: Any, like: Tensor, is_proven: bool) -> None:
        """Write and compile kernels for tensors like this one.

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
        kernels = write(self.emitted, str(like.dtype).removeprefix("torch."), language)
        launches = language.load(kernels, like)
        self.on_numbers, self.largest = language.ON_NUMBERS, torch.finfo(like.dtype).max
        self.known: tuple[str, Any] = ("", None)
        self.parts = [Part(*each) for each in zip(kernels, launches, strict=True)]
        self.forward, self.keep, self.backward = self.parts
        base: Any = super(Function, as_function(native, self, like.dtype))
        self.apply = base.apply

    def prove(self, values: Any) -> Kernels:
        """Return these, compared with eager code on edge values, for these values of params.

        Raises:
            CannotFuseError: the bits are others.
        """
        with torch.inference_mode(False), torch.enable_grad():
            if not same_bits(self.native, self, values):
                raise CannotFuseError("the bits would be others than those of plain code")
        self.is_proven = True
        return self

    def numbers(self, values: Any) -> list[Any] | None:
        """Return what each part takes of numbers for values of the params; None where one is beyond
        the dtype, for which some ops of torch raise.

        `known` is the values at the call before, and what they gave: one tuple, so that threads see
        both or none.
        """
        known, numbers = self.known
        text = repr(values)  # which tells -0.0 from 0.0
        if text != known:
            params = dict(zip(self.emitted.params, values, strict=True))
            found = [part.kernel.values(params, self.on_numbers) for part in self.parts]
            beyond = any(self.largest < abs(each) < math.inf for own in found for each in own)
            packed = [part.launch.pack(own) for part, own in zip(self.parts, found, strict=True)]
            numbers = None if beyond else packed
            self.known = text, numbers
        return numbers


class Part:
    """One kernel, and what runs it."""

    def __init__(self, kernel: Kernel, launch: Any) -> None:
        self.kernel, self.launch, self.inputs = kernel, launch, kernel.inputs

    def run(self, named: Mapping[str, Tensor], results: Sequence[Tensor], numbers: Any) -> None:
        """Run on tensors by their names."""
        n = results[0].numel()  # an output or a gradient, which no mask is packed of
        self.launch([*[named[name] for name in self.inputs], *results], numbers, n)


def check(emitted: Emitted) -> None:
    """Check what a kernel cannot give: an output that is an input, a view, a number; no gradient.

    Raises:
        CannotFuseError: it is one of these.
    """
    if emitted.graphs is None:
        raise CannotFuseError("forward keeps what it computes (a loop, or residuals='time')")
    if emitted.passed or emitted.shared or emitted.views or emitted.viewed or emitted.histories:
        raise CannotFuseError("an output that may be an input, or lie in its memory")
    if emitted.likes:
        raise CannotFuseError("a tensor of which backward reads the shape alone")
    if "key" in emitted.params:
        raise CannotFuseError("it draws random numbers")
    if not emitted.wrt:
        raise CannotFuseError("no input gets a gradient")
    if any(type_ is not None and type_.dtype != T for type_ in emitted.input_types):
        raise CannotFuseError("an input of another dtype")


def write(emitted: Emitted, dtype: str, language: Any) -> tuple[Kernel, Kernel, Kernel]:
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
    rounded, words = language.rounding_as_eager, language.language(dtype)
    kernels = (
        write_kernel("forward", rounded(forward), dtype, words),
        write_kernel("keep", rounded(both), dtype, words, packs=packs),
        write_kernel("backward", rounded(backward), dtype, words, packed=packed),
    )
    if all(count_kernels(language.as_eager(graph)) < 2 for graph in (both, backward)):
        raise CannotFuseError  # each is a kernel of torch already
    return kernels


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
            return torch.empty((x.numel() + 7) // 8, dtype=torch.uint8, device=x.device)
        return torch.empty_like(x)

    class Run(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            *tensors, numbers, values, rest = args
            of_forward, of_keep, of_backward = numbers
            x = tensors[0]
            named = dict(zip(emitted.inputs, tensors, strict=True))
            outputs = [torch.empty_like(x, dtype=kind) for kind in kinds]
            if True not in ctx.needs_input_grad:
                kernels.forward.run(named, outputs, of_forward)
            else:
                more = {name: empty_kept(x, kind) for name, kind in computed.items()}
                kernels.keep.run(named, [*outputs, *more.values()], of_keep)
                named |= dict(zip(emitted.outputs, outputs, strict=True)) | more
                ctx.save_for_backward(*[named[name] for name in saved_names])
                for name in emitted.shapes:
                    setattr(ctx, f"shape_of_{name}", x.shape)
                if native.prepare is not None:
                    (ctx.values,) = rest
                else:
                    for name, value in zip(emitted.params, values, strict=True):
                        setattr(ctx, name, value)
                ctx.numbers, ctx.shape, ctx.device = of_backward, x.shape, x.device
                ctx.mark_non_differentiable(*[outputs[i] for i in constant])
            return outputs[0] if emitted.single else tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            saved, shape = dict(zip(saved_names, ctx.saved_tensors, strict=True)), ctx.shape
            anywhere = is_grad_enabled() or transforms_active() or is_included(BATCHED)
            anywhere = anywhere or count_modes()
            of_bits = torch.Size([(shape.numel() + 7) // 8])
            for name, each in saved.items():  # `x.data = ...` may have put another in its place
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
                like = torch.empty((), device=ctx.device).expand(shape)
                for name in packed:
                    if name not in as_bits:
                        saved[name] = unpack(saved[name], like)
                kept = tuple([saved[name] for name in saved_names])
                found = eager.backward(Restored(ctx, kept), *cotangents)
                found = found if isinstance(found, tuple) else (found,)
                return *found[:count], None, None, None
            results = [torch.empty(shape, dtype=dtype, device=ctx.device) for _ in emitted.wrt]
            kernels.backward.run(saved, results, ctx.numbers)
            by_name = dict(zip(emitted.wrt, results, strict=True))
            pairs = zip(emitted.inputs, ctx.needs_input_grad, strict=False)
            gradients = [by_name.get(name) if asked else None for name, asked in pairs]
            return *gradients, None, None, None

    Run.__name__ = eager.__name__
    Run._backward_cls.__name__ = eager._backward_cls.__name__  # type: ignore[attr-defined]
    return Run


def same_bits(native: Any, kernels: Kernels, values: Any) -> bool:
    """Compare forward and backward with eager code."""
    samples = make_samples(native.emitted, kernels, values)
    prepared, inputs = values, len(native.emitted.inputs)
    if native.prepare is not None:
        prepared = (native.constants.of(samples[0], values),)

    def run(apply: Any, rest: Any, part: slice) -> list[Tensor]:
        given = [each[part].clone().requires_grad_() for each in samples[:inputs]]
        outputs = apply(*given, *rest)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        asked = [i for i, each in enumerate(outputs) if each.requires_grad]
        gradients = torch.autograd.grad(
            [outputs[i] for i in asked],
            given,
            [samples[inputs + i][part].clone() for i in asked],
            allow_unused=True,
        )
        return [each.detach() for each in (*outputs, *gradients) if each is not None]

    eager = eager_of(native)
    numbers = kernels.numbers(values)
    if numbers is None:
        return False
    ours = partial(run, kernels.apply, (numbers, values, prepared))
    found = ours(slice(None))
    if not all(map(are_same, [each[:BLOCK] for each in found], ours(slice(BLOCK)))):
        return False  # of a length that nothing divides, and one that much does
    for start in range(0, len(samples[0]), WINDOW):
        start = min(start, len(samples[0]) - WINDOW)
        part = slice(start, start + WINDOW)
        expected = run(eager, prepared, part)
        if not all(map(are_same, [each[part] for each in found], expected)):
            return False
    return True


def make_samples(emitted: Emitted, kernels: Kernels, values: Any) -> list[Tensor]:
    """Return inputs and cotangents: each edge value with each other one, and some drawn."""
    numbers = [*values, *[-value for value in values]]
    listed = [*EDGES, *[-each for each in EDGES], *numbers]
    edges = torch.tensor(listed, dtype=kernels.dtype, device="cpu")
    one = torch.ones((), dtype=torch.float32, device="cpu")
    edges = torch.cat([edges, torch.nextafter(edges.float(), one).to(kernels.dtype)])
    draws = torch.Generator("cpu").manual_seed(0)
    samples = []
    for i in range(len(emitted.inputs) + len(emitted.outputs)):
        own = edges.repeat(len(edges)) if i % 2 else edges.repeat_interleave(len(edges))
        drawn = torch.randn(DRAWN, generator=draws, device="cpu").to(kernels.dtype)
        samples.append(torch.cat([own.roll((i // 2) * 7), drawn]).to(kernels.device))
    return samples


def are_same(a: Tensor, b: Tensor) -> bool:
    """Return whether numbers are the same, zeros' signs too."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    nan = a.isnan() & b.isnan()
    same = (a == b) & (a.signbit() == b.signbit())
    return bool((same | nan).all())
