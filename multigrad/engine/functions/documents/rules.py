"""Documents of rules: from data to rules, and from rules to data.

A rule has at most two layouts, with tin and without; each graph holds for facts about the input.
"""

from __future__ import annotations

import inspect
import itertools
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ....core import ops
from ....core.backend.values import concrete_number
from ....core.ir.graph import ArrayValue, Graph
from ....core.ir.op import FLOAT_SCALAR, FLOATS, INPUT
from ....core.lowering.derivatives import replay
from ....core.passes.facts import LIBRARY
from ....core.rules.signature import REQUIRED, TAKEN, RuleParam, check_value, read_signature
from ....core.support.params import Range
from ....core.support.pickles import pickled
from ....core.trace.active_rules import Moving
from ....core.trace.identity import value_key
from ....core.trace.trace import NeedsConcrete, Value
from ....errors import FormatError, MultigradError, RuleValueError, TraceError
from ...lowering.calls import draw_in, drop_calls
from ...passes.serialize import (
    MOST_INPUTS,
    MOST_PLACES,
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
from ...support.shards import Shards
from ...trace.code_trace import CodeTrace
from ..calls.facts import library_so_far
from .format import MOST_DOC, check_plain, clean, decode_arrays, seal
from .functions import FORM_FIELDS, find_fitting
from .versions import OVER, RULE_FIELDS, from_version_1, rule_form

Data = Any
Tensor = Any
Rule = Any  # of rule.py, which imports this module
MOST_PARTS = 256
KINDS: dict[str, type] = {"float": float, "int": int, "bool": bool, "str": str}
# A rule that looks at one of these is captured once for each.
CHOICES: dict[str, tuple[Any, ...]] = {"dtype": FLOATS, "ndim": tuple(range(7))}
FIELDS = (*RULE_FIELDS, "forms")
COMPOSED_FIELDS = ("name", "first_order", "bound", "parts")


def decode_rule(make: Callable[..., Rule], data: Data, where: str = "") -> Rule:
    """Return the rule of a document's fields, made by the class of rules."""
    dot = f"{where}." if where else ""
    if type(data) is dict and "parts" in data:
        read_fields(data, where, COMPOSED_FIELDS, OVER)
        items = read_list(data["parts"], f"{dot}parts", MOST_PARTS)
        if not items:
            fail(f"{dot}parts", "a composed rule has at least one part")
        parts = [decode_rule(make, item, f"{dot}parts[{i}]") for i, item in enumerate(items)]
        fields: dict[str, Any] = {"parts": tuple(parts)}
    else:
        read_fields(data, where, FIELDS, OVER)
        fields = {"function": _decode_function(make, data, dot)}
        fields["ranges"] = _decode_ranges(data["params"], f"{dot}params")
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
    if "over" in data:
        fields["shards"] = decode_shards(data["over"], f"{dot}over")
    try:
        return make(name=name, native=False, first_order=first_order, **fields).with_params(
            **values
        )
    except MultigradError as error:
        raise FormatError(f"{where or 'rule'}: {error}") from error


def function_of_rule(make: Callable[..., Rule], data: Data) -> SavedRule:
    """Return the function of a rule, rebuilt from pickled data, which are checked."""
    check_plain(data)
    data = from_version_1(data) if type(data) is dict and "graphs" in data else data
    read_fields(data, "", FIELDS, OVER)
    return _decode_function(make, data, "")


def _decode_function(make: Callable[..., Rule], data: Data, dot: str) -> SavedRule:
    items = read_list(data["params"], f"{dot}params", MOST_INPUTS)
    params = [_decode_param(item, f"{dot}params[{i}]") for i, item in enumerate(items)]
    if len({param.name for param in params}) < len(params):
        fail(f"{dot}params", "two params have the same name")
    fixed = {
        item["name"]: decode_value(item["value"], f"{dot}params[{i}].value")
        for i, item in enumerate(items)
        if "value" in item
    }
    name = read_text(data["name"], f"{dot}name")
    read_text(data["doc"], f"{dot}doc", MOST_DOC, "\n\t")
    arrays = decode_arrays(data["arrays"], f"{dot}arrays")
    forms = tuple(
        _decode_form(form, f"{dot}forms[{i}]", name, arrays, items)
        for i, form in enumerate(read_list(data["forms"], f"{dot}forms", MOST_INPUTS))
    )
    try:
        function = SavedRule(make, data, params, fixed, forms)
        signature_params = read_signature(name, function).params
        for param in signature_params.values():
            if param.default is not REQUIRED:
                check_value(name, param, param.default)
    except (MultigradError, ValueError) as error:
        fail(f"{dot}params", str(error))
    # A default decides the kind, which the document must not contradict.
    for param in params:
        if repr(signature_params.get(param.name)) != repr(param):
            fail(f"{dot}params", f"param {param.name!r} has a kind that its default has not")
    # One object for equal documents, so that they share code.
    return _known.setdefault(function.text, function)


def _decode_ranges(items: Data, where: str) -> dict[str, Range]:
    ranges = {}
    for i, item in enumerate(items):
        if "range" in item:
            try:
                ranges[item["name"]] = Range.read(read_text(item["range"], f"{where}[{i}].range"))
            except RuleValueError as error:
                fail(f"{where}[{i}].range", str(error))
    names = {item["name"] for item in items}
    for name, allowed in ranges.items():
        if not allowed.others <= names:
            fail(where, f"the range of {name!r} names a param that there is not")
    return ranges


def decode_shards(data: Data, where: str) -> Shards:
    """Return the shards that a rule is taken over, from the data that `Shards.to_data` gives."""
    if data == "shard":
        return Shards(alone=True)
    split: list[tuple[str, ...] | None] = []
    for i, item in enumerate(read_list(data, where, MOST_PLACES)):
        if item is None:
            split.append(None)
            continue
        names = read_list(item, f"{where}[{i}]", MOST_PLACES)
        split.append(tuple(read_text(name, f"{where}[{i}]", 100) for name in names))
    return Shards(tuple(split))


def _decode_param(data: Data, where: str) -> RuleParam:
    fields = read_fields(data, where, ("name",), ("kind", "optional", "default", "value", "range"))
    name = read_name(fields["name"], where)
    if name in TAKEN:
        fail(where, f"no param can be called {name!r}")
    kind = fields.get("kind")
    if kind is not None and (type(kind) is not str or kind not in KINDS):
        fail(where, f"its kind is one of {', '.join(KINDS)}, not {describe(kind)}")
    optional = read_bool(fields.get("optional", False), f"{where}.optional")
    default = REQUIRED
    if "default" in fields:
        default = decode_value(fields["default"], f"{where}.default")
    return RuleParam(name, default, KINDS.get(kind or ""), optional)


def _decode_form(
    data: Data, where: str, name: str, arrays: Sequence[ArrayValue], params: Sequence[Data]
) -> RuleForm:
    fields = read_fields(data, where, ("tin", *FORM_FIELDS))
    has_tin = read_bool(fields["tin"], f"{where}.tin")
    # All but the backward follows from the params.
    if fields != rule_form(has_tin, fields["facts"], params, fields["backward"]):
        expected = "the arguments tin and the params without a value, and a forward that gives tin"
        fail(where, f"a rule's form has {expected}")
    numbers = {leaf["name"]: FLOAT_SCALAR for leaf in fields["arguments"][1:]}
    inputs = {"grad_out": INPUT, **({"tin": INPUT} if has_tin else {}), **numbers}
    graph = decode_graph(fields["backward"], f"{where}.backward", name, arrays, inputs)
    if graph.input("grad_out") is None or len(graph.outputs) != 1:
        fail(where, "a rule's graph takes grad_out and gives one gradient")
    facts = read_fields(fields["facts"], f"{where}.facts", (), tuple(CHOICES))
    for fact, value in facts.items():
        if type(value) is not type(CHOICES[fact][0]) or value not in CHOICES[fact]:
            fail(f"{where}.facts", f"{describe(value)} is no {fact} that can be saved")
    return RuleForm(has_tin, dict(sorted(facts.items())), graph)


class RuleForm(NamedTuple):
    """A graph of a rule, with tin or without, and what has to hold of the input."""

    has_tin: bool
    facts: Mapping[str, Any]
    graph: Graph


class SavedRule:
    """Stands for `fn(ctx, grad_out, tin, **params)`; one object for equal documents.

    `fixed` has the values of params with which the rule was captured; any other may be set.
    """

    def __init__(
        self,
        make: Callable[..., Rule],
        data: Data,
        params: Sequence[RuleParam],
        fixed: Mapping[str, Any],
        forms: tuple[RuleForm, ...],
    ) -> None:
        self.make = make
        self.params = params
        self.fixed = fixed
        self.forms = forms
        self.text = json.dumps(data)  # the data are the caller's, who may change them
        self.__name__: str = data["name"]
        self.__doc__ = data["doc"]
        kind = inspect.Parameter.POSITIONAL_ONLY
        leading = [inspect.Parameter(name, kind) for name in ("ctx", "grad_out", "tin")]
        self.__signature__ = inspect.Signature([*leading, *map(_parameter, params)])

    def __repr__(self) -> str:
        return f"<saved rule {self.__name__}>"

    def __reduce__(self) -> Any:
        return pickled(function_of_rule, self.make, json.loads(self.text))

    def __call__(self, ctx: Any, grad_out: Tensor, tin: Tensor | None, **params: Any) -> Tensor:
        """Apply the rule: to symbolic values in a capture, else as a `Rule` does."""
        if isinstance(grad_out, Value):
            return self.record(grad_out.trace, grad_out, tin, params)
        rule = self.make(name=self.__name__, function=self, native=False)
        return rule(ctx, grad_out, tin, **params)

    def record(
        self, trace: CodeTrace, grad_out: Value, tin: Value | None, params: Mapping[str, Any]
    ) -> Any:
        """Record the graph that fits in a capture, and return the gradient."""
        inputs: dict[str, Any] = {"grad_out": grad_out, **({} if tin is None else {"tin": tin})}
        for param in self.params:
            value = params.get(param.name, param.default)
            if param.name in self.fixed:
                _check_fixed(trace, param.name, self.fixed[param.name], value)
            elif isinstance(value, bool | str | tuple | None):
                problem = f"was saved with a number for {param.name}, which cannot be {value!r:.60}"
                raise trace.error(f"{problem} here")
            else:
                inputs[param.name] = float(value) if isinstance(value, int) else value
        trace.source.routes.setdefault("a saved document", "")
        (graph,), keys = draw_in(trace, self._choose(trace, tin is not None))
        return replay(trace, graph, {**inputs, **keys})[0]

    def _choose(self, trace: CodeTrace, has_tin: bool) -> Graph:
        forms = [form for form in self.forms if form.has_tin is has_tin]
        if not forms:
            without = "" if has_tin else "out"
            raise trace.error(
                f"was saved for use with{'out' if has_tin else ''} tin, not with{without}"
            )
        place = find_fitting([form.facts for form in forms], trace.facts)
        if place is None:
            expected = "; ".join(sorted({_describe(form.facts) for form in forms}))
            actual = _describe(trace.facts)
            raise trace.error(f"was not saved for an input of {actual}, but for {expected}")
        return forms[place].graph


# By the text of their documents; weak, so that a rule that nobody holds goes.
_known: weakref.WeakValueDictionary[str, SavedRule] = weakref.WeakValueDictionary()


def _parameter(param: RuleParam) -> inspect.Parameter:
    # A rule reads its params from a signature, so that kinds become annotations.
    annotation: Any = REQUIRED
    if param.kind is not None:
        annotation = f"{param.kind.__name__} | None" if param.optional else param.kind
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(param.name, kind, default=param.default, annotation=annotation)


def _check_fixed(trace: CodeTrace, name: str, saved: Any, value: Any) -> None:
    if isinstance(value, Value):
        if value.node.op is not ops.CONST:
            raise NeedsConcrete(f"param:{name}")
        value = value.node.attr("value")
    if value_key(value) != value_key(saved):
        raise trace.error(
            f"was saved with {name}={saved!r}, which cannot be {value!r} here; save "
            f"rule.with_params({name}={value!r}) where its source is"
        )


def _describe(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if ":" not in name)


def encode_rule(rule: Rule) -> dict[str, Data]:
    """Return a rule's document; `TraceError` if it cannot be captured.

    A param that is a float may be set in what is loaded; any other keeps the value that it has now.
    """
    return seal("rule", _encode(rule), lambda fields: decode_rule(type(rule), fields))


def _encode(rule: Rule, outer: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Data]:
    # `outer`: the values that compositions around it have bound.
    if rule.native is True:
        raise TraceError(
            f"rule {rule.name!r} runs as written (native=True), so it has no graph to save"
        )
    bound = {name: _encode_param_value(rule, name, value) for name, value in rule.bound.items()}
    head = {"name": rule.name, "first_order": rule.first_order, "bound": bound}
    if rule.shards is not None:  # the graphs are those of the whole array
        head["over"] = rule.shards.to_data()
        rule = rule.copy(shards=None)
    if rule.function is None:
        inner = {**outer, **rule.bound}
        return {**head, "parts": [_encode(part, inner) for part in rule._resolved_parts()]}
    params = rule.signature.select(outer)
    made_up = _missing_values(rule, params)
    # Numbers that are made up may be out of their ranges.
    bound_rule = (rule.copy(ranges={}) if made_up else rule).bound_rule({**made_up, **params})
    fixed: dict[str, Any] = {}
    count = -1
    while len(fixed) > count:  # what one graph branches on is fixed in all
        count = len(fixed)
        captured = [v for has_tin in (True, False) for v in _variants(bound_rule, has_tin, fixed)]
    unbound = rule.copy(bound={}).signature
    names = [*unbound.params, *(name for name in bound_rule.params if name not in unbound.params)]
    static = {**bound_rule.specialization.static, **fixed}
    encoded = [_encode_param(rule, unbound.param(name), static) for name in names]
    arrays: list[ArrayValue] = []
    forms = []
    for has_tin, facts, graph in captured:
        inlined = drop_calls(graph)
        inputs = tuple(node for node in inlined.inputs if node.attr("name") not in fixed)
        backward = encode_graph(replace(inlined, inputs=inputs), arrays)
        forms.append(rule_form(has_tin, facts, encoded, backward))
    return {
        **head,
        "doc": clean(rule.function.__doc__),
        "params": encoded,
        "arrays": [encode_array(array) for array in arrays],
        "forms": forms,
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
    # Any number serves: a float is known when the rule runs.
    params = rule.signature.params
    required = [p for name, p in params.items() if p.default is REQUIRED and name not in given]
    for param in required:
        if param.kind is not float:
            raise TraceError(
                f"rule {rule.name!r} cannot be saved without a value for param {param.name!r}: "
                f"save rule.with_params({param.name}=...)"
            )
    return {param.name: 1.0 for param in required}


def _variants(
    bound_rule: Any, has_tin: bool, fixed: dict[str, Any]
) -> list[tuple[bool, dict[str, Any], Graph]]:
    # `fixed` gets the params that the rule branches on. Not every rule has a graph without tin.
    variants = []
    unknown: dict[str, str] = {}  # of calls, which a document is for any of
    queue: list[dict[str, Any]] = [{}]
    problem: MultigradError | None = None
    while queue:
        facts = queue.pop(0)
        params = {f"param:{name}": value for name, value in fixed.items()}
        try:
            graph = bound_rule.specialization.graph(has_tin, {**facts, **params, **unknown})
        except NeedsConcrete as need:
            unknown |= library_so_far(bound_rule.specialization.code.libraries, need.facts)
            fixed.update(_fixed_params(bound_rule, need))
            choices = _choices(bound_rule, need, has_tin)
            queue = [{**facts, **choice} for choice in choices] + queue
        except MultigradError as error:
            problem = error  # of this rank or dtype, perhaps of all
        else:
            variants.append((has_tin, dict(sorted(facts.items())), graph))
    if has_tin and not variants and problem is not None:
        raise problem
    return sorted(variants, key=lambda variant: [(name, str(v)) for name, v in variant[1].items()])


def _fixed_params(bound_rule: Any, need: NeedsConcrete) -> dict[str, Any]:
    names = [fact.removeprefix("param:") for fact in need.facts if fact.startswith("param:")]
    for name in names:
        if not isinstance(bound_rule.params[name], float):
            raise TraceError(
                f"rule {bound_rule.rule.name!r} branches on param {name!r}, a tensor: pass a number"
            )
    return {name: bound_rule.params[name] for name in names}


def _choices(bound_rule: Any, need: NeedsConcrete, has_tin: bool) -> Iterator[dict[str, Any]]:
    names = [f for f in need.facts if not f.startswith("param:") and f != LIBRARY]
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


def _encode_param(rule: Rule, param: RuleParam, static: Mapping[str, Any]) -> Data:
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
