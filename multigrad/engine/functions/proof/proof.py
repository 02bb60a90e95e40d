"""The proof of an attempt: on which samples, in which order, the original meets its graphs.

1. All samples are made first and run together: numbers as drawn; the call's own, under other
   run-time numbers; edges as 0 and 1; one output's cotangent alone; numbers far out. Code that may
   act runs on the first only.
2. If it fails on the first, the same is done in the call's own shapes, then with its values alone.
3. `outcomes.py` compares the results. A difference is raised; otherwise the reason why one of the
   samples stays open is returned, or "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ....core import ops
from ....core.functions import samples
from ....core.functions.samples import Sample
from ....errors import DisprovedError, TraceError
from ...capture.user_code.snapshot import Snapshot
from ...ops.loops import Endless, turning_at_most
from .attempt import Attempt
from .compare import casts_to_integers, is_vacuous, takes_infinity
from .meanings import MOST_TURNS
from .outcomes import compare_outcome
from .rounding import Rounding, run_in_own_dtype
from .run import Outcome, keeps_infinity, replays_draws
from .verdicts import describe, leave_open


def prove(attempt: Attempt, *, is_call: bool = False) -> str:
    """Return "" if original and graph agree, else why that could not be found out.

    Args:
        is_call: prove a call of graphs that are proven already: on its own values alone.

    Raises:
        DisprovedError: they differ.
        TraceError: the original changes something that it shares with others.
    """
    if any(op.collective for op in attempt.ops):
        # The others may not be capturing, and would be waited for.
        return leave_open(attempt.subject, "it exchanges numbers with other processes")
    own_sample = _own_values(attempt) if is_call else None
    if is_call and own_sample is None:
        return ""
    captured, snapshot = attempt.captured, Snapshot()
    # What the original changes of what it runs, and of what it is given, is undone.
    objects = [leaf.value for leaf in captured.layout.leaves if leaf.kind == "static"]
    snapshot.see_all(captured.recipe.functions, objects)
    try:
        with turning_at_most(MOST_TURNS):
            if own_sample is None:
                reason = _prove_on_samples(attempt)
            else:
                reason = _prove_on_call(attempt, own_sample, is_call=True)
    finally:
        snapshot.restore()
        snapshot.clear()
    if snapshot.change and not is_call:
        raise TraceError(f"{attempt.subject.words} {snapshot.change}, which a graph does not do")
    return reason


def compare_with_call(
    attempt: Attempt,
    called: str,
    run: Callable[[Sequence[Sample]], list[Outcome]],
) -> None:
    """Compare graphs that were read as another library's than that of the call's tensors with the
    code as written on tensors of this one, `called`; code that does not run on them says nothing.

    Raises:
        DisprovedError: there it gives something else.
    """
    subject = replace(attempt.subject, home=called, read_as=attempt.dialect)
    try:
        prove(replace(attempt, subject=subject, run=run, dialect=called))
    except DisprovedError:
        raise
    except Exception:  # of code that is not written for them
        return


def _prove_on_samples(attempt: Attempt) -> str:
    if attempt.captured.graphs.is_random and not replays_draws(attempt.dialect):
        return leave_open(
            attempt.subject, "it draws random numbers, which cannot be repeated there"
        )
    try:
        batch = _samples(attempt)
        outcomes = attempt.run(batch)
    except Exception as error:
        # The original may accept no shapes but the call's own.
        may_repeat = not attempt.captured.may_act and not isinstance(error, Endless)
        if attempt.slots_as_called is not None and may_repeat:
            return _prove_on_samples(
                replace(attempt, slots=attempt.slots_as_called, slots_as_called=None)
            )
        own_sample = _own_values(attempt)  # or no other values
        if own_sample is None:
            return leave_open(attempt.subject, describe(error))
        return _prove_on_call(attempt, own_sample, is_call=False)
    reasons: list[str] = []
    for sample, outcome in zip(batch, outcomes, strict=True):
        if outcome.original is None:  # not every original takes every number
            continue
        reason = compare_outcome(attempt, sample, outcome)
        if reason is not None and (reason or not reasons) and not is_vacuous(outcome.original):
            reasons.append(reason)
    if not reasons:
        return leave_open(attempt.subject, "its results are not finite on small inputs")
    return max(reasons)


def _prove_on_call(attempt: Attempt, called: Sample, is_call: bool) -> str:
    # If the original does not take these values, the call itself says so.
    try:
        (outcome,) = attempt.run([called := attempt.add_cotangents(called)])
    except Exception as error:
        return "" if is_call else leave_open(attempt.subject, describe(error))
    return compare_outcome(attempt, called, outcome, is_call=True) or ""


def _samples(attempt: Attempt) -> list[Sample]:
    first_sample = attempt.add_cotangents(samples.draw(attempt.slots, attempt.numbers))
    batch = [first_sample] if attempt.captured.may_act else [first_sample, *_more_samples(attempt)]
    if ops.WHILE_LOOP in attempt.ops:  # which may not end on a sample
        batch = [sample for sample in batch if _ends(attempt, sample)]
    if not batch:
        raise Endless(f"a loop has not ended after {MOST_TURNS:,} turns on made-up numbers")
    return batch


def _more_samples(attempt: Attempt) -> Iterator[Sample]:
    variant = attempt.captured.variant
    # The others are part of the capture.
    fixed = {*variant.facts, *(f"param:{name}" for name in variant.numbers_now())}
    free = {name: v for name, v in attempt.numbers.items() if f"param:{name}" not in fixed}
    other_numbers = {name: value * 1.375 + (0.0 if value else 0.25) for name, value in free.items()}
    numbers = {**attempt.numbers, **other_numbers}
    own_sample = samples.own_values(attempt.slots, numbers)
    if own_sample is not None and own_sample.arrays:
        yield attempt.add_cotangents(own_sample)
    elif free:
        yield attempt.add_cotangents(samples.draw(attempt.slots, numbers, "other numbers"))
    is_infinite = keeps_infinity(attempt.dialect) and takes_infinity(attempt.graphs)
    values = samples.EDGES if is_infinite else samples.FINITE_EDGES
    # Which of equal elements comes first is open in some libraries' sorts.
    has_sort = ops.ARGSORT in attempt.ops
    edges = samples.on_edges(attempt.slots, attempt.numbers, values, distinct=has_sort)
    yield attempt.add_cotangents(edges)
    cotangents = [name for name in attempt.captured.seeds if name is not None]
    if len(cotangents) > 1:  # a loss of one output alone
        alone = samples.draw(attempt.slots, attempt.numbers, samples.ALONE)
        yield attempt.add_cotangents(replace(alone, absent=frozenset(cotangents[1:])))
    # Of floats out of range, each library makes other integers.
    makes_integers = casts_to_integers(attempt.graphs)
    with suppress(Exception):  # cotangents of it may have no shape
        far_sample = samples.draw_far(
            attempt.slots,
            attempt.numbers,
            only_whole=makes_integers,
            places=any(op.coerce == "indices" for op in attempt.ops),
        )
        yield attempt.add_cotangents(far_sample)


def _ends(attempt: Attempt, sample: Sample) -> bool:
    # The graphs run here, not the original: one that is compiled could not be stopped.
    try:
        run_in_own_dtype(Rounding(attempt, sample))
    except Endless:
        return False
    return True


def _own_values(attempt: Attempt) -> Sample | None:
    # None if the values are unknown or too many, or if the original must run only once.
    may_act = attempt.captured.may_act
    return None if may_act else samples.own_values(attempt.slots, attempt.numbers)
