"""Comparison of fused kernels with plain code, made before kernels are used.

Results that no reduction feeds must have the bits of plain code. Others may differ from a run in
float64 by four roundings of the largest number they come from, or by 1.5 times as much as plain
code does. Where plain code overflows, and is off by as much as that number, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from multigrad.engine.lowering.kernel_code.passes import (
    COLUMN,
    FULL,
    WHOLE,
    CannotFuseError,
    KernelLayout,
)

from ...core.state import eager_of
from . import c_kernels

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor
# Elements of samples (no vector's width or thread's share divides it), and of a short one.
DRAWN, BLOCK = 3 * c_kernels.GRAIN + 13, 1 << 10
EDGES = (0.0, float("inf"), float("nan"), 1e-45, 1e-40, 1.1754944e-38, 0.5, 1.0, 1.5, 2.5, 3e38)
# Shapes on which reductions are compared: with edge values too, and with drawn numbers only.
SMALL = ((7,), (5, 4))
MORE = ((2,), (2, 3, 2), (3, 67), (3, 4097), (c_kernels.GRAIN + 5,))
# Numbers for tensors of one element.
ONES = (0.37, -1.25, 2.0, 0.0, float("inf"), float("nan"))


def agree(native: Any, kernels: Any, values: Any) -> None:
    """Raise CannotFuseError unless forward and backward agree with eager code."""
    is_exact = are_exact(kernels)
    has_ones = any(layout.kind not in (FULL, COLUMN) for layout in kernels.layouts.values())
    for ones in ONES if has_ones else ONES[:1]:
        if any(is_exact) and not same_bits(native, kernels, values, ones, is_exact):
            raise CannotFuseError("the bits would be others than those of plain code")
    if not all(is_exact) and not is_near(native, kernels, values):
        raise CannotFuseError("the numbers would be less exact than those of plain code")


def are_exact(kernels: Any) -> list[bool]:
    """Return for each output, and each input's gradient, whether no reduction feeds it."""
    emitted, places = kernels.emitted, kernels.keep.kernel.parts.results
    exactness = dict.fromkeys(emitted.names.outputs, True)
    exactness |= {n: not each.is_reduced for n, each in zip(kernels.names, places, strict=True)}
    # A gradient is exact only if everything it reads from forward is, too.
    wrt_places = kernels.backward.kernel.parts.results
    slopes = {n: not each.is_reduced for n, each in zip(emitted.names.wrt, wrt_places, strict=True)}
    is_forward_exact = all(exactness.values())
    gradients = [is_forward_exact and slopes.get(name, True) for name in emitted.names.inputs]
    return [*[exactness[name] for name in emitted.names.outputs], *gradients]


def fitting(kernels: Any, shapes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the shapes with as many axes as kernels need, padded by axes of length 1."""
    row_shapes = [(*shape, *[1] * (kernels.row_axes - 1)) for shape in shapes]
    if kernels.rank is None:
        return row_shapes
    pairs = [(kernels.rank - len(shape), shape) for shape in row_shapes]
    return [(*[1] * missing, *shape) for missing, shape in pairs if missing >= 0]


def run(
    apply: Any, rest: Any, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    outputs = apply(*leaves, *rest)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    active = [i for i, each in enumerate(outputs) if each.requires_grad]
    gradients = torch.autograd.grad(
        [outputs[i] for i in active],
        leaves,
        [cotangents[i].flatten()[: outputs[i].numel()].reshape(outputs[i].shape) for i in active],
        allow_unused=True,
    )
    return [None if each is None else each.detach() for each in (*outputs, *gradients)]


def apply_new(kernels: Any, values: Any, *tensors: Tensor) -> Any:
    call = kernels.prepare_call(values, tensors[kernels.first].shape, kernels.device)
    return kernels.apply(*tensors, call)


def prepared(native: Any, like: Tensor, values: Any) -> Any:
    return values if native.prepare is None else (native.constants.of(like, values),)


def same_bits(native: Any, kernels: Any, values: Any, one: float, is_exact: list[bool]) -> bool:
    """Compare the bits of results that no reduction feeds; tensors of one element contain `one`."""
    samples = make_samples(native.emitted, kernels, values)
    layouts = list(map(kernels.layouts.__getitem__, native.emitted.names.inputs))
    arguments = prepared(native, samples[0], values)

    def sample(x: Tensor, layout: KernelLayout, part: slice) -> Tensor:
        x = x[part]
        shape = layout.shape(fitting(kernels, ((len(x),),))[0])
        return x.view(shape) if layout.kind in (FULL, COLUMN) else x.new_full(shape, one)

    def run_part(apply: Any, arguments: Any, part: slice) -> list[Tensor]:
        pairs = zip(samples, layouts, strict=False)
        inputs = [sample(x, layout, part) for x, layout in pairs]
        results = run(apply, arguments, inputs, [x[part] for x in samples[len(layouts) :]])
        pairs = zip(results, is_exact, strict=True)
        return [each for each, is_exact_result in pairs if is_exact_result and each is not None]

    eager, fused = eager_of(native), partial(apply_new, kernels, values)
    # The length of one part nothing divides, that of the other many widths do.
    parts = slice(None), slice(BLOCK)
    pairs = [(run_part(fused, (), part), run_part(eager, arguments, part)) for part in parts]
    return all(all(map(are_same, fused_part, plain_part)) for fused_part, plain_part in pairs)


def is_near(native: Any, kernels: Any, values: Any) -> bool:
    layouts = list(map(kernels.layouts.__getitem__, native.emitted.names.inputs))
    generator = torch.Generator("cpu").manual_seed(0)
    edge_shapes = fitting(kernels, SMALL)
    for shape in (*edge_shapes, *fitting(kernels, MORE)):
        tensors = []
        for layout in [*layouts, *[WHOLE for _ in native.emitted.names.outputs]]:
            sample = torch.randn(layout.shape(shape), generator=generator, device="cpu")
            # Numbers and rows away from zero, as they may divide.
            sample = sample.abs() + 0.25 if layout.kind not in (FULL, COLUMN) else sample
            tensors.append(sample.to(kernels.device, kernels.dtype))
        trials = [tensors]
        for edge in EDGES if shape in edge_shapes else ():
            edge_everywhere = [torch.full_like(x, edge) if x.shape == shape else x for x in tensors]
            pointwise = [x.clone() for x in tensors]
            for x in pointwise:
                if x.shape == shape:
                    x.view(-1)[x.numel() // 2] = edge
            trials += [edge_everywhere, pointwise]
        for trial in trials:
            if not is_near_on(native, kernels, values, trial):
                return False
    return True


def is_near_on(native: Any, kernels: Any, values: Any, trial: Sequence[Tensor]) -> bool:
    count = len(native.emitted.names.inputs)
    eager = eager_of(native)
    # The same code in float64 tells how far off ours and plain code are.
    doubles = [each.double() for each in trial]
    arguments = prepared(native, trial[0], values)
    fused = run(partial(apply_new, kernels, values), (), trial[:count], trial[count:])
    plain = run(eager, arguments, trial[:count], trial[count:])
    exact = run(eager, prepared(native, doubles[0], values), doubles[:count], doubles[count:])
    largest = max([float(torch.where(x.isfinite(), x, 0.0).abs().max()) for x in doubles])
    least = 4 * torch.finfo(kernels.dtype).eps
    for fused_y, plain_y, exact_y in zip(fused, plain, exact, strict=True):
        if fused_y is None or plain_y is None or exact_y is None:
            if fused_y is not plain_y:
                return False
            continue
        a, b, c = fused_y.double(), plain_y.double(), exact_y.double()
        is_finite = c.isfinite()
        # Rounding errors are relative to the largest number that a sum may contain.
        scale = max(largest, float(torch.where(is_finite, c, 0.0).abs().max()))
        errors = torch.where(is_finite, (b - c).abs(), 0.0).nan_to_num(float("inf"))
        error = float(errors.max())
        is_same = (a == b) | (a == c) | (a.isnan() & (b.isnan() | c.isnan())) | (errors >= scale)
        if not bool((is_same | ((a - c).abs() <= max(least * scale, 1.5 * error))).all()):
            return False
    return True


def make_samples(emitted: Emitted, kernels: Any, values: Any) -> list[Tensor]:
    """Return inputs and cotangents: every pair of edge values, then drawn numbers."""
    numbers = [*values, *[-value for value in values]]
    edge_numbers = [*EDGES, *[-each for each in EDGES], *numbers]
    edges = torch.tensor(edge_numbers, dtype=kernels.dtype, device="cpu")
    one = torch.ones((), dtype=torch.float32, device="cpu")
    edges = torch.cat([edges, torch.nextafter(edges.float(), one).to(kernels.dtype)])
    generator = torch.Generator("cpu").manual_seed(0)
    samples = []
    for i in range(len(emitted.names.inputs) + len(emitted.names.outputs)):
        # Odd tensors repeat the whole list, even ones each value: together they meet in all pairs.
        sample = edges.repeat(len(edges)) if i % 2 else edges.repeat_interleave(len(edges))
        normals = torch.randn(DRAWN, generator=generator, device="cpu").to(kernels.dtype)
        # Rolled by pairs, or tensors 0 and 2 would be equal.
        samples.append(torch.cat([sample.roll((i // 2) * 7), normals]).to(kernels.device))
    return samples


def are_same(a: Tensor, b: Tensor) -> bool:
    """Return whether numbers are equal, including the signs of zeros; NaN equals NaN."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    both_nan = a.isnan() & b.isnan()
    is_equal = (a == b) & (a.signbit() == b.signbit())
    return bool((is_equal | both_nan).all())
