"""Params as they are given: by name, as a dict that people may look at but change elsewhere.

"noise.sigma" is the param sigma of the part noise, "noise[1].sigma" that of the second part of this
name. A part's name may hold dots of its own, so the last dot is the one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ...errors import RuleTypeError, suggest

_WORDS = {str}
_WITH_INDEX = re.compile(r"(?P<name>.*)\[(?P<index>\d+)\]")


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


# --- of parts -----------------------------------------------------------------------------------
def is_address(name: str) -> bool:
    """Return whether a param is named with the part that it is of."""
    return "." in name


def find_part(owner: str, address: str, labels: Sequence[str]) -> tuple[int, str]:
    """Return the position of the part that an address names, and the param's own name.

    Args:
        owner: what messages call what has the parts.
        labels: the parts' names, equal ones among them.

    Raises:
        RuleTypeError: no part has the name, or several have it.
    """
    label, _, param = address.rpartition(".")
    found = [i for i, each in enumerate(labels) if each == label]
    if len(found) == 1:
        return found[0], param
    indexed = _WITH_INDEX.fullmatch(label)
    if found:
        which = ", ".join(f"{label}[{i}].{param}" for i in range(len(found)))
        raise RuleTypeError(f"{owner} has {len(found)} parts {label!r}: write one of {which}")
    same = [i for i, each in enumerate(labels) if indexed and each == indexed["name"]]
    if indexed and int(indexed["index"]) < len(same):
        return same[int(indexed["index"])], param
    known = list(dict.fromkeys(labels))
    raise RuleTypeError(
        f"{owner} has no part {label!r} for param {address!r}{suggest(label, known)} "
        f"(parts: {', '.join(labels)})"
    )
