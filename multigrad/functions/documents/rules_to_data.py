"""Rules to data: which graphs of a rule are saved.

A rule has at most two layouts, with tin and without; each graph holds for facts about the input.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ...backend.tensors.values import concrete_number
from ...capture.code.signature import REQUIRED, Param
from ...errors import MultigradError, TraceError
from ...graph.ir.array_values import ArrayValue
from ...graph.ir.graph import Graph
from ...graph.passes.fields import encode_array, encode_value
from ...graph.passes.serialize import encode_graph
from ...trace.derived.calls import drop_calls
from ...trace.scope.moving import Moving
from ...trace.trace import NeedsConcrete
from .format import clean, seal
from .rules import CHOICES, decode_rule

Data = Any
Rule = Any  # of rule.py, which writes itself by what stands here


def encode_rule(rule: Rule) -> dict[str, Data]:
    """Return a rule's document.

    A param that is a float may be set in what is loaded; any other keeps the value that it has now.

    Raises:
        TraceError: it cannot be captured.
        FormatError: it has more than a document holds.
    """
    return seal("rule", _encode(rule), lambda fields: decode_rule(type(rule), fields))


def _encode(rule: Rule, outer: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Data]:
    """Return a rule's fields; `outer` are the values that compositions around it have bound."""
    if rule.native is True:
        raise TraceError(
            f"rule {rule.name!r} runs as written (native=True), so it has no graph to save"
        )
    bound = {name: _encode_param_value(rule, name, value) for name, value in rule.bound.items()}
    head = {"name": rule.name, "first_order": rule.first_order, "bound": bound}
    if rule.shards is not None:  # the graphs are those of the whole array
        head["over"] = rule.shards.to_data()
        rule = rule._over_shards(None)
    if rule.function is None:
        inner = {**outer, **rule.bound}
        return {**head, "parts": [_encode(part, inner) for part in rule._resolved_parts()]}
    given = rule.signature.select(outer)
    missing = _missing_values(rule, given)
    # Whether the number that stands for one is in its range is no matter.
    bound_rule = (rule.copy(ranges={}) if missing else rule).bound_rule({**missing, **given})
    fixed: dict[str, Any] = {}
    count = -1
    while len(fixed) > count:  # what one graph branches on is fixed in all
        count = len(fixed)
        captured = [v for has_tin in (True, False) for v in _variants(bound_rule, has_tin, fixed)]
    arrays: list[ArrayValue] = []
    graphs = [
        {"tin": has_tin, "facts": facts, **encode_graph(_without(fixed, graph), arrays)}
        for has_tin, facts, graph in captured
    ]
    known = rule.copy(bound={}).signature
    names = [*known.params, *(name for name in bound_rule.params if name not in known.params)]
    static = {**bound_rule.specialization.static, **fixed}
    return {
        **head,
        "doc": clean(rule.function.__doc__),
        "params": [_encode_param(rule, known.param(name), static) for name in names],
        "arrays": [encode_array(array) for array in arrays],
        "graphs": graphs,
    }


def _encode_param_value(rule: Rule, name: str, value: Any) -> Data:
    if isinstance(value, Moving):
        raise TraceError(
            f"rule {rule.name!r}: param {name!r} is bound to a number that moves, which a document "
            "does not hold. Save the rule without it and the schedule by its to_dict(), or bind "
            "schedule.value"
        )
    if hasattr(value, "shape"):
        value = concrete_number(value)
        if value is None:
            raise TraceError(f"rule {rule.name!r}: the value of param {name!r} is not known yet")
    return encode_value(value)


def _missing_values(rule: Rule, given: Mapping[str, Any]) -> dict[str, float]:
    """Return any values for the params that have none: a float is known when the rule runs."""
    params = rule.signature.params
    needed = [p for name, p in params.items() if p.default is REQUIRED and name not in given]
    for param in needed:
        if param.kind is not float:
            raise TraceError(
                f"rule {rule.name!r} cannot be saved without a value for param {param.name!r}: "
                f"save rule.with_params({param.name}=...)"
            )
    return {param.name: 1.0 for param in needed}


def _variants(
    bound_rule: Any, has_tin: bool, fixed: dict[str, Any]
) -> list[tuple[bool, dict[str, Any], Graph]]:
    """Return a rule's graphs and their facts; `fixed` gets the params it branches on.

    Without tin there may be none: not every rule acts on parameters.
    """
    found = []
    pending: list[dict[str, Any]] = [{}]
    problem: MultigradError | None = None
    while pending:
        facts = pending.pop(0)
        params = {f"param:{name}": value for name, value in fixed.items()}
        try:
            graph = bound_rule.specialization.graph(has_tin, {**facts, **params})
        except NeedsConcrete as need:
            fixed.update(_fixed_params(bound_rule, need))
            choices = _choices(bound_rule, need, has_tin)
            pending = [{**facts, **choice} for choice in choices] + pending
        except MultigradError as error:
            problem = error  # of this rank or dtype, perhaps of all
        else:
            found.append((has_tin, dict(sorted(facts.items())), graph))
    if has_tin and not found and problem is not None:
        raise problem
    return sorted(found, key=lambda variant: [(name, str(v)) for name, v in variant[1].items()])


def _fixed_params(bound_rule: Any, need: NeedsConcrete) -> dict[str, Any]:
    names = [fact.removeprefix("param:") for fact in need.facts if fact.startswith("param:")]
    for name in names:
        if not isinstance(bound_rule.params[name], float):
            raise TraceError(
                f"rule {bound_rule.rule.name!r} branches on param {name!r}, a tensor: pass a number"
            )
    return {name: bound_rule.params[name] for name in names}


def _choices(bound_rule: Any, need: NeedsConcrete, has_tin: bool) -> Iterator[dict[str, Any]]:
    names = [fact for fact in need.facts if not fact.startswith("param:")]
    for name in names:
        if name not in CHOICES:
            if not has_tin:  # asked while Python looked for what a rule of tin cannot do without
                return
            raise TraceError(
                f"rule {bound_rule.rule.name!r} has one graph per {name} of its input, which are "
                f"too many to save. Use x.shape[i] only in arithmetic"
            )
    for values in itertools.product(*(CHOICES[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _without(fixed: Mapping[str, Any], graph: Graph) -> Graph:
    """Return a graph that takes no param which is fixed in it."""
    graph = drop_calls(graph)
    inputs = tuple(node for node in graph.inputs if node.attr("name") not in fixed)
    return Graph(graph.name, inputs, graph.outputs, graph.locations)


def _encode_param(rule: Rule, param: Param, static: Mapping[str, Any]) -> Data:
    data: dict[str, Data] = {"name": param.name}
    if param.kind is not None:
        data["kind"] = param.kind.__name__
    if param.optional:
        data["optional"] = True
    if param.default is not REQUIRED:
        data["default"] = _encode_param_value(rule, param.name, param.default)
    if param.name in static:
        data["value"] = encode_value(static[param.name])
    if param.name in rule.own_ranges:
        data["range"] = rule.own_ranges[param.name].text
    return data
