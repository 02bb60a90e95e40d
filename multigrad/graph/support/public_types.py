"""Types in public signatures.

`P` and `R` are the parameters and result of a user's function. A bare `Function` in an annotation
means one of any parameters; the typing module of Python 3.11 has no such defaults, and only
checkers read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")

# Values of frameworks that may not be installed.
Key: TypeAlias = Any  # an int, a jax key, or two uint32
Over: TypeAlias = Any  # "global", "shard" or a partition spec
Axes: TypeAlias = Any  # the name of a mesh axis or group, a tuple of them, or torch's group or mesh
Residuals: TypeAlias = Literal["auto", "input", "mask", "packed", "recompute", "time"]

__all__ = ["Axes", "Key", "Over", "P", "R", "Residuals"]
