"""A capture that is made once more, as something may have come from outside of the arguments: the
two must be the same graphs.
"""

from __future__ import annotations

from ..active.reads import note
from ..calls.failures import NotCaptured
from ..calls.recipe import Variant
from ..errors import TraceError
from ..tracing.trace import NeedsConcrete, Trace


def check_tensors(first: Trace, second: Trace) -> None:
    """Compare the framework's tensors that became constants; one that is not made anew comes from
    outside, and its values are a fact.

    Raises:
        NotCaptured: that cannot be told.
    """
    outside = {id(a): a for a in first.lifted for b in second.lifted if a is b}
    facts = {first.sources[i]: first.sources[i].meaning() for i in outside if i in first.sources}
    note(facts)
    if len(facts) < len(outside) or None in facts.values():
        raise NotCaptured(
            first.error(
                "reads a tensor from outside of it, which may change between calls. Pass it "
                "as an argument, or make it a NumPy array, whose values are taken once"
            )
        )


def check_draws(name: str, variant: Variant, other: Variant, *, drew: bool) -> None:
    """Compare the graphs of the two.

    Args:
        drew: a generator moved in both; not in another thread, which draws once.

    Raises:
        NotCaptured: they are not the same.
    """
    if drew or not are_same(variant, other):
        raise NotCaptured(
            TraceError(
                f"function {name!r} gives another graph each time: it draws a number, "
                "or reads one that changes. Draw with xp.rand_like(x), or pass the number as "
                "an argument"
            )
        )


def check_memory(name: str, variant: Variant, again: object) -> None:
    """Record it for tensors that do not lie in memory in order, which shows in no value.

    Raises:
        NotCaptured: that gives other graphs.
    """
    again.trace.is_dense = False  # type: ignore[attr-defined]
    try:
        other = again.run_asking()  # type: ignore[attr-defined]
    except (NotCaptured, NeedsConcrete):  # it takes no other tensors
        return
    if not are_same(variant, other):
        raise NotCaptured(
            TraceError(
                f"function {name!r} computes something else for tensors that are not contiguous, "
                "which is not captured"
            )
        )


def are_same(a: Variant, b: Variant) -> bool:
    """Return whether two captured forms have the same graphs."""
    pairs = ((a.graphs.forward, b.graphs.forward), (a.graphs.backward, b.graphs.backward))
    return all(one.outputs == other.outputs for one, other in pairs)
