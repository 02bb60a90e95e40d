"""A rule as data, for `get_config`: names and numbers only, so that loading a file never runs code.

    "triangular"
    {"name": "triangular", "params": {"width": 2.0}}
    {"compose": ["clip_norm", {"name": "noise", "params": {"sigma": 0.01}}]}

The second form is a rule with bound params. The parts of the third are any of the three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import RuleError, RuleTypeError
from ..lowering.backend import concrete_number
from ..registry import compose, get, resolve, rules
from ..rule import Rule

RuleData = Any  # None, a name, or one of the two forms above


def describe_rule(rule: Any) -> RuleData:
    """Return a layer's rule as data.

    Raises:
        RuleError: it is a function, or has a part that is one, which is registered under no name.
    """
    if rule is None or isinstance(rule, str):
        return rule
    rule = resolve(rule)
    name = find_name(rule)
    if name is not None:
        bound = {k: v for k, v in rule.bound.items() if k not in get(name).bound}
        return {"name": name, "params": describe_params(bound)} if bound else name
    if rule.function is not None:
        raise RuleError(explain_nameless(rule))
    data: dict[str, Any] = {"compose": [describe_rule(part) for part in rule.parts]}
    if rule.bound:
        data["params"] = describe_params(rule.bound)
    return data


def find_name(rule: Rule) -> str | None:
    """Return the name under which a rule, bound params aside, is registered now."""
    known = rules()
    names = [rule.name] if rule.name in known else []
    if rule.function is not None:  # a function that was registered, given as it is
        names += known
    return next((name for name in names if is_same(get(name), rule)), None)


def is_same(registered: Rule, rule: Rule) -> bool:
    """Return whether a rule is the registered one, perhaps with more params bound."""
    return (
        registered.function is rule.function
        and registered.parts == rule.parts
        and all(k in rule.bound and rule.bound[k] == v for k, v in registered.bound.items())
    )


def explain_nameless(rule: Rule) -> str:
    """Return why a rule cannot be saved, and what to do."""
    if rule.name in rules():
        return (
            f"rule {rule.name!r} cannot be saved: another rule is registered under that name now. "
            f"Give the layer the name, or register this one under a name of its own"
        )
    word = rule.name if rule.name.isidentifier() else "my_rule"
    return (
        f"rule {rule.name!r} cannot be saved: a config holds rules by name, and this function has "
        f"none. Register it: write @xg.register({word!r}) over it"
    )


def describe_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return params as JSON values: tuples as lists, 0-d tensors as the number they hold now."""
    return {name: _as_json(name, value) for name, value in params.items()}


def _as_json(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_as_json(name, item) for item in value]
    number = concrete_number(value)
    if number is None:
        raise RuleTypeError(
            f"param {name!r} cannot be saved: it is a traced {type(value).__name__}; pass a number"
        )
    return number


def read_rule(data: RuleData) -> str | Rule | None:
    """Return the rule that `describe_rule` described, or its name.

    Raises:
        RuleError: a name stands for no rule here, or the data has another form.
    """
    return None if data is None else _read_rule(data)


def _read_rule(data: RuleData) -> str | Rule:
    if isinstance(data, str):
        find_rule(data)
        return data
    keys = set(data) - {"params"} if isinstance(data, Mapping) else set()
    if keys == {"name"}:
        rule = find_rule(data["name"])
    elif keys == {"compose"} and isinstance(data["compose"], list):
        rule = compose(*[_read_rule(part) for part in data["compose"]])
    else:
        raise RuleTypeError(
            f"a saved rule is a name, {{'name': ..., 'params': ...}} or {{'compose': [...]}}, "
            f"got {data!r}"
        )
    params = read_params(data.get("params"))
    return rule.with_params(**params) if params else rule


def find_rule(name: str) -> Rule:
    """Return the rule that a saved name stands for here."""
    try:
        return resolve(name)
    except RuleError as error:
        raise RuleError(f"{error}; a saved layer needs it: register it before loading") from None


def read_params(data: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return params from JSON values; a rule's static params may be tuples, never lists."""
    return {name: _from_json(value) for name, value in (data or {}).items()}


def _from_json(value: Any) -> Any:
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value
