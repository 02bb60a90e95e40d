"""Params of one part of what is in series, rules and Functions: {"noise.sigma": 0.1}.

"noise.sigma" is the param sigma of the part noise, "noise[1].sigma" that of the second part of this
name. A part's name may itself hold dots, so the last dot counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.rules.rule import Rule
from ...core.rules.rule_names import as_registered
from ...core.support.params import is_address
from ...errors import RuleTypeError, suggest

Path = tuple[int, ...]
_WITH_INDEX = r"(?P<name>.*)\[(?P<index>\d+)\]"


def find_part(owner: str, address: str, labels: Sequence[str]) -> tuple[int, str]:
    """Return the position of the part that an address names, and the param's own name.

    Of ["scale", "noise"], "noise.sigma" gives (1, "sigma"). `owner` is for messages.
    """
    label, _, param = address.rpartition(".")
    matches = [i for i, each in enumerate(labels) if each == label]
    if len(matches) == 1:
        return matches[0], param
    # "noise[1]": one of several parts of that name, unless a part is named so itself.
    indexed = re.fullmatch(_WITH_INDEX, label)
    if matches:
        addresses = ", ".join(f"{label}[{i}].{param}" for i in range(len(matches)))
        raise RuleTypeError(f"{owner} has {len(matches)} parts {label!r}: write one of {addresses}")
    namesakes = [i for i, each in enumerate(labels) if indexed and each == indexed["name"]]
    if indexed and int(indexed["index"]) < len(namesakes):
        return namesakes[int(indexed["index"])], param
    distinct = list(dict.fromkeys(labels))
    raise RuleTypeError(
        f"{owner} has no part {label!r} for param {address!r}{suggest(label, distinct)} "
        f"(parts: {', '.join(labels)})"
    )


def bind_addressed(rule: Rule, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    """Return a rule with the params that name a part ("noise.sigma") bound, and the others."""
    own_params = {}
    for name, value in params.items():
        if is_address(name):
            rows = list(_walk(rule))
            labels = [label for label, _ in rows]
            address = name if name.rpartition(".")[0] in labels else respelled(name)
            position, param = find_part(f"rule {rule.name!r}", address, labels)
            rule = _bind(rule, rows[position][1], name, param, value)
        else:
            own_params[name] = value
    return rule, own_params


def _walk(rule: Rule, path: Path = ()) -> Iterator[tuple[str, Path]]:
    for i, part in enumerate(rule._resolved_parts()):
        yield part.name, (*path, i)
        yield from _walk(part, (*path, i))


def respelled(address: str) -> str:
    """Return an address with a package's rule spelled as it is registered."""
    part, _, param = address.rpartition(".")
    label, bracket, index = part.partition("[")
    return f"{as_registered(label) or label}{bracket}{index}.{param}"


def _bind(rule: Rule, path: Path, address: str, param: str, value: Any) -> Rule:
    if param in rule.bound:
        raise RuleTypeError(
            f"rule {rule.name!r}: param {param!r} is bound by with_params, so {address!r} can "
            "no longer be set"
        )
    position, *inner = path
    parts = list(rule._resolved_parts())
    inner_part = parts[position]
    parts[position] = (
        _bind(inner_part, tuple(inner), address, param, value)
        if inner
        else inner_part.with_params(**{param: value})
    )
    # The other parts stay names, which are looked up at each use.
    new_parts = (part if i == position else rule.parts[i] for i, part in enumerate(parts))
    return rule.copy(parts=tuple(new_parts))
