"""The proof of a Function: the tensors that both sides run on, and what is compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.discovery import backend_of
from ....core.functions import samples
from ....core.functions.facts import library_of_leaves
from ....core.functions.recipe import KEY
from ....core.functions.samples import InputSlot, Sample, is_float
from ....core.ir.op import T
from ....core.lowering.function_graph import FunctionGraph
from ....core.passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from ....errors import DisprovedError
from ...capture.user_code.inspection import plain_function
from ...capture.user_code.libraries import names_library, told_library
from ...capture.user_code.snapshot import may_act
from .attempt import Attempt
from .executions import FunctionUnderProof, run_lowered, run_original
from .line_tracing import StepLimit
from .meanings import run_bounded
from .proof import compare_with_call, prove
from .run import home_name, is_neutral, promotes_to_float32, run_samples
from .verdicts import ProofSubject, leave_open

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
        shapes = samples.shrink(shapes)
    return _fill(captured, shapes)


def _shapes(captured: FunctionUnderProof) -> list[tuple[Any, ...]] | None:
    try:
        return [samples.lengths(captured.leaves[i]) for i in captured.layout.indices("tensor")]
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
