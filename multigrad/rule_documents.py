"""Rules as documents: which graphs of a rule are saved, with what they hold for, and how a rule is made of them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from .capture.signature import REQUIRED, TAKEN, Param, check_value, read_signature
from .documents import check_plain
from .errors import FormatError, MultigradError, TraceError
from .family import Family
from .ir.calls import drop_calls
from .ir.constants import ArrayValue
from .ir.graph import Graph
from .ir.record import NeedFact
from .ir.serialize import (
    MOST_INPUTS,
    decode_array,
    decode_graph,
    decode_value,
    describe,
    encode_array,
    encode_graph,
    encode_value,
    fail,
    read_bool,
    read_fields,
    read_list,
    read_name,
    read_text,
)
from .ir.types import FLOAT_SCALAR, FLOATS, INPUT, KEY, Type
from .rule import Rule, make_spec
from .saved import FREE, SavedGraph, SavedParam, SavedRule

Data = Any
MOST_DOC = 20_000
MOST_PARTS = 256
MOST_ARRAYS = 1024
KINDS: dict[str, type] = {"float": float, "int": int, "bool": bool, "str": str}
# A rule that looks at one of these is captured once for each.
CHOICES: dict[str, tuple[Any, ...]] = {"dtype": FLOATS, "ndim": tuple(range(7))}
RULE_FIELDS = ("name", "first_order", "bound", "doc", "params", "arrays", "graphs")
COMPOSED_FIELDS = ("name", "first_order", "bound", "parts")


# --- rules to data -------------------------------------------------------------------------------


def encode_rule(rule: Rule) -> dict[str, Data]:
    """Return the fields of a rule's document.

    A param that is a float may be set in what is loaded; any other keeps the value that it has now.

    Raises:
        TraceError: it cannot be captured.
        FormatError: it has more than a document holds.
    """
    if rule.native is True:
        raise TraceError(
            f"rule {rule.name!r} runs as it is (native=True), so it has no graph to save"
        )
    bound = {name: _encode_bound(rule, name, value) for name, value in rule.bound.items()}
    head = {"name": rule.name, "first_order": rule.first_order, "bound": bound}
    if rule.function is None:
        return {**head, "parts": [encode_rule(part) for part in rule.resolved_parts()]}
    family, values = _capture(rule)
    fixed: dict[str, Any] = {}
    count = -1
    while len(fixed) > count:  # what one graph branches on is fixed in all
        count = len(fixed)
        captured = [
            v for has_tin in (True, False) for v in _variants(family, has_tin, values, fixed)
        ]
    arrays: list[ArrayValue] = []
    graphs = [_encode_graph(*variant, fixed, arrays) for variant in captured]
    known = rule.copy(bound={}).signature
    names = [*known.params, *(name for name in values if name not in known.params)]
    static = {**family.static, **fixed}
    params = [_encode_param(rule, known.param(name), static) for name in names]
    return {
        **head,
        "doc": clean(rule.function.__doc__),
        "params": params,
        "arrays": [encode_array(array) for array in arrays],
        "graphs": graphs,
    }


def clean(doc: str | None) -> str:
    """Return a docstring as a document has it."""
    letters = (c if c.isprintable() or c in "\n\t" else " " for c in inspect.cleandoc(doc or ""))
    return "".join(letters)[:MOST_DOC]


def _encode_bound(rule: Rule, name: str, value: Any) -> Data:
    if hasattr(value, "shape"):
        from .lowering.backend import concrete_number

        value = concrete_number(value)
        if value is None:
            raise TraceError(f"rule {rule.name!r}: the value of param {name!r} is not known yet")
    return encode_value(value)


def _capture(rule: Rule) -> tuple[Family, dict[str, Any]]:
    """Return the family of a rule's own function, and the values of its params."""
    given = {}
    for param in rule.signature.params.values():
        if param.default is REQUIRED:
            if param.kind is not float:
                raise TraceError(
                    f"rule {rule.name!r} cannot be saved without a value for param {param.name!r}: "
                    f"save rule.with_params({param.name}=...)"
                )
            given[param.name] = 1.0  # any: it is known when the rule runs
    spec = make_spec(rule, given)
    return spec.family, spec.params


def _variants(
    family: Family, has_tin: bool, values: Mapping[str, Any], fixed: dict[str, Any]
) -> list[tuple[bool, dict[str, Any], Graph]]:
    """Return a rule's graphs, each with the facts about its input; `fixed` gets the params it branches on.

    Raises:
        TraceError: with tin there is none. Without, it is no error: not every rule acts on parameters.
    """
    found: list[tuple[bool, dict[str, Any], Graph]] = []
    pending: list[dict[str, Any]] = [{}]
    problem: MultigradError | None = None
    while pending:
        facts = pending.pop(0)
        params = {f"param:{name}": value for name, value in fixed.items()}
        try:
            graph = family.graph(has_tin, {**facts, **params})
        except NeedFact as need:
            fixed.update(_fixed_params(family, need, values))
            pending = [{**facts, **choice} for choice in _choices(family, need)] + pending
        except MultigradError as error:
            problem = error  # of this rank or dtype, perhaps of all
        else:
            found.append((has_tin, dict(sorted(facts.items())), graph))
    if has_tin and not found and problem is not None:
        raise problem
    return sorted(found, key=_order)


def _order(variant: tuple[bool, dict[str, Any], Graph]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in variant[1].items()]


def _fixed_params(family: Family, need: NeedFact, values: Mapping[str, Any]) -> dict[str, Any]:
    names = [fact.removeprefix("param:") for fact in need.facts if fact.startswith("param:")]
    for name in names:
        if not isinstance(values[name], float):
            raise TraceError(
                f"rule {family.rule.name!r} branches on param {name!r}, a tensor: pass a number"
            )
    return {name: values[name] for name in names}


def _choices(family: Family, need: NeedFact) -> Iterator[dict[str, Any]]:
    names = [fact for fact in need.facts if not fact.startswith("param:")]
    for name in names:
        if name not in CHOICES:
            raise TraceError(
                f"rule {family.rule.name!r} has one graph per {name} of its input, which are too many to "
                f"save. Use x.shape[i] only in arithmetic"
            )
    for values in itertools.product(*(CHOICES[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _encode_graph(
    has_tin: bool, facts: dict[str, Any], graph: Graph, fixed: Mapping[str, Any],
    arrays: list[ArrayValue],
) -> Data:  # fmt: skip
    graph = drop_calls(graph)
    inputs = tuple(node for node in graph.inputs if node.attr("name") not in fixed)
    graph = Graph(graph.name, inputs, graph.outputs, graph.locations)
    return {"tin": has_tin, "facts": facts, **encode_graph(graph, arrays)}


def _encode_param(rule: Rule, param: Param, static: Mapping[str, Any]) -> Data:
    data: dict[str, Data] = {"name": param.name}
    if param.kind is not None:
        data["kind"] = param.kind.__name__
    if param.optional:
        data["optional"] = True
    if param.default is not REQUIRED:
        data["default"] = _encode_bound(rule, param.name, param.default)
    if param.name in static:
        data["value"] = encode_value(static[param.name])
    return data


# --- data to rules -------------------------------------------------------------------------------


def decode_rule(data: Data, where: str = "") -> Rule:
    """Return the rule of these fields.

    Raises:
        FormatError: they are damaged.
    """
    dot = f"{where}." if where else ""
    if type(data) is dict and "parts" in data:
        read_fields(data, where, COMPOSED_FIELDS)
        items = read_list(data["parts"], f"{dot}parts", MOST_PARTS)
        if not items:
            fail(f"{dot}parts", "a composed rule has at least one part")
        own: dict[str, Any] = {
            "parts": tuple(decode_rule(item, f"{dot}parts[{i}]") for i, item in enumerate(items))
        }
    else:
        read_fields(data, where, RULE_FIELDS)
        own = {"function": _decode_function(data, dot)}
    name = read_text(data["name"], f"{dot}name")
    if not name:
        fail(f"{dot}name", "a rule's name is not empty")
    first_order = read_bool(data["first_order"], f"{dot}first_order")
    bound = data["bound"]
    if type(bound) is not dict or len(bound) > MOST_INPUTS:
        fail(f"{dot}bound", f"expected an object of params, got {describe(bound)}")
    values = {
        read_name(param, f"{dot}bound"): decode_value(value, f"{dot}bound.{param}")
        for param, value in bound.items()
    }
    try:
        return Rule(name=name, native=False, first_order=first_order, **own).with_params(**values)
    except MultigradError as error:
        raise FormatError(f"{where or 'rule'}: {error}") from error


def function_of(data: Data) -> SavedRule:
    """Return what stands for a rule's function; `data` are those of `SavedRule.data`, and checked.

    Raises:
        FormatError: they are damaged.
    """
    check_plain(data)
    read_fields(data, "", RULE_FIELDS)
    return _decode_function(data, "")


def _decode_function(data: Data, dot: str) -> SavedRule:
    name = read_text(data["name"], f"{dot}name")
    read_text(data["doc"], f"{dot}doc", MOST_DOC, "\n\t")
    items = read_list(data["params"], f"{dot}params", MOST_INPUTS)
    params = tuple(_decode_param(item, f"{dot}params[{i}]") for i, item in enumerate(items))
    if len({saved.param.name for saved in params}) < len(params):
        fail(f"{dot}params", "two params have the same name")
    arrays = decode_arrays(data["arrays"], f"{dot}arrays")
    items = read_list(data["graphs"], f"{dot}graphs", MOST_INPUTS)
    runtime = {saved.param.name: FLOAT_SCALAR for saved in params if saved.value is FREE}
    graphs = tuple(
        _decode_saved_graph(item, f"{dot}graphs[{i}]", name, arrays, runtime)
        for i, item in enumerate(items)
    )
    try:
        function = SavedRule.of(data, params, graphs)
        read = read_signature(name, function).params
        for param in read.values():
            if param.default is not REQUIRED:
                check_value(name, param, param.default)
    except (MultigradError, ValueError) as error:
        fail(f"{dot}params", str(error))
    for saved in params:
        if repr(read.get(saved.param.name)) != repr(saved.param):
            fail(f"{dot}params", f"param {saved.param.name!r} has a kind that its default has not")
    return function


def _decode_param(data: Data, where: str) -> SavedParam:
    fields = read_fields(data, where, ("name",), ("kind", "optional", "default", "value"))
    name = read_name(fields["name"], where)
    if name in TAKEN:
        fail(where, f"no param can be called {name!r}")
    kind = fields.get("kind")
    if kind is not None and (type(kind) is not str or kind not in KINDS):
        fail(where, f"its kind is one of {', '.join(KINDS)}, not {describe(kind)}")
    optional = read_bool(fields.get("optional", False), f"{where}.optional")
    default, value = REQUIRED, FREE
    if "default" in fields:
        default = decode_value(fields["default"], f"{where}.default")
    if "value" in fields:
        value = decode_value(fields["value"], f"{where}.value")
    return SavedParam(Param(name, default, KINDS.get(kind or ""), optional), value)


def _decode_saved_graph(
    data: Data, where: str, name: str, arrays: list[ArrayValue], runtime: Mapping[str, Type]
) -> SavedGraph:
    fields = read_fields(data, where, ("tin", "facts", "inputs", "nodes", "outputs"))
    has_tin = read_bool(fields["tin"], f"{where}.tin")
    facts = read_fields(fields["facts"], f"{where}.facts", (), tuple(CHOICES))
    for fact, value in facts.items():
        if type(value) is not type(CHOICES[fact][0]) or value not in CHOICES[fact]:
            fail(f"{where}.facts", f"{describe(value)} is no {fact} that can be saved")
    tensors = {"grad_out": INPUT, **({"tin": INPUT} if has_tin else {})}
    inputs: dict[str, Type] = {**runtime, **tensors, "key": KEY}
    graph = decode_graph(fields, where, name, arrays, inputs)
    if graph.input("grad_out") is None or len(graph.outputs) != 1:
        fail(where, "a rule's graph takes grad_out and gives one gradient")
    return SavedGraph.of(graph, has_tin, dict(sorted(facts.items())))


def decode_arrays(data: Data, where: str) -> list[ArrayValue]:
    """Return a document's constant arrays."""
    items = read_list(data, where, MOST_ARRAYS)
    return [decode_array(item, f"{where}[{i}]") for i, item in enumerate(items)]
