"""A training step on several devices with a rule against one without; and how a step scales.

`python tools/bench devices torch | jax | tensorflow [--quick] [--scaling]`. The processes
start once for each way of splitting a batch; in them the steps run interleaved, each ratio is one
of two right after each other, and the quartiles are shown: of what the processors worked, which
other programs on the machine do not touch as they do the time on the wall.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multigrad.errors import MultigradError

from .on_devices import JOB, RESULT

WAYS = {
    "torch": ("DDP", "FSDP2"),
    "jax": ("automatic", "shard_map"),
    "tensorflow": ("MirroredStrategy",),
}
SCALED = {"torch": ("DDP", (1, 2)), "jax": ("automatic", (1, 2, 4))}
RULES = ("none", "elementwise", "norm")
BATCH = 512
STEPS, QUICK_STEPS = 200, 40
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def run_job(framework: str, way: str, devices: int, batch: int, **more: Any) -> dict[str, Any]:
    job = {"framework": framework, "way": way, "devices": devices, "batch": batch, **more}
    jax = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    found = {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**os.environ, **ONE_THREAD, **jax, **found}
    with TemporaryDirectory(prefix="multigrad-bench-") as folder:
        Path(folder, JOB).write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", f"{__package__}.on_devices", folder]
        running = [
            subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, env=environment)
            for rank in range(count_processes(framework, devices))
        ]
        try:
            # The first that fails ends the others, which would wait for it.
            codes: list[int | None] = [None]
            while None in codes:
                time.sleep(0.05)
                codes = [process.poll() for process in running]
                if failed := next(filter(None, codes), None):
                    raise MultigradError(f"{framework}, {way}: a process ended with code {failed}")
        finally:
            for process in running:
                process.kill()
                process.communicate()
        return json.loads(Path(folder, RESULT).read_text(encoding="utf-8"))


def count_processes(framework: str, devices: int) -> int:
    """Return 1 where a process has all devices."""
    return devices if framework == "torch" else 1


def compare_rules(framework: str, steps: int) -> None:
    """Print the ratios of each way, beside those of one device."""
    for devices in (1, 2):
        for way in WAYS[framework]:
            found = run_job(framework, way, devices, BATCH // devices, rules=RULES, steps=steps)
            for rule in RULES[1:]:
                low, middle, high = found["ratios"][rule]
                label = f"{framework} {way}, {devices} device{'s' * (devices > 1)}, {rule}"
                print(f"{label:46} {middle:6.3f}  ({low:.3f} ... {high:.3f})")


def compare_devices(framework: str, steps: int) -> None:
    """Print how a step with an elementwise rule scales: the same batch, and the same per device.

    Beside the time on the wall stands what a device's processor worked, which other programs, and
    devices that share a core, do not touch as they do the wall.
    """
    way, counts = SCALED[framework]
    for kind in ("strong", "weak"):
        base = None
        for devices in counts:
            size = BATCH // devices if kind == "strong" else BATCH
            found = run_job(framework, way, devices, size, rules=RULES[1:2], steps=steps)
            in_process = devices // count_processes(framework, devices)
            worked = found["worked"][RULES[1]] * 1e3 / in_process
            base = base or worked
            label = f"{framework} {way}, {kind}, {devices} x {size}"
            wall = found["wall"][RULES[1]] * 1e3
            print(
                f"{label:42} {worked:6.2f} ms of a processor ({worked / base:.2f} of one device),"
                f" {wall:6.2f} ms on the wall"
            )


def main(words: list[str]) -> None:
    steps = QUICK_STEPS if "--quick" in words else STEPS
    for name in words:
        if name in WAYS and "--scaling" not in words:
            compare_rules(name, steps)
        elif name in SCALED:
            compare_devices(name, steps)


if __name__ == "__main__":
    main(sys.argv[1:])
