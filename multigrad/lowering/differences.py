"""What a framework's own kernels do differently: the rows that a backend declares in its `differences.py`.

`KEPT` is what our rows let be. The tests hold each entry to its figure, and fail where one is no longer needed.
`MENDED` are kernels that our rows replace or correct. `docs/differences.md` is written from both.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL = ("float16", "bfloat16", "float32", "float64")
KINDS = {
    "value": "the result of an op or activation",
    "slope": "its gradient, in a lowered rule or derivative",
    "rule": "the gradient that a rule gives",
    "own gradient": "the gradient that the framework itself takes, where no rule is in force",
    "subnormals": "numbers below the smallest normal one",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which numbers are not the formula's.

    Attributes:
        what: the op, activation or rule; "*" for all of them.
        kind: one of KINDS.
        dtypes: where.
        figure: how much, or what comes out instead.
        reason: why.
        ulps: what the tests allow, in eps of the largest value on the way, where that is more than 4.
        settled: whether it is so on every processor and for every size.
    """

    what: str
    kind: str
    dtypes: tuple[str, ...]
    figure: str
    reason: str
    ulps: float | None = None
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Mended:
    """A kernel that is not used as it is.

    Attributes:
        kernel: its name in the framework.
        dtypes: where, in words.
        figure: its error, in eps of the result unless it says otherwise.
    """

    kernel: str
    dtypes: str
    figure: str
