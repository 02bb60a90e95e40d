"""The small proof: plain code and its graph give the same bits on the library of a call, but for
the sign of a zero, which compilers change (XLA takes 0 for a product with a mask that is False).

Arithmetic that is recorded as it runs is mostly lowered to the very calls that the code makes, so
that no bounds on rounding are needed. Where bits differ nothing is said: then the engine's proof
tells rounding from a fault (`engine/functions/proof`).

Proofs of the library's own rules and estimators are made before a release, and shipped:
`shipped.txt` holds the digest of each file of the library, and by function the digests of the
graphs that were proven to be what it does. Such a graph need not be proven again. One of code that
was changed, or recorded with helpers that were replaced, has another digest, and is proven like
anybody's. `tools/write_proofs.py` writes the file; a test holds it against the library.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

import numpy as np

from ...errors import BackendNotFound, RuleValueError
from .. import ops
from ..backend.contract import Backend
from ..backend.discovery import backend_of
from ..ir.graph import Graph, format_graph
from ..support.trees import Tensor
from . import samples
from .recipe import Recipe, Variant
from .samples import InputSlot, Sample

# --- how much is proven ---------------------------------------------------------------------------
VARIABLE = "MULTIGRAD_PROVE"
OFF, ON, ALL = "0", "1", "all"


def how_much() -> str:
    """Return "0" (nothing is proven), "1" (captures, the default) or "all" (each call, too).

    Raises:
        RuleValueError: the variable says something else.
    """
    # Read each time, as it may change while a program runs.
    word = os.environ.get(VARIABLE, "") or ON
    if word not in (OFF, ON, ALL):
        raise RuleValueError(f"{VARIABLE} is 0, 1 or all, got {word!r}")
    return word


def is_asked(prove: bool) -> bool:
    """Return whether to prove what its author does (`prove`) or does not want proven."""
    word = how_much()
    return word == ALL or (prove and word == ON)


# --- arrays and tensors, and the isolation in which code runs -------------------------------------
Array = Any


def isolated(backend: Backend, run: Callable[[], Any], dtype: str, is_random: bool) -> Any:
    """Run a function in the mode that keeps a dtype, whatever the backend's modes are around it.

    `is_random`: the framework's own draws take the keys of `REPLAYED`.
    """
    precision = backend.tensors.precision
    precise = nullcontext() if precision is None else precision(dtype)

    def run_precisely() -> Any:
        with np.errstate(all="ignore"), precise:
            return run()

    isolate = backend.autodiff.isolate
    # In a context of its own: what the run sets there ends with it.
    run_own = contextvars.copy_context().run
    return run_own(run_precisely) if isolate is None else run_own(isolate, run_precisely, is_random)


def to_tensor(backend: Backend, array: Array) -> Tensor:
    """Return an array as a tensor of its own, which lies in memory as the array does."""
    # An expanded array: one number in memory for all elements.
    if array.size > 1 and not any(array.strides):
        element = backend.tensors.from_numpy(array[(slice(0, 1),) * array.ndim].copy())
        return backend.kernels.rows[ops.BROADCAST_TO_SHAPE](element, shape=array.shape)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return backend.tensors.from_numpy(array.copy(order="K"))
    # Every second element of a larger array, so that it is not contiguous.
    spaced = np.zeros((*array.shape, 2), array.dtype)
    spaced[..., 0] = array
    return backend.tensors.from_numpy(spaced)[..., 0]


def as_array(backend: Backend, value: Any) -> Array | None:
    """Return a tensor, or a number, as an array; None for None."""
    try:
        return None if value is None else np.asarray(backend.tensors.to_numpy(value))
    except (AttributeError, BackendNotFound, TypeError):
        return np.asarray(value, np.float32 if isinstance(value, float) else None)


# --- the same bits --------------------------------------------------------------------------------
def has_same_bits(recipe: Recipe, variant: Variant, leaves: Sequence[Any]) -> bool:
    """Return whether a rule's code gives the bits of its graph on samples like a call's tensor.

    Args:
        leaves: the tensor and the run-time params.
    """
    graphs, lower = variant.graphs, recipe.graphs.lower
    is_rule = recipe.noun == "rule" and bool(recipe.functions)
    if lower is None or not is_rule or variant.omissions or graphs.is_random or how_much() == ALL:
        return False
    x, *values = leaves
    if not all(type(value) is float for value in values):
        return False
    try:
        backend = backend_of(x)
        shape, dtype = samples.shrink([samples.lengths(x)])[0], variant.layout.dtype or "float32"
        slots = tuple(InputSlot(name, shape, dtype) for name in ("tin", "grad_out"))
        pull = lower(graphs, backend)

        def both(numbers: Sequence[float], tin: Any, g: Any) -> tuple[Any, Any]:
            tensors = (tin, *numbers)
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


# --- proofs that are shipped ----------------------------------------------------------------------
PACKAGE = Path(__file__).parents[2]
FILE = Path(__file__).with_name("shipped.txt")
FOLDERS = ("core/rules/library", "engine/rules/peers.py", "estimators")


def is_shipped(recipe: Recipe, variant: Variant) -> bool:
    """Return whether graphs are the library's own, and were proven before the release."""
    code = own_code(recipe)
    if code is None or how_much() == ALL:
        return False
    return digest_of(variant) in _proven_in(code.co_filename).get(code.co_name, ())


def own_code(recipe: Recipe) -> CodeType | None:
    """Return the code of a rule or an estimator of the library, None of anything else."""
    code = getattr(recipe.functions[0], "__code__", None) if len(recipe.functions) == 1 else None
    return code if code is not None and is_of_library(code) else None


def is_of_library(code: CodeType) -> bool:
    return code.co_filename.startswith(_FOLDERS)


def digest_of(variant: Variant) -> str:
    """Return the digest of all that a proof is about: the graphs, and the facts they hold under."""
    graphs = variant.graphs
    pair = (graphs.forward, graphs.backward, *([graphs.pushed] if graphs.pushed else []))
    texts = [format_graph(Graph("", each.inputs, each.outputs)) for each in pair]
    names = (graphs.inputs, graphs.cotangents, graphs.wrt, graphs.undifferentiable)
    texts.append(repr((*names, graphs.second_order, sorted(variant.facts.items()))))
    return digest("\n".join(texts))


def digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def digest_of_file(path: Path) -> str:
    return digest(path.read_text("utf-8"))  # whose lines end alike on every system


@functools.cache
def _proven_in(file: str) -> Mapping[str, list[str]]:
    """Return the digests that are proven for a file of the library, by function; none if the file
    was changed.
    """
    path = Path(file)
    rows = read_rows(FILE.read_text("utf-8"))
    source, proven = rows.get(path.relative_to(PACKAGE).as_posix(), ("", {}))
    return MappingProxyType(proven if source == digest_of_file(path) else {})


def read_rows(text: str) -> dict[str, tuple[str, dict[str, list[str]]]]:
    """Return by file the digest of its text, and by function those of its graphs."""
    rows: dict[str, tuple[str, dict[str, list[str]]]] = {}
    proven: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, *digests = line.split()
        if line.startswith(" "):
            proven[name] = digests
        else:
            rows[name] = (digests[0], proven := {})
    return rows


_FOLDERS = tuple(str(PACKAGE / each) for each in FOLDERS)
