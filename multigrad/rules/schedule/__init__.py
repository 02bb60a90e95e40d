"""`xg.schedule`: numbers that move from step to step, for a rule's params.

A Schedule is a formula and a count. `step()` moves the count on; a rule that has the schedule for a
param reads its value at forward, so a backward uses the value of its forward. It becomes a number
in one place, `trace/lookups.py`: in eager code a float; in code that `xg.jit`,
torch.compile or tf.function keeps a tensor that follows it; under a plain jax.jit a constant, of
whose end jax is told. The formulas are written once, in the neutral dialect: `schedule(step)` takes
numbers and tensors of every framework, those of a trace among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.support.lazy_modules import namespace
from .schedule import Schedule, cosine, exponential, from_dict, linear, of, piecewise

__all__ = [
    "Schedule",
    "cosine",
    "exponential",
    "from_dict",
    "linear",
    "of",
    "piecewise",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = namespace(__name__, __all__)
