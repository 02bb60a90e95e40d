"""The proof of a rule's graph: its function runs on tensors of its own library, chained where it is
composed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend.contract import Backend
from ..capture.callables import plain_function
from ..documents.rules import SavedRule
from ..ground.written import WrittenRule
from ..ir.graph import Graph
from ..random import REPLAYED
from . import samples
from .attempt import Attempt, prove
from .compare import as_dtype
from .purity import may_act
from .run import (
    dialect_for,
    homes,
    isolated,
    keeps_infinity,
    keys,
    on_first_home,
    replays_draws,
    to_array,
)
from .samples import Sample, Slot
from .verdict import Subject

Array = Any


@dataclass(frozen=True, slots=True)
class RuleUnderProof:
    """A rule and what its graph was captured for.

    Attributes:
        open: gives for all params the rule with what its parts have bound, and the others.
        runtime, static: names of the run-time params, and the values of the others.
        facts: what was fixed for the capture.
    """

    rule: WrittenRule
    open: Callable[[Mapping[str, Any]], tuple[WrittenRule, dict[str, Any]]]
    graph: Graph
    has_tin: bool
    runtime: tuple[str, ...]
    static: Mapping[str, Any]
    facts: Mapping[str, Any]


def prove_rule(
    given: RuleUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" where a rule's graph is what was written, else why that could not be found out.

    Args:
        recapture: captures once more, to find the line where the two part.
        is_call: compare the values of `samples.CALL` alone.

    Raises:
        DisprovedError: it is not.
    """
    leaves = list(_leaves(given.rule))
    functions = [leaf.function for leaf in leaves]
    if any(isinstance(function, SavedRule) for function in functions):
        return ""  # made of graphs, as what comes from a document
    dialect = dialect_for(leaves[0])
    code = getattr(plain_function(functions[0]), "__code__", None)
    dialects = {id(leaf.function): dialect_for(leaf) for leaf in leaves}
    attempt = Attempt(
        subject=Subject(f"rule {given.rule.name!r}", code, _home_name(dialect)),
        graphs=(given.graph,),
        names=("result",),
        shown={"result": "the result"},
        slots=_slots(given),
        numbers=_numbers(given),
        fixed=frozenset(name for name in given.runtime if f"param:{name}" in given.facts),
        is_polymorphic="dtype" not in given.facts,
        acts=may_act(*functions),
        is_random=given.graph.input("key") is not None,
        run=lambda sample: {"result": _run(given, sample, dialects)},
        recapture=recapture,
        replays=all(map(replays_draws, dialects.values())),
        infinite=all(map(keeps_infinity, dialects.values())),
    )
    return prove(attempt, is_call=is_call)


def _leaves(rule: WrittenRule) -> Iterator[WrittenRule]:
    """Yield the rules that a rule is made of, which have a function."""
    if rule.function is not None:
        yield rule
    for part in rule.resolved_parts():
        yield from _leaves(part)


def _home_name(dialect: str) -> str:
    backend = next(homes(dialect), None)
    return "" if backend is None or not dialect else backend.name


def _slots(given: RuleUnderProof) -> tuple[Slot, ...]:
    """Return the gradient and the input: of the call's rank, where there is a call."""
    call = samples.CALL.get()
    x = None if call is None else call[0]
    shape: Any = given.facts.get("shape")
    if shape is None and x is not None and "ndim" not in given.facts:
        with suppress(ValueError):  # its number of axes is not known
            shape = samples.lengths(x)
    if shape is None:
        shape = samples.shape_for(int(given.facts.get("ndim", 2)))
    elif not samples.is_small(shape) and "shape" not in given.facts:
        (shape,) = samples.shrink([shape])
    dtype = samples.float_dtype("T", given.facts)
    names = ("grad_out", "tin") if given.has_tin else ("grad_out",)
    own = None if x is None else samples.values_of(x, tuple(shape))
    with np.errstate(over="ignore"):  # of float64, perhaps
        values = {"tin": own if own is None else own.astype(as_dtype(dtype))}
    return tuple(Slot(name, tuple(shape), dtype, values.get(name)) for name in names)


def _numbers(given: RuleUnderProof) -> dict[str, float]:
    """Return the run-time params: of the capture, of the call, or their defaults."""
    call = samples.CALL.get()
    own = {} if call is None else call[1]
    defaults = given.rule.params
    found = {}
    for name in given.runtime:
        known = (given.facts.get(f"param:{name}"), own.get(name), defaults.get(name))
        found[name] = next((float(v) for v in known if isinstance(v, int | float)), 0.75)
    return found


def _run(given: RuleUnderProof, sample: Sample, dialects: Mapping[int, str]) -> Array:
    """Run the rule as it is written."""
    rule, params = given.open({**given.static, **sample.numbers})
    draws = keys() if given.graph.input("key") is not None else None
    return _apply(
        rule, sample.arrays["grad_out"], sample.arrays.get("tin"), params, draws, dialects=dialects
    )


def _apply(
    rule: WrittenRule,
    grad_out: Array,
    tin: Array | None,
    params: Mapping[str, Any],
    draws: Any,
    dialects: Mapping[int, str],
) -> Array:
    """Apply a rule, or its parts one after the other, each on its own framework."""
    values = {**params, **rule.bound}
    if rule.function is None:
        for part in rule.resolved_parts():
            chosen = part.signature.select(values)
            grad_out = _apply(part, grad_out, tin, chosen, draws, dialects=dialects)
        return grad_out
    open_rule = rule.copy(bound={}) if rule.bound else rule
    given = open_rule.signature.select(values)
    return on_first_home(
        dialects[id(rule.function)],
        lambda backend: _call(rule.function, backend, grad_out, tin, given, draws=draws),
    )


def _call(
    function: Any, backend: Backend, grad_out: Array, tin: Array | None, params: Any, draws: Any
) -> Array:
    def run() -> Any:
        REPLAYED.set(draws)
        tensors = [
            None if a is None else backend.tensors.from_numpy(a.copy()) for a in (grad_out, tin)
        ]
        return to_array(backend, function(None, *tensors, **params))

    return isolated(backend, run, grad_out.dtype.name, draws is not None)
