"""Types in public signatures, and the protocol of a written rule.

`P` and `R` are the parameters and result of a user's function. A bare `Function` in an annotation
means one of any parameters; the typing module of Python 3.11 has no such defaults, and only
checkers read them. Rooms that may not import `Rule` use the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from .params import Fused

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Self, TypeVar

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

__all__ = ["Axes", "Key", "Over", "P", "R", "Residuals", "WrittenRule"]


class WrittenRule(Protocol):
    """A rule as it was written: a function, or others in series."""

    @property
    def name(self) -> str: ...  # the name it was registered under, or the function's

    @property
    def function(self) -> Any: ...  # what it was made of; None: others in series

    @property
    def parts(self) -> tuple[Any, ...]: ...  # those others

    @property
    def native(self) -> bool | None: ...  # see `register`

    @property
    def prove(self) -> bool: ...  # see `register`

    @property
    def shards(self) -> Any: ...  # the shards of its reductions and draws, if given

    @property
    def first_order(self) -> bool: ...  # see `register`

    @property
    def fused(self) -> Fused: ...  # whether it runs as one compiled kernel, where that is chosen

    @property
    def residuals(self) -> str: ...  # what forward keeps for it, where that is chosen

    @property
    def bound(self) -> Mapping[str, Any]: ...  # the params that are set, with their values

    @property
    def signature(self) -> Any: ...  # what may be set from outside

    @property
    def own_ranges(self) -> Mapping[str, Any]: ...  # which values its own params take

    # The parts; names among them are looked up at the call.
    def _resolved_parts(self) -> tuple[Self, ...]: ...

    def _check_ranges(self, values: Mapping[str, Any], *, whole: bool = False) -> None: ...

    # Apply it inside a capture; natively, to a framework's own tensors.
    def _run(self, trace: Any, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any: ...

    def _run_native(self, ctx: Any, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any: ...

    def copy(self, **changes: Any) -> Self: ...
