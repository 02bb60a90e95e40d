"""The comparison in a proof: which numbers are the same, and what is said of a difference.

It finds a graph that may be used, one that may not, or that nothing can be found out.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...backend.discovery import load_backend
from ...errors import DisprovedError, NotProvenWarning, RuleValueError
from ...graph import ops
from ...graph.ir.graph import Graph, Location
from ...graph.ir.types import WHOLE
from ...graph.ir.types import is_float as is_float_type
from ...graph.ops.results import PER_ELEMENT
from ...graph.random.native import name_of
from ...graph.support.class_bases import dataclass
from ...lowering.emit import Emission, compile_source, emit_body
from ...trace.derived.derivatives import drop_calls
from .bounded import Bounded, magnitude
from .samples import Sample, is_float

Array = Any
ROUNDINGS = 4  # of the largest intermediate value, for each op on the way
HOLDING = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}  # graphs have none of these
MOST_OPS = 64  # that are counted: more of them lose no more digits in practice


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where an original and its graph part.

    Attributes:
        what: "the result", "output 1", "the gradient of x".
        index: of the element.
        original: what the user's code gave there, or what it gave in its place.
        graph: what the graph gives.
    """

    what: str
    index: tuple[int, ...]
    original: Any
    graph: Any
    sample: Sample

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return (
            f"{self.what}{place} is {_show(self.original)} as written and "
            f"{_show(self.graph)} as a graph, for {self._inputs()}"
        )

    def _inputs(self) -> str:
        words = []
        for name, array in self.sample.arrays.items():
            alike = self.index and array.ndim == len(self.index)
            inside = alike and all(i < n for i, n in zip(self.index, array.shape, strict=True))
            shown = _show(array[self.index]) if inside else f"an array of shape {array.shape}"
            words.append(f"{name}{list(self.index) if inside else ''} = {shown}")
        words += [f"{name} = {_show(value)}" for name, value in self.sample.numbers.items()]
        return ", ".join(words)


def _show(value: Any) -> str:
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    return f"{array.astype(np.float64):.6g}" if array.ndim == 0 and is_float(array) else str(value)


def run_reference(graph: Graph, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the outputs of a graph that NumPy executes in the arrays' own dtypes."""
    emission = Emission(load_backend("numpy"), graph.name)
    # The name of the function that is compiled below.
    emission.taken.add("reference")
    body = emit_body(drop_calls(graph), emission)
    lines, results = body.indented(4), "".join(f"{each}, " for each in body.results)
    source = f"def reference({', '.join(body.parameters)}):\n{lines}    return ({results})\n"
    source = emission.with_definitions(source)
    function = compile_source(source, graph.name, emission.namespace)["reference"]
    with np.errstate(all="ignore"):
        return function(*[inputs[name] for name in body.parameters]) if body.results else ()


def margins(
    actual: Array,
    expected: Array,
    largest: Any,
    roundings: float,
    *,
    eps: float = 0.0,
    half: bool = False,
    overflows: bool = True,
    flushed: Callable[..., Array] = np.add,
) -> tuple[Array, Array]:
    """Return how far each float is from what is expected, and how far it may be.

    It may be off by some roundings of the largest value on the way, and what is flushed to zero.

    Args:
        largest: for all, or for each element.
        eps: of the coarsest dtype on the way; a wider result holds what was rounded there.
        half: whether agreement in half of the digits is enough, too.
        overflows: whether inf is right where what is expected is too large for the dtype.
        flushed: how the smallest normal number, below which all may be flushed, is counted in.
    """
    limits = limits_of(actual.dtype)
    eps = max(float(limits.eps), eps)
    with np.errstate(all="ignore"):
        mine, wide = actual.astype(np.float64), expected.astype(np.float64)
        # Where it overflows in the narrow dtype, inf is right.
        meant = wide.astype(actual.dtype).astype(np.float64) if overflows else wide
        equal = (mine == meant) | (np.isnan(mine) & np.isnan(wide))
        allowed = roundings * eps * np.broadcast_to(largest, wide.shape)
        allowed = flushed(allowed, float(limits.smallest_normal))
        # Half of bfloat16's digits would accept nearly anything.
        if half and eps < 1e-3:
            alike = np.sqrt(eps) * np.minimum(np.abs(mine), np.abs(wide))
            allowed = np.maximum(allowed, alike)
        return np.where(equal, 0.0, np.abs(mine - wide)), allowed


def are_off(error: Array, allowed: Array) -> Array:
    """Return which elements are farther off than they may be; NaN is, unless both are."""
    return np.asarray(~((error == 0.0) | (error <= allowed)))


@dataclass(frozen=True, slots=True)
class Judge:
    """How far from an original's results those of its graph may lie.

    Attributes:
        ops: how many ops lead to the results.
        eps: of the coarsest dtype that the comparison is made in.
        half: whether half of the digits are enough: kernels of two libraries differ in the others
            where a formula magnifies roundings.
    """

    ops: int
    eps: float
    half: bool

    def find_off(self, actual: Array, expected: Array, largest: Any) -> Array:
        """Return which elements of an original's result are not what is expected."""
        if not is_float(actual):
            return np.asarray(actual != expected)
        roundings = ROUNDINGS * min(self.ops + 1, MOST_OPS)
        return are_off(*margins(actual, expected, largest, roundings, eps=self.eps, half=self.half))


def find_difference(
    sample: Sample,
    original: Mapping[str, Any],
    graph: Mapping[str, Bounded],
    judge: Judge,
    shown: Mapping[str, str],
    forgive: Callable[[str, Array, Array, Array], Array] | None = None,
) -> Disagreement | None:
    """Return the first place where an original's results are not those of its graph.

    Args:
        original: arrays by name; None where it gives none, which is zero.
        shown: what messages call each result, by name.
        forgive: (name, original's, graph's, which differ) -> which still do.
    """
    for name, what in shown.items():
        if name not in original:  # as a backend without autodiff has no derivative of its own
            continue
        given: Any = original[name]
        bounded = graph.get(name)
        # No gradient on either side; on one side alone, None is zero.
        if given is None and bounded is None:
            continue
        expected = (
            np.zeros(np.asarray(given).shape) if bounded is None else np.asarray(bounded.value)
        )
        actual = np.zeros(expected.shape, np.float32) if given is None else np.asarray(given)
        if actual.shape != expected.shape:
            shapes = (f"of shape {actual.shape}", f"of shape {expected.shape}")
            return Disagreement(what, (), *shapes, sample)
        # By the result alone first: the largest value on the way takes another pass.
        off = judge.find_off(actual, expected, 0.0 if bounded is None else magnitude(expected))
        if off.any() and bounded is not None:
            off = judge.find_off(actual, expected, bounded.largest)
        if off.any() and forgive is not None and is_float(actual):
            off = forgive(name, actual, expected, off)
        if off.any():
            index = tuple(int(i) for i in np.argwhere(off)[0])
            return Disagreement(what, index, actual[index], expected[index], sample)
    return None


def find_dtype(
    sample: Sample,
    original: Mapping[str, Any],
    expected: Mapping[str, str],
    shown: Mapping[str, str],
) -> Disagreement | None:
    """Return the first result whose dtype is another one in the graph."""
    for name, dtype in expected.items():
        actual = original.get(name)
        if actual is None or name not in shown:
            continue
        name_found = name_of(actual.dtype)
        if HOLDING.get(name_found, name_found) != dtype:
            words = f"of {actual.dtype.name}", f"of {dtype}"
            return Disagreement(shown[name], (), *words, sample)
    return None


def are_equal(original: Mapping[str, Any], lowered: Mapping[str, Any]) -> bool:
    """Return whether results are the same to the last bit; a NaN is one."""
    return all(
        name not in original or _is_equal(original[name], each) for name, each in lowered.items()
    )


def _is_equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    same = a == b
    if same.all():
        return True
    return is_float(a) and bool((same | (np.isnan(a) & np.isnan(b))).all())


def largest_of(array: Any) -> float:
    return float(np.max(magnitude(np.asarray(array, np.float64)), initial=0.0))


def eps_of(dtype: Any) -> float:
    return float(limits_of(np.dtype(dtype)).eps)


def smallest_of(dtype: Any) -> float:
    return float(limits_of(np.dtype(dtype)).smallest_normal)


@functools.cache
def limits_of(dtype: np.dtype[Any]) -> Any:
    """Return the limits of a float dtype; of NumPy's own without an import."""
    if dtype.isbuiltin == 1:
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def count_ops(graphs: Sequence[Graph]) -> int:
    return len([node for graph in graphs for node in graph.nodes if node.operands])


def takes_infinity(graphs: Sequence[Graph]) -> bool:
    """Return whether inf and NaN keep their places and meaning: an integer has none for them."""
    nodes = [node for graph in graphs for node in graph.nodes if node.operands]
    return all(node.op.result in PER_ELEMENT and "int" not in node.type.dtype for node in nodes)


def casts_to_integers(graphs: Sequence[Graph]) -> bool:
    nodes = [node for graph in graphs for node in graph.nodes if node.op is ops.CAST]
    return any(n.type.dtype in WHOLE and is_float_type(n.operands[0].type) for n in nodes)


def is_vacuous(original: Mapping[str, Any]) -> bool:
    """Return whether no result says anything: not one number in it is finite."""
    arrays = [np.asarray(a) for a in original.values() if a is not None]
    floats = [array.astype(np.float64) for array in arrays if is_float(array) and array.size]
    return bool(floats) and not any(np.isfinite(array).any() for array in floats)


# --- what a proof found, and how much is proven --------------------------------------------------


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
    word = how_much()
    return word == ALL or (prove and word == ON)


@dataclass(frozen=True, slots=True)
class ProofSubject:
    """What is proven, for messages: "rule 'gate'", its code, and the framework that it is for."""

    words: str
    code: Any  # of its first function, None where it has none
    home: str

    @property
    def place(self) -> tuple[str, int] | None:
        code = self.code
        return None if code is None else (code.co_filename, code.co_firstlineno)


# What messages say about a difference.
OURS = "This is a fault of multigrad: please report it"
OURS_BUT_FOR_SIGNS = (
    "Unless its result depends on the signs of vectors, which each library chooses for itself, "
    "this is a fault of multigrad: please report it"
)
VARIES = (
    "It gives other numbers each time that it runs on the same: pass what changes as an argument, "
    "and draw by a key"
)
CHOSEN = (
    "its results depend on what its library leaves open, the signs of vectors or the order of "
    "equal elements"
)
OUT_OF_RANGE = (
    "It makes integers of floats that these do not hold, which is another number in each library: "
    "limit the floats first"
)
NOT_AS_KNOWN = (
    "The library that runs differs there from what is known of its release: please report it"
)


def disprove(
    subject: ProofSubject, difference: Disagreement, parted: Location | None, blame: str
) -> DisprovedError:
    """Return the error for a graph that computes something else than its code."""
    where = f" ({Location(*subject.place)})" if subject.place else ""
    line = f". They first differ at line {parted.line}: {parted.text!r}" if parted else ""
    place = (parted.file, parted.line) if parted else subject.place
    return DisprovedError(
        f"{subject.words}{where} differs from its graph, which is not used: {difference}{line}. "
        f"{blame}",
        place,
        subject.home,
    )


def leave_open(subject: ProofSubject, reason: str) -> str:
    """Return why nothing was proven; under MULTIGRAD_PROVE=all, say so at once."""
    if how_much() == ALL:
        file, line = subject.place or ("<unknown>", 1)
        message = f"{subject.words} is not proven: {reason}"
        # Without a module nothing is said: code for all libraries may be proven on another one.
        warnings.warn_explicit(message, NotProvenWarning, file, line, module=subject.home or None)
    return reason


def describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
