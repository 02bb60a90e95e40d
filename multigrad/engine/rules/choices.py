"""Choices made beside a rule's name: over= and axis_name=, residuals=, fused=."""

from __future__ import annotations

import functools
from typing import Any

from ...core.rules.registry import resolve
from ...core.rules.rule import Rule
from ...core.support.params import Fused, read_fused, read_way
from ...errors import RuleError
from ..support.shards import read_shards


def with_choices(
    rule: Any,
    over: Any = None,
    axis_name: Any = None,
    residuals: str | None = None,
    fused: Fused = "auto",
) -> Any:
    """Return a rule with these choices: `rule` itself if none is made, else a Rule.

    A name is not resolved: the result looks it up at each use, as the name alone would be.

    Args:
        over: which array a tensor is a part of, as `axis_name` is; see `Rule.over`.
        residuals: what forward keeps; None: the rule's own choice.
        fused: whether it runs as one kernel; "auto": the rule's own choice.
    """
    shards = read_shards(over, axis_name)
    choices: dict[str, Any] = {}
    if residuals is not None:
        choices["residuals"] = read_way(residuals, "a rule")
    if shards is not None:
        choices["shards"] = shards
    if read_fused(fused) != "auto":
        choices["fused"] = fused
    if not choices:
        return rule
    if rule is None:
        name, value = next(iter(choices.items()))
        choice = str(value) if name == "shards" else f"{name}={value!r}"
        raise RuleError(f"{choice} needs a rule: name the rule here too")
    if isinstance(rule, str):
        return _named(rule, **choices)
    return resolve(rule).copy(**choices)


@functools.lru_cache(768)
def _named(name: str, **choices: Any) -> Rule:
    # A composition of one part, so that the name is looked up at each use; cached, as it owns code.
    return Rule(name=name, parts=(name,), **choices)
