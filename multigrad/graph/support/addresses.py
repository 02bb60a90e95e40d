"""Params of parts by name: "noise.sigma" is the param sigma of the part noise, "noise[1].sigma"
that of the second part of this name.

A part's name may hold dots of its own, so the last dot is the one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import RuleTypeError, suggest

_WITH_INDEX = re.compile(r"(?P<name>.*)\[(?P<index>\d+)\]")


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
