"""Rules applied to tensors, outside any autodiff: `rule(None, grad_out, tin, **params)`.

`apply_rule` runs the rule as code of the backend, which `find_rule` emits once for each dtype and
set of facts about the gradient, or as written where it cannot be captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...errors import GradientError, TraceError
from .. import ops
from ..backend.contract import Backend
from ..backend.discovery import backend_among
from ..backend.values import in_one_framework
from ..functions.facts import gather_facts
from ..functions.recipe import NotCaptured
from ..ir.graph import Graph
from ..lowering.checks import (
    check_float,
    check_values,
    find_device,
    find_lacking,
    refuse_lacking,
    shapes_agree,
    two_devices,
)
from ..lowering.lower import emit_rule_once
from ..support.threads import build_once
from ..trace.active_rules import CHECKED, note_for_ranks
from ..trace.identity import items_key
from ..trace.lookups import at_present
from ..trace.trace import NeedsConcrete, Value, dtype_name
from ..trace.xp import all as xp
from .rule_captures import record_code, record_rule
from .rule_in_force import RuleInForce, bind
from .specialization import Specialization, run_as_written

Tensor = Any
Rule = Any  # of rule.py, which calls this module
MOST_ENTRIES = 1024  # of one specialization: there may be one per shape or value
_MISSING: Any = object()  # not None, which means: runs as written


class EmittedRule(NamedTuple):
    """A rule as code of a backend: `call(grad_out, [tin], *values, [key])`.

    Attributes:
        lacking: by dtype, what the backend lacks for it.
    """

    call: Callable[..., Any]
    graph: Graph
    lacking: Mapping[str, str]

    @property
    def is_random(self) -> bool:
        """Whether it takes a key."""
        return self.graph.input("key") is not None


def call_rule(rule: Rule, ctx: Any, grad_out: Any, tin: Any, params: dict[str, Any]) -> Any:
    """Apply a rule to tensors, or record it in the capture to which they belong."""
    if isinstance(grad_out, Value):
        # In a capture nothing is bound, which would check them.
        rule._check_names(params, rule.signature)
        rule._check_ranges({**params, **rule.bound}, with_defaults=True)
        if rule.shards is not None:
            return record_rule(rule, grad_out, tin, params)
        return record_code(rule, grad_out.trace, grad_out, tin, params)
    # A rule may have a param of this name.
    key = None if rule.signature.takes("key") else params.pop("key", None)
    return apply_rule(bind(rule, params, key), ctx, grad_out, tin)


def call_with_ones(rule: Rule, x: Any, params: dict[str, Any]) -> Any:
    return rule(None, xp.ones_like(x), x, **params)


def apply_rule(in_force: RuleInForce, ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """Apply a rule in force to a gradient, outside autodiff; the result is like tin or grad_out."""
    backend = backend_among((grad_out, tin))
    # Tensors of one class belong to one framework.
    if type(grad_out) is not type(tin):
        grad_out, tin = in_one_framework((grad_out, tin))
    if in_force.moves:
        in_force = at_present(in_force, backend)
    if CHECKED and not backend.tensors.is_traced(grad_out):
        note_for_ranks("gradients under", in_force)
    specialization, values = in_force.specialization, in_force.values
    if grad_out is None:
        raise GradientError(f"{specialization.subject} got None for grad_out; expected a tensor")
    for tensor in (grad_out, tin):
        if isinstance(tensor, int | float) and not hasattr(tensor, "dtype"):
            raise GradientError(
                f"{specialization.subject} got {type(tensor).__name__} {tensor!r}; expected a "
                f"tensor: numpy.array({float(tensor)!r}), or one of your framework"
            )
        if tensor is not None:
            check_float(tensor, specialization.rule)
    if tin is not None and not shapes_agree(grad_out.shape, tin.shape):
        raise GradientError(
            f"{specialization.subject} got a gradient of shape {tuple(grad_out.shape)} for an "
            f"input of shape {tuple(tin.shape)}; expected the same shape"
        )
    if tin is not None and find_device(grad_out) != find_device(tin):
        raise two_devices(specialization.subject, "a gradient", grad_out, "its input", tin)
    check_values(specialization.subject, specialization.runtime, backend, grad_out, values)
    if tin is not None and grad_out.dtype != tin.dtype:
        grad_out = backend.kernels.rows[ops.CAST](grad_out, dtype=tin.dtype)
    find = _finders.get(backend.name) or opaque_on(backend, find_rule, _finders)
    emitted = find(specialization, backend, grad_out, tin, values)
    if emitted is None:
        return run_as_written(specialization, ctx, grad_out, tin, values)
    refuse_lacking(emitted.lacking, dtype_name(grad_out.dtype))
    arguments = (grad_out,) if tin is None else (grad_out, tin)
    key = (in_force.draws.next_key(backend),) if emitted.is_random else ()
    return emitted.call(*arguments, *values, *key)


# `find_rule` by backend, opaque to its compiler: one that reads Python would enter the capture.
_finders: dict[str, Callable[..., Any]] = {}


def opaque_on(
    backend: Backend, function: Callable[..., Any], table: dict[str, Any]
) -> Callable[..., Any]:
    """Return a function that the backend's compiler does not read, kept in a table by backend."""
    opaque = backend.compiler.opaque
    return table.setdefault(backend.name, function if opaque is None else opaque(function))


def find_rule(
    specialization: Specialization,
    backend: Backend,
    grad_out: Tensor,
    tin: Tensor | None,
    values: tuple[Any, ...],
) -> EmittedRule | None:
    """Return the rule as code for such a gradient, made once; None: it runs as written."""
    if specialization.rule.native is True:
        return None
    has_tin = tin is not None
    leaves = (tin if has_tin else grad_out, *values)
    code, captures = specialization.code, specialization.captures[has_tin]
    layout = captures.lay_out(leaves[0])
    while True:
        try:
            facts = gather_facts(specialization.subject, captures.facts, layout, leaves)
        except NotCaptured as error:
            raise error.error from None
        key = (backend.name, has_tin, grad_out.dtype, items_key(facts))
        emitted = code.entries.get(key, _MISSING)
        if emitted is not _MISSING:
            return emitted
        build = functools.partial(
            _build, specialization, backend, has_tin=has_tin, facts=facts, leaves=leaves
        )
        with suppress(NeedsConcrete):  # `captures.facts` have grown: look again
            return build_once(code.entries, key, build, MOST_ENTRIES)


def _build(
    specialization: Specialization,
    backend: Backend,
    has_tin: bool,
    facts: Mapping[str, Any],
    leaves: Sequence[Any],
) -> EmittedRule | None:
    try:
        graph = specialization.graph(has_tin, facts, leaves)
    except TraceError as error:
        specialization.give_up(error)
        return None
    asked = specialization.captures[has_tin].facts
    if not asked <= facts.keys():  # what the code has read is part of the key
        raise NeedsConcrete(*asked, noted=False)
    lacking = find_lacking(specialization.subject, backend, graph)
    emitted = emit_rule_once(graph, backend, specialization.code.entries)
    return EmittedRule(emitted, graph, lacking)
