"""The proof of a Function: the tensors that both sides run on, and what is compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.discovery import backend_of
from ....core.functions.proof import lengths, shrink
from ....core.functions.recipe import KEY
from ....core.ir.op import T
from ....core.lowering.function_graph import FunctionGraph
from ....core.passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from ....errors import DisprovedError, TraceError
from ...capture.user_code.inspection import plain_function
from ...capture.user_code.libraries import names_library, told_library
from ...capture.user_code.snapshot import Snapshot, may_act
from ...ops.loops import Endless, turning_at_most
from ..calls.facts import library_of_leaves
from . import samples
from .compare import casts_to_integers, is_vacuous, takes_infinity
from .executions import FunctionUnderProof, run_lowered, run_original
from .line_tracing import StepLimit
from .meanings import MOST_TURNS, run_bounded
from .outcomes import compare_outcome
from .rounding import Rounding, run_in_own_dtype
from .run import (
    Attempt,
    Outcome,
    home_name,
    is_neutral,
    keeps_infinity,
    promotes_to_float32,
    replays_draws,
    run_samples,
)
from .samples import InputSlot, Sample, is_float
from .verdicts import ProofSubject, describe, leave_open

Array = Any


# Set where code is compared on the arguments that were given, whichever library its names tell.
AS_GIVEN: ContextVar[bool] = ContextVar("multigrad_as_given", default=False)


def prove_function(
    captured: FunctionUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" if a Function's graphs compute what its code does, else why that stays open.

    Args:
        recapture: captures it once more, to find the line where the two part.
        is_call: see `prove`.

    Raises:
        DisprovedError: they do not.
    """
    graphs = captured.graphs
    functions = captured.recipe.functions
    if not functions:
        return ""  # made of graphs, as what comes from a document
    captured.variant.places.clear()  # of a proof in another dtype, or of a call
    # Code that met Python numbers alone was lent the library of the call's tensors.
    facts = captured.variant.facts
    is_lent = ON_NUMBERS in facts and ON_TENSORS not in facts
    dialect = facts[LIBRARY] if is_lent else captured.recipe.dialect(facts.get(LIBRARY))
    code = getattr(functions[0], "__code__", None)
    subject = ProofSubject(captured.recipe.subject, code, home_name(dialect))
    slots = _slots(captured)
    if slots is None:
        return leave_open(
            subject, "its arguments are too large, or of unknown rank, to run it once more"
        )
    is_rule = captured.recipe.noun == "rule"
    is_narrow = is_rule and promotes_to_float32(dialect)  # where the rule keeps float64
    slots = tuple(map(_narrowed, slots)) if is_narrow else slots
    captured = replace(captured, may_act=may_act(*functions))
    # Code that names no library may be for any: the one it runs on is a guess.
    plain = filter(None, map(plain_function, functions))
    loops = any(n.op is ops.WHILE_LOOP for g in (graphs.forward, graphs.backward) for n in g.nodes)
    run_written_in = partial(
        run_samples,
        original=partial(run_original, captured),
        lowered=partial(run_lowered, captured),
        is_random=graphs.is_random,
        limit=StepLimit(functions, turns=loops),
        elsewhere=captured.recipe.imported is None,
    )
    attempt = Attempt(
        captured=captured,
        subject=subject,
        graphs=(graphs.forward, graphs.backward),
        names=(*graphs.outputs, *(f"gradient of {name}" for name in graphs.wrt)),
        shown=_shown(captured),
        dtypes={
            name: samples.first_float(slots) if output.type.dtype == T else output.type.dtype
            for name, output in zip(graphs.outputs, graphs.forward.outputs, strict=True)
        },
        is_neutral=captured.apply is None
        and (is_rule or is_neutral(dialect) or not any(map(names_library, plain))),
        slots=slots,
        slots_as_called=None if is_narrow else _slots_as_called(captured, slots),
        numbers=_numbers(captured),
        run=partial(run_written_in, dialect),
        recapture=recapture,
        dialect=dialect,
        add_cotangents=_cotangents_for(graphs),
    )
    called = library_of_leaves(captured.layout, captured.leaves)
    try:
        reason = prove(attempt, is_call=is_call)
    except DisprovedError:
        if not captured.variant.reads_names or facts.get(LIBRARY) in ("", None, dialect):
            raise
        # NumPy's functions on the call's tensors, whose methods these are: `np.exp(x).std()`.
        run = partial(run_written_in, called, elsewhere=False)
        attempt = replace(attempt, run=run, dialect=called)
        reason = prove(attempt, is_call=is_call)
        if reason:  # it does not run on these, and the first word stands
            raise
    is_open = captured.variant.reads_names and called not in ("", dialect) and not is_call
    if is_open and not _is_said(captured, dialect):
        compare_with_call(attempt, called, partial(run_written_in, called, elsewhere=False))
    return reason


def _is_said(captured: FunctionUnderProof, dialect: str) -> bool:
    # Whether the author or the code itself says whose its names are, or that they are of all.
    recipe = captured.recipe
    if isinstance(recipe.written_in, str) or is_neutral(dialect):
        return True
    return bool(told_library(*recipe.functions)) and not AS_GIVEN.get()


def _numbers(captured: FunctionUnderProof) -> dict[str, float]:
    leaves = zip(captured.layout.leaves, captured.leaves, strict=True)
    given = {leaf.name: float(value) for leaf, value in leaves if leaf.kind == "number"}
    return given | captured.variant.numbers_now()


def _shown(captured: FunctionUnderProof) -> dict[str, str]:
    graphs = captured.graphs
    paths = {leaf.name: leaf.path for leaf in captured.layout.leaves}
    outputs = ["the result"] if len(graphs.outputs) == 1 else graphs.outputs
    titles = dict(zip(graphs.outputs, outputs, strict=True))
    for name in captured.asked:
        titles[f"gradient of {name}"] = f"the gradient of {paths[name]}"
        titles[f"zero gradient of {name}"] = (
            f"the gradient of {paths[name]} by a second backward, of zeros"
        )
        titles[f"second derivative of {name}"] = f"the second derivative by {paths[name]}"
    titles |= {f"gradient of {name}": f"the gradient of {paths[name]}" for name in captured.omitted}
    return titles


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
        shapes = shrink(shapes)
    return _fill(captured, shapes)


def _shapes(captured: FunctionUnderProof) -> list[tuple[Any, ...]] | None:
    try:
        return [lengths(captured.leaves[i]) for i in captured.layout.indices("tensor")]
    except ValueError:
        return None


def _slots_as_called(
    captured: FunctionUnderProof, slots: tuple[InputSlot, ...]
) -> tuple[InputSlot, ...] | None:
    # The call's own shapes; None if these are tried already, or too large.
    shapes = _shapes(captured) or []
    is_known = all(isinstance(n, int) for shape in shapes for n in shape)
    if not is_known or [slot.shape for slot in slots] == shapes:
        return None
    if not 0 < sum(math.prod(shape) for shape in shapes) <= samples.MOST:
        return None
    return _fill(captured, shapes)


def _fill(captured: FunctionUnderProof, shapes: Sequence[tuple[int, ...]]) -> tuple[InputSlot, ...]:
    layout = captured.layout
    first_dtype = layout.dtype or ""
    slots = []
    for i, shape in zip(layout.indices("tensor"), shapes, strict=True):
        leaf = layout.leaves[i]
        dtype = samples.float_dtype(leaf.dtype, captured.variant.facts, first_dtype)
        values = samples.values_of(captured.leaves[i], shape)
        slots.append(InputSlot(leaf.name, shape, dtype, values, _is_strided(captured.leaves[i])))
    return tuple(slots)


def _narrowed(slot: InputSlot) -> InputSlot:
    if slot.dtype != "float64":
        return slot
    with np.errstate(over="ignore"):  # it may be too large
        own = None if slot.own is None else slot.own.astype(np.float32)
    return replace(slot, dtype="float32", own=own)


def _is_strided(tensor: Any) -> bool:
    try:
        tensors = backend_of(tensor).tensors
        ask = tensors.is_contiguous
        return ask is not None and not tensors.is_traced(tensor) and not ask(tensor)
    except Exception:  # of a kind that cannot say: it counts as contiguous
        return False


def _cotangents_for(graphs: FunctionGraph) -> Callable[[Sample], Sample]:
    # Adds cotangents of the shapes and dtypes that the graph's outputs have.
    slots_by_shapes: dict[Any, tuple[InputSlot, ...]] = {}

    def add(sample: Sample) -> Sample:
        key = tuple(array.shape for array in sample.arrays.values())
        if key not in slots_by_shapes:
            slots_by_shapes[key] = _cotangent_slots(graphs, sample)
        arrays = dict(samples.draw(slots_by_shapes[key], {}, "cotangents").arrays)
        if sample.label == samples.OWN:  # as the gradient of a sum comes
            arrays = {name: samples.expanded(array) for name, array in arrays.items()}
        if sample.absent:
            arrays |= {name: np.zeros_like(arrays[name]) for name in sample.absent}
        return replace(sample, arrays={**sample.arrays, **arrays})

    return add


def _cotangent_slots(graphs: FunctionGraph, sample: Sample) -> tuple[InputSlot, ...]:
    inputs: dict[str, Any] = {**sample.widened().arrays, **sample.numbers, "key": KEY}
    floats = [array.dtype for array in sample.arrays.values() if is_float(array)]
    dtype = floats[0] if floats else np.dtype("float32")
    outputs = run_bounded(graphs.forward, inputs, dtype)
    triples = zip(graphs.seeds, outputs, graphs.forward.outputs, strict=True)
    return tuple(
        InputSlot(name, np.shape(y.value), dtype.name if n.type.dtype == T else n.type.dtype)
        for name, y, n in triples
        if name is not None
    )


# --- the proof of an attempt: on which samples, in which order, the original meets its graphs -----
# 1. All samples are made first and run together: numbers as drawn; the call's own, under other
#    run-time numbers; edges as 0 and 1; one output's cotangent alone; numbers far out. Code that
#    may act runs on the first only.
# 2. If it fails on the first, the same is done in the call's own shapes, then with its values
#    alone.
# 3. `outcomes.py` compares the results. A difference is raised; otherwise the reason why one of the
#    samples stays open is returned, or "".
def prove(attempt: Attempt, *, is_call: bool = False) -> str:
    """Return "" if original and graph agree, else why that could not be found out.

    Args:
        is_call: prove a call of graphs that are proven already: on its own values alone.

    Raises:
        DisprovedError: they differ.
        TraceError: the original changes something that it shares with others.
    """
    if any(op.collective for op in attempt.ops):
        # The others may not be capturing, and would be waited for.
        return leave_open(attempt.subject, "it exchanges numbers with other processes")
    own_sample = _own_values(attempt) if is_call else None
    if is_call and own_sample is None:
        return ""
    captured, snapshot = attempt.captured, Snapshot()
    # What the original changes of what it runs, and of what it is given, is undone.
    objects = [leaf.value for leaf in captured.layout.leaves if leaf.kind == "static"]
    snapshot.see_all(captured.recipe.functions, objects)
    try:
        with turning_at_most(MOST_TURNS):
            if own_sample is None:
                reason = _prove_on_samples(attempt)
            else:
                reason = _prove_on_call(attempt, own_sample, is_call=True)
    finally:
        snapshot.restore()
        snapshot.clear()
    if snapshot.change and not is_call:
        raise TraceError(f"{attempt.subject.words} {snapshot.change}, which a graph does not do")
    return reason


def compare_with_call(
    attempt: Attempt,
    called: str,
    run: Callable[[Sequence[Sample]], list[Outcome]],
) -> None:
    """Compare graphs that were read as another library's than that of the call's tensors with the
    code as written on tensors of this one, `called`; code that does not run on them says nothing.

    Raises:
        DisprovedError: there it gives something else.
    """
    subject = replace(attempt.subject, home=called, read_as=attempt.dialect)
    try:
        prove(replace(attempt, subject=subject, run=run, dialect=called))
    except DisprovedError:
        raise
    except Exception:  # of code that is not written for them
        return


def _prove_on_samples(attempt: Attempt) -> str:
    if attempt.captured.graphs.is_random and not replays_draws(attempt.dialect):
        return leave_open(
            attempt.subject, "it draws random numbers, which cannot be repeated there"
        )
    try:
        batch = _samples(attempt)
        outcomes = attempt.run(batch)
    except Exception as error:
        # The original may accept no shapes but the call's own.
        may_repeat = not attempt.captured.may_act and not isinstance(error, Endless)
        if attempt.slots_as_called is not None and may_repeat:
            return _prove_on_samples(
                replace(attempt, slots=attempt.slots_as_called, slots_as_called=None)
            )
        own_sample = _own_values(attempt)  # or no other values
        if own_sample is None:
            return leave_open(attempt.subject, describe(error))
        return _prove_on_call(attempt, own_sample, is_call=False)
    reasons: list[str] = []
    for sample, outcome in zip(batch, outcomes, strict=True):
        if outcome.original is None:  # not every original takes every number
            continue
        reason = compare_outcome(attempt, sample, outcome)
        if reason is not None and (reason or not reasons) and not is_vacuous(outcome.original):
            reasons.append(reason)
    if not reasons:
        return leave_open(attempt.subject, "its results are not finite on small inputs")
    return max(reasons)


def _prove_on_call(attempt: Attempt, called: Sample, is_call: bool) -> str:
    # If the original does not take these values, the call itself says so.
    try:
        (outcome,) = attempt.run([called := attempt.add_cotangents(called)])
    except Exception as error:
        return "" if is_call else leave_open(attempt.subject, describe(error))
    return compare_outcome(attempt, called, outcome, is_call=True) or ""


def _samples(attempt: Attempt) -> list[Sample]:
    first_sample = attempt.add_cotangents(samples.draw(attempt.slots, attempt.numbers))
    batch = [first_sample] if attempt.captured.may_act else [first_sample, *_more_samples(attempt)]
    if ops.WHILE_LOOP in attempt.ops:  # which may not end on a sample
        batch = [sample for sample in batch if _ends(attempt, sample)]
    if not batch:
        raise Endless(f"a loop has not ended after {MOST_TURNS:,} turns on made-up numbers")
    return batch


def _more_samples(attempt: Attempt) -> Iterator[Sample]:
    variant = attempt.captured.variant
    # The others are part of the capture.
    fixed = {*variant.facts, *(f"param:{name}" for name in variant.numbers_now())}
    free = {name: v for name, v in attempt.numbers.items() if f"param:{name}" not in fixed}
    other_numbers = {name: value * 1.375 + (0.0 if value else 0.25) for name, value in free.items()}
    numbers = {**attempt.numbers, **other_numbers}
    own_sample = samples.own_values(attempt.slots, numbers)
    if own_sample is not None and own_sample.arrays:
        yield attempt.add_cotangents(own_sample)
    elif free:
        yield attempt.add_cotangents(samples.draw(attempt.slots, numbers, "other numbers"))
    is_infinite = keeps_infinity(attempt.dialect) and takes_infinity(attempt.graphs)
    values = samples.EDGES if is_infinite else samples.FINITE_EDGES
    # Which of equal elements comes first is open in some libraries' sorts.
    has_sort = ops.ARGSORT in attempt.ops
    edges = samples.on_edges(attempt.slots, attempt.numbers, values, distinct=has_sort)
    yield attempt.add_cotangents(edges)
    cotangents = [name for name in attempt.captured.seeds if name is not None]
    if len(cotangents) > 1:  # a loss of one output alone
        alone = samples.draw(attempt.slots, attempt.numbers, samples.ALONE)
        yield attempt.add_cotangents(replace(alone, absent=frozenset(cotangents[1:])))
    # Of floats out of range, each library makes other integers.
    makes_integers = casts_to_integers(attempt.graphs)
    with suppress(Exception):  # cotangents of it may have no shape
        far_sample = samples.draw_far(
            attempt.slots,
            attempt.numbers,
            only_whole=makes_integers,
            places=any(op.coerce == "indices" for op in attempt.ops),
        )
        yield attempt.add_cotangents(far_sample)


def _ends(attempt: Attempt, sample: Sample) -> bool:
    # The graphs run here, not the original: one that is compiled could not be stopped.
    try:
        run_in_own_dtype(Rounding(attempt, sample))
    except Endless:
        return False
    return True


def _own_values(attempt: Attempt) -> Sample | None:
    # None if the values are unknown or too many, or if the original must run only once.
    may_act = attempt.captured.may_act
    return None if may_act else samples.own_values(attempt.slots, attempt.numbers)
