"""Whose dtypes operators have in the code that a trace runs: those of its "code", where that
mentions a framework, of its "tensors", where it mentions none, "nobody's", where it is written with
`xg.xp`.

Code that mentions NumPy alone is "open" as long as NumPy's functions have met no tensor, since all
tensors take NumPy's numbers: it is recorded as NumPy's. Where they never meet one and a dtype hung
on that ("leaning"), it is captured once more, as the tensors' ("lent").
"""

from __future__ import annotations

from ..graph.passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from .trace import NeedsConcrete, Trace

CODE, TENSORS, NOBODY = "code", "tensors", "nobody's"
OPEN, LEANING, LENT = "open", "leaning", "lent"
OF_CODE = frozenset((CODE, OPEN, LEANING))
OF_TENSORS = frozenset((TENSORS, LENT))
UNDECIDED = frozenset((TENSORS, OPEN, LEANING, LENT))  # the code does not say of which library


def meet_numpy(trace: Trace) -> None:
    """Note that a function of NumPy's, or an array, meets a tensor: the code is NumPy's.

    Raises:
        NeedsConcrete: something has the dtype that its tensors' library gives.
    """
    if trace.types_of in (OPEN, LEANING, LENT):
        trace.types_of = CODE
    elif trace.types_of == TENSORS and ON_NUMBERS in trace.facts:
        raise NeedsConcrete(ON_TENSORS)


def is_lent(trace: Trace) -> bool:
    """Return whether code that calls NumPy's functions on numbers has its tensors' dtypes."""
    rely_on_library(trace)
    return trace.types_of == TENSORS and ON_NUMBERS in trace.facts


def rely_on_library(trace: Trace) -> None:
    """Note that a dtype hangs on the library that computes."""
    if trace.types_of == OPEN:
        trace.types_of = LEANING
    elif trace.types_of == LENT:
        trace.types_of = TENSORS


def is_leaning(trace: Trace) -> bool:
    """Return whether what runs now, or ran before, may be the tensors' code."""
    return trace.is_leaning or LEANING in (trace.types_of, trace.latest_types)


def lend(trace: Trace) -> None:
    """Ask for the library of the tensors, where what was captured may be their code."""
    if is_leaning(trace):
        raise NeedsConcrete(ON_NUMBERS, LIBRARY, noted=False) from None
