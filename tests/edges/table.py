"""Indexed expressions at the edges of their domain, beside the library itself.

Each expression of a library is captured and run on every backend that is there, eagerly and as its
framework compiles it, with indices inside, outside, negative, repeated and none; the value and the
gradients are the library's own, or what the library refuses is refused by an error of ours.
`python -m tests.edges.table jax` runs all of it; the tests run a sample.
"""

from __future__ import annotations

import argparse
import linecache
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.engine.capture.dialect import find_dialect
from multigrad.errors import DisprovedError, PlaceError

from .expressions import EXPRESSIONS, HELPERS

# What differs from a library at an edge, and is documented: rows of `docs/differences.md`.


NOT_DIFFERENTIATED = ("not implemented", "only implemented", "Slice size at index 0 in gather")
RAISED = ("out of bounds", "out of range", "out of DATA bounds", "is not in [", "does not index")


def is_declared(case: Any, backend: str, way: str, got: Any, want: Any) -> bool:
    """Return whether a difference is documented.

    Args:
        case: the expression, the library and the edge.
        backend: on which ours ran, and the way in which it was compiled.
        way: see there.
        got: our answer.
        want: the library's.
    """
    has_none = any(word in str(want.error) for word in NOT_DIFFERENTIATED)
    if has_none and got.error is None:  # no gradient of the library's; ours is that of the ops
        return True
    is_told = want.error is not None or isinstance(got.error, PlaceError)
    is_outside = is_told or case.edge in ("high", "low", "far", "negative")
    if "unsorted_segment" in case.expression and is_outside:
        # Dropped, as TensorFlow does it on a GPU and in XLA. There its own gradient takes the last
        # row, which it has not added.
        return got.error is None
    if (
        case.library == "tensorflow"
        and way == "xla"
        and (is_outside or "sparse_softmax" in case.expression)
    ):
        # What XLA takes where a place lies outside TensorFlow leaves open: another of its ops,
        # another element.
        return got.error is None or isinstance(got.error, PlaceError)
    if way == "inductor" and case.edge == "negative" and want.error is None:
        # Torch itself refuses it.
        return case.library == "torch" and any(w in case.expression for w in ("_add", "_copy"))
    if want.error is not None and (way != "eager" or backend == "jax"):
        # Compiled code cannot raise, or its executor does, by its own error.
        return got.error is None or any(word in str(got.error) for word in RAISED)
    return False


Array = np.ndarray[Any, Any]
EDGES = {
    "inside": [3, 0, 2, 1],
    "negative": [-1, 2, -4, 1],
    "high": [0, 5, 3, 4],
    "low": [0, -5, 2, -9],
    "far": [2**31 - 1, 1, -(2**31), 3],
    "repeated": [1, 3, 1, 1],
    "none": [],
}
COMPILED = {"jax": ("jit",), "tensorflow": ("function", "xla"), "torch": ("aot_eager",)}
WEEKLY = {**COMPILED, "torch": ("aot_eager", "inductor")}
FLOATS = ("x", "w", "v", "u")
INTEGERS = ("i", "j", "k")


class Answer(NamedTuple):
    """A value and its gradients, or the error instead."""

    value: Array | None = None
    gradients: tuple[Array, ...] = ()
    error: BaseException | None = None


class Case(NamedTuple):
    """An expression at an edge.

    Attributes:
        known: whether the indices are constants of the code, not arguments.
    """

    library: str
    expression: str
    edge: str
    known: bool

    def floats(self) -> list[Array]:
        """Return the numbers, each of which is another."""
        n = len(EDGES[self.edge])
        shapes = ((4, 3), (4,), (n, 3), (n,))
        wide = np.float64 if self.library == "numpy" else np.float32
        return [
            ((np.arange(np.prod(s)) * 7 % 11 + i + 1) / 4).reshape(s).astype(wide)
            for i, s in enumerate(shapes)
        ]

    def integers(self) -> list[Array]:
        i = np.array(EDGES[self.edge], np.int64)
        if self.library == "numpy":  # which counts around one length at a time
            i = np.clip(i, -4000, 4001)
        if self.library == "jax":  # which has no others unless asked
            i = i.astype(np.int32)
        j = np.stack([i, i[::-1], np.roll(i, 1)], 1)
        return [i, j, np.stack([i, np.clip(i, -3, 2)], 1)]

    def function(self) -> Callable[..., Any]:
        """Return a function of the arguments, as if it stood in a file."""
        names = FLOATS if self.known else (*FLOATS, *INTEGERS)
        source = f"{HELPERS}\ndef f({', '.join(names)}):\n    return {self.expression}\n"
        file = f"<edges {self.expression}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        scope = namespace(self.library) | {"n": len(EDGES[self.edge])}
        if self.known:
            make = tensors_of(self.library).from_numpy
            scope |= dict(zip(INTEGERS, map(make, self.integers()), strict=True))
        exec(compile(source, file, "exec"), scope)  # noqa: S102 (the expressions stand in a file)
        return scope["f"]

    def arguments(self, backend: str) -> list[Any]:
        arrays = self.floats() + ([] if self.known else self.integers())
        return [tensors_of(backend).from_numpy(each) for each in arrays]


def tensors_of(library: str) -> Any:
    dialect = None if library == "numpy" else find_dialect(library)
    runs_on = dialect and dialect.state.runs_on
    return load_backend(library if runs_on is None else runs_on()).tensors


def namespace(library: str) -> dict[str, Any]:
    """Return what the expressions of a library refer to."""
    names: dict[str, Any] = {"np": np}
    if library == "torch":
        import torch

        names |= {"torch": torch, "F": torch.nn.functional}
    elif library == "jax":
        import jax

        names |= {"jax": jax, "jnp": jax.numpy}
    elif library == "tensorflow":
        import tensorflow

        names["tf"] = tensorflow
    elif library == "keras":
        import keras

        names["ops"] = keras.ops
    return names


# --- a value and its gradients, as each framework takes them --------------------------------------
def cotangent_of(shape: Any) -> Array:
    return (np.arange(np.prod(tuple(shape))) * 5 % 13 + 1.0).reshape(tuple(shape))


def with_numpy(function: Callable[..., Any], args: list[Any], expression: str) -> Answer:
    """By differences, which are exact of sums and near of the rest."""
    value = np.asarray(function(*args))
    weights, gradients = cotangent_of(value.shape), []
    for at, name in enumerate(FLOATS):
        slope = np.zeros_like(args[at])
        gradients.append(slope)
        if not re.search(rf"\b{name}\b", expression):
            continue
        for place in np.ndindex(slope.shape):
            ends = []
            for step in (2**-14, -(2**-14)):
                moved = [np.array(each) for each in args]
                moved[at][place] += step
                ends.append(np.sum(function(*moved) * weights))
            slope[place] = (ends[0] - ends[1]) * 2**13
    return Answer(value, tuple(gradients))


def with_torch(function: Callable[..., Any], args: list[Any], way: str) -> Answer:
    import torch

    leaves = [a.requires_grad_() if a.is_floating_point() else a for a in args]
    if way != "eager":
        torch.compiler.reset()
        function = torch.compile(function, backend=way)
    value = function(*leaves)
    gradients: Any = (None,) * len(FLOATS)
    if value.requires_grad:
        weights = torch.tensor(cotangent_of(value.shape), dtype=value.dtype)
        wanted = leaves[: len(FLOATS)]
        gradients = torch.autograd.grad(value, wanted, weights, allow_unused=True)
    return finish(value.detach(), gradients, args, "torch")


def with_jax(function: Callable[..., Any], args: list[Any], way: str) -> Answer:
    import jax

    def both(*args: Any) -> Any:
        floats, rest = args[: len(FLOATS)], args[len(FLOATS) :]
        value, pull = jax.vjp(lambda *floats: function(*floats, *rest), *floats)
        if not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
            return value, (None,) * len(floats)
        return value, pull(jax.numpy.asarray(cotangent_of(value.shape), value.dtype))

    value, gradients = (both if way == "eager" else jax.jit(both))(*args)
    return finish(value, gradients, args, "jax")


def with_tensorflow(function: Callable[..., Any], args: list[Any], way: str) -> Answer:
    import tensorflow as tf

    def both(*args: Any) -> Any:
        floats = args[: len(FLOATS)]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            value = function(*args)
        if not value.dtype.is_floating:
            return value, (None,) * len(floats)
        weights = tf.constant(cotangent_of(value.shape), value.dtype)
        found = tape.gradient(value, floats, weights)
        return value, [None if g is None else tf.convert_to_tensor(g) for g in found]

    if way != "eager":
        both = tf.function(both, jit_compile=way == "xla", autograph=False)
    value, gradients = both(*args)
    return finish(value, gradients, args, "tensorflow")


def finish(value: Any, gradients: Any, args: list[Any], backend: str) -> Answer:
    read = tensors_of(backend).to_numpy
    pairs = zip(gradients, args, strict=False)
    return Answer(
        np.asarray(read(value)),
        tuple(np.zeros(tuple(a.shape)) if g is None else np.asarray(read(g)) for g, a in pairs),
    )


NATIVE = {"torch": with_torch, "jax": with_jax, "tensorflow": with_tensorflow}


def ask(function: Callable[..., Any], args: list[Any], backend: str, way: str) -> Answer:
    """Return what a function gives."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return NATIVE[backend](function, args, way)
    except Exception as error:
        return Answer(error=error)


def ask_numpy(function: Any, args: list[Any], expression: str) -> Answer:
    """Return what an expression of NumPy's gives; "": ours on NumPy."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if expression:
                return with_numpy(function, args, expression)
            value, pull = xg.vjp(function, *args)
            gradients: Any = (None,) * len(FLOATS)
            if value.dtype.kind == "f":
                gradients = pull(cotangent_of(value.shape).astype(value.dtype))
            return finish(value, gradients[: len(FLOATS)], args[: len(FLOATS)], "numpy")
    except Exception as error:
        return Answer(error=error)


# --- verdicts -------------------------------------------------------------------------------------
def judge(got: Answer, want: Answer, is_ours_alone: bool) -> tuple[str, str]:
    """Return a verdict and what differs.

    Args:
        is_ours_alone: whether a refusal must be an error of ours: it is not where the framework's
            own executor raises, as the library does there.
    """
    if want.error is not None:
        if got.error is None:
            return "not refused", f"{tell(got)} for {tell(want)}"
        if isinstance(got.error, xg.MultigradError) or is_told(got.error):
            return "refused", ""
        if not is_ours_alone and isinstance(got.error, (type(want.error), RuntimeError)):
            return "refused", ""
        return "foreign", tell(got)
    if got.error is not None:
        is_disproved = isinstance(got.error, DisprovedError)
        if isinstance(got.error, xg.TraceError | xg.UnsupportedOp) and not is_disproved:
            return "not captured", tell(got)
        if is_told(got.error):
            return "not captured", tell(got)
        return "foreign", tell(got)
    for name, a, b in zip(
        ("value", *FLOATS),
        (got.value, *got.gradients),
        (want.value, *want.gradients),
        strict=True,
    ):
        assert a is not None
        assert b is not None
        if a.shape != b.shape or not np.allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-5, equal_nan=True
        ):
            return "differ", f"{name}: {a.tolist()} for {b.tolist()}"
    return "equal", ""


def is_told(error: Exception) -> bool:
    """Return whether torch's compiler gives a reason of ours, as it does for a whole graph."""
    return bool(re.search(r"graph_break.*Message: !.*function '", str(error), re.DOTALL))


def tell(answer: Answer) -> str:
    if answer.error is None:
        assert answer.value is not None
        return f"{answer.value.ravel()[:12].tolist()}"
    text = " ".join(str(answer.error).split())
    return f"{type(answer.error).__name__}: {text[:200]}"


@dataclass
class Outcome:
    """What came of the expressions of one library."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    not_captured: dict[str, str] = field(default_factory=dict)


FAULTS = ("differ", "foreign", "not refused")


def cases(library: str) -> Iterator[Case]:
    for expression in EXPRESSIONS[library].strip().splitlines():
        for edge in EDGES:
            for known in (False, True):
                yield Case(library, expression, edge, known)


def run(
    library: str,
    backends: tuple[str, ...],
    compiled: dict[str, tuple[str, ...]] = COMPILED,
    most: int | None = None,
    only: str = "",
) -> Outcome:
    """Compare the expressions of a library, or so many of the cases, drawn at random."""
    outcome, chosen = Outcome(), list(cases(library))
    if most is not None:
        chosen = random.Random(0).sample(chosen, min(most, len(chosen)))
    home = tensors_of(library)
    own = next((b for b in ("numpy", *NATIVE) if load_backend(b).tensors is home), library)
    for case in chosen:
        if only not in case.expression:
            continue
        function = case.function()
        answers: dict[str, Answer] = {}
        try:
            captured = xg.convert(case.function(), capture=xg.Capture(native=False))
        except Exception as error:
            captured = failing(error)
        for backend in backends:
            for way in ("eager", *compiled.get(backend, ())):
                # What compiled code of its own library gives, it gives here.
                asked = way if backend == own else "eager"
                if asked not in answers:
                    given = case.arguments(own)
                    if own == "numpy":
                        answers[asked] = ask_numpy(function, given, case.expression)
                    else:
                        answers[asked] = ask(function, given, own, asked)
                args = case.arguments(backend)
                if backend == "numpy":
                    got = ask_numpy(captured, args, "")
                else:
                    got = ask(captured, args, backend, way)
                verdict, reason = judge(got, answers[asked], way == "eager")
                if verdict in FAULTS and is_declared(case, backend, way, got, answers[asked]):
                    verdict = "declared"
                outcome.counts[verdict] += 1
                where = f"{case.expression} [{case.edge}{', known' * case.known}] {backend} {way}"
                if verdict in FAULTS:
                    outcome.faults.append(f"{verdict}: {where}: {reason}")
                elif verdict == "not captured":
                    outcome.not_captured.setdefault(case.expression, f"{where}: {reason}")
    return outcome


def failing(error: Exception) -> Callable[..., Any]:
    """Return a function that raises an error."""

    def call(*args: Any) -> Any:
        raise error

    return call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=EXPRESSIONS)
    parser.add_argument("--backends", default="numpy,torch,jax,tensorflow")
    parser.add_argument("--most", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="all", choices=["all", "compiled", "eager"])
    given = parser.parse_args()
    ways: Any = {"all": WEEKLY, "compiled": COMPILED, "eager": {}}[given.ways]
    backends = tuple(given.backends.split(","))
    outcome = run(given.library, backends, ways, given.most, only=given.only)
    for line in (*outcome.faults, *outcome.not_captured.values()):
        print(line)
    print(given.library, dict(outcome.counts))
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
