"""The proofs of Functions and of rules: the tensors that originals run on, and what is compared.

A composed rule's functions run on tensors of their own libraries, chained.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...backend.discovery import backend_of
from ...capture.user_code.inspection import plain_function
from ...capture.user_code.libraries import names_library
from ...graph import ops
from ...graph.ir.graph import Graph
from ...graph.ir.types import T
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from ...graph.random import REPLAYED
from ...graph.support.class_bases import dataclass
from ...lowering.bare import emit_rule_once
from ...lowering.function_graph import FunctionGraph
from ..documents.rules import SavedRule
from . import samples
from .attempt import Attempt, prove
from .bounded import run_bounded
from .compare import ProofSubject, leave_open
from .executions import FunctionUnderProof, run_lowered, run_original
from .run import (
    KEY,
    Outcome,
    Stoppable,
    coarseness_of,
    dialect_for,
    home_name,
    is_neutral,
    isolated,
    keeps_infinity,
    keys,
    may_act,
    on_first_home,
    promotes_to_float32,
    replays_draws,
    run_samples,
    to_array,
    to_tensor,
)
from .samples import InputSlot, Sample, is_float

Rule = Any  # of the room `rules`, which imports this one

Array = Any


def prove_function(
    captured: FunctionUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" if a Function's graphs compute what its code does, else why that stays open.

    Raises:
        DisprovedError: they are not.
    """
    graphs = captured.graphs
    functions = captured.recipe.functions
    if not functions:
        return ""  # made of graphs, as what comes from a document
    dialect = _dialect(captured)
    code = getattr(functions[0], "__code__", None)
    subject = ProofSubject(f"function {captured.recipe.name!r}", code, home_name(dialect))
    slots = _slots(captured)
    if slots is None:
        return leave_open(
            subject, "its arguments are too large, or of unknown rank, to run it once more"
        )
    captured = replace(captured, acts=may_act(*functions))
    attempt = Attempt(
        subject=subject,
        graphs=(graphs.forward, graphs.backward),
        names=(*graphs.outputs, *(f"gradient of {name}" for name in graphs.wrt)),
        shown=_shown(captured),
        dtypes=_dtypes(captured, slots),
        is_neutral=_is_neutral(captured, dialect, functions),
        slots=slots,
        whole=_whole(captured, slots),
        numbers=_numbers(captured),
        fixed=frozenset(
            f.removeprefix("param:") for f in captured.variant.facts if f[:6] == "param:"
        ),
        acts=captured.acts,
        is_random=graphs.is_random,
        run=_runs(captured, dialect, functions),
        recapture=recapture,
        replays=replays_draws(dialect),
        infinite=keeps_infinity(dialect),
        coarseness=coarseness_of(dialect, (graphs.forward, graphs.backward)),
        complete=_completing(graphs),
        ties=not captured.is_derived,
        is_again="" in captured.variant.proofs.values(),
        outside=(functions, [x.value for x in captured.layout.leaves if x.kind == "static"]),
    )
    return prove(attempt, is_call=is_call)


def _dialect(captured: FunctionUnderProof) -> str:
    # Code that met Python numbers alone was lent the library of the call's tensors.
    facts = captured.variant.facts
    is_lent = ON_NUMBERS in facts and ON_TENSORS not in facts
    return facts[LIBRARY] if is_lent else captured.recipe.dialect()


def _runs(
    captured: FunctionUnderProof, dialect: str, functions: Sequence[Any]
) -> Callable[[Sequence[Sample]], list[Outcome]]:
    graphs = captured.graphs
    turns = any(n.op is ops.WHILE_LOOP for g in (graphs.forward, graphs.backward) for n in g.nodes)
    return partial(
        run_samples,
        dialect,
        original=partial(run_original, captured),
        lowered=partial(run_lowered, captured),
        is_random=graphs.is_random,
        stop=Stoppable(functions, turns=turns),
        elsewhere=captured.recipe.imported is None,
    )


def _shown(captured: FunctionUnderProof) -> dict[str, str]:
    graphs = captured.graphs
    paths = {leaf.name: leaf.path for leaf in captured.layout.leaves}
    outputs = ["the result"] if len(graphs.outputs) == 1 else graphs.outputs
    shown = dict(zip(graphs.outputs, outputs, strict=True))
    for name in captured.asked:
        shown[f"gradient of {name}"] = f"the gradient of {paths[name]}"
        shown[f"zero gradient of {name}"] = (
            f"the gradient of {paths[name]} by a second backward, of zeros"
        )
        shown[f"second derivative of {name}"] = f"the second derivative by {paths[name]}"
    shown |= {f"gradient of {name}": f"the gradient of {paths[name]}" for name in captured.omitted}
    return shown


def _is_neutral(captured: FunctionUnderProof, dialect: str, functions: Sequence[Any]) -> bool:
    # Code that names no library may be for any: the one it runs on is a guess.
    plain = [p for p in map(plain_function, functions) if p is not None]
    return captured.apply is None and (is_neutral(dialect) or not any(map(names_library, plain)))


def _dtypes(captured: FunctionUnderProof, slots: Sequence[InputSlot]) -> dict[str, str]:
    graphs = captured.graphs
    first = samples.first_float(slots)
    outputs = zip(graphs.outputs, graphs.forward.outputs, strict=True)
    return {name: first if y.type.dtype == T else y.type.dtype for name, y in outputs}


# --- inputs ---------------------------------------------------------------------------------------


def _slots(captured: FunctionUnderProof) -> tuple[InputSlot, ...] | None:
    # Tensors are small if their shapes are free; None if fixed ones are too large.
    facts = captured.variant.facts
    shapes = _shapes(captured)
    if shapes is None:
        return None
    if any(fact.startswith("shape") and value for fact, value in facts.items()):
        if None in itertools.chain(*shapes) or sum(map(math.prod, shapes)) > samples.MOST:
            return None
    elif not all(map(samples.is_small, shapes)):
        shapes = samples.shrink(shapes)
    return _fill(captured, shapes)


def _shapes(captured: FunctionUnderProof) -> list[tuple[Any, ...]] | None:
    try:
        return [samples.lengths(captured.leaves[i]) for i in captured.layout.indices("tensor")]
    except ValueError:
        return None


def _whole(
    captured: FunctionUnderProof, slots: tuple[InputSlot, ...]
) -> tuple[InputSlot, ...] | None:
    # The call's own shapes; None if these are tried already, or too large.
    shapes = _shapes(captured) or []
    known = all(isinstance(n, int) for shape in shapes for n in shape)
    if not known or [slot.shape for slot in slots] == shapes:
        return None
    if not 0 < sum(math.prod(shape) for shape in shapes) <= samples.MOST:
        return None
    return _fill(captured, shapes)


def _fill(captured: FunctionUnderProof, shapes: Sequence[tuple[int, ...]]) -> tuple[InputSlot, ...]:
    layout = captured.layout
    first = layout.dtype or ""
    rows = []
    for i, shape in zip(layout.indices("tensor"), shapes, strict=True):
        leaf = layout.leaves[i]
        dtype = samples.float_dtype(
            T if leaf.dtype == T else leaf.dtype, captured.variant.facts, first
        )
        values = samples.values_of(captured.leaves[i], shape)
        rows.append(InputSlot(leaf.name, shape, dtype, values, _is_strided(captured.leaves[i])))
    return tuple(rows)


def _is_strided(tensor: Any) -> bool:
    # False if the tensor cannot say: it then counts as contiguous.
    try:
        tensors = backend_of(tensor).tensors
        ask = tensors.is_contiguous
        return ask is not None and not tensors.is_traced(tensor) and not ask(tensor)
    except Exception:  # of a kind that cannot say
        return False


def _numbers(captured: FunctionUnderProof) -> dict[str, float]:
    layout = captured.layout
    return {layout.leaves[i].name: float(captured.leaves[i]) for i in layout.indices("number")}


def _completing(graphs: FunctionGraph) -> Callable[[Sample], Sample]:
    # Adds cotangents of the shapes and dtypes that the graph's outputs have.
    slots_by_shapes: dict[Any, tuple[InputSlot, ...]] = {}

    def complete(sample: Sample) -> Sample:
        key = tuple(array.shape for array in sample.arrays.values())
        if key not in slots_by_shapes:
            slots_by_shapes[key] = _cotangent_slots(graphs, sample)
        arrays = dict(samples.draw(slots_by_shapes[key], {}, "cotangents").arrays)
        if sample.label == samples.OWN:  # as the gradient of a sum comes
            arrays = {name: samples.expanded(array) for name, array in arrays.items()}
        if sample.absent:
            arrays |= {name: np.zeros_like(arrays[name]) for name in sample.absent}
        return replace(sample, arrays={**sample.arrays, **arrays})

    return complete


def _cotangent_slots(graphs: FunctionGraph, sample: Sample) -> tuple[InputSlot, ...]:
    inputs: dict[str, Any] = {**sample.widened().arrays, **sample.numbers, "key": KEY}
    floats = [array.dtype for array in sample.arrays.values() if is_float(array)]
    dtype = floats[0] if floats else np.dtype("float32")
    outputs = run_bounded(graphs.forward, inputs, dtype)
    rows = zip(graphs.seeds, outputs, graphs.forward.outputs, strict=True)
    return tuple(
        InputSlot(name, np.shape(y.value), dtype.name if n.type.dtype == T else n.type.dtype)
        for name, y, n in rows
        if name is not None
    )


# --- rules ---------------------------------------------------------------------------------------


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

    rule: Rule
    open: Callable[[Mapping[str, Any]], tuple[Rule, dict[str, Any]]]
    graph: Graph
    has_tin: bool
    runtime: tuple[str, ...]
    static: Mapping[str, Any]
    facts: Mapping[str, Any]
    emitted: dict[tuple[Any, ...], Any]
    is_again: bool = False


def prove_rule(
    captured: RuleUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" where a rule's graph is what was written, else why that could not be found out.

    Raises:
        DisprovedError: it is not.
    """
    leaves = list(_leaves(captured.rule))
    functions = [leaf.function for leaf in leaves]
    if any(isinstance(function, SavedRule) for function in functions):
        return ""  # made of graphs, as what comes from a document
    code = getattr(plain_function(functions[0]), "__code__", None)
    dialects = {id(leaf.function): dialect_for(leaf) for leaf in leaves}
    dialect = dialects[id(functions[0])]
    attempt = Attempt(
        subject=ProofSubject(f"rule {captured.rule.name!r}", code, home_name(dialect)),
        graphs=(captured.graph,),
        names=("result",),
        shown={"result": "the result"},
        slots=_slots_of_rule(captured, any(map(promotes_to_float32, dialects.values()))),
        numbers=_numbers_of_rule(captured),
        fixed=frozenset(name for name in captured.runtime if f"param:{name}" in captured.facts),
        dtypes={},  # of a rule's result: the input's, whatever constants are made of
        is_neutral=True,
        is_generic=True,
        acts=may_act(*functions),
        is_random=captured.graph.input("key") is not None,
        run=_runs_of_rule(captured, dialects, functions),
        recapture=recapture,
        replays=all(map(replays_draws, dialects.values())),
        infinite=all(map(keeps_infinity, dialects.values())),
        coarseness=max(coarseness_of(each, (captured.graph,)) for each in dialects.values()),
        is_again=captured.is_again,
        outside=(functions, tuple(captured.static.values())),
    )
    return prove(attempt, is_call=is_call)


def _leaves(rule: Rule) -> Iterator[Rule]:
    # Compositions have no function of their own: only their parts are yielded.
    if rule.function is not None:
        yield rule
    for part in rule._resolved_parts():
        yield from _leaves(part)


def _slots_of_rule(captured: RuleUnderProof, is_narrow: bool) -> tuple[InputSlot, ...]:
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


def _numbers_of_rule(captured: RuleUnderProof) -> dict[str, float]:
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


# --- both sides -----------------------------------------------------------------------------------


def _runs_of_rule(
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
        return {"result": to_array(backend, result)}

    return partial(
        run_samples,
        dialect,
        original=original,
        lowered=lowered,
        is_random=is_random,
        stop=Stoppable(functions),
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
    return to_array(backend, function(None, *tensors, **params))
