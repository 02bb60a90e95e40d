"""What a rule does: inside a capture, as it is, and called on tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...capture.copies import capture as capturing
from ...errors import RuleError, RuleTypeError, TraceError
from ...functions.documents.rules import SavedRule
from ...graph.support.params import is_address
from ...trace.derived.calls import replay
from ...trace.scope.draws import FREE, keyed
from ...trace.scope.present import now
from ...trace.scope.rules import RuleInForce
from ...trace.trace import NeedsConcrete, Trace, Value
from .bare import apply_rule
from .parts import bind_addressed

Rule = Any  # of rule.py, which uses what stands here
Tensor = Any


def record_rule(
    rule: Rule, trace: Trace, grad_out: Any, tin: Any, params: Mapping[str, Any]
) -> Any:
    """Apply a rule inside a capture."""
    values = {name: now(value) for name, value in {**params, **rule.bound}.items()}
    if rule.function is not None:
        if rule.native is True:
            raise TraceError(f"rule {rule.name!r} runs as written (native=True)")
        given = rule.signature_of_function.select(values)
        if isinstance(rule.function, SavedRule):  # no source to prepare
            return rule.function.record(trace, grad_out, tin, given)
        return capturing.run_written_in(
            rule.library, rule.function, trace, None, grad_out, tin, **given
        )
    for part in rule._resolved_parts():
        if part.shards is not None:
            raise RuleError(
                f"rule {part.name!r} is used {part.shards} within {rule.name!r}: say it of the "
                "composed rule, whose parts act on one array"
            )
        grad_out = part._run(trace, grad_out, tin, part.signature.select(values))
    return grad_out


def run_written(
    rule: Rule, ctx: Any, grad_out: Tensor, tin: Tensor | None, params: Mapping[str, Any]
) -> Tensor:
    """Apply a rule as it is, on a framework's tensors."""
    values = {**params, **rule.bound}
    if rule.function is not None:
        return rule.function(ctx, grad_out, tin, **rule.signature_of_function.select(values))
    for part in rule._resolved_parts():
        grad_out = part(ctx, grad_out, tin, **part.signature.select(values))
    return grad_out


def call_rule(
    rule: Rule, inputs: tuple[Any, Tensor, Tensor | None], args: tuple[Any, ...], params: Any
) -> Tensor:
    """Apply a rule to `(ctx, grad_out, tin)`; `args` are params in the order of its signature."""
    ctx, grad_out, tin = inputs
    if args:
        names = list(rule.signature.params)
        if len(args) > len(names):
            raise RuleTypeError(
                f"rule {rule.name!r} takes {len(names)} params, got {len(args)} more arguments"
            )
        params = {**dict(zip(names, args, strict=False)), **params}
    if any(map(is_address, params)) and rule.parts:
        rule, params = bind_addressed(rule, params)
    if isinstance(grad_out, Value):
        rule._check_names(params, rule.signature)
        rule._check_ranges({**params, **rule.bound}, whole=True)
        if rule.shards is not None:
            return _record_part(rule, grad_out, tin, params)
        return rule._run(grad_out.trace, grad_out, tin, params)
    key = None if rule.signature.takes("key") else params.pop("key", None)
    in_force = RuleInForce(rule.bound_rule(params), FREE if key is None else keyed(key))
    return apply_rule(in_force, ctx, grad_out, tin)


def _record_part(rule: Rule, grad_out: Value, tin: Value | None, params: Any) -> Any:
    """Apply a rule over shards inside the capture of something else."""
    trace = grad_out.trace
    numbers = {name: value for name, value in params.items() if not isinstance(value, Value)}
    known = {name: 1.0 for name in params if name not in numbers}  # any: they are inputs
    bound_rule = rule.copy(ranges={})._over_shards(rule.shards).bound_rule({**numbers, **known})
    facts: dict[str, Any] = {}
    while True:
        try:
            graph = bound_rule.specialization.graph(tin is not None, facts)
            break
        except NeedsConcrete as need:
            for fact in need.facts:
                facts[fact] = _asked(fact, grad_out, bound_rule.params, known)
    values = dict(zip(bound_rule.specialization.runtime, bound_rule.values, strict=True))
    given = {"grad_out": grad_out, "tin": tin, **values, **params}
    if graph.input("key") is not None:
        given["key"] = trace.next_key()
    return replay(trace, graph, given)[0]


def _asked(fact: str, x: Value, params: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Return what a capture needs to know of its input, which the capture around it may ask."""
    name = fact.removeprefix("param:")
    if name in params and name not in known:
        return params[name]
    if fact not in x.trace.facts:
        raise NeedsConcrete(fact)
    return x.trace.facts[fact]
