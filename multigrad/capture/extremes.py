"""`max` and `min` along a dim, as torch has them: values, and indices that may be unpacked but not
used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tracing.trace import Value

Tensor = Any


class Extremes:
    """What torch returns for `max` and `min` along a dim: `.values`, and indices, not captured."""

    __slots__ = ("values",)

    def __init__(self, values: Value) -> None:
        self.values = values

    @property
    def indices(self) -> Any:
        return Indices(self.values)

    def __getitem__(self, index: int) -> Any:
        return (self.values, self.indices)[index]

    def __iter__(self) -> Any:
        return iter((self.values, self.indices))


class Indices(Value):
    """Indices that may be unpacked, as in `values, _ = x.max(dim=0)`, but not used."""

    __slots__ = ()

    def __init__(self, of: Value) -> None:
        self.trace = of.trace

    @property
    def node(self) -> Any:  # type: ignore[override]
        raise self.trace.error(
            "uses the indices of a maximum or minimum, which are not captured. Compare instead: x "
            "== x.amax(dim, keepdim=True)"
        )

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return next(a for a in args if isinstance(a, Indices)).node

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.node


def extremes(
    reduce: Callable[..., Tensor], pair: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """`max` or `min` as in torch: of all, of two tensors, or along a dim with indices."""
    other = kwargs.get("other", args[0] if args else None)
    if other is not None and not isinstance(other, int):
        return pair(x, other)
    if not args and not kwargs:
        return reduce(x)

    def along(dim: int, keepdim: bool = False) -> Extremes:
        return Extremes(reduce(x, axis=dim, keepdims=keepdim))

    return along(*args, **kwargs)
