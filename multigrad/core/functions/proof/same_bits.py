"""The small proof: plain code and its graph give the same bits on the library of a call, but for
the sign of a zero, which compilers change (XLA takes 0 for a product with a mask that is False).

Arithmetic that is recorded as it runs is mostly lowered to the very calls that the code makes, so
that no bounds on rounding are needed. Where bits differ nothing is said: then the engine's proof
tells rounding from a fault (`functions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...backend.discovery import backend_of
from ..calls.recipe import Recipe, Variant
from . import samples
from .samples import InputSlot, Sample
from .settings import ALL, how_much
from .tensors import as_array, isolated, to_tensor


def has_same_bits(recipe: Recipe, variant: Variant, leaves: Sequence[Any]) -> bool:
    """Return whether a rule's code gives the bits of its graph on samples like a call's tensor.

    Args:
        leaves: the tensor, whether the rule gets its input, and its run-time params.
    """
    graphs, lower = variant.graphs, recipe.graphs.lower
    is_rule = recipe.noun == "rule" and bool(recipe.functions)
    if lower is None or not is_rule or variant.omissions or graphs.is_random or how_much() == ALL:
        return False
    x, has_tin, *values = leaves
    if not has_tin or not all(type(value) is float for value in values):
        return False
    try:
        backend = backend_of(x)
        shape, dtype = samples.shrink([samples.lengths(x)])[0], variant.layout.dtype or "float32"
        slots = tuple(InputSlot(name, shape, dtype) for name in ("tin", "grad_out"))
        pull = lower(graphs, backend)

        def both(numbers: Sequence[float], tin: Any, g: Any) -> tuple[Any, Any]:
            tensors = (tin, True, *numbers)
            return recipe.run(tensors, {}).pull(g)[0], pull(g, tensors)  # type: ignore[misc]

        def run() -> bool:
            known = dict(zip(graphs.params, values, strict=True))
            run_both = _traced_once(backend, both)
            for sample in _samples(slots, known):
                arrays = [sample.arrays[slot.name] for slot in slots]
                sides = run_both(tuple(sample.numbers.values()), *arrays)
                if not _are_same(*[as_array(backend, side) for side in sides]):
                    return False
            return True

        return isolated(backend, run, dtype, is_random=False)
    except Exception:  # of code that does not run there: the engine explains it
        return False


def _traced_once(backend: Backend, both: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of numbers and arrays that traces `both` once for each choice of numbers,
    where the backend can do so and that costs less than a run.
    """
    traces: dict[tuple[float, ...], Callable[..., Any]] = {}

    def run_eagerly(numbers: tuple[float, ...], *arrays: Any) -> Any:
        return both(numbers, *[to_tensor(backend, array) for array in arrays])

    def run(numbers: tuple[float, ...], *arrays: Any) -> Any:
        if numbers not in traces:
            traces[numbers] = partial(run_eagerly, numbers)
            if backend.autodiff.rehearse is not None:
                with suppress(Exception):  # it is the engine's, or the code does not run there
                    traces[numbers] = backend.autodiff.rehearse(partial(both, numbers), arrays)
        return traces[numbers](*arrays)

    return run


def _samples(slots: Sequence[InputSlot], numbers: Mapping[str, float]) -> Iterator[Sample]:
    others = {name: value * 1.375 + (0.0 if value else 0.25) for name, value in numbers.items()}
    yield samples.draw(slots, numbers)
    yield samples.draw(slots, others, "other numbers")
    yield samples.on_edges(slots, numbers, samples.EDGES, distinct=False)
    yield samples.draw_far(slots, numbers)


def _are_same(a: Any, b: Any) -> bool:
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.all((a == b) | (np.isnan(a) & np.isnan(b))))
