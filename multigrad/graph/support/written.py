"""What the rooms below `Rule` know of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .fused import Fused

if TYPE_CHECKING:
    from typing_extensions import Self


class WrittenRule(Protocol):
    """A rule as it was written: a function, or others in series."""

    @property
    def name(self) -> str:
        """The name it was registered under, or the function's."""
        ...

    @property
    def function(self) -> Any:
        """What it was made of; None: others in series."""
        ...

    @property
    def parts(self) -> tuple[Any, ...]:
        """Those others."""
        ...

    @property
    def native(self) -> bool | None:
        """See `register`."""
        ...

    @property
    def first_order(self) -> bool:
        """See `register`."""
        ...

    @property
    def prove(self) -> bool:
        """See `register`."""
        ...

    @property
    def shards(self) -> Any:
        """What its reductions and draws are taken over; None: as the framework has it."""
        ...

    @property
    def fused(self) -> Fused:
        """Whether it runs as one compiled kernel, where that is chosen."""
        ...

    @property
    def residuals(self) -> str:
        """What forward keeps for it, where that is chosen."""
        ...

    @property
    def bound(self) -> Mapping[str, Any]:
        """The params that are set, with their values."""
        ...

    @property
    def signature(self) -> Any:
        """What may be set from outside."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """The same, with the defaults."""
        ...

    @property
    def own_ranges(self) -> Mapping[str, Any]:
        """Which values its own params take."""
        ...

    def _resolved_parts(self) -> tuple[Self, ...]:
        """Return the parts, names looked up now."""
        ...

    def _check_ranges(self, values: Mapping[str, Any], *, whole: bool = False) -> None:
        """Check the values of params, as far as they are numbers and known."""
        ...

    def _run(self, trace: Any, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any:
        """Apply it inside a capture."""
        ...

    def _run_native(self, ctx: Any, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any:
        """Apply it as it is, on a framework's tensors."""
        ...

    def copy(self, **changes: Any) -> Self:
        """Return it with other attributes."""
        ...
