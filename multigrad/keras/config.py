"""Rules and Functions as data, for `get_config`: names, numbers and graphs, so that loading a file
never runs code. A Function is its document, or {"function": its document, "residuals": "packed"}
with what was chosen of `residuals` and `fused`; a rule is one of

    "triangular"                                                of multigrad's own
    {"name": "triangular", "params": {"width": 2.0}}            the same with bound params
    {"compose": ["clip_norm", {"name": "noise", "params": {"sigma": 0.01}}]}
    {"name": "my_rule", "graph": {"format": "multigrad", ...}}  of the user's: it loads where the
                                                                name is unknown
    {"rule": "clip_norm", "over": [[]], "fused": False}         any of these, over shards, or with
                                                                what was chosen
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from .. import schedule as schedules
from ..core.backend.discovery import entry_points, load_backend
from ..core.backend.values import concrete_number
from ..core.lowering.forwards import Forward
from ..core.rules.registry import compose, get, resolve, rules
from ..core.rules.rule import Rule
from ..core.rules.rule_names import OWN
from ..core.support.params import read_fused, read_way
from ..engine.functions.documents.rules import decode_shards
from ..engine.functions.function import Function
from ..engine.rules.model.forward_of_code import ForwardOfCode
from ..engine.rules.saving import from_dict
from ..errors import BackendNotFound, FormatError, MultigradError, RuleError, RuleTypeError
from ..schedule import Schedule

RuleData = Any  # None, a name, or one of the forms above
CHOICES = ("residuals", "fused")  # which change no number, and are not in a document


def describe_rule(rule: Any, fixed: Mapping[str, Any] | None = None) -> RuleData:
    """Return a layer's rule as data; `fixed` are its params that are part of the rule's graph."""
    if rule is None:
        return None
    name_or_rule, rule = rule, resolve(rule)
    choices = choices_of(rule)
    if rule.shards is not None or choices:
        plain = rule.copy(shards=None, **dict.fromkeys(choices, "auto"))
        over = {} if rule.shards is None else {"over": rule.shards.to_data()}
        return {"rule": describe_rule(plain, fixed), **over, **choices}
    name = name_or_rule if isinstance(name_or_rule, str) else find_name(rule)
    bound = dict(rule.bound)
    if name is not None:
        # params bound at registration come with the name
        bound = {k: v for k, v in bound.items() if k not in get(name).bound}
    data: dict[str, Any] = {} if name is None else {"name": name}
    if not is_own(rule):
        try:
            named_rule = rule if name is None else rule.copy(name=name)
            data["graph"] = named_rule.with_params(**(fixed or {})).to_dict()
        except MultigradError as error:
            if name is None and rule.function is not None:
                is_word = rule.name.isidentifier() and rule.name not in rules()
                raise RuleError(
                    f"rule {rule.name!r} cannot be saved as a graph ({error}), and no name stands "
                    "for it. Register it, so that it is saved by name: write "
                    f"@xg.register({rule.name if is_word else 'my_rule'!r}) over it"
                ) from error
    if name is None:
        by_parts = all(map(is_own, rule.parts)) or any(
            choices_of(resolve(part)) for part in rule.parts
        )
        if "graph" in data and (rule.function is not None or not by_parts):
            return data  # bound params are part of the graph
        data = {"compose": [describe_rule(part) for part in rule.parts]}
    if bound:
        data["params"] = describe_params(bound)
    return name if data == {"name": name} else data


def choices_of(obj: Any) -> dict[str, Any]:
    """Return the `residuals` and `fused` of a rule or a Function, if they are not "auto"."""
    return {word: getattr(obj, word) for word in CHOICES if getattr(obj, word) != "auto"}


def is_own(rule: Any) -> bool:
    """Return whether a rule is multigrad's own, the same in every installation."""
    return str(getattr(resolve(rule).function, "__module__", None)).startswith(OWN)


def find_name(rule: Rule) -> str | None:
    """Return the name under which a rule, bound params aside, is registered now."""
    registered = rules()
    names = [rule.name] if rule.name in registered else []
    if rule.function is not None:  # a registered function, given as an object
        names += registered
    return next((name for name in names if is_same(get(name), rule)), None)


def is_same(registered: Rule, rule: Rule) -> bool:
    return (
        registered.function is rule.function
        and registered.parts == rule.parts
        and all(k in rule.bound and rule.bound[k] == v for k, v in registered.bound.items())
    )


def describe_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return params as JSON values: tuples as lists, 0-d tensors as the number they hold now."""
    return {name: _as_json(name, value) for name, value in params.items()}


def _as_json(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_as_json(name, item) for item in value]
    if isinstance(value, Schedule):
        return value.to_dict()
    number = concrete_number(value)
    if number is None:
        raise RuleTypeError(
            f"param {name!r} cannot be saved: it is a traced {type(value).__name__}; pass a number"
        )
    return number


def read_both(rule: RuleData, params: Any) -> tuple[str | Rule | None, dict[str, Any]]:
    """Return a layer's rule and params, without those that the rule's graph has fixed."""
    base, values = None if rule is None else _read_rule(rule), read_params(params)
    if isinstance(base, Rule):
        values = {name: value for name, value in values.items() if name not in base.bound}
    return base, values


def _read_choices(data: Mapping[str, Any]) -> dict[str, Any]:
    choices: dict[str, Any] = {}
    try:
        if "residuals" in data:
            choices["residuals"] = read_way(data["residuals"], "what was saved")
        if "fused" in data:
            choices["fused"] = read_fused(data["fused"])
    except MultigradError as error:
        raise FormatError(str(error)) from error
    return choices


def _read_rule(data: RuleData) -> str | Rule:
    rule: str | Rule
    if isinstance(data, str):
        find_rule(data)
        return data
    if isinstance(data, Mapping) and "rule" in data and set(data) <= {"rule", "over", *CHOICES}:
        rule = resolve(_read_rule(data["rule"]))
        if "over" in data:
            rule = rule.copy(shards=decode_shards(data["over"], "over"))
        return rule.copy(**_read_choices(data))
    keys = set(data) - {"params"} if isinstance(data, Mapping) else set()
    bound = read_params(data.get("params")) if keys else {}
    if keys == {"compose"} and isinstance(data["compose"], list):
        rule = compose(*[_read_rule(part) for part in data["compose"]])
    elif keys == {"graph"}:
        return read_graph(data["graph"])
    elif keys == {"name", "graph"} and isinstance(data["name"], str):
        saved_rule = read_graph(data["graph"])
        if not has_same_meaning(data["name"], saved_rule, data["graph"]):
            return saved_rule
        rule = data["name"]
    elif keys == {"name"} and isinstance(data["name"], str):
        find_rule(data["name"])
        rule = data["name"]
    else:
        raise FormatError(
            f"a saved rule is a name, {{'name': ..., 'params': ...}}, {{'compose': [...]}} or "
            f"{{'graph': ...}}, got {str(data)[:200]}"
        )
    return resolve(rule).with_params(**bound) if bound else rule


def read_graph(data: Any) -> Rule:
    rule = from_dict(data)
    if not isinstance(rule, Rule):
        raise FormatError(
            f"a saved layer needs a rule, and this document is a {type(rule).__name__}"
        )
    return rule


def has_same_meaning(name: str, saved: Rule, data: Any) -> bool:
    """Return whether a name means the saved rule here; warn if it means another one."""
    if name not in rules():
        return False
    try:
        current = get(name)
        current = current.with_params(
            **{k: v for k, v in saved.bound.items() if k not in current.bound}
        ).to_dict()
    except MultigradError:
        # a rule that cannot be captured here cannot be compared
        current = None
    if current is not None and without_texts(current) == without_texts(saved.to_dict()):
        return True
    warnings.warn(
        f"rule {name!r} was saved with another graph than that of the rule registered under the "
        f"name now: the saved one acts. Assign layer.rule = {name!r} to take the other",
        stacklevel=2,
    )
    return False


def without_texts(data: Any) -> Any:
    """Return a document without names, docstrings, positions and ranges, which do not act."""
    if isinstance(data, Mapping):
        texts = ("doc", "at", "name") if "first_order" in data else ("at", "range")
        return {k: without_texts(v) for k, v in data.items() if k not in texts}
    return [without_texts(item) for item in data] if isinstance(data, list) else data


def find_rule(name: str) -> Rule:
    try:
        return resolve(name)
    except RuleError as error:
        raise RuleError(f"{error}; a saved layer needs it: register it before loading") from None


def read_backend(layer: str, name: Any) -> str | None:
    """Return a saved layer's backend; None, with a warning, if it is not installed."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in entry_points():
        raise FormatError(
            f"layer {layer!r}: no backend {str(name)[:200]!r} "
            f"(backends: {', '.join(entry_points())})"
        )
    try:
        load_backend(name)
    except BackendNotFound as error:
        warnings.warn(
            f"layer {layer!r} was saved to run in {name!r}, and runs in Keras's own backend here: "
            f"{error}",
            stacklevel=3,
        )
        return None
    return name


def read_params(data: Any) -> dict[str, Any]:
    if data is not None and not isinstance(data, Mapping):
        raise FormatError(f"a saved rule's params are values by name, got {str(data)[:200]}")
    return {name: _from_json(value) for name, value in (data or {}).items()}


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return schedules.from_dict(value)
    # static params may be tuples, but never lists
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value


def describe_function(owner: str, function: Function) -> dict[str, Any]:
    try:
        document = function.to_dict()
    except MultigradError as error:
        raise type(error)(f"{owner} cannot be saved: {error}") from error
    choices = choices_of(function)
    return {"function": document, **choices} if choices else document


def read_function(owner: str, data: Any) -> Function:
    choices: dict[str, Any] = {}
    try:
        if isinstance(data, Mapping) and "function" in data and set(data) <= {"function", *CHOICES}:
            choices, data = _read_choices(data), data["function"]
        function = from_dict(data)
    except FormatError as error:
        raise FormatError(f"{owner}: {error}") from error
    if not isinstance(function, Function):
        raise FormatError(
            f"{owner}: it needs a function, and this document is a {type(function).__name__}"
        )
    return function.keeping(**choices) if choices else function


def describe_forward(owner: str, forward: Forward) -> Any:
    """Return a layer's forward as data: a name, or the Function of the user's code."""
    if isinstance(forward, ForwardOfCode):
        try:
            function = forward.saved()
        except MultigradError as error:
            raise type(error)(f"{owner} cannot be saved: {error}") from error
        return describe_function(owner, function)
    return forward.name
