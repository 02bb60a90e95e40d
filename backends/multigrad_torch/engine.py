"""What stands above this package's core: for each function of the core that something above
provides, its place.
"""

from __future__ import annotations

from multigrad.graph.support.provided import provide

HERE = __name__.rpartition(".")[0]
provide(
    {
        f"{HERE}.attach.attach:begin_fusing": f"{HERE}.attach.fusing.dispatch:begin_fusing",
        f"{HERE}.attach.attach:run_bare_distributed": f"{HERE}.dtensors:run_bare_distributed",
        f"{HERE}.attach.attach:run_distributed": f"{HERE}.dtensors:run_distributed",
    }
)
