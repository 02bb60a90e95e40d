"""`xg.xp`: the neutral dialect, importable as a namespace. See `multigrad.ir.neutral` for its meaning."""

from ..ir.neutral import *
