"""Several devices of jax on one processor: it reads their number from the environment."""

from __future__ import annotations

# What is compared is placed and summed; the rounding of one op is for tests on one device. Without
# fusion a program of one op is compiled in half the time.
CHEAP = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def forced(devices: int) -> dict[str, str]:
    """Return what to add to the environment of a process that is to have so many devices."""
    return {"XLA_FLAGS": f"{CHEAP} --xla_force_host_platform_device_count={devices}"}
