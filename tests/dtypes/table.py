"""Every captured name of a dialect, in pairs of dtypes, beside the library itself.

The names come from the dialect's own table, and how each is called is found by trying it on the
library, so that nothing here lists them. `python -m tests.dtypes.table torch` runs all of it; the
tests run a sample.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ops.numerics import as_numpy_dtype
from multigrad.engine.capture.dialect import find_dialect, require_dialect

DTYPES = (
    "bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
SMALL = {"bool": [True, False, True, True], "int": [3, 1, 2, 5], "float": [1.5, 0.75, 2.25, 0.5]}
LARGE = {
    "int8": [100, 120, 3, 7], "uint8": [200, 130, 3, 255], "int32": [2**24 + 1, 7, 40001, 3],
    "int64": [2**53 + 1, 2**24 + 3, 9, 5], "float16": [300.5, 260.0, 2000.0, 0.25],
    "bfloat16": [3e5, 256.0, 300.0, 0.125], "float32": [1e9, 16777216.0, 1e-8, 2.0],
    "float64": [1e9, 3.141592653589793, 1e-300, 2.0],
}  # fmt: skip
# What is drawn, what is no number, and what writes, prints or waits.
LEFT_OUT = (
    "rand", "drop", "normal", "bernoulli", "uniform", "empty", "numpy", "item", "tolist", "seed",
    "multinomial", "poisson", "exponential", "_print", "resize", "set_", "backward", "cuda", "vmap",
)  # fmt: skip
# Functions whose ids are sizes: the library makes as many rows as the largest id (18 GB in Keras).
SIZED_BY_IDS = ("segment_sum", "segment_max", "segment_min", "segment_prod", "one_hot", "bincount")
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass(frozen=True)
class Library:
    """A library as the table calls it."""

    name: str

    @property
    def tensors(self) -> Any:
        return load_backend("numpy" if self.name == "numpy" else self.home).tensors

    @property
    def home(self) -> str:
        require_dialect(self.name)
        dialect = find_dialect(self.name)
        runs_on = dialect and dialect.state.runs_on
        return runs_on() if runs_on is not None else self.name

    def make(self, array: Any) -> Any:
        return self.tensors.from_numpy(array)

    def read(self, value: Any) -> Any:
        if hasattr(value, "dtype"):
            return np.asarray(self.tensors.to_numpy(value))
        return np.asarray(value)


def values(dtype: str, large: bool) -> Any:
    kind = "bool" if dtype == "bool" else "int" if "int" in dtype else "float"
    numbers = LARGE.get(dtype, SMALL[kind]) if large else SMALL[kind]
    return np.array(numbers, as_numpy_dtype(dtype))


# How a function may be called: `x`, `y` and `z` are tensors, `m` a matrix of x, `s` 0-d.
PATTERNS: dict[str, Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "x": lambda x, y, z: ((x,), {}),
    "x, y": lambda x, y, z: ((x, y), {}),
    "x, 2": lambda x, y, z: ((x, 2), {}),
    "x, 1.5": lambda x, y, z: ((x, 1.5), {}),
    "2, x": lambda x, y, z: ((2, x), {}),
    "x, 0": lambda x, y, z: ((x, 0), {}),
    "x > y, x, y": lambda x, y, z: ((x > y, x, y), {}),
    "x, y, z": lambda x, y, z: ((x, y, z), {}),
    "x, 0, 2": lambda x, y, z: ((x, 0, 2), {}),
    "[x, y]": lambda x, y, z: (([x, y],), {}),
    "x, (2, 2)": lambda x, y, z: ((x, (2, 2)), {}),
    "m, m": lambda x, y, z: ((x[:, None], y[None, :]), {}),
    "m": lambda x, y, z: ((x[:, None],), {}),
}
# Ways to call a name that takes none of the table's: `c` is a positive definite matrix of x, `b` a
# batch of one, `v` x in three axes.
Made = tuple[tuple[Any, ...], dict[str, Any]]
FURTHER: dict[str, Callable[..., Made]] = {
    "x > 0": lambda x, y, z: ((x > 0,), {}),
    "x > 0, y > 0": lambda x, y, z: ((x > 0, y > 0), {}),
    "x, x > 0, y": lambda x, y, z: ((x, x > 0, y), {}),
    "x, x > 0, 2.0": lambda x, y, z: ((x, x > 0, 2.0), {}),
    "c": lambda x, y, z: ((positive(x),), {}),
    "c, 2": lambda x, y, z: ((positive(x), 2), {}),
    "c, x": lambda x, y, z: ((positive(x), x), {}),
    "c, m": lambda x, y, z: ((positive(x), y[:, None]), {}),
    "m, c": lambda x, y, z: ((y[:, None], positive(x)), {}),
    "x, c, y": lambda x, y, z: ((y, positive(x), y), {}),
    "c, c, c": lambda x, y, z: ((positive(x), positive(y), positive(z)), {}),
    "b, b": lambda x, y, z: ((positive(x)[None], positive(y)[None]), {}),
    "c, b, b": lambda x, y, z: ((positive(x), positive(y)[None], positive(z)[None]), {}),
    "b, b, b": lambda x, y, z: (tuple(positive(each)[None] for each in (x, y, z)), {}),
    "c, 0, 1": lambda x, y, z: ((positive(x) * z, 0, 1), {}),
    "c, (1, 0)": lambda x, y, z: ((positive(x) * z, (1, 0)), {}),
    "x, (2, 4)": lambda x, y, z: ((x, (2, 4)), {}),
    "x, (4,)": lambda x, y, z: ((x, (4,)), {}),
    "v, 2": lambda x, y, z: ((x[None, None, :], 2), {}),
    "v": lambda x, y, z: ((x[None, None, :],), {}),
    "b, 2": lambda x, y, z: ((positive(x)[None, None] * z, 2), {}),
    "v, w": lambda x, y, z: ((x[None, None, :], y[None, None, :2]), {}),
    "x[:3], y[:3]": lambda x, y, z: ((x[:3], y[:3]), {}),
    "m, n": lambda x, y, z: ((x[:, None], y[:, None]), {}),
    "'ij,jk->ik', c, c": lambda x, y, z: (("ij,jk->ik", positive(x), positive(y)), {}),
    "[x, y], z": lambda x, y, z: (([x, y], z), {}),
}
ALL_PATTERNS = PATTERNS | FURTHER
NO_WAY = "no way"  # of a name that none of them reaches


def positive(x: Any) -> Any:
    """Return a positive definite matrix of different numbers."""
    off = x[:, None] - x[None, :]
    return 1 / (1 + off * off)


OF_TWO = ("x, y", "x > y, x, y", "x, y, z", "[x, y]", "m, m")


@dataclass
class Outcome:
    """What came of one call."""

    counts: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    declared: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def names_of(dialect: str) -> dict[str, Any]:
    """Return a dialect's captured functions by a name of each."""
    if dialect == "numpy":
        import_module("multigrad.engine.capture.dialects.numpy")  # its table stands in the core
    else:
        require_dialect(dialect)
    table = find_dialect(dialect)
    assert table is not None
    found: dict[str, Any] = {}
    for function in table.names.aliases:
        own = getattr(function, "__name__", "")
        whole = getattr(function, "__qualname__", own)
        if own and not own.startswith("__i") and not any(word in own for word in LEFT_OUT):
            if "Tensor" in whole.partition(".")[0]:  # a method: reached by its tensor
                function = method(own)
            found.setdefault(f"{getattr(function, '__module__', '')}.{whole}", function)
    return dict(sorted(found.items()))


def method(name: str) -> Any:
    """Return what calls a tensor's method."""

    def call(x: Any, *rest: Any) -> Any:
        return getattr(x, name)(*rest)

    call.__name__ = name
    call.__module__ = "Tensor"
    return call


def patterns_of(library: Library, function: Any) -> Iterator[str]:
    """Yield how a function can be called, by trying: the further patterns where there is no other
    way.
    """
    x, y, z = (library.make(values("float32", False) / n) for n in (1, 2, 3))
    for patterns in (PATTERNS, FURTHER):
        is_reached = False
        for name, pattern in patterns.items():
            try:
                args, kwargs = pattern(x, y, z)
                found = leaves(library, function(*args, **kwargs))
            except Exception:
                continue
            if found and all(each.dtype.kind in "biufV" for each in found):
                is_reached = True
                yield name
        if is_reached:
            return


def leaves(library: Library, result: Any) -> list[Any]:
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in leaves(library, item)]
    return [library.read(result)] if hasattr(result, "dtype") else []


def is_declared(library: Library, name: str, dtypes: set[str]) -> bool:
    """Return whether a library's kernel is declared to be off in one of some dtypes, and ours is
    another.
    """
    function = name.rpartition(".")[2]
    rows = load_backend("numpy" if library.name == "numpy" else library.home).differences.mended
    return any(
        function in kernels(row.kernel) and (row.dtypes == "all" or dtypes & words(row.dtypes))
        for row in rows
    )


def kernels(shown: str) -> set[str]:
    """Return the functions that a row names: "jax.numpy.sinh, cosh" has two. Their gradients are
    nothing that the table looks at.
    """
    return set() if "gradient" in shown else {each.rpartition(".")[2] for each in words(shown)}


def words(listed: str) -> set[str]:
    return set(listed.split(", "))


def differ(got: list[Any], want: list[Any], least: float) -> str:
    """Return how results differ, "" where they do not.

    Args:
        least: the eps of the narrowest float among the operands: where a library mixes dtypes step
            by step, the steps before they meet are rounded in it.
    """
    if len(got) != len(want):
        return f"{len(got)} results for {len(want)}"
    for mine, theirs in zip(got, want, strict=True):
        if mine.dtype != theirs.dtype:
            return f"{mine.dtype} for {theirs.dtype}"
        if mine.shape != theirs.shape:
            return f"shape {mine.shape} for {theirs.shape}"
        if theirs.dtype.name not in EPS:
            if not np.array_equal(mine, theirs):
                return f"{mine.tolist()} for {theirs.tolist()}"
            continue
        a, b = mine.astype(np.float64), theirs.astype(np.float64)
        finite = np.abs(b[np.isfinite(b)])
        eps = 16 * max(EPS[theirs.dtype.name], least)
        allowed = eps * np.maximum(np.abs(b), np.max(finite, initial=0.0))
        with np.errstate(all="ignore"):
            same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
        if not np.all(same):
            return f"{a.tolist()} for {b.tolist()}"
    return ""


def run_case(
    library: Library, name: str, function: Any, pattern: str, given: tuple[Any, ...], said: str,
    outcome: Outcome,
) -> None:  # fmt: skip
    """Compare one call, captured, with the library's own."""
    call = ALL_PATTERNS[pattern]

    def body(x: Any, y: Any, z: Any) -> Any:
        args, kwargs = call(x, y, z)
        return function(*args, **kwargs)

    try:
        with np.errstate(all="ignore"):
            want = leaves(library, body(*given))
    except Exception:
        outcome.counts["the library refuses"] += 1
        return
    if not want or any(each.dtype.kind not in "biufV" for each in want):
        return
    captured = xg.function(
        body, lambda g, x, y, z: (None, None, None), native=False, dialect=library.name, prove=False
    )
    try:
        with np.errstate(all="ignore"):
            got = leaves(library, captured(*given))
    except Exception as error:
        outcome.counts["refused"] += 1
        outcome.refused[f"{name}({pattern}) {type(error).__name__}: {str(error)[-130:]}"] += 1
        return
    dtypes = {np.asarray(library.read(each)).dtype.name for each in given}
    floats = dtypes & EPS.keys()
    least = max((EPS[name] for name in floats), default=0.0) if len(floats) > 1 else 0.0
    reason = differ(got, want, least)
    if reason and is_declared(library, name, dtypes | {each.dtype.name for each in want}):
        outcome.counts["declared"] += 1
        outcome.declared[name] += 1
        return
    outcome.counts["differ" if reason else "equal"] += 1
    if reason:
        outcome.differing.append(f"{name}({pattern}) {said}: {reason[:150]}")


def sizes_of(name: str) -> tuple[bool, ...]:
    """Return whether values are large, for each case: never where a function's ids are sizes."""
    return (False,) if name.rpartition(".")[2] in SIZED_BY_IDS else (False, True)


def cases(
    library: Library, pattern: str, sizes: tuple[bool, ...] = (False, True)
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the tensors of one pattern, in every pair of dtypes, small and large, with 0-d ones."""
    seconds = DTYPES if pattern in OF_TWO else ("",)
    for first, second, large in itertools.product(DTYPES, seconds, sizes):
        x = values(first, large)
        y = values(second or first, large)[::-1].copy()
        z = values(second or first, False)
        said = f"{first} {second} {'large' if large else 'small'}"
        yield tuple(map(library.make, (x, y, z))), said
        if second and pattern == "x, y":
            scalar = np.array(y[0])
            yield (library.make(x), library.make(scalar), library.make(z)), f"{said} 0-d"


def run(
    dialect: str,
    share: float = 1.0,
    names: float = 1.0,
    seed: int = 0,
    only: str = "",
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Run the table of one dialect, or a share of the cases of a share of the names that match
    `only`; say what differs as it is found.
    """
    library, outcome, chooser = Library(dialect), Outcome(), random.Random(seed)
    warnings.simplefilter("ignore")
    for name, function in names_of(dialect).items():
        if chooser.random() >= names or re.search(only, name) is None:
            continue
        told = len(outcome.differing)
        for pattern in patterns_of(library, function):
            for given, said in cases(library, pattern, sizes_of(name)):
                if share == 1.0 or chooser.random() < share:
                    run_case(library, name, function, pattern, given, said, outcome)
        if say is not None:
            for line in outcome.differing[told:]:
                say(line)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dialects", nargs="+")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--only", default="", help="a regular expression of the names to run")
    parser.add_argument("--memory", type=int, default=12, help="GB of data before a case fails")
    given = parser.parse_args()
    resource = import_module("resource")  # Unix has it
    resource.setrlimit(resource.RLIMIT_DATA, (given.memory * 2**30,) * 2)
    if "jax" in given.dialects:
        import jax

        jax.config.update("jax_enable_x64", True)
    differing = 0
    for dialect in given.dialects:
        outcome = run(
            dialect, given.share, only=given.only, say=functools.partial(print, flush=True)
        )
        for line, count in outcome.refused.most_common(200):
            print("refused", count, line)
        print(dialect, "declared", dict(outcome.declared))
        print(dialect, dict(outcome.counts))
        differing += len(outcome.differing)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
