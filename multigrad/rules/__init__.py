"""The rule library, one file per family; importing it registers every rule.

May import the rooms up to `in_force`; docs/architecture.md has their order.
"""

from . import attribution, jamming, straight_through, surrogate, transforms

__all__ = ["attribution", "jamming", "straight_through", "surrogate", "transforms"]
