"""The rule library, one file per family; importing it registers every rule."""

from . import jamming, straight_through, surrogate, transforms

__all__ = ["jamming", "straight_through", "surrogate", "transforms"]
