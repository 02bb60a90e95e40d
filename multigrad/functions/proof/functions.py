"""The proof of a Function's graphs: which tensors it is run on, and what is compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...backend.finding.discovery import backend_of
from ...capture.code.readings import names_library, plain_function
from ...graph import ops
from ...graph.ir.types import T
from ...graph.passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from ...lowering.function_graph import FunctionGraph
from . import samples
from .attempt import Attempt, prove
from .bounded import run_bounded
from .endless import Stoppable, may_act
from .run import (
    KEY,
    Outcome,
    coarseness_of,
    homes,
    is_neutral,
    keeps_infinity,
    replays_draws,
    run_samples,
)
from .samples import Sample, Slot, is_float
from .sides import FunctionUnderProof, run_lowered, run_original
from .verdict import Subject, leave_open

Array = Any


def prove_function(
    given: FunctionUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" where a Function's graphs are what was written, else why that could not be found
    out.

    Args:
        recapture: captures once more, to find the line where the two part.
        is_call: compare the arguments' own values alone.

    Raises:
        DisprovedError: they are not.
    """
    graphs, functions = given.graphs, _functions(given.recipe)
    if not functions:
        return ""  # made of graphs, as what comes from a document
    dialect = _dialect(given)
    home = next(homes(dialect), None)
    code = getattr(functions[0], "__code__", None)
    name = home.name if home is not None and dialect else ""
    subject = Subject(f"function {given.recipe.name!r}", code, name)
    slots = _slots(given)
    if slots is None:
        return leave_open(
            subject, "its arguments are too large, or of unknown rank, to run it once more"
        )
    given = replace(given, acts=may_act(*functions))
    attempt = Attempt(
        subject=subject,
        graphs=(graphs.forward, graphs.backward),
        names=(*graphs.outputs, *(f"gradient of {name}" for name in graphs.wrt)),
        shown=_shown(given),
        dtypes=_dtypes(given, slots),
        is_neutral=_is_neutral(given, dialect, functions),
        slots=slots,
        whole=_whole(given, slots),
        numbers=_numbers(given),
        fixed=frozenset(f.removeprefix("param:") for f in given.variant.facts if f[:6] == "param:"),
        acts=given.acts,
        is_random=graphs.is_random,
        run=_runs(given, dialect, functions),
        recapture=recapture,
        replays=replays_draws(dialect),
        infinite=keeps_infinity(dialect),
        coarseness=coarseness_of(dialect, (graphs.forward, graphs.backward)),
        complete=_Cotangents(graphs),
        ties=not given.is_derived,
        is_again="" in given.variant.proofs.values(),
        outside=(functions, [x.value for x in given.layout.leaves if x.kind == "static"]),
    )
    return prove(attempt, is_call=is_call)


def _dialect(given: FunctionUnderProof) -> str:
    """Return the library on whose tensors the code runs as it was captured."""
    facts = given.variant.facts
    is_lent = ON_NUMBERS in facts and ON_TENSORS not in facts
    return facts[LIBRARY] if is_lent else given.recipe.dialect()


def _runs(
    given: FunctionUnderProof, dialect: str, functions: Sequence[Any]
) -> Callable[[Sequence[Sample]], list[Outcome]]:
    graphs = given.graphs
    turns = any(n.op is ops.WHILE_LOOP for g in (graphs.forward, graphs.backward) for n in g.nodes)
    stop = Stoppable(functions, turns=turns)

    def run(given_samples: Sequence[Sample]) -> list[Outcome]:
        return run_samples(
            dialect,
            given_samples,
            lambda backend, sample: run_original(given, backend, sample),
            lambda backend, sample: run_lowered(given, backend, sample),
            is_random=graphs.is_random,
            stop=stop,
            elsewhere=not hasattr(given.recipe, "apply"),
        )

    return run


def _shown(given: FunctionUnderProof) -> dict[str, str]:
    """Return what messages call each result."""
    graphs = given.graphs
    paths = {leaf.name: leaf.path for leaf in given.layout.leaves}
    outputs = ["the result"] if len(graphs.outputs) == 1 else graphs.outputs
    shown = dict(zip(graphs.outputs, outputs, strict=True))
    for name in given.asked:
        shown[f"gradient of {name}"] = f"the gradient of {paths[name]}"
        shown[f"zero gradient of {name}"] = (
            f"the gradient of {paths[name]} by a second backward, of zeros"
        )
        shown[f"second derivative of {name}"] = f"the second derivative by {paths[name]}"
    shown |= {f"gradient of {name}": f"the gradient of {paths[name]}" for name in given.omitted}
    return shown


def _is_neutral(given: FunctionUnderProof, dialect: str, functions: Sequence[Any]) -> bool:
    """Return whether code mentions no library, so that which one it is for is a guess."""
    plain = [p for p in map(plain_function, functions) if p is not None]
    return given.apply is None and (is_neutral(dialect) or not any(map(names_library, plain)))


def _dtypes(given: FunctionUnderProof, slots: Sequence[Slot]) -> dict[str, str]:
    """Return the dtypes that the graphs' outputs have."""
    graphs = given.graphs
    first = samples.first_float(slots)
    outputs = zip(graphs.outputs, graphs.forward.outputs, strict=True)
    return {name: first if y.type.dtype == T else y.type.dtype for name, y in outputs}


def _functions(recipe: Any) -> tuple[Any, ...]:
    """Return the user's functions that a recipe runs; one of a stranger's may not say."""
    return recipe.functions() if hasattr(recipe, "functions") else ()


# --- inputs ---------------------------------------------------------------------------------------


def _slots(given: FunctionUnderProof) -> tuple[Slot, ...] | None:
    """Return the tensors to be filled, small ones where the capture holds for all shapes; None:
    they are too large.
    """
    facts = given.variant.facts
    shapes = _shapes(given)
    if shapes is None:
        return None
    if any(fact.startswith("shape") and value for fact, value in facts.items()):
        if None in itertools.chain(*shapes) or sum(map(math.prod, shapes)) > samples.MOST:
            return None
    elif not all(map(samples.is_small, shapes)):
        shapes = samples.shrink(shapes)
    return _fill(given, shapes)


def _shapes(given: FunctionUnderProof) -> list[tuple[Any, ...]] | None:
    """Return the shapes of the tensors; None where not even the number of axes is known."""
    try:
        return [samples.lengths(given.leaves[i]) for i in given.layout.indices("tensor")]
    except ValueError:
        return None


def _whole(given: FunctionUnderProof, slots: tuple[Slot, ...]) -> tuple[Slot, ...] | None:
    """Return the tensors in the call's own shapes, where these are others and not too large."""
    shapes = _shapes(given) or []
    known = all(isinstance(n, int) for shape in shapes for n in shape)
    if not known or [slot.shape for slot in slots] == shapes:
        return None
    if not 0 < sum(math.prod(shape) for shape in shapes) <= samples.MOST:
        return None
    return _fill(given, shapes)


def _fill(given: FunctionUnderProof, shapes: Sequence[tuple[int, ...]]) -> tuple[Slot, ...]:
    layout = given.layout
    first = layout.dtype or ""
    rows = []
    for i, shape in zip(layout.indices("tensor"), shapes, strict=True):
        leaf = layout.leaves[i]
        dtype = samples.float_dtype(
            T if leaf.dtype == T else leaf.dtype, given.variant.facts, first
        )
        own = samples.values_of(given.leaves[i], shape)
        rows.append(Slot(leaf.name, shape, dtype, own, _is_strided(given.leaves[i])))
    return tuple(rows)


def _is_strided(tensor: Any) -> bool:
    """Return whether a tensor of a call is known not to lie in memory in order."""
    try:
        tensors = backend_of(tensor).tensors
        ask = tensors.is_contiguous
        return ask is not None and not tensors.is_traced(tensor) and not ask(tensor)
    except Exception:  # of a kind that cannot say
        return False


def _numbers(given: FunctionUnderProof) -> dict[str, float]:
    layout = given.layout
    return {layout.leaves[i].name: float(given.leaves[i]) for i in layout.indices("number")}


class _Cotangents:
    """Completes samples by cotangents of the shapes and dtypes that the graph's outputs have."""

    def __init__(self, graphs: FunctionGraph) -> None:
        self.graphs = graphs
        self.known: dict[Any, tuple[Slot, ...]] = {}  # the slots, by the inputs' shapes

    def __call__(self, sample: Sample) -> Sample:
        key = tuple(array.shape for array in sample.arrays.values())
        slots = self.known.get(key)
        if slots is None:
            slots = self.known[key] = self.slots(sample)
        arrays = dict(samples.draw(slots, {}, "cotangents").arrays)
        if sample.label == samples.OWN:  # as the gradient of a sum comes
            arrays = {name: samples.expanded(array) for name, array in arrays.items()}
        if sample.absent:
            arrays |= {name: np.zeros_like(arrays[name]) for name in sample.absent}
        return replace(sample, arrays={**sample.arrays, **arrays})

    def slots(self, sample: Sample) -> tuple[Slot, ...]:
        given: dict[str, Any] = {**sample.widened().arrays, **sample.numbers, "key": KEY}
        floats = [array.dtype for array in sample.arrays.values() if is_float(array)]
        dtype = floats[0] if floats else np.dtype("float32")
        forward = self.graphs.forward
        outputs = run_bounded(forward, given, dtype)
        rows = zip(self.graphs.seeds, outputs, forward.outputs, strict=True)
        return tuple(
            Slot(name, np.shape(y.value), dtype.name if n.type.dtype == T else n.type.dtype)
            for name, y, n in rows
            if name is not None
        )
