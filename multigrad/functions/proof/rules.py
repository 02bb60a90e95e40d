"""The proof of a rule: the tensors that its functions run on, and what is compared.

A composed rule's functions run on tensors of their own libraries, chained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...capture.user_code.inspection import plain_function
from ...capture.user_code.snapshot import may_act
from ...graph.ir.graph import Graph
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.random import REPLAYED
from ...graph.support.class_bases import dataclass
from ...lowering.source import emit_rule_once
from ..documents.rules import SavedRule
from . import samples
from .attempt import Attempt
from .line_tracing import StepLimit
from .proof import prove
from .run import (
    KEY,
    Outcome,
    as_array,
    dialect_for,
    home_name,
    isolated,
    keys,
    on_first_home,
    promotes_to_float32,
    run_samples,
    to_tensor,
)
from .samples import InputSlot, Sample
from .verdicts import ProofSubject

Array = Any
Rule = Any  # of the room `rules`, which imports this one


@dataclass(frozen=True, slots=True)
class RuleUnderProof:
    """A rule and what its graph was captured for.

    Attributes:
        open: (values of all params) -> the rule, with the params that its parts have bound, and
            the values of the others.
        runtime, static: the names of the run-time params, and the values of the others.
        facts: what was fixed for the capture.
        emitted: see `emit_rule_once`.
        is_known_in_float64: see `Attempt`.
    """

    rule: Rule
    open: Callable[[Mapping[str, Any]], tuple[Rule, dict[str, Any]]]
    graph: Graph
    has_tin: bool
    runtime: tuple[str, ...]
    static: Mapping[str, Any]
    facts: Mapping[str, Any]
    emitted: dict[tuple[Any, ...], Any]
    is_known_in_float64: bool = False


def prove_rule(
    captured: RuleUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" if a rule's graph computes what its code does; see `prove_function`."""
    parts = list(_parts_with_code(captured.rule))
    functions = [part.function for part in parts]
    if any(isinstance(function, SavedRule) for function in functions):
        return ""  # made of graphs, as what comes from a document
    code = getattr(plain_function(functions[0]), "__code__", None)
    dialects = {id(part.function): dialect_for(part) for part in parts}
    dialect = dialects[id(functions[0])]
    attempt = Attempt(
        subject=ProofSubject(f"rule {captured.rule.name!r}", code, home_name(dialect)),
        graphs=(captured.graph,),
        names=("result",),
        shown={"result": "the result"},
        slots=_slots(captured, any(map(promotes_to_float32, dialects.values()))),
        numbers=_numbers(captured),
        fixed_numbers=frozenset(
            name for name in captured.runtime if f"param:{name}" in captured.facts
        ),
        dtypes={},  # of a rule's result: the input's, whatever constants are made of
        is_neutral=True,
        numbers_adapt=True,
        may_act=may_act(*functions),
        run=_runner(captured, dialects, functions),
        recapture=recapture,
        dialects=tuple(dialects.values()),
        is_known_in_float64=captured.is_known_in_float64,
        functions=functions,
        objects=tuple(captured.static.values()),
    )
    return prove(attempt, is_call=is_call)


def _parts_with_code(rule: Rule) -> Iterator[Rule]:
    # A composition has no code of its own, but its parts have.
    if rule.function is not None:
        yield rule
    for part in rule._resolved_parts():
        yield from _parts_with_code(part)


def _slots(captured: RuleUnderProof, is_narrow: bool) -> tuple[InputSlot, ...]:
    # The shape has the call's rank, if there is a call. `is_narrow`: the library computes some of
    # float64 in float32, while the rule keeps float64.
    call = samples.CALL.get()
    x = None if call is None else call[0]
    shape: Any = captured.facts.get("shape")
    if shape is None and x is not None and "ndim" not in captured.facts:
        with suppress(ValueError):  # its number of axes is not known
            shape = samples.lengths(x)
    if shape is None:
        rank = int(captured.facts.get("ndim", 2))
        shape = samples.SHAPES[rank] if rank < len(samples.SHAPES) else (2,) * rank
    elif not samples.is_small(shape) and "shape" not in captured.facts:
        (shape,) = samples.shrink([shape])
    dtype = samples.float_dtype("T", captured.facts, samples.called_dtype())
    if is_narrow and dtype == "float64":
        dtype = "float32"
    names = ("grad_out", "tin") if captured.has_tin else ("grad_out",)
    called = None if x is None else samples.values_of(x, tuple(shape))
    with np.errstate(over="ignore"):  # of float64, perhaps
        values = {"tin": called if called is None else called.astype(as_numpy_dtype(dtype))}
    return tuple(InputSlot(name, tuple(shape), dtype, values.get(name)) for name in names)


def _numbers(captured: RuleUnderProof) -> dict[str, float]:
    # Values of the capture come first, then those of the call, then the defaults.
    call = samples.CALL.get()
    called = {} if call is None else call[1]
    params = captured.rule.signature.params
    numbers = {}
    for name in captured.runtime:
        default = params[name].default if name in params else None
        known = (captured.facts.get(f"param:{name}"), called.get(name), default)
        numbers[name] = next((float(v) for v in known if isinstance(v, int | float)), 0.75)
    return numbers


def _runner(
    captured: RuleUnderProof, dialects: Mapping[int, str], functions: Sequence[Any]
) -> Callable[[Sequence[Sample]], list[Outcome]]:
    is_random = captured.graph.input("key") is not None
    (dialect, *others) = dict.fromkeys(dialects.values())

    def original(backend: Backend, sample: Sample) -> dict[str, Any]:
        home = None if others else backend
        return {"result": _run(captured, sample, dialects, home)}

    def lowered(backend: Backend, sample: Sample) -> dict[str, Any]:
        if others:  # its parts run on several frameworks
            raise LookupError(backend.name)
        function = emit_rule_once(captured.graph, backend, captured.emitted)
        arrays = [sample.arrays[name] for name in ("grad_out", "tin") if name in sample.arrays]
        tensors = [to_tensor(backend, array) for array in arrays]
        numbers = [sample.numbers[name] for name in captured.runtime]
        result = function(*tensors, *numbers, *((KEY,) if is_random else ()))
        return {"result": as_array(backend, result)}

    return partial(
        run_samples,
        dialect,
        original=original,
        lowered=lowered,
        is_random=is_random,
        limit=StepLimit(functions),
    )


def _run(
    captured: RuleUnderProof, sample: Sample, dialects: Mapping[int, str], backend: Backend | None
) -> Array:
    # The whole rule runs on `backend`; if that is None, each part runs on its own framework.
    rule, params = captured.open({**captured.static, **sample.numbers})
    draws = keys() if captured.graph.input("key") is not None else None

    def call(function: Any, grad_out: Array, tin: Array | None, chosen: Any) -> Array:
        if backend is not None:
            return _call(function, backend, grad_out, tin, chosen)

        def call_on(backend: Backend) -> Array:
            def run() -> Array:
                # One iterator for all parts: each draw takes the next key.
                REPLAYED.set(draws)
                return _call(function, backend, grad_out, tin, chosen)

            return isolated(backend, run, grad_out.dtype.name, draws is not None)

        return on_first_home(dialects[id(function)], call_on)

    return _apply(rule, sample.arrays["grad_out"], sample.arrays.get("tin"), params, call)


def _apply(
    rule: Rule,
    grad_out: Array,
    tin: Array | None,
    params: Mapping[str, Any],
    call: Callable[..., Array],
) -> Array:
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
    return as_array(backend, function(None, *tensors, **params))
