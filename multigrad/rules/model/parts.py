"""The parts of a composed rule: their params by name, and the chain in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...capture.code.signature import REQUIRED
from ...errors import RuleTypeError
from ...graph.support.params import find_part, is_address
from .names import as_registered

Rule = Any  # of rule.py, which uses what stands here
Path = tuple[int, ...]


def bind_addressed(rule: Rule, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    """Return a rule in which the params that name a part ("noise.sigma") are bound to it, and the
    rest of the params.

    Raises:
        RuleTypeError: there is no such part, it has no such param, or it is bound already.
    """
    rest = {}
    for name, value in params.items():
        if is_address(name):
            rows = list(_walk(rule))
            labels = [label for label, _ in rows]
            address = name if rule_named(name) in labels else respelled(name)
            position, param = find_part(f"rule {rule.name!r}", address, labels)
            rule = _bind(rule, rows[position][1], name, param, value)
        else:
            rest[name] = value
    return rule, rest


def _walk(rule: Rule, path: Path = ()) -> Iterator[tuple[str, Path]]:
    """Yield the names of the parts, of those within parts too, and where they are."""
    for i, part in enumerate(rule._resolved_parts()):
        yield part.name, (*path, i)
        yield from _walk(part, (*path, i))


def rule_named(address: str) -> str:
    """Return the part of an address before its last dot."""
    return address.rpartition(".")[0]


def respelled(address: str) -> str:
    """Return an address with the package's rule that it names as that is registered."""
    label, bracket, index = rule_named(address).partition("[")
    known = as_registered(label) or label
    return f"{known}{bracket}{index}.{address.rpartition('.')[2]}"


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
    kept = (part if i == first else rule.parts[i] for i, part in enumerate(parts))
    return rule.copy(parts=tuple(kept))


def words_of(rule: Rule, with_params: bool = False) -> str:
    """Return what a rule is called: its name or its parts, with what is bound.

    Args:
        with_params: also the params that may be set, with their defaults.
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
