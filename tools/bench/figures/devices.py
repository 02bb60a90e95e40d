"""A training step on several devices with a rule against one without; and how a step scales.

`python tools/bench devices torch | jax | tensorflow [--quick] [--scaling]`. The processes
start once for each way of splitting a batch; in them the steps run interleaved, each ratio is one
of two right after each other, and the quartiles are shown: of what the processors worked, which
other programs on the machine do not touch as they do the time on the wall.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from demo.parallel.groups import Group, explain, make_group, started
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
    group = make_group(framework, devices)
    processes = 1 if framework == "tensorflow" else group.processes
    group = Group(framework, devices, processes, {**group.environment, **ONE_THREAD})
    job = {"framework": framework, "way": way, "devices": devices, "batch": batch, **more}
    with TemporaryDirectory(prefix="multigrad-bench-") as name:
        folder = Path(name)
        (folder / JOB).write_text(json.dumps(job), encoding="utf-8")
        with started(group, folder, f"{__package__}.on_devices") as running:
            # The first that fails ends the others, which would wait for it.
            codes: list[int | None] = [None]
            while None in codes:
                time.sleep(0.05)
                codes = [process.poll() for process in running]
                for rank, code in enumerate(codes):
                    if code:
                        raise MultigradError(explain(folder, rank, code))
        return json.loads((folder / RESULT).read_text(encoding="utf-8"))


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
            in_process = devices // make_group(framework, devices).processes
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
