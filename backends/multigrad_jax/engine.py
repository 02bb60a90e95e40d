"""What the rest of this package registers with its core: for each function of the core that it
provides, its place.
"""

from __future__ import annotations

from multigrad.core.support.lazy_modules import provide

provide("multigrad_jax", {
    "core.attach.render": {
        "attach.forward_mode": "render_forward_mode",
        "distributed": "in_shards",
    },
    "kernels.random": {"distributed": "draw_part"},
})  # fmt: skip
