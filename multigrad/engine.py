"""What stands above the core and registers with it: for each function of the core that something
above provides, its place. Nothing is loaded before it is called.
"""

from __future__ import annotations

from .graph.support.provided import provide

provide(
    {
        "multigrad.graph.ops:list_families": "multigrad.graph.ops.arrays.families:list_families",
    }
)
