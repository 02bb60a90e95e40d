"""Attribution: relevance rules, which read a layer's weights, composites, averaged gradients."""

from typing import TYPE_CHECKING

from ...graph.support.lazy_modules import module_hooks
from . import composites
from .averaging import integrated, smooth
from .kinds import merge_batch_norm
from .relevance import alpha_beta, epsilon, flat, gamma, norm, wsquare, zbox, zplus

__all__ = [
    "alpha_beta", "composites", "epsilon", "flat", "gamma", "integrated", "merge_batch_norm",
    "norm", "smooth", "wsquare", "zbox", "zplus",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)
