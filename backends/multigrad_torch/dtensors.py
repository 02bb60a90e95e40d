"""DTensors: elementwise code runs on each process's part, other code on the whole by DTensor's ops.

A gradient has the placements of the tensor it belongs to. A partial tensor, whose parts are not
added up yet, is refused as an input, and added up as a cotangent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from multigrad.core.ir.op import INPUT_SHAPE
from multigrad.errors import GradientError, UnsupportedOp

from .core.state import is_distributed
from .core.versions import DTENSORS

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = torch.Tensor
ShardLayout: TypeAlias = tuple[Any, tuple[Any, ...]]  # a mesh, and placements on it


def layout_of(x: Tensor) -> ShardLayout:
    """Return a DTensor's mesh and placements, replicated ones instead of partial ones."""
    placements = [replicate() if each.is_partial() else each for each in x.placements]
    return x.device_mesh, tuple(placements)


def replicate() -> Any:
    return sys.modules[DTENSORS].Replicate()


def lay_out(x: Tensor, layout: ShardLayout | None) -> Tensor:
    """Redistribute a DTensor to a layout if there is one; any other tensor unchanged."""
    if layout is None or not is_distributed(x) or x.placements == layout[1]:
        return x
    return x.redistribute(*layout)


def refuse_partial(subject: str, x: Tensor, what: str = "an input") -> None:
    """Raise an error for a tensor whose parts are not added up yet."""
    if any(each.is_partial() for each in x.placements):
        raise GradientError(
            f"{subject} got {what} of placements {shown(x.placements)}, whose parts are not added "
            "up yet, so no process has its values. Call x.redistribute(placements="
            f"{shown(layout_of(x)[1])}) before"
        )


def shown(placements: Sequence[Any]) -> str:
    return f"[{', '.join(map(show_placement, placements))}]"


def show_placement(placement: Any) -> str:
    if placement.is_shard():
        return f"Shard({placement.dim})"
    return "Replicate()" if placement.is_replicate() else f"Partial({placement.reduce_op!r})"


# --- between a DTensor and its parts --------------------------------------------------------------


class ToLocal(Function):
    """This process's part of a DTensor; differentiable to any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        part = x._local_tensor
        part = part.wait() if hasattr(part, "wait") else part
        ctx.spec, ctx.stride = x._spec, part.stride()
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return as_whole(grad, ctx.spec, ctx.stride)


class FromLocal(Function):
    """The DTensor with a given spec, made of each process's part."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, spec: Any) -> Tensor:
        ctx.spec = spec
        kind = sys.modules[DTENSORS].DTensor
        return kind(local.detach(), spec, requires_grad=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        # For an output that nothing used torch passes plain zeros, no DTensor.
        if not is_distributed(grad):
            return None, None
        if grad.placements != ctx.spec.placements:
            grad = grad.redistribute(ctx.spec.mesh, ctx.spec.placements)
        return ToLocal.apply(grad), None


def to_parts(x: Tensor) -> Tensor:
    """Return this process's part of a DTensor; any other tensor unchanged."""
    return ToLocal.apply(x) if is_distributed(x) else x


def from_parts(y: Tensor, like: Tensor) -> Tensor:
    """Return the DTensor with the layout of `like`, made of each process's part."""
    if not is_distributed(like):
        return y
    part, spec = like._local_tensor, like._spec
    if y.shape != part.shape:
        raise GradientError(
            f"a rule on each process's part returned shape {tuple(y.shape)} for a part of shape "
            f"{tuple(part.shape)}; expected the same shape"
        )
    return as_whole(y, spec, part.stride())


def as_whole(part: Tensor, spec: Any, stride: tuple[int, ...]) -> Tensor:
    """Return the DTensor of parts, with the spec adapted to their dtype and strides."""
    if part.dtype != spec.tensor_meta.dtype or part.stride() != stride:
        part = part.contiguous() if 0 in part.stride() else part  # repeated by torch.expand
        spec = respaced(part, spec)
    return FromLocal.apply(part, spec)


def respaced(part: Tensor, spec: Any) -> Any:
    """Return a spec for parts of another dtype or another order in memory."""
    kind = sys.modules[DTENSORS].DTensor
    shape = spec.tensor_meta.shape
    # Dense, in the order of the part's strides, as torch.empty_like does.
    order = sorted(range(part.ndim), key=lambda i: (-part.stride(i), i))
    template = torch.empty([shape[i] for i in order], device="meta")
    template = template.permute([order.index(i) for i in range(part.ndim)])
    with torch.no_grad():
        dtensor = kind.from_local(
            part.detach(),
            spec.mesh,
            spec.placements,
            run_check=False,
            shape=shape,
            stride=template.stride(),
        )
    return dtensor._spec


def have_one_layout(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    return len(tensors) == 1 or all(
        is_distributed(x)
        and x.device_mesh == first.device_mesh
        and x.placements == first.placements
        and x.shape == first.shape
        for x in tensors
    )


# --- emitted code on DTensors ---------------------------------------------------------------------


def run_distributed(
    native: Any, tensors: Sequence[Tensor], values: tuple[Any, ...], local: Callable[..., Any]
) -> Any:
    """Apply an emitted class to tensors, one of which is a DTensor; `local` applies it to parts."""
    refuse_odd(native.subject, tensors)
    # Both attributes are set at the first call on a DTensor, as most classes never see one.
    if native.elementwise is None:
        emitted: Emitted = native.emitted
        bodies = (emitted.forward, emitted.keep, emitted.backward)
        types = (*emitted.origin.output_types, *emitted.origin.gradient_types)
        keep_shape = all(each.shape == INPUT_SHAPE for each in types)
        native.elementwise = keep_shape and all(body.elementwise for body in bodies)
    if native.elementwise and have_one_layout(tensors) and not any(map(is_distributed, values)):
        outputs = local(*map(to_parts, tensors), *values)
        if isinstance(outputs, tuple):
            return tuple(from_parts(y, tensors[0]) for y in outputs)
        return from_parts(outputs, tensors[0])
    if native.whole is None:
        native.whole = on_whole(native)
    return super(native, native.whole).apply(*tensors, *values)


def refuse_odd(subject: str, tensors: Sequence[Tensor]) -> None:
    """Raise an error for partial tensors, and for plain tensors next to DTensors."""
    mesh = next(x.device_mesh for x in tensors if is_distributed(x))
    for x in tensors:
        if is_distributed(x):
            refuse_partial(subject, x)
        elif x.ndim:
            raise GradientError(
                f"{subject} got a plain tensor of shape {tuple(x.shape)} beside a DTensor: say how "
                "it lies on the mesh, torch.distributed.tensor.distribute_tensor(x, mesh, "
                f"{shown([replicate()] * mesh.ndim)})"
            )


def on_whole(native: Any) -> Any:
    """Return an emitted class for DTensors, whose gradients have the layouts of the inputs."""

    class OnWhole(native):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            with OnDistributed(native.subject):
                return native.forward(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.layouts = [layout_of(x) if is_distributed(x) else None for x in inputs]
            ctx.output_layouts = [layout_of(y) if is_distributed(y) else None for y in outputs]
            native.setup_context(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
            pairs = zip(cotangents, ctx.output_layouts, strict=True)
            cotangents = tuple(lay_out(c, layout) for c, layout in pairs)
            with OnDistributed(native.subject):
                gradients = native.backward(ctx, *cotangents)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return tuple(lay_out(g, place) for g, place in zip(gradients, ctx.layouts, strict=True))

    OnWhole.__name__ = OnWhole.__qualname__ = f"{native.__name__}_on_whole"
    return OnWhole


class OnDistributed(TorchFunctionMode):
    """A mode for code on DTensors. Reductions are added up at once, as each op that reads a partial
    tensor would otherwise add it up again. An op that DTensor lacks raises an error with the way
    out.
    """

    def __init__(self, subject: str) -> None:
        super().__init__()
        self.subject = subject

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = self.run(func, args, kwargs or {})
        except RuntimeError as error:  # NotImplementedError among them
            if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
                raise  # a process failed, not the op
            tensors = [x for x in pytree.tree_leaves((args, kwargs)) if is_distributed(x)]
            raise UnsupportedOp(
                f"{self.subject} has an op that torch cannot do on DTensors of placements "
                f"{', '.join(shown(x.placements) for x in tensors)}: {str(error).splitlines()[0]} "
                "Call x.redistribute(placements=[Replicate(), ...]) before, so that every process "
                "has the whole, or let the rule act on each process's part: rule.over('shard')"
            ) from error
        return lay_out(result, layout_of(result)) if is_distributed(result) else result

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a torch function; plain tensors in it are constants, equal on all processes."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" not in str(error):
                raise
        leaves, tree = pytree.tree_flatten((args, kwargs))
        mesh = next(x.device_mesh for x in leaves if is_distributed(x))
        args, kwargs = pytree.tree_unflatten([everywhere(x, mesh) for x in leaves], tree)
        return func(*args, **kwargs)


def everywhere(x: Any, mesh: Any) -> Any:
    if not isinstance(x, torch.Tensor) or is_distributed(x):
        return x
    tensors = sys.modules[DTENSORS]
    return tensors.DTensor.from_local(x, mesh, [replicate()] * mesh.ndim, run_check=False)


def run_bare_distributed(
    function: Callable[..., Tensor], elementwise: bool, grad_out: Tensor, values: tuple[Any, ...]
) -> Tensor:
    """Apply an emitted bare rule to a gradient that is a DTensor."""
    subject = f"rule {function.__name__!r}"
    refuse_partial(subject, grad_out, "a gradient")
    tensors = (grad_out, *(x for x in values if is_distributed(x)))
    if elementwise and have_one_layout(tensors):
        return from_parts(function(*map(to_parts, (grad_out, *values))), grad_out)
    with OnDistributed(subject):
        return lay_out(function(grad_out, *values), layout_of(grad_out))
