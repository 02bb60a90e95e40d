"""Compile kernels of rules for an H100 by Triton, which needs none for that, and have them launched
by a driver that does nothing; write their PTX, and how often each was compiled.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from test_every_rule import every_op
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import multigrad as xg
from multigrad_torch.attach.fusing import fused, in_triton

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


driver.set_active(Driver())
found, variants = {}, []
every = xg.function(every_op, lambda gs, x, y: (gs[0] * x, gs[1] * y))
for function, dtypes in {
    every: [torch.float32, torch.float64],
    "triangular": [torch.float32],
    "rectangular": [torch.float32],
    "arctan": [torch.float32, torch.float64, torch.bfloat16],
}.items():
    rule = function if isinstance(function, str) else "every op"
    forward: Any = {"forward": "Heaviside"} if isinstance(function, str) else {}
    native = xg.lower(function, "torch", **forward)
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        kernels = fused.write(native.emitted, name, in_triton)
        for each, launch in zip(
            kernels, in_triton.load(kernels, torch.empty(0, dtype=dtype)), strict=True
        ):
            compiled = launch.function.device_caches[0][0]
            places = [*each.parts.inputs, *each.parts.results]
            numbers = [0.1] * each.parts.numbers
            for n in (4096, 4097):
                tensors = [torch.empty(n, dtype=in_triton.stored(p, dtype)) for p in places]
                launch(tensors, numbers, n)
            variants.append(len(compiled))
            # Of lengths that 16 divides, and of others: the first was compiled first.
            divided, odd = [text.asm["ptx"] for text in compiled.values()][:2]
            found |= {f"{rule} {name} {each.name}": divided, f"{rule} {name} {each.name}, odd": odd}
print(json.dumps({"ptx": found, "variants": variants, "launches": len(launched)}))
