"""A rule on many gradients outside of any autodiff, in as few calls of the framework as it has.

Rules that draw, that ask for facts of their input, or whose params are tensors act on one gradient
after another, as `bare` has it, and so does what a framework has no such call for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...backend.contract import Backend
from ...backend.finding.discovery import backend_of
from ...graph.ir.graph import Graph
from ...graph.support.threads import build_once
from ...lowering.input_checks import check_float, check_values, refuse_lacking
from ...lowering.lower import emit_many
from ...trace.scope.present import at_present
from ...trace.scope.rules import RuleInForce
from ...trace.trace import dtype_name
from .bare import MOST_ENTRIES, find_rule

Tensor = Any


def apply_to_many(
    in_force: RuleInForce, gradients: Sequence[Tensor], in_place: bool, *tries: bool
) -> list[Tensor] | None:
    """Apply a rule in force to gradients of one class and dtype; None where it acts on one after
    another. With one more True, in place, nothing is written, and an empty list says that it would.
    """
    backend = backend_of(gradients[0])
    if backend.autodiff.many is None:
        return None
    in_force = at_present(in_force, backend)
    if not all(type(value) is float for value in in_force.values):
        return None
    act = _acting.get(backend.name) or _act_for(backend)
    return act(in_force, gradients, backend, in_place, *tries)


_acting: dict[str, Callable[..., Any]] = {}


def _act_for(backend: Backend) -> Callable[..., Any]:
    opaque = backend.compiler.opaque
    return _acting.setdefault(backend.name, _act if opaque is None else opaque(_act))


def _act(
    in_force: RuleInForce,
    gradients: Sequence[Tensor],
    backend: Backend,
    in_place: bool,
    *tries: bool,
) -> list[Tensor] | None:
    specialization, values = in_force.specialization, in_force.values
    first = gradients[0]
    check_float(first, specialization.rule)
    check_values(specialization.subject, specialization.runtime, backend, first, values)
    found = find_rule(specialization, backend, first, None, values)
    if found is None or found[1] or specialization.facts or specialization.rule.shards is not None:
        return None
    refuse_lacking(found[2], dtype_name(first.dtype))
    key = ("many", backend.name, in_place)
    build = functools.partial(_build, specialization.graph(False, {}), backend, in_place)
    run = build_once(specialization.entries, key, build, MOST_ENTRIES)
    return None if run is None else run(gradients, values, *tries)


def _build(graph: Graph, backend: Backend, in_place: bool) -> Any:
    assert backend.autodiff.many is not None
    emit = functools.partial(emit_many, backend=backend)
    return backend.autodiff.many(graph, emit, in_place)
