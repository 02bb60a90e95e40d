"""What the rest of this package registers with its core: for each function of the core that it
provides, its place.
"""

from __future__ import annotations

from multigrad.core.support.provided import provide

HERE = __name__.rpartition(".")[0]
provide(
    {
        f"{HERE}.core.attach.host:make_group": f"{HERE}.distributed:make_group",
        f"{HERE}.core.attach.render:in_shards": f"{HERE}.distributed:in_shards",
        f"{HERE}.core.kernels.random:draw_part": f"{HERE}.distributed:draw_part",
    }
)
