"""Compile kernels of rules for an H100 by Triton, which needs none for that; write their PTX."""

from __future__ import annotations

import json

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import multigrad as xg
from multigrad_torch.attach.fusing import fused, in_triton


class Driver:
    """A GPU as Triton asks of it before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


driver.set_active(Driver())
found = {}
for rule in ("triangular", "rectangular", "arctan"):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        if dtype is torch.float32 or rule == "arctan":
            emitted = xg.lower(rule, "torch", forward="Heaviside").emitted
            name = str(dtype).removeprefix("torch.")
            kernels = fused.write(emitted, name, in_triton)
            for each, launch in zip(
                kernels, in_triton.load(kernels, torch.empty(0, dtype=dtype)), strict=True
            ):
                # Of lengths that 16 divides, and of others: the first was compiled first.
                texts = list(launch.function.device_caches[0][0].values())
                found[f"{rule} {name} {each.name}"] = texts[0].asm["ptx"]
                found[f"{rule} {name} {each.name}, odd"] = texts[1].asm["ptx"]
print(json.dumps(found))
