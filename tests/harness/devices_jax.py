"""Several devices of jax on one processor: it reads their number from the environment."""

from __future__ import annotations

import os


def forced(devices: int) -> dict[str, str]:
    """Return what to add to the environment of a process that is to have so many devices."""
    others = os.environ.get("XLA_FLAGS", "--xla_backend_optimization_level=0")
    return {"XLA_FLAGS": f"{others} --xla_force_host_platform_device_count={devices}"}
