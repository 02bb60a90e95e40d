"""The proof of a rule: the tensors that its functions run on, and what is compared.

A composed rule has no code but that of its parts, whose functions run as a chain: each takes the
gradient that the one before it returned. If all are of one library, the chain runs on its framework
as a whole; otherwise each part runs on the framework of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import tee
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...capture.user_code.inspection import plain_function
from ...capture.user_code.libraries import told_library
from ...capture.user_code.snapshot import may_act
from ...graph.ir.graph import Graph
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.passes.facts import LIBRARY
from ...graph.random import REPLAYED
from ...lowering.source import emit_rule_once
from ..documents.rules import SavedRule
from . import samples
from .attempt import Attempt
from .line_tracing import StepLimit
from .proof import compare_with_call, prove
from .run import (
    KEY,
    Outcome,
    as_array,
    dialect_for,
    home_name,
    is_neutral,
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
Rule = Any  # of `rules/model/rule.py`, a room above this one
# Runs one part: `(its function, grad_out, tin, params) -> the gradient that it returns`.
PartRunner = Callable[[Any, Array, "Array | None", Mapping[str, Any]], Array]


@dataclass(frozen=True, slots=True)
class RuleUnderProof:
    """A rule and what its graph was captured for.

    Attributes:
        open: (values of all params) -> the rule, its parts' params bound, and the other values.
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

    @property
    def is_random(self) -> bool:
        return self.graph.input("key") is not None


def prove_rule(
    captured: RuleUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" if a rule's graph computes what its code does; see `prove_function`."""
    parts = list(_parts_with_code(captured.rule))
    functions = [part.function for part in parts]
    if any(isinstance(function, SavedRule) for function in functions):
        return ""  # made of graphs, as what comes from a document
    code = getattr(plain_function(functions[0]), "__code__", None)
    read_as = captured.facts.get(LIBRARY)
    dialects = {id(part.function): dialect_for(part, read_as) for part in parts}
    dialect = dialects[id(functions[0])]
    # Set while an activation is called: its tensor, and the values of its params by name.
    x, values = samples.CALL.get() or (None, {})
    attempt = Attempt(
        subject=ProofSubject(f"rule {captured.rule.name!r}", code, home_name(dialect)),
        graphs=(captured.graph,),
        names=("result",),
        shown={"result": "the result"},
        slots=_slots(captured, x, any(map(promotes_to_float32, dialects.values()))),
        numbers=_numbers(captured, values),
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
    reason = prove(attempt, is_call=is_call)
    called = samples.called_library()
    others = {name for name in dialects.values() if not is_neutral(name)} - {called}
    is_said = any(part.library for part in parts) or told_library(*functions)
    if LIBRARY in captured.facts and called and others and not (is_said or is_call):
        run = _runner(captured, dict.fromkeys(dialects, called), functions)
        compare_with_call(attempt, called, partial(run, elsewhere=False))
    return reason


def _parts_with_code(rule: Rule) -> Iterator[Rule]:
    if rule.function is not None:
        yield rule
    for part in rule._resolved_parts():
        yield from _parts_with_code(part)


def _slots(captured: RuleUnderProof, x: Any, is_narrow: bool) -> tuple[InputSlot, ...]:
    # `x`: the tensor of the call; None: there is no call. `is_narrow`: the library computes some of
    # float64 in float32, while the rule keeps float64.
    shape = _shape(captured.facts, x)
    dtype = samples.float_dtype("T", captured.facts, samples.called_dtype())
    if is_narrow and dtype == "float64":
        dtype = "float32"
    own = None if x is None else samples.values_of(x, shape)
    if own is not None:
        with np.errstate(over="ignore"):  # it may be of float64, and too large
            own = own.astype(as_numpy_dtype(dtype))
    grad_out, tin = InputSlot("grad_out", shape, dtype), InputSlot("tin", shape, dtype, own)
    return (grad_out, tin) if captured.has_tin else (grad_out,)


def _shape(facts: Mapping[str, Any], x: Any) -> tuple[int, ...]:
    # That of the capture; else that of the call, made small; else one of ours.
    if facts.get("shape") is not None:
        return tuple(facts["shape"])
    lengths: Any = None
    if x is not None and "ndim" not in facts:
        with suppress(ValueError):  # its number of axes is not known
            lengths = samples.lengths(x)
    if lengths is not None:
        return lengths if samples.is_small(lengths) else samples.shrink([lengths])[0]
    rank = int(facts.get("ndim", 2))
    return samples.SHAPES[rank] if rank < len(samples.SHAPES) else (2,) * rank


def _numbers(captured: RuleUnderProof, called: Mapping[str, Any]) -> dict[str, float]:
    # Values of the capture come first, then those of the call, then the defaults.
    params = captured.rule.signature.params
    numbers = {}
    for name in captured.runtime:
        default = params[name].default if name in params else None
        choices = (captured.facts.get(f"param:{name}"), called.get(name), default)
        # Without any: a number that is no edge of a common formula, as 0 and 1 are.
        numbers[name] = next((float(v) for v in choices if isinstance(v, int | float)), 0.75)
    return numbers


def _runner(
    captured: RuleUnderProof, dialects: Mapping[int, str], functions: Sequence[Any]
) -> Callable[..., list[Outcome]]:
    (dialect, *other_dialects) = dict.fromkeys(dialects.values())

    def original(backend: Backend, sample: Sample) -> dict[str, Any]:
        if other_dialects:
            return {"result": _run_on_several(captured, dialects, sample)}
        return {"result": _run_chain(captured, sample, partial(_run_part, backend))}

    def lowered(backend: Backend, sample: Sample) -> dict[str, Any]:
        if other_dialects:  # the original runs on several frameworks, the graph on one
            raise LookupError(backend.name)
        function = emit_rule_once(captured.graph, backend, captured.emitted)
        arrays = [sample.arrays[name] for name in ("grad_out", "tin") if name in sample.arrays]
        tensors = [to_tensor(backend, array) for array in arrays]
        numbers = [sample.numbers[name] for name in captured.runtime]
        key = (KEY,) if captured.is_random else ()
        return {"result": as_array(backend, function(*tensors, *numbers, *key))}

    # `run_samples` runs both sides in isolation, and sets `REPLAYED` to the keys of the draws.
    return partial(
        run_samples,
        dialect,
        original=original,
        lowered=lowered,
        is_random=captured.is_random,
        limit=StepLimit(functions),
    )


def _run_chain(captured: RuleUnderProof, sample: Sample, run_part: PartRunner) -> Array:
    rule, params = captured.open({**captured.static, **sample.numbers})
    return _apply(rule, sample.arrays["grad_out"], sample.arrays.get("tin"), params, run_part)


def _apply(
    rule: Rule,
    grad_out: Array,
    tin: Array | None,
    params: Mapping[str, Any],
    run_part: PartRunner,
) -> Array:
    values = {**params, **rule.bound}
    if rule.function is None:  # a composition
        for part in rule._resolved_parts():
            grad_out = _apply(part, grad_out, tin, part.signature.select(values), run_part)
        return grad_out
    # The signature of a rule lacks what it has bound, which its function takes, too.
    unbound = rule.copy(bound={}) if rule.bound else rule
    return run_part(rule.function, grad_out, tin, unbound.signature.select(values))


def _run_part(
    backend: Backend, function: Any, grad_out: Array, tin: Array | None, params: Mapping[str, Any]
) -> Array:
    tensors = [None if a is None else to_tensor(backend, a) for a in (grad_out, tin)]
    no_ctx = None  # nothing is differentiated
    return as_array(backend, function(no_ctx, *tensors, **params))


def _run_on_several(captured: RuleUnderProof, dialects: Mapping[int, str], sample: Sample) -> Array:
    # One iterator for all parts: each draw takes the next key.
    draws = tee(keys(), 1)[0] if captured.is_random else None

    def run_at_home(function: Any, grad_out: Array, *arguments: Any) -> Array:
        before = draws

        def run_on(backend: Backend) -> Array:
            nonlocal draws
            draws = copy.copy(before)  # another home may have drawn before it failed
            run = partial(_run_part, backend, function, grad_out, *arguments)
            replay = partial(_replay, draws, run)
            return isolated(backend, replay, grad_out.dtype.name, captured.is_random)

        return on_first_home(dialects[id(function)], run_on)

    return _run_chain(captured, sample, run_at_home)


def _replay(draws: Iterator[Any] | None, run: Callable[[], Array]) -> Array:
    # Within `isolated`, in whose context the setting ends.
    REPLAYED.set(draws)
    return run()
