"""The graph of a rule in force outside its calls: for an input as good as any, and what the rule
asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.ir.graph import Graph
from ....core.rules.rule_in_force import RuleInForce
from ....core.trace.trace import NeedsConcrete
from ....errors import TraceError
from ...functions.calls.facts import library_so_far
from ...trace.moving_numbers import read_number

LIKELY = {"device_type": "cpu", "dtype": "float32", "ndim": 2, "shape": (2, 3)}


def graph_of(in_force: RuleInForce) -> Graph:
    """Return a rule's graph with the params' own values where the rule branches on them."""
    return _find_graph(in_force, True, {})[0]


def likely_graph(in_force: RuleInForce, has_tin: bool) -> tuple[Graph | None, dict[str, Any]]:
    """Return a rule's graph for a likely input and the facts it needed; None: no graph."""
    try:
        return _find_graph(in_force, has_tin, LIKELY)
    # What is known at run time only, the application says; or it runs as it is.
    except (NeedsConcrete, TraceError):
        return None, {}


def _find_graph(
    in_force: RuleInForce, has_tin: bool, known: Mapping[str, Any]
) -> tuple[Graph, dict[str, Any]]:
    specialization = in_force.specialization
    params = specialization.name_values(in_force.values)
    known = {**known, **{f"param:{name}": value for name, value in params.items()}}
    facts: dict[str, Any] = {}
    while True:
        try:
            return specialization.graph(has_tin, facts), facts
        except NeedsConcrete as need:
            facts |= library_so_far(specialization.code.libraries, need.facts)
            for fact in set(need.facts) - facts.keys():
                facts[fact] = read_number(known.get(fact))
                if facts[fact] is None:
                    raise


def tensor_params(in_force: RuleInForce) -> tuple[str, ...]:
    """Return the run-time params that may be tensors: no Python code looks at them."""
    graph, facts = likely_graph(in_force, True)
    if graph is None:
        return ()
    return tuple(name for name in in_force.specialization.runtime if f"param:{name}" not in facts)
