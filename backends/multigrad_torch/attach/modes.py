"""How an audit runs a function under a mode of torch: forward mode, vmap, checkpoints, autocast."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from multigrad.engine.backend.features import Modes, run_on_tensors_alone
from multigrad.errors import GradientError

from ..known_faults import COMPILED
from .kept_tensors import kept
from .vjp import as_leaf, custom_nodes, outside_inference, plain, vjp

Tensor: TypeAlias = torch.Tensor
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]
Pull: TypeAlias = Callable[[Sequence[Any]], list[Tensor | None]]


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Tensor | None]]:
    is_recorded = torch.is_grad_enabled()
    with outside_inference(), torch.set_grad_enabled(is_recorded), forward_ad.dual_level():
        duals = [
            x if tangent is None else forward_ad.make_dual(x, tangent)
            for x, tangent in zip(plain(inputs), plain(tangents), strict=True)
        ]
        parts = [forward_ad.unpack_dual(y) for y in run(duals)]
    return [part.primal for part in parts], [part.tangent for part in parts]


def checkpointed(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return the outputs and the pullback, as `vjp` does, of the function under a checkpoint."""

    def recomputed(tensors: Sequence[Tensor]) -> list[Any]:
        return checkpoint(lambda *args: run(args), *tensors, use_reentrant=False)

    return vjp(recomputed, inputs)


def mapped(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return the outputs and the pullback, as `vjp` does, of the function under vmap."""

    def of_each(tensors: Sequence[Tensor]) -> list[Any]:
        return run_on_tensors_alone(torch.func.vmap, run, tensors, torch.is_tensor)

    return vjp(of_each, inputs)


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo limits how often it compiles one code object; the reset starts that count again.
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def reentrant(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return outputs and pullback under a reentrant checkpoint: only leaves get gradients."""
    xs = [as_leaf(x) for x in inputs]
    with torch.enable_grad():
        outputs = list(checkpoint(lambda *args: tuple(run(args)), *xs, use_reentrant=True))
    active = [i for i, y in enumerate(outputs) if isinstance(y, Tensor) and y.requires_grad]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        for x in xs:
            # `backward` adds to what the previous call has left.
            x.grad = None
        if active:
            heads = [
                torch.zeros_like(outputs[i]) if cotangents[i] is None else cotangents[i]
                for i in active
            ]
            torch.autograd.backward([outputs[i] for i in active], heads, retain_graph=True)
        return [torch.zeros_like(x) if x.grad is None and x.requires_grad else x.grad for x in xs]

    return [y.detach() if isinstance(y, Tensor) else y for y in outputs], pullback


def autocast(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return outputs and pullback with only forward under autocast, as in a training step."""
    device = torch.get_default_device().type
    nodes: list[Any] = []

    def cast(tensors: Sequence[Tensor]) -> list[Any]:
        with torch.autocast(device, torch.bfloat16):
            outputs = run(tensors)
        # Read while `outputs` still lead to them: `vjp` detaches what it returns.
        nodes[:] = custom_nodes(outputs)
        for node in nodes:
            device_type = _device_asked(node._forward_cls.forward)
            if device_type not in ("", device):
                raise NotImplementedError(
                    f"its custom_fwd is for the autocast of {device_type}, and it runs on {device}"
                )
        return outputs

    outputs, pull = vjp(cast, inputs)

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        try:
            return pull(cotangents)
        except Exception as error:
            if not any(_device_asked(node._forward_cls.forward) for node in nodes):
                raise
            raise GradientError(
                "its custom_fwd says that it takes autocast, and its backward raises "
                f"{type(error).__name__}: {error}"
            ) from error

    return outputs, pullback


def _device_asked(forward: Any) -> str:
    while forward is not None:
        # torch's `custom_fwd` keeps its device only in the closure of `decorate_fwd`.
        code = getattr(forward, "__code__", None)
        if code is not None and code.co_name == "decorate_fwd":
            return str(inspect.getclosurevars(forward).nonlocals["device_type"])
        forward = getattr(forward, "__wrapped__", None)
    return ""


# --- transforms inside the compiler ---------------------------------------------------------------
def _transformed(transform: Callable[..., Any]) -> Callable[..., list[Tensor]]:
    """Return a function of (run, inputs, cotangents) that compiles a transform of their product."""

    def gradients(run: Run, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
        wrt = tuple(i for i, x in enumerate(inputs) if x.is_floating_point())

        def product(*xs: Tensor) -> Tensor:
            pairs = zip(run(xs), cotangents, strict=True)
            return sum((y * c).sum() for y, c in pairs)  # type: ignore[return-value]

        return list(whole(transform(product, wrt))(*inputs))

    return gradients


def _by_vjp(product: Callable[..., Tensor], wrt: tuple[int, ...]) -> Callable[..., Any]:
    def pulled(*xs: Tensor) -> list[Tensor]:
        y, pull = torch.func.vjp(product, *xs)
        gradients = pull(torch.ones_like(y))
        return [gradients[i] for i in wrt]

    return pulled


def _by_vmap(product: Callable[..., Tensor], wrt: tuple[int, ...]) -> Callable[..., Any]:
    mapped_grad = torch.func.vmap(torch.func.grad(product, wrt))

    def pulled(*xs: Tensor) -> list[Tensor]:
        return [g[0] for g in mapped_grad(*[x[None] for x in xs])]

    return pulled


def _under_budget(
    run: Run, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return gradients of compiled code that keeps little, and computes the rest again."""
    torch._dynamo.reset()
    with torch._functorch.config.patch(activation_memory_budget=0.1):
        call = torch.compile(lambda *xs: tuple(run(xs)), backend="aot_eager_decomp_partition")
        _, pull = vjp(lambda xs: list(call(*xs)), inputs, again=False)
        gradients = pull(cotangents)
    return [g for g, x in zip(gradients, inputs, strict=True) if x.is_floating_point()]


TRANSFORMS = {
    "torch.compile(grad)": _transformed(torch.func.grad),
    "torch.compile(vjp)": _transformed(_by_vjp),
    "torch.compile(jacrev)": _transformed(torch.func.jacrev),
    "torch.compile(vmap(grad))": _transformed(_by_vmap),
    "torch.compile with activation_memory_budget=0.1": _under_budget,
}


@cache
def drops(name: str) -> str:
    """Return why the transform of that name loses the backward of any Function, else ""."""
    namespace: dict[str, Any] = {}
    try:
        exec(COMPILED[name].code, namespace)  # noqa: S102  # our own
        if not namespace["found"](lambda function: function):
            return ""
    except Exception:  # noqa: BLE001  # torch refuses, or there is no such fault
        return ""
    return f"torch {torch.__version__} drops the backward of any Function under {name}"


MODES = Modes(
    jvp=jvp,
    checkpoints={
        "torch.utils.checkpoint": checkpointed,
        "torch.utils.checkpoint with use_reentrant=True": reentrant,
    },
    mapped=mapped,
    whole=whole,
    # Compiled code may free what a second backward would read.
    once=partial(vjp, again=False),
    autocast=autocast,
    transforms=TRANSFORMS,
    drops=drops,
    kept=kept,
)
