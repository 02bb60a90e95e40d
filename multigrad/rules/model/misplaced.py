"""What is said of a keyword that a call does not take: a rule's param belongs into `params`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from ...capture.code.signature import Signature
from ...errors import RuleError, RuleTypeError, closest
from .rule import Rule, resolve

NOT_NAMED = ("self",)
SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
    known = _signature_of(rule)
    if known is not None and all(map(known.takes, given)):
        written = ", ".join(f'"{key}": {each!r}' for key, each in given.items())
        return RuleTypeError(
            f"{name} takes no {word!r}, which is a param of {_rule(rule)}: write "
            f"params={{{written}}}"
        )
    parameters = inspect.signature(function).parameters.values()
    own = [p.name for p in parameters if p.kind not in SPREAD and p.name not in NOT_NAMED]
    params = [] if known is None else sorted(known.params)
    close = closest(word, [*params, *own])
    if close is None and len(params) == 1 and isinstance(value, Real):
        close = params[0]
    if close in params:
        hint = f'; did you mean params={{"{close}": {value!r}}}, of {_rule(rule)}?'
    elif close is not None:
        hint = f"; did you mean {close!r}?"
    elif known is None:
        hint = f"; a rule's params are given as params={{{word!r}: {value!r}}}, beside the rule"
    else:
        taken = ", ".join(params) or "no params"
        hint = f", and {_rule(rule)} has no such param (it takes {taken}, given as params={{...}})"
    return RuleTypeError(f"{name} takes no {word!r}{hint}")


def _rule(rule: Any) -> str:
    return f"rule {resolve(rule).name!r}"


def _signature_of(rule: str | Rule | Callable[..., Any] | None) -> Signature | None:
    """Return the signature of a rule; None where there is none, or none of that name, which is said
    where it is looked up.
    """
    try:
        return None if rule is None else resolve(rule).signature
    except RuleError:
        return None
