"""Params as they are given, and as a dict that people may look at, but change elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ...errors import RuleTypeError

_WORDS = {str}


class FixedParams(dict[str, Any]):
    """Params by name; changing one raises TypeError, as it would act on nothing."""

    __slots__ = ("_advice",)

    def __init__(self, params: Any, advice: str) -> None:
        super().__init__(params)
        self._advice = advice

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"these params are a copy, so changing them changes nothing; {self._advice}"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    pop = popitem = clear = _refuse
    update: Any = _refuse
    setdefault: Any = _refuse

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def read_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the params given to a rule as a dict of their own.

    Raises:
        RuleTypeError: they are no mapping of names to values.
    """
    if params is None:
        return {}
    if type(params) is dict and _WORDS.issuperset(map(type, params)):  # each `use` asks
        return params.copy()
    if not isinstance(params, Mapping) or any(not isinstance(name, str) for name in params):
        raise RuleTypeError(
            f"params are a dict, such as {{'width': 1.0}}, got {type(params).__name__} "
            f"{params!r:.40}"
        )
    return dict(params)
