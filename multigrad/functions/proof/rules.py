"""The proof of a rule's graph: its function runs on tensors of its own library, chained where it is
composed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...capture.code.readings import plain_function
from ...graph.ir.graph import Graph
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.random import REPLAYED
from ...graph.support.data import dataclass
from ...graph.support.typed import WrittenRule
from ...lowering.lower import emit_rule_once
from ..documents.rules import SavedRule
from . import samples
from .attempt import Attempt, prove
from .endless import Stoppable, may_act
from .run import (
    KEY,
    Outcome,
    coarseness_of,
    dialect_for,
    homes,
    isolated,
    keeps_infinity,
    keys,
    on_first_home,
    promotes_to_float32,
    replays_draws,
    run_samples,
    to_array,
    to_tensor,
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
        emitted: see `emit_rule_once`.
        is_again: see `Attempt`.
    """

    rule: WrittenRule
    open: Callable[[Mapping[str, Any]], tuple[WrittenRule, dict[str, Any]]]
    graph: Graph
    has_tin: bool
    runtime: tuple[str, ...]
    static: Mapping[str, Any]
    facts: Mapping[str, Any]
    emitted: dict[tuple[Any, ...], Any]
    is_again: bool = False


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
        slots=_slots(given, any(map(promotes_to_float32, dialects.values()))),
        numbers=_numbers(given),
        fixed=frozenset(name for name in given.runtime if f"param:{name}" in given.facts),
        dtypes={},  # of a rule's result: the input's, whatever constants are made of
        is_neutral=True,
        is_generic=True,
        acts=may_act(*functions),
        is_random=given.graph.input("key") is not None,
        run=_runs(given, dialects, functions),
        recapture=recapture,
        replays=all(map(replays_draws, dialects.values())),
        infinite=all(map(keeps_infinity, dialects.values())),
        coarseness=max(coarseness_of(each, (given.graph,)) for each in dialects.values()),
        is_again=given.is_again,
        outside=(functions, tuple(given.static.values())),
    )
    return prove(attempt, is_call=is_call)


def _leaves(rule: WrittenRule) -> Iterator[WrittenRule]:
    """Yield the rules that a rule is made of, which have a function."""
    if rule.function is not None:
        yield rule
    for part in rule._resolved_parts():
        yield from _leaves(part)


def _home_name(dialect: str) -> str:
    backend = next(homes(dialect), None)
    return "" if backend is None or not dialect else backend.name


def _slots(given: RuleUnderProof, is_narrow: bool) -> tuple[Slot, ...]:
    """Return the gradient and the input: of the call's rank, where there is a call.

    Args:
        is_narrow: of float64, its library computes some in float32, where the rule keeps it.
    """
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
    dtype = samples.float_dtype("T", given.facts, samples.called_dtype())
    if is_narrow and dtype == "float64":
        dtype = "float32"
    names = ("grad_out", "tin") if given.has_tin else ("grad_out",)
    own = None if x is None else samples.values_of(x, tuple(shape))
    with np.errstate(over="ignore"):  # of float64, perhaps
        values = {"tin": own if own is None else own.astype(as_numpy_dtype(dtype))}
    return tuple(Slot(name, tuple(shape), dtype, values.get(name)) for name in names)


def _numbers(given: RuleUnderProof) -> dict[str, float]:
    """Return the run-time params: of the capture, of the call, or their defaults."""
    call = samples.CALL.get()
    own = {} if call is None else call[1]
    params = given.rule.signature.params
    found = {}
    for name in given.runtime:
        default = params[name].default if name in params else None
        known = (given.facts.get(f"param:{name}"), own.get(name), default)
        found[name] = next((float(v) for v in known if isinstance(v, int | float)), 0.75)
    return found


# --- both sides -----------------------------------------------------------------------------------


def _runs(
    given: RuleUnderProof, dialects: Mapping[int, str], functions: Sequence[Any]
) -> Callable[[Sequence[Sample]], list[Outcome]]:
    is_random = given.graph.input("key") is not None
    stop = Stoppable(functions)
    (dialect, *others) = dict.fromkeys(dialects.values())

    def original(backend: Backend, sample: Sample) -> dict[str, Any]:
        own = None if others else backend
        return {"result": _run(given, sample, dialects, own)}

    def lowered(backend: Backend, sample: Sample) -> dict[str, Any]:
        if others:  # its parts run on several frameworks
            raise LookupError(backend.name)
        function = emit_rule_once(given.graph, backend, given.emitted)
        arrays = [sample.arrays[name] for name in ("grad_out", "tin") if name in sample.arrays]
        tensors = [to_tensor(backend, array) for array in arrays]
        numbers = [sample.numbers[name] for name in given.runtime]
        result = function(*tensors, *numbers, *((KEY,) if is_random else ()))
        return {"result": to_array(backend, result)}

    def run(given_samples: Sequence[Sample]) -> list[Outcome]:
        return run_samples(
            dialect, given_samples, original, lowered, is_random=is_random, stop=stop
        )

    return run


def _run(
    given: RuleUnderProof, sample: Sample, dialects: Mapping[int, str], backend: Backend | None
) -> Array:
    """Run the rule as it is written; on one framework, or each part on its own."""
    rule, params = given.open({**given.static, **sample.numbers})
    draws = keys() if given.graph.input("key") is not None else None

    def call(function: Any, grad_out: Array, tin: Array | None, chosen: Any) -> Array:
        if backend is not None:
            return _call(function, backend, grad_out, tin, chosen)

        def call_on(backend: Backend) -> Array:
            def run() -> Array:
                REPLAYED.set(draws)
                return _call(function, backend, grad_out, tin, chosen)

            return isolated(backend, run, grad_out.dtype.name, draws is not None)

        return on_first_home(dialects[id(function)], call_on)

    return _apply(rule, sample.arrays["grad_out"], sample.arrays.get("tin"), params, call)


def _apply(
    rule: WrittenRule,
    grad_out: Array,
    tin: Array | None,
    params: Mapping[str, Any],
    call: Callable[..., Array],
) -> Array:
    """Apply a rule, or its parts one after the other."""
    values = {**params, **rule.bound}
    if rule.function is None:
        for part in rule._resolved_parts():
            grad_out = _apply(part, grad_out, tin, part.signature.select(values), call)
        return grad_out
    open_rule = rule.copy(bound={}) if rule.bound else rule
    return call(rule.function, grad_out, tin, open_rule.signature.select(values))


def _call(
    function: Any, backend: Backend, grad_out: Array, tin: Array | None, params: Any
) -> Array:
    tensors = [None if a is None else to_tensor(backend, a) for a in (grad_out, tin)]
    return to_array(backend, function(None, *tensors, **params))
