"""Every captured name of a dialect beside the library itself: its values and its gradients.

As in `table`, names come from the dialect and how each is called is found by trying, so that a name
that is added as a row is compared without a line here. `python -m tests.dtypes.names torch` runs
all of it; the tests run a share of the ways of each name.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np
import optree

import multigrad as xg

from ..golden import digests
from .table import ALL_PATTERNS, NO_WAY, Library, differ, leaves, names_of, patterns_of

# Inside and outside of the unit interval, of both signs; and at what functions have as edges, where
# a gradient is the op's own in each library and only values are compared.
USUAL = ([0.45, -0.7, 1.6, -2.3], [0.9, -0.2, -1.2, 0.25], [1.5, 0.3, 0.8, 2.0])
EDGES = ([0.0, 1.0, -0.5, 3.0], [1.0, 0.0, -0.5, 3.0], [2.0, 0.5, 0.5, -1.0])
NON_FINITE = ([np.nan, np.inf, -np.inf, -0.0], [1.0, 2.0, -np.inf, 0.0], [0.5, -1.0, 2.0, 1.0])
AT_EDGES = ("x", "x, y")
Way = tuple[str, str]  # a name, and the pattern to call it by

# Ways, as regular expressions, by which a library's own numbers are others, and why.
TORCH = {
    r".*(digamma|psi|polygamma)\(.*": "its trigamma is right to 1e-9",
    r".*one_hot\(c, 2\)": "of numbers that are no integers",
    r".*binary_cross_entropy\(b, b\)": "at 1 the gradient of the target is infinite there, and "
    "limited as the loss is here",
    r".*cholesky_(inverse|solve)\(.*": "of a factor that is not triangular",
    r".*logit\(.*": "its gradient outside of the unit interval is NaN, or 0 where eps limits",
    r".*softplus\(x, 0.*": "0 times infinity with a beta of 0",
    r".*hard_?sigmoid\(.*": "a sixth in single precision in its gradient",
    r".*tensordot\(m, m\)": "contracts lengths of 1 with others, which has no gradient here",
    r".*a(rc)?cosh\(.*": "its gradient is a number below 1, too",
    r".*(byte|char|int|long|short)\(x\) not finite": "what no integer is, left to the processor",
    r".*(pow|__r?pow__|float_power|power)\((x, y|x, y, z|m, m)\)": "by the exponent, of a negative "
    "base: NaN there, 0 here",
}
DIFFERENT: dict[str, dict[str, str]] = {
    "torch": TORCH,
    "keras": TORCH
    | {
        r".*average\(x, 0, 2\)": "weights of another shape, which are summed as they are",
        r".*numpy\.size\(.*": "a number, which is Python's or of another dtype",
        r".*(gelu|sign)\(x\) not finite": "torch's kernels: NaN at infinity, and 0 at NaN",
        r".*circle\(x, y\) not finite": "what no label is, as an integer",
    },
    "tensorflow": {
        r".*(gelu|leaky_relu)\(.*": "constants in single precision",
        r".*digamma\(.*": "NaN at its poles",
        r".*polygamma\(2, x\)": "below 0 the reference has none",
        r".*pow\((x, y|x, y, z|m, m)\)": "of a negative base, by the exponent: NaN there, 0 here",
        r".*swish\(x, y\)": "the gradient by beta is summed",
        r".*softmax_cross_entropy_with_logits_v2\(x, y\)": "takes it that labels sum to 1",
        r".*(svd|qr|self_adjoint_eig)\(.*": "the signs of vectors are the library's",
        r".*erf\(.*\) not finite": "NaN at infinity in double precision",
        r".*(arg(max|min)_v2|top_k|sort|cumulative_logsumexp)\(x\) not finite": "NaN is left out",
    },
    "jax": {
        r".*a(rc)?cosh\(.*": "its gradient is a number below 1, too",
        r".*pow(er)?\((x, y|m, m)\)": "by the exponent, of a negative base: NaN there, 0 here",
    },
}


@dataclass
class Compared:
    """What came of the names of a dialect."""

    counts: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # of which some way was compared


def dtype_of(dialect: str) -> str:
    """Return the dtype to compare in: Keras computes its losses in its own default."""
    return "float32" if dialect == "keras" else "float64"


def ways_of(dialect: str, step: int = 1) -> Iterator[Way]:
    """Yield how each name is called: as the golden graphs have it, and by trying for a name that
    they do not have.

    Args:
        step: above 1, a sample: one way of every so many of the names in the golden graphs, and of
            each other name, such as one that was added.
    """
    is_known = digests.path_of("graphs", dialect).exists()
    keys = digests.read("graphs", dialect) if is_known else ()
    known = (key[:-1].partition("(")[::2] for key in keys)
    found = {name: [pattern for _, pattern in of] for name, of in groupby(known, lambda k: k[0])}
    library, count = Library(dialect), 0
    for name, function in names_of(dialect).items():
        count += name in found
        if name in found and count % step:
            continue
        ways = iter(found[name]) if name in found else patterns_of(library, function)
        for pattern in ways if step == 1 else islice(ways, 1):
            if pattern != NO_WAY:
                yield name, pattern


def compare(dialect: str, ways: Iterable[Way], others: Mapping[str, Any] | None = None) -> Compared:
    """Call names, captured and run on NumPy, and by the library, in one dtype.

    Args:
        others: what the names stand for, where they are not those of the dialect's table.
    """
    library, outcome = Library(dialect), Compared()
    functions = names_of(dialect) if others is None else others
    different = {re.compile(words): why for words, why in DIFFERENT.get(dialect, {}).items()}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, pattern in ways:
            said = f"{name}({pattern})"
            samples = {"": USUAL}
            if pattern in AT_EDGES:
                samples |= {" at edges": EDGES, " not finite": NON_FINITE}
            calls = [(calling(functions[name], pattern), samples)]
            if words := named_parameters(functions[name]):
                calls.append((calling(functions[name], pattern, words), {" by name": USUAL}))
            for call, samples in calls:
                captured = xg.function(call, native=False, dialect=dialect)
                for suffix, given in samples.items():
                    if any(words.fullmatch(said + suffix) for words in different):
                        outcome.counts["differ as is known"] += 1
                    elif said not in outcome.refused:
                        arrays = [np.array(numbers, dtype_of(dialect)) for numbers in given]
                        compare_call(library, said + suffix, call, arrays, outcome, captured)
    return outcome


def first_ways(dialect: str, functions: Mapping[str, Any]) -> Iterator[Way]:
    """Yield how each of some functions can be called, by trying."""
    for name, function in functions.items():
        for pattern in islice(patterns_of(Library(dialect), function), 1):
            yield name, pattern


def named_parameters(function: Any) -> list[str]:
    """Return the names by which a function takes its arguments, "" for one that has none; an empty
    list where it takes none by name.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of one that is written in C
        return []
    names = ["" if each.kind is each.POSITIONAL_ONLY else each.name for each in parameters]
    is_spread = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return [] if is_spread or not any(names) else names


def calling(function: Any, pattern: str, words: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the call of a function by a pattern, with arguments by name where there are words."""
    labels = {"name": "labeled"} if "name" in words else {}

    def call(x: Any, y: Any, z: Any) -> Any:
        args, kwargs = ALL_PATTERNS[pattern](x, y, z)
        places = zip(words, args, strict=False)
        named = {word: value for word, value in places if word}
        rest = args[: len(args) - len(named)]
        return function(*rest, **labels, **named, **kwargs)

    return call


def compare_call(
    library: Library,
    said: str,
    call: Callable[..., Any],
    arrays: Sequence[Any],
    outcome: Compared,
    captured: Any = None,
) -> None:
    """Compare one call with the library's own, where `said` ends with its arguments in gradients
    too.
    """
    if captured is None:
        captured = xg.function(call, native=False, dialect=library.name)
    tensors = [library.make(array) for array in arrays]
    try:
        want, pull_theirs = _run(library, call, tensors)
    except Exception:
        outcome.counts["the library refuses"] += 1
        return
    try:
        got, pull = xg.vjp(captured, *arrays) if said.endswith(")") else (captured(*arrays), None)
    except Exception as error:
        outcome.counts["refused"] += 1
        outcome.refused[said] = f"{type(error).__name__}: {error}"
        return
    mine, theirs = list(map(np.asarray, optree.tree_leaves(got))), leaves(library, want)
    reason = differ(mine, theirs, 0.0)
    outcome.names.add(said.partition("(")[0])
    outcome.counts["differ" if reason else "equal"] += 1
    if not reason and pull is not None and pull_theirs is not None:
        reason = _differ_in_gradients(library, (got, pull), (want, pull_theirs), outcome)
    if reason:
        outcome.differing.append(f"{said} of {arrays[0].tolist()}: {reason[:200]}")


def assert_as_the_librarys(
    library: str, said: str, call: Callable[..., Any], arrays: Sequence[Any], captured: Any = None
) -> None:
    """Assert what `compare_call` compares, of one call that the library takes."""
    outcome = Compared()
    compare_call(Library(library), said, call, arrays, outcome, captured)
    assert outcome.counts["equal"] and not outcome.differing, (outcome.differing, outcome.refused)


def _run(library: Library, call: Any, tensors: list[Any]) -> tuple[Any, Any]:
    """Return the library's own results and its pullback; None where it has none for this call."""
    if library.name == "numpy":
        return call(*tensors), None
    try:
        return xg.vjp(call, *tensors)
    except Exception:  # not differentiable with respect to one of them
        return call(*tensors), None


def _differ_in_gradients(
    library: Library, mine: tuple[Any, Any], theirs: tuple[Any, Any], outcome: Compared
) -> str:
    """Return how gradients differ, "" where they do not, or where the library has none."""
    flat, nesting = optree.tree_flatten(mine[0])
    draw = np.random.default_rng(5)
    cotangents = [
        draw.uniform(0.5, 2.0, np.shape(each)).astype(dtype_of(library.name))
        if np.asarray(each).dtype == dtype_of(library.name)
        else None
        for each in flat
    ]
    if not any(each is not None for each in cotangents):
        return ""
    own = [None if each is None else library.make(np.array(each)) for each in cotangents]
    try:
        want = theirs[1](optree.tree_unflatten(optree.tree_structure(theirs[0]), own))
    except Exception:
        outcome.counts["without a gradient in the library"] += 1
        return ""
    try:
        got = mine[1](optree.tree_unflatten(nesting, cotangents))
    except xg.GradientError as error:
        return f"the gradient is refused: {error}"
    pairs = [(a, library.read(b)) for a, b in zip(got, want, strict=True) if b is not None]
    reason = differ([np.asarray(a) for a, _ in pairs], [b for _, b in pairs], 1e-11)
    outcome.counts["gradients differ" if reason else "gradients equal"] += 1
    return f"the gradient is {reason}" if reason else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dialects", nargs="+")
    parser.add_argument("--step", type=int, default=1, help="a sample: one of so many names")
    parser.add_argument("--refused", action="store_true", help="say what is refused, too")
    given = parser.parse_args()
    differing = 0
    for dialect in given.dialects:
        if dialect == "jax":
            import jax

            jax.config.update("jax_enable_x64", True)
        outcome = compare(dialect, ways_of(dialect, given.step))
        print(*outcome.differing, sep="\n")
        if given.refused:
            print(
                *(f"refused {way}: {why[-150:]}" for way, why in outcome.refused.items()), sep="\n"
            )
        print(dialect, len(outcome.names), "names", dict(outcome.counts))
        differing += len(outcome.differing)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
