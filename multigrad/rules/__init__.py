"""The rule library, one file per family; importing it registers every rule.

May import the rooms up to `in_force`; docs/architecture.md has their order.
"""

from . import (
    attribution,
    braintools,
    jamming,
    peers,
    snntorch,
    spiking,
    spikingjelly,
    straight_through,
    surrogate,
    transforms,
)

__all__ = [
    "attribution", "braintools", "jamming", "peers", "snntorch", "spiking", "spikingjelly",
    "straight_through", "surrogate", "transforms",
]  # fmt: skip
