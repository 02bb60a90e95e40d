"""From a rule and its params to a `BoundRule`: static params, run-time params, specializations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...backend.values import concrete_number
from ...capture.user_code.signature import REQUIRED, STATIC_TYPES, Signature, check_value
from ...errors import RuleTypeError
from ...graph.support.params import find_part, is_address, read_params
from ...graph.support.threads import SERIALS
from ...trace.identity import function_key, items_key, owners_of
from ...trace.moving_numbers import Moving
from .names import as_registered
from .specialization import BoundRule, Slot, Specialization, code_of

Rule = Any  # of rule.py, which imports this module
MOST_SPECIALIZATIONS = 256  # of one rule: by params that are part of its code


def make_bound_rule(rule: Rule, params: Mapping[str, Any] | None = None) -> BoundRule:
    """Check params against the rule's signature and ranges and return the BoundRule."""
    given = read_params(params)
    if any(map(is_address, given)) and rule.parts:
        rule, given = bind_addressed(rule, given)
    signature = rule.signature
    rule._check_names(given, signature)
    values = {**_values(rule, signature, given), **rule.bound}
    if rule.bound:
        # Bound values run as params do, so that the code of a rule is shared by all its bindings.
        rule = rule.copy(bound={})
        signature = rule.signature
    runtime: dict[str, Any] = {}
    static: dict[str, Any] = {}
    for name, value in values.items():
        is_runtime, value = check_value(rule.name, signature.param(name), value)
        (runtime if is_runtime else static)[name] = value
    if rule.own_ranges or rule.parts:  # each `use` with a new number asks
        rule._check_ranges({**runtime, **static}, whole=bool(rule.parts))
    # Taken before `_frozen`, whose copies have none: the rule that people hold keeps them.
    known = rule._specializations
    rule, hidden = _hide_bound(rule._frozen(), {*signature.params, *values})
    runtime.update(hidden)
    names = tuple(sorted(runtime))
    specialization = _specialize(rule, names, static, frozenset(hidden), known)
    ordered = tuple(runtime[name] for name in names)
    return BoundRule(specialization, ordered, token_of(specialization, ordered))


def token_of(specialization: Specialization, values: tuple[Any, ...]) -> str:
    """Return text that is equal for rules that do the same with equal values."""
    if len(values) == 1 and type(values[0]) is float:  # each new number comes here
        return f"{specialization.id}({values[0]!r})"
    words = [repr(v) if type(v) is float else value_token(v) for v in values]
    return f"{specialization.id}({','.join(words)})"


def _values(rule: Rule, signature: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(given)
    is_single = _is_single(rule)
    for param in signature.params.values():
        if param.name in given:
            continue
        if param.default is REQUIRED:
            raise RuleTypeError(
                f"rule {rule.name!r} needs a value for param {param.name!r}: "
                f"params={{{param.name!r}: ...}}"
            )
        if is_single:
            # The parts of a composed rule may have different defaults: they keep their own.
            values[param.name] = param.default
    return values


def _is_single(rule: Rule) -> bool:
    if rule.function is not None:
        return True
    if len(rule.parts) != 1:
        return False
    # A name alone, with a choice that was made (`acting._named`): no composition of one rule.
    (part,) = rule._resolved_parts()
    return part.name == rule.name and _is_single(part)


def _hide_bound(rule: Rule, taken: set[str], path: str = "") -> tuple[Rule, dict[str, Any]]:
    hidden: dict[str, Any] = {}
    bound = dict(rule.bound)
    for name, value in rule.bound.items():
        # All values share the code: a slot is filled at each call.
        if not isinstance(value, STATIC_TYPES):
            own = f"{name}_of_part{path}"
            while own in taken:
                own += "_"
            hidden[own], bound[name] = value, Slot(own)
    parts = []
    for i, part in enumerate(rule.parts, 1):
        part, inner = _hide_bound(part, taken, f"{path}_{i}")
        parts.append(part)
        hidden.update(inner)
    return (rule.copy(bound=bound, parts=tuple(parts)), hidden) if hidden else (rule, hidden)


def _specialize(
    rule: Rule,
    runtime: tuple[str, ...],
    static: Mapping[str, Any],
    hidden: frozenset[str],
    known: dict[Any, dict[Any, Specialization]],
) -> Specialization:
    identity = _identity(rule)
    own = known.get(identity)
    if own is None:  # a part's name means another rule now: what was made for the old one goes
        known.clear()
        own = known.setdefault(identity, {})
    key = (runtime, items_key(static))
    specialization = own.get(key)
    if specialization is None:
        code = code_of(rule.name, (identity, *key), _owners(rule))
        if len(own) >= MOST_SPECIALIZATIONS:
            own.clear()
        specialization = own.setdefault(key, Specialization(rule, runtime, static, hidden, code))
    return specialization


def _identity(rule: Rule) -> Any:
    made_of = (
        function_key(rule.function)
        if rule.function is not None
        else tuple(map(_identity, rule.parts))
    )
    asked = (rule.prove, rule.shards, rule.fused)
    said = (rule.name, rule.native, rule.first_order, rule.library, *asked)
    said += (rule.residuals,) if rule.residuals != "auto" else ()
    return said, made_of, items_key(rule.bound)


def _owners(rule: Rule) -> Iterator[Any]:
    if rule.function is not None:
        yield from owners_of(rule.function)
    for part in rule.parts:
        yield from _owners(part)


def value_token(value: Any) -> str:
    """Return text that is equal for equal values; a traced value equals nothing else."""
    if isinstance(value, float | int):
        return repr(value)
    if isinstance(value, Moving):
        return f"moving {value.serial}"
    number = concrete_number(value)
    # Not a number's text: what is compiled for a number holds it, and a tensor may change in place.
    return f"<traced {next(SERIALS)}>" if number is None else f"tensor {number!r}"


# --- the parts of a composed rule: their params by name, and the chain in words -------------------
Path = tuple[int, ...]


def bind_addressed(rule: Rule, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    """Return a rule with the params that name a part ("noise.sigma") bound, and the others."""
    rest = {}
    for name, value in params.items():
        if is_address(name):
            rows = list(_walk(rule))
            labels = [label for label, _ in rows]
            address = name if name.rpartition(".")[0] in labels else respelled(name)
            position, param = find_part(f"rule {rule.name!r}", address, labels)
            rule = _bind(rule, rows[position][1], name, param, value)
        else:
            rest[name] = value
    return rule, rest


def _walk(rule: Rule, path: Path = ()) -> Iterator[tuple[str, Path]]:
    for i, part in enumerate(rule._resolved_parts()):
        yield part.name, (*path, i)
        yield from _walk(part, (*path, i))


def respelled(address: str) -> str:
    """Return an address with a package's rule spelled as it is registered."""
    part, _, param = address.rpartition(".")
    label, bracket, index = part.partition("[")
    return f"{as_registered(label) or label}{bracket}{index}.{param}"


def _bind(rule: Rule, path: Path, address: str, param: str, value: Any) -> Rule:
    if param in rule.bound:
        raise RuleTypeError(
            f"rule {rule.name!r}: param {param!r} is bound by with_params, so {address!r} can "
            "no longer be set"
        )
    first, *inner = path
    parts = list(rule._resolved_parts())
    own = parts[first]
    parts[first] = (
        _bind(own, tuple(inner), address, param, value)
        if inner
        else own.with_params(**{param: value})
    )
    # The other parts stay names, which are looked up at each use.
    kept = (part if i == first else rule.parts[i] for i, part in enumerate(parts))
    return rule.copy(parts=tuple(kept))


def words_of(rule: Rule, with_params: bool = False) -> str:
    """Return a rule's display name: its own name or its parts, with the bound values.

    Args:
        with_params: whether to include the params that may be set, with their defaults.
    """
    where = "" if rule.shards is None else f", {rule.shards}"
    where += "" if rule.residuals == "auto" else f", residuals={rule.residuals!r}"
    if rule.parts:
        named = "" if rule.name.startswith("compose(") else f"{rule.name}: "
        return f"{named}{chain_of(rule)}{where}"
    bound = ", ".join(f"{name}={value!r}" for name, value in rule.bound.items())
    known = [
        name if value is REQUIRED else f"{name}={value!r}" for name, value in rule.params.items()
    ]
    params = f"({', '.join(known)})" if with_params and known else ""
    return f"{rule.name}{params}{f' with {bound}' if bound else ''}{where}"


def chain_of(rule: Rule) -> str:
    """Return a rule in words: its parts in the order in which they act, with what is bound."""
    bound = ", ".join(f"{name}={value!r}" for name, value in rule.bound.items())
    if not rule.parts:
        return f"{rule.name}({bound})" if bound else rule.name
    rows = zip(rule.parts, rule._resolved_parts(), strict=True)
    words = [given if isinstance(given, str) else _within(part) for given, part in rows]
    chain = " → ".join(words)
    return f"({chain})({bound})" if bound else chain


def _within(part: Rule) -> str:
    words = chain_of(part)
    return f"({words})" if part.parts and not part.bound else words
