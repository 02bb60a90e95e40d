"""`xg.xp`: the neutral dialect, importable as a namespace. See `multigrad.ir.neutral` for its meaning."""

from ..ir.neutral import *  # noqa: F403
from ..ir.neutral import __all__ as __all__
