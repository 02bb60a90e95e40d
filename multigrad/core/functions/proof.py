"""The small proof: plain code is run on a call's own framework beside its graph, and gives the same
bits. The sign of a zero may differ: compilers change it (XLA takes 0 for a product with a mask that
is False).

Arithmetic that is recorded as it runs is mostly lowered to the very calls that the code makes, so
that no bounds on rounding are needed. Where bits differ this proof decides nothing: the engine's
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
import itertools
import math
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

import numpy as np

from ...errors import RuleValueError
from ..backend.contract import Backend
from ..backend.discovery import backend_of
from ..ir.graph import Graph, format_graph
from ..ops.numerics import as_numpy_dtype
from .recipe import Recipe, Variant

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
    """Return whether to prove code; `prove` is what its author chose."""
    word = how_much()
    return word == ALL or (prove and word == ON)


# --- the isolation in which code runs, and the numbers that it runs on ----------------------------
Array = Any
EDGES = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, math.inf, -math.inf, math.nan)
# Numbers whose squares and sums overflow.
FAR_FLOATS = {"float16": 300.0, "bfloat16": 1e20, "float32": 1e20, "float64": 1e160}


def isolated(backend: Backend, run: Callable[[], Any], dtype: str, is_random: bool) -> Any:
    """Run a function in the mode that keeps a dtype, whatever the backend's modes are around it.

    `is_random`: the framework's own draws take the keys that the capture drew (`REPLAYED`).
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


def lengths(tensor: Any) -> tuple[int | None, ...]:
    """Return the shape of a tensor, None for each length that is a symbol of a compiler's.

    Raises `ValueError` if not even the number of axes is known, in a graph of TensorFlow.
    """
    return tuple(n if isinstance(n, int) else None for n in tensor.shape)


def shrink(shapes: Sequence[tuple[int | None, ...]]) -> list[tuple[int, ...]]:
    """Return smaller shapes in which equal lengths stay equal, others differ, and ones stay ones.

    Axes that are empty, or of unknown length, get a length of their own where they stand.
    """
    keys: list[list[Any]] = [[n or ("?", axis) for axis, n in enumerate(s)] for s in shapes]
    # Short lengths stay as they are: code may rely on them.
    sizes: dict[Any, int] = {n: n for key in keys for n in key if isinstance(n, int) and n <= 4}
    free = (n for n in itertools.count(3) if n not in sizes.values())
    for key in keys:
        for n in key:
            if n not in sizes:
                sizes[n] = next(free)
    return [tuple(sizes[n] for n in key) for key in keys]


def _samples(
    shape: tuple[int, ...], dtype: str, numbers: Sequence[float]
) -> Iterator[tuple[tuple[float, ...], Array, Array]]:
    """Yield numbers for the params, the input and its gradient: as drawn, with other numbers, with
    the input on edges, and far out.
    """
    kind = as_numpy_dtype(dtype)

    def draw(seed: int) -> tuple[Array, Array]:
        generator = np.random.default_rng(seed)
        tin, grad_out = (generator.normal(size=shape) for _ in range(2))
        return np.asarray(tin, kind), np.asarray(grad_out, kind)

    yield tuple(numbers), *draw(7)
    yield tuple(value * 1.375 + (0.0 if value else 0.25) for value in numbers), *draw(13)
    _, grad_out = draw(17)
    yield tuple(numbers), np.resize(np.array(EDGES), shape).astype(kind), grad_out
    tin, grad_out = draw(29)
    values = tin.astype(np.float64)
    far = (values + np.sign(values)) * FAR_FLOATS[dtype]  # each at least as large
    yield tuple(numbers), far.astype(kind), grad_out


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
        (shape,), dtype = shrink([lengths(x)]), variant.layout.dtype or "float32"
        pull = lower(graphs, backend)

        def both(numbers: Sequence[float], tin: Any, g: Any) -> tuple[Any, Any]:
            tensors = (tin, *numbers)
            return recipe.run(tensors, {}).pull(g)[0], pull(g, tensors)  # type: ignore[misc]

        def run() -> bool:
            run_both, to_numpy = _traced_once(backend, both), backend.tensors.to_numpy
            return all(
                _are_same(*[np.asarray(to_numpy(side)) for side in run_both(*sample)])
                for sample in _samples(shape, dtype, values)
            )

        return isolated(backend, run, dtype, is_random=False)
    except Exception:  # of code that does not run there: the engine explains it
        return False


def _traced_once(backend: Backend, both: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of numbers and arrays that traces `both` once for each choice of numbers,
    where the backend can do so and that costs less than a run.
    """
    traces: dict[tuple[float, ...], Callable[..., Any]] = {}

    def run_eagerly(numbers: tuple[float, ...], *arrays: Any) -> Any:
        return both(numbers, *[backend.tensors.from_numpy(array.copy()) for array in arrays])

    def run(numbers: tuple[float, ...], *arrays: Any) -> Any:
        if numbers not in traces:
            traces[numbers] = partial(run_eagerly, numbers)
            if backend.autodiff.rehearse is not None:
                with suppress(Exception):  # it is the engine's, or the code does not run there
                    traces[numbers] = backend.autodiff.rehearse(partial(both, numbers), arrays)
        return traces[numbers](*arrays)

    return run


def _are_same(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.all((a == b) | (np.isnan(a) & np.isnan(b))))


# --- proofs that are shipped ----------------------------------------------------------------------
PACKAGE = Path(__file__).parents[2]
FILE = Path(__file__).with_name("shipped.txt")
FOLDERS = ("core/rules/library", "engine/rules/peers.py", "engine/rules/peer_rows.py", "estimators")
_OWN_PATHS = tuple(str(PACKAGE / each) for each in FOLDERS)


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
    return code.co_filename.startswith(_OWN_PATHS)


def digest_of(variant: Variant) -> str:
    """Return the digest of all that a proof is about: the graphs, and the facts they hold under."""
    graphs = variant.graphs
    pair = (graphs.forward, graphs.backward, *([graphs.pushed] if graphs.pushed else []))
    texts = [format_graph(Graph("", each.inputs, each.outputs)) for each in pair]
    names = (graphs.inputs, graphs.cotangents, graphs.wrt, graphs.undifferentiable)
    texts.append(repr((*names, graphs.second_order, sorted(variant.facts.items()))))
    return digest("\n".join(texts))


def digest(text: str) -> str:
    return urlsafe_b64encode(blake2b(text.encode(), digest_size=6).digest()).decode()


def digest_of_file(path: Path) -> str:
    return digest(path.read_text("utf-8"))  # read as text: line endings do not matter


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
