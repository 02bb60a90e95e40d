"""Rules in force in words that are equal on every process of a program, and for people to read.

A token is equal for equal meaning within one process: it counts what was made there. These words
name the rule, its params' values, its key, and by a digest the code that it is.
"""

from __future__ import annotations

import functools
import hashlib
import re
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from ...backend.tensors.values import concrete_number, key_pair
from .moving import Moving
from .rules import ActiveRules, RuleInForce

NOTHING = "no rule"
CODES = re.compile(r" <code [0-9a-f]+>")
PLAIN = (bool, int, float, str, bytes, type(None))
MOST_INSIDE = 4  # levels of functions in functions, of values in tuples
_known: weakref.WeakKeyDictionary[RuleInForce, str] = weakref.WeakKeyDictionary()


def describe(in_force: RuleInForce | None) -> str:
    """Return a rule in force, such as "triangular(width=1.0) <code 41d2>"."""
    if in_force is None:
        return NOTHING
    words = _known.get(in_force)
    if words is None:
        words = _describe(in_force)
        if not in_force.has_tensors:  # these may change
            _known[in_force] = words
    return words


def describe_active(active: ActiveRules) -> str:
    """Return active rules by scope."""
    acts, pars = active.activations, active.params
    if acts is pars:
        return describe(acts)
    each = (("activations", acts), ("params", pars))
    return " and ".join(f"{describe(r)} for {scope}" for scope, r in each if r is not None)


def without_codes(words: str) -> str:
    """Return words for people, where no two rules that they tell apart differ by their code."""
    return CODES.sub("", words)


def _describe(in_force: RuleInForce) -> str:
    bound_rule = in_force.bound_rule
    rule = bound_rule.rule
    values = ", ".join(f"{n}={_value(v)}" for n, v in sorted(bound_rule.params.items()))
    name = rule._words
    key = "" if in_force.key is None else f" with key {_key(in_force.key)}"
    return f"{name}{f'({values})' if values else ''}{key} <code {digest(rule)}>"


def _value(value: Any) -> str:
    if isinstance(value, Moving):
        return repr(value.value)
    if not hasattr(value, "dtype"):
        return repr(value)
    try:
        number = concrete_number(value)
    except Exception:  # noqa: BLE001 (whatever a framework raises for what it cannot read here)
        return "<tensor>"
    return "<traced>" if number is None else repr(number)


def _key(key: Any) -> str:
    try:
        first, second = (int(word) for word in key_pair(key))
    except Exception:  # noqa: BLE001 (traced, or on several devices)
        return "<traced>"
    return f"{first:x}.{second:x}"


def digest(rule: Any) -> str:
    """Return four digits that differ, as good as always, where the code of two rules does."""
    text = "\n".join(_code_of_rule(rule))
    return hashlib.sha256(text.encode()).hexdigest()[:4]


def _code_of_rule(rule: Any) -> Iterator[str]:
    if rule.function is not None:
        yield from _code(rule.function, MOST_INSIDE)
    for part in rule._resolved_parts():
        yield part.name
        yield from _code_of_rule(part)


def _code(value: Any, levels: int) -> Iterator[str]:
    """Yield what a function or a value in it is, by what all processes have alike: no addresses,
    files or lines.
    """
    if levels == 0:
        return
    inner = functools.partial(_all, levels=levels - 1)
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, tuple | list):
        yield from inner(value)
    elif isinstance(value, set | frozenset):
        yield from sorted(inner(value))
    elif isinstance(value, types.CodeType):
        yield value.co_code.hex()
        yield from value.co_names
        yield from inner(value.co_consts)
    elif isinstance(value, types.FunctionType):
        yield from inner((value.__code__, value.__defaults__))
        yield from inner([cell.cell_contents for cell in value.__closure__ or () if _holds(cell)])
    elif isinstance(value, types.MethodType):
        yield from inner((value.__func__,))
    elif isinstance(value, functools.partial):
        yield from inner((value.func, value.args, sorted(value.keywords.items())))
    else:
        yield type(value).__qualname__


def _all(values: Iterable[Any], levels: int) -> Iterator[str]:
    for value in values:
        yield from _code(value, levels)


def _holds(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that has no value yet
        return False
