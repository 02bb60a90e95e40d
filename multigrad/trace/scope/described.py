"""Rules in force in words that are equal on every process of a program, and for people to read.

A token is equal for equal meaning within one process, because it counts what was made there. These
words name the rule, the values of its params, its key, and its code by a digest.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any

from ...backend.tensors.values import concrete_number, key_pair
from .moving import Moving
from .rules import ActiveRules, RuleInForce

# What is alike in all processes if two functions do the same: no addresses, files or lines.
INSIDE: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__code__", "__defaults__", "__kwdefaults__", "__closure__"),
    types.CellType: ("cell_contents",),
    types.CodeType: ("co_code", "co_names", "co_consts"),
    types.MethodType: ("__func__",),
    functools.partial: ("func", "args", "keywords"),
}
MOST_LEVELS = 12  # of functions in functions: a recursive one has no end


def describe(rules: ActiveRules | RuleInForce | None) -> str:
    """Describe rules in force, such as "triangular(width=1.0) <code 41d2>"."""
    if rules is None:
        return "no rule"
    if isinstance(rules, ActiveRules):
        acts, pars = rules.activations, rules.params
        each = {"activations": acts, "params": pars}.items() if acts is not pars else ()
        scoped = [f"{describe(rule)} for {scope}" for scope, rule in each if rule is not None]
        return " and ".join(scoped) or describe(acts)
    rule, params = rules.bound_rule.rule, sorted(rules.bound_rule.params.items())
    values = ", ".join(f"{name}={_value(value)}" for name, value in params)
    words = f"{rule._words}{values and f'({values})'}"
    if rules.key is not None:
        words += f" with key {_value(rules.key, lambda key: tuple(map(int, key_pair(key))))}"
    return f"{words} <code {digest(rule)}>"


def _value(value: Any, read: Callable[[Any], Any] = concrete_number) -> str:
    if isinstance(value, Moving):
        return repr(value.value)
    if not hasattr(value, "dtype"):
        return repr(value)
    try:
        found = read(value)
    except Exception:  # noqa: BLE001 (each framework has its own for what it cannot read here)
        found = None
    return "<tensor>" if found is None else repr(found)


@functools.lru_cache(256)
def digest(rule: Any) -> str:
    """Return four digits that almost always differ if the code of two rules does."""
    parts = [(part.name, digest(part)) for part in rule._resolved_parts()]
    return hashlib.sha256(_code((rule.function, parts)).encode()).hexdigest()[:4]


def _code(value: Any, levels: int = MOST_LEVELS) -> str:
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return repr(value)
    inside: Any = value.items() if isinstance(value, dict) else value
    if not isinstance(value, tuple | list | set | frozenset | dict):
        try:
            inside = [getattr(value, name) for name in INSIDE.get(type(value), ())]
        except ValueError:  # a cell of a name that has no value yet
            inside = ()
    texts = [_code(each, levels - 1) for each in inside] if levels else []
    texts = sorted(texts) if isinstance(value, set | frozenset) else texts
    return f"{type(value).__qualname__}({', '.join(texts)})"
