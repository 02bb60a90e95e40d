"""Differences between a framework's own kernels and the formulas, as a backend declares them.

The conformance suite compares each row of `Differences.kept` with its figure, and fails if one is
no longer needed. The other rows are kernels that the backend's rows replace or correct.
`docs/differences.md` is written from both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...core.support.records import record

ALL = ("float16", "bfloat16", "float32", "float64")
# With the words of the page for each.
KINDS = {
    "value": "the result of an op or activation",
    "slope": "its gradient, in a lowered rule or derivative",
    "rule": "the gradient that a rule gives",
    "own gradient": "the framework's own gradient, where no rule is in force",
    "subnormals": "numbers below the smallest normal one",
    "zero": "whether the result is 0 or -0",
    "integers": "integers, and the elements at the indices that they give",
    "matrices": "the result for a matrix without a factor or inverse, or with several",
    "compiled": "the result of ops that are combined in compiled code",
}


@record(eq=True)
class Difference:
    """One way in which numbers deviate from the formula.

    Attributes:
        what: the op, activation or rule; "*" for all of them.
        kind: one of KINDS.
        dtypes: where.
        figure: how much, or what comes out instead.
        reason: why.
        ulps: what the tests allow, in eps of the largest value on the way, where that is more than
            4.
        settled: whether it holds on every processor and for every size.
        formula: what is computed instead, of an `Exact` of `multigrad_conformance.oracles`.
        unsettled: (x, params) -> the mask of elements of which nothing is promised.
    """

    what: str
    kind: str
    dtypes: tuple[str, ...]
    figure: str
    reason: str
    ulps: float | None = None
    settled: bool = True
    formula: Callable[[Any], Any] | None = None
    unsettled: Callable[[Any, dict[str, Any]], Any] | None = None


@record(eq=True)
class Mended:
    """A kernel that is not used directly.

    Attributes:
        kernel: its name in the framework.
        dtypes: where, in words.
        figure: its error, in eps of the result unless it says otherwise.
    """

    kernel: str
    dtypes: str
    figure: str


@record(eq=True)
class Differences:
    """All differences that a backend declares."""

    # The differences that the backend's rows leave.
    kept: tuple[Difference, ...] = ()
    # Kernels that its rows replace or correct.
    mended: tuple[Mended, ...] = ()
    # The framework and the version that the figures are of.
    measured: str = ""


class Fault(NamedTuple):
    """A gradient that a framework silently gets wrong.

    `KNOWN_FAULTS` in `known_faults.py` of a backend's package lists them. `xg.doctor` reads that
    file without an import of the package or its framework, and runs the code in another process.

    Attributes:
        name: a word for it.
        title: what goes wrong.
        avoid: what to do instead.
        code: defines `found(wrap)`, which tells whether the fault is there; `wrap` returns a
            function as it is, or as multigrad converts it.
        reported: the framework's issue about it, as far as we know of one.
    """

    name: str
    title: str
    avoid: str
    code: str
    reported: str = ""


SIGNS_OF_VECTORS = Difference(
    "svd, eigh, qr",
    "matrices",
    ALL,
    "vectors of either sign, of equal values in any basis",
    "the library's own are given; what does not depend on the choice is the same everywhere",
    settled=False,
)


def zeros(what: str) -> Difference:
    """Return the row of ops with zeros of another sign than in the array API standard."""
    # Or than in most frameworks, where the standard says nothing.
    return Difference(
        what,
        "zero",
        ALL,
        "0 for -0, or -0 for 0",
        "the kernels' own; another pass would settle it",
    )


# relu, clip and their like are limits too: to settle it would take one more pass over memory.
SIGN_OF_ZERO = Difference(
    "maximum, minimum, fmax, fmin, cummax, cummin, clip, relu, relu6, soft_shrink",
    "zero",
    ALL,
    "0 or -0 of two that are equal",
    "kernels differ, some by the place in a vector: relu(-0.0) is -0.0 in torch, 0.0 in NumPy",
    settled=False,
)
