"""Compile kernels of rules for an H100 by Triton, which needs none for that, and have them launched
by a driver that does nothing; write their PTX, and how often each was compiled.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import multigrad as xg
from multigrad.engine.lowering.kernel_code.passes import WHOLE, KernelLayout
from multigrad_torch.attach.fusing import fused, triton_kernels

from .test_every_rule import REMAINDER, every_op
from .test_reductions import EXTREMES, MIXED, SOFTMAX

launched = []


class Launcher:
    """What launches one kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *args: Any) -> None:
        launched.append(args[-1])


class Driver:
    """A GPU as Triton asks of it before it compiles, and to load what it compiled."""

    launcher_cls = Launcher
    utils = SimpleNamespace(
        load_binary=lambda name, binary, shared, device: (1, 2, 32, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 1 << 18},
    )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def scaled_norm(x: Any, weight: Any) -> Any:
    """A norm of rows with its scale."""
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def gradients(grad_out: Any, x: Any, weight: Any) -> Any:
    size = xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    slope = grad_out * weight
    share = xp.mean(slope * x, axis=-1, keepdims=True) / (size * size)
    return (slope - share * x) / size, xp.sum_to(grad_out * x / size, weight)


def exact_ops(x: Any, y: Any) -> tuple[Any, ...]:
    """Return what all ops give that are no functions of CUDA's."""
    found = every_op(x, y)
    return *found[:REMAINDER], *found[REMAINDER + 1 :]


driver.set_active(Driver())
xp, found, variants = xg.xp, {}, []
every = xg.function(exact_ops, lambda gs, x, y: (gs[0] * x, gs[1] * y))
norm = xg.function(scaled_norm, gradients)
ONE, ROW, COLUMN = KernelLayout("one", 0), KernelLayout("row", 1), KernelLayout("column", 1)
for name, function, dtypes, layouts in (
    ("every op", every, "float32 float64", [WHOLE, WHOLE]),
    ("triangular", "triangular", "float32", [WHOLE]),
    ("rectangular", "rectangular", "float32", [WHOLE]),
    ("arctan", "arctan", "float32 float64 bfloat16", [WHOLE]),
    ("gaussian", "gaussian", "float32", [WHOLE]),
    ("circle", "circle", "float32 float64", [WHOLE]),
    ("clip_rms", "clip_rms", "float32", [WHOLE]),
    ("centralize", "centralize", "float32", [WHOLE]),
    ("lsq", xg.estimators.lsq, "float32 bfloat16", [WHOLE, ONE]),
    ("lsq of rows", xg.estimators.lsq, "float32", [WHOLE, ROW]),
    ("lsq of columns", xg.estimators.lsq, "float32", [WHOLE, COLUMN]),
    ("norm", norm, "float32", [WHOLE, COLUMN]),
    ("mixed", xg.function(*MIXED), "float64", [WHOLE, COLUMN]),
    ("softmax", xg.function(*SOFTMAX), "float32", [WHOLE]),
    ("extremes", xg.function(*EXTREMES), "float32", [WHOLE]),
):
    forward: Any = {"forward": "Heaviside"} if isinstance(function, str) else {}
    native = xg.lower(function, "torch", **forward)
    for dtype in dtypes.split():
        like = torch.empty(0, dtype=getattr(torch, dtype))
        own = dict(zip(native.emitted.names.inputs, layouts, strict=True))
        kernels = fused.write(native.emitted, dtype, triton_kernels, own)
        kernels = [each for each in kernels if each.parts.results]
        for each, launch in zip(kernels, triton_kernels.load(kernels, like), strict=True):
            places = [*each.parts.inputs, *each.parts.results]
            numbers = [0.1] * each.parts.numbers
            for n, columns in ((4096, 64), (4097, 17)):
                tensors = [
                    torch.empty(place.layout.shape((n // columns, columns)), dtype=kind)
                    for place in places
                    for kind in (triton_kernels.stored(place, like.dtype),)
                ]
                launch(tensors, launch.pack(numbers, n, columns))
            for i, (_, one) in enumerate(launch.stages):
                compiled = one.function.device_caches[0][0]
                variants.append(len(compiled) - len(one.known))
                # Of lengths that 16 divides, and of others: the first was compiled first.
                divided, odd = [text.asm["ptx"] for text in compiled.values()][-2:]
                text = f"{name} {dtype} {each.name}" + f" {i}" * (len(launch.stages) > 1)
                found |= {text: divided, f"{text}, odd": odd}
print(json.dumps({"ptx": found, "variants": variants, "launches": len(launched)}))
