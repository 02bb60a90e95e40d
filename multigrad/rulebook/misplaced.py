"""What is said of a keyword that a call does not take: a rule's param belongs into `params`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import RuleError, RuleTypeError, suggest
from .rule import Rule, resolve

NOT_NAMED = ("self", "others")


def refuse_misplaced(
    function: Callable[..., Any],
    name: str,
    rule: str | Rule | Callable[..., Any] | None,
    given: Mapping[str, Any],
) -> RuleTypeError:
    """Return the error for keywords that a function does not take.

    Args:
        function: whose own keywords are suggested.
        name: what people call it.
        rule: the rule whose params they may be.
    """
    word, value = next(iter(given.items()))
    try:
        taken = rule is not None and all(map(resolve(rule).signature.takes, given))
    except RuleError:  # unknown: that is said where it is looked up
        taken = False
    if taken and rule is not None:
        written = ", ".join(f'"{key}": {each!r}' for key, each in given.items())
        return RuleTypeError(
            f"{name} takes no {word!r}, which is a param of rule {resolve(rule).name!r}: write "
            f"params={{{written}}}"
        )
    own = [each for each in inspect.signature(function).parameters if each not in NOT_NAMED]
    hint = suggest(word, own) or f"; a rule's params are given as params={{{word!r}: {value!r}}}"
    return RuleTypeError(f"{name} takes no {word!r}{hint}")
