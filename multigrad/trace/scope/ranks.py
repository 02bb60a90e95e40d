"""The debug check MULTIGRAD_CHECK_RANKS: whether all ranks of a program apply the same rules.

Each rank notes what `use` puts in force (rule, params, scope, key, code) and, in eager code, what
is applied, how often and in which order, and compares that at the end of each step with the others,
through the framework's store of keys: no collective of the training is touched. A step ends where
the outermost `use` is left (one that is entered while code is traced: at the trace), before torch's
`optimizer.step()`, and after an `apply_to_gradients` outside of any `use`. MULTIGRAD_CHECK_RANKS is
read when multigrad is imported: 1 compares all of it, "rules" what is put in force alone, for ranks
that have other layers (a pipeline) or other numbers of batches. What one rank alone does under a
rule belongs on another thread than the main one, where nothing is compared. Without the variable
nothing is noted, and nobody waits.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...backend.contract import Group
from ...backend.finding.discovery import loaded
from ...backend.tensors.events import is_tracing
from ...errors import GradientError, MultigradError, RuleValueError
from ...graph.support.threads import make_lock
from .described import describe, describe_active
from .rules import ActiveRules, RuleInForce
from .verdicts import Words, first_line, judge, named, place, times

VARIABLE = "MULTIGRAD_CHECK_RANKS"
TIMEOUT = "MULTIGRAD_CHECK_RANKS_TIMEOUT"
RULES, EVERYTHING = "rules", "1"
GRACE = 1.0  # seconds that others are waited for where one has failed
PAUSES = (0.0005, 0.02)  # seconds between two looks, from the first to the longest
MOST_BEHIND = 1024  # comparisons that one replica may be before another
MOST_NOTED = 10_000  # things in a step


def read_setting() -> str:
    """Return how much is compared: "" (nothing), "rules" or "1" (everything).

    Raises:
        RuleValueError: the variable says something else.
    """
    word = os.environ.get(VARIABLE, "")
    if word not in ("", "0", RULES, EVERYTHING):
        raise RuleValueError(f"{VARIABLE} is 0, 1 or rules, got {word!r}")
    return "" if word == "0" else word


CHECKED = read_setting()


class Step:
    """What a lane's rank has noted since it last compared.

    Attributes:
        number: of the next comparison.
        entered: the rules that `use` put in force, in their order.
        applied: where a rule (or none) was under an activation, in their order.
        gradients: the rules on gradients; autograd's threads have no order.
        parts: the shapes of the parts of an array that were drawn for, by a key.
    """

    def __init__(self) -> None:
        self.number = 0
        self.clear()

    def clear(self) -> None:
        """Begin a new step."""
        self.entered: list[str] = []
        self.applied: list[list[Any]] = []
        self.gradients: Counter[str] = Counter()
        self.parts: Counter[tuple[int, ...]] = Counter()

    def lines(self) -> list[str]:
        """Return what is compared."""
        found = [f"use {each}" for each in self.entered]
        if CHECKED == EVERYTHING:
            found += [f"{words}{times(count)}" for words, count in self.applied]
            gradients = sorted(self.gradients.items())
            found += [f"gradients under {words}{times(count)}" for words, count in gradients]
            parts = sorted(self.parts.items())
            found += [f"draws for a part of shape {s}{times(count)}" for s, count in parts]
        return found


class Compared:
    """The comparisons of this process within one group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.steps: dict[tuple[str, int], Step] = {}

    def step(self, group: Group) -> Step:
        """Return the step that goes on for a rank, in a lane."""
        return self.steps.setdefault((group.lane, group.rank), Step())


_compared: list[Compared] = []  # that of the group which was met last
_noting = make_lock()


def find_group() -> Group | None:
    """Return the ranks of which the code that runs now is one; None: there are none, or it runs on
    a thread that they need not have.
    """
    for backend in loaded():
        if backend.ranks.group is not None:
            group = backend.ranks.group()
            if group is not None:
                return group
    return None


def compared_in(group: Group) -> Compared:
    """Return the comparisons within a group, the same for all of its lanes."""
    known = _compared[0] if _compared else None
    if known is None or known.group.put != group.put:
        known = Compared(group)
        if not _compared:
            atexit.register(say_ended)
        _compared[:] = [known]
    return known


# --- noting ---------------------------------------------------------------------------------------


def note_use(active: ActiveRules) -> None:
    """Note what a `use` puts in force."""
    group = find_group()
    if group is None:
        return
    words = describe_active(active)
    with _noting:
        entered = compared_in(group).step(group).entered
        if len(entered) < MOST_NOTED:
            entered.append(words)


def note_applied(in_force: RuleInForce | None, forward: str, is_traced: bool) -> None:
    """Note that an activation is applied under a rule, or under none.

    Not where code is traced: it is traced once, and how often it runs nobody knows.
    """
    group = None if is_traced else find_group()
    if group is None:
        return
    words = f"{forward} under {describe(in_force)}"
    with _noting:
        applied = compared_in(group).step(group).applied
        if applied and applied[-1][0] == words:
            applied[-1][1] += 1
        elif len(applied) < MOST_NOTED:
            applied.append([words, 1])


def note_gradient(in_force: RuleInForce, is_traced: bool) -> None:
    """Note that a rule acts on a gradient outside of autodiff, on whichever thread."""
    if is_traced:
        return
    group = find_group()
    known = compared_in(group) if group is not None else _compared[0] if _compared else None
    if known is not None:
        with _noting:
            known.step(group or known.group).gradients[describe(in_force)] += 1


def note_part(shape: tuple[int, ...]) -> None:
    """Note that a part of an array is drawn for, which is taken to be as long as the others'."""
    group = find_group()
    known = compared_in(group) if group is not None else _compared[0] if _compared else None
    if known is not None:
        with _noting:
            known.step(group or known.group).parts[shape] += 1


# --- comparing ------------------------------------------------------------------------------------


def compare(what: str) -> None:
    """Compare what was noted since the last comparison with the other ranks; it begins anew.

    Args:
        what: has come to its end, on all ranks the same.

    Raises:
        GradientError: they do not agree, one has failed or ended, or one does not come; on every
            rank the same.
    """
    group = find_group()
    if group is None:
        return
    known = compared_in(group)
    step = known.step(group)
    with _noting:
        lines = step.lines()
        step.clear()
    number, step.number = step.number, step.number + 1
    said = {"lines": [what + (" in a trace" if is_tracing() else ""), *lines], "place": place()}
    verdict = Comparison(group, number).verdict(said)
    if verdict:
        raise disagreement(verdict)


def disagreement(verdict: str) -> GradientError:
    """Return the error of a comparison, which needs no other to say which rank it is on."""
    error = GradientError(verdict)
    error.__dict__["of_ranks"] = True
    return error


class Comparison:
    """One comparison: each rank leaves its words, the first rank reads all and leaves what is to be
    said of them, so that the ranks together look for as many keys as there are ranks.
    """

    def __init__(self, group: Group, number: int) -> None:
        self.group, self.number = group, number

    def key(self, name: Any, back: int = 0) -> str:
        """Return the key of a rank's words, or of the verdict."""
        return f"{self.group.lane}/{self.number - back}/{name}"

    def verdict(self, said: Words) -> str:
        """Return what is wrong; "": nothing."""
        group = self.group
        try:
            group.put(self.key(group.rank), json.dumps(said))
            if not group.waits:
                if self.number >= MOST_BEHIND:
                    group.drop(self.key(group.rank, back=MOST_BEHIND))
                return judge(self.known(), group.size, self.number, None)
            found = self.lead() if group.rank == 0 else self.follow()
            if self.number and not found:  # all have come to this: nobody looks for the last
                group.drop(self.key(group.rank, back=1))
                if group.rank == 0:
                    group.drop(self.key("verdict", back=1))
            return found
        except MultigradError:
            raise
        except Exception as error:  # noqa: BLE001 (each framework has its own)
            return (
                f"[rank {group.rank}] cannot compare its rules with the other ranks': their store "
                f"of keys does not answer ({first_line(error)}). The process that holds it, mostly "
                "that of rank 0, has ended"
            )

    def judge(self, words: dict[int, Words]) -> str:
        """Return what is wrong with what the ranks have said in the time that they had."""
        return judge(words, self.group.size, self.number, timeout(self.group))

    def lead(self) -> str:
        """Return the verdict, which all ranks get."""
        found = f"rank 0 failed: it was interrupted in comparison {self.number}"
        try:
            found = self.judge(self.wait_for_all())
        finally:
            self.group.put(self.key("verdict"), found)
        return found

    def wait_for_all(self) -> dict[int, Words]:
        """Return what the ranks have said; without those that do not come in time."""
        words: dict[int, Words] = {}
        until = time.monotonic() + timeout(self.group)
        for rank in range(self.group.size):
            text = self.wait(rank, until)
            if text is not None:
                words[rank] = json.loads(text)
                if "end" in words[rank]:
                    until = min(until, time.monotonic() + GRACE)
        return words

    def follow(self) -> str:
        """Return the verdict of the first rank; where it leaves none, what can be seen from
        here.
        """
        text = self.wait("verdict", time.monotonic() + timeout(self.group))
        return self.judge(self.known()) if text is None else text

    def known(self) -> dict[int, Words]:
        """Return what the ranks have said so far."""
        texts = {rank: self.group.look(self.key(rank)) for rank in range(self.group.size)}
        return {rank: json.loads(text) for rank, text in texts.items() if text is not None}

    def wait(self, name: Any, until: float) -> str | None:
        """Return the text under a key, which is looked for until then."""
        pause, longest = PAUSES
        while True:
            text = self.group.look(self.key(name))
            if text is not None or time.monotonic() >= until:
                return text
            time.sleep(pause)
            pause = min(pause * 1.5, longest)


def timeout(group: Group) -> float:
    """Return how many seconds a rank waits for the others.

    Raises:
        RuleValueError: the variable says something else than a number of seconds.
    """
    given = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(given) if given else group.timeout()
    except ValueError:
        seconds = 0.0
    if not seconds > 0.0:
        raise RuleValueError(f"{TIMEOUT} is a number of seconds above 0, got {given!r}")
    return seconds


# --- failing --------------------------------------------------------------------------------------


def note_failure(error: BaseException) -> None:
    """Name the rank in an error that leaves a `use`; without the check, in those of ours alone."""
    if isinstance(error, MultigradError) or (CHECKED and isinstance(error, Exception)):
        name_rank(error)


def name_rank(error: BaseException, doing: str = "") -> None:
    """Note on an error which rank it is on, where there are several, and under the check what the
    others say; they get to know of it.

    Args:
        doing: what has failed.
    """
    group = None if is_named(error) else find_group()
    if group is None:
        return
    error.__dict__["of_ranks"] = True
    note = f"[rank {group.rank}] of {group.size}{doing and f': {doing}'}"
    if CHECKED and group.waits:
        note = "; ".join([note, *say_failed(group, error)])
    add_note = getattr(error, "add_note", None)  # from Python 3.11 on
    if add_note is not None:
        add_note(note)
    else:
        error.args = (f"{error.args[0]}\n{note}" if error.args else note, *error.args[1:])


def is_named(error: BaseException | None) -> bool:
    """Return whether the ranks know of an error, or of that from which it came: TensorFlow makes
    errors anew that leave a tf.function.
    """
    while error is not None:
        if getattr(error, "of_ranks", False):
            return True
        error = error.__cause__ or error.__context__
    return False


def say_failed(group: Group, error: BaseException) -> list[str]:
    """Tell the other ranks of an error, and return what they have said of this step."""
    step = compared_in(group).step(group)
    number, step.number = step.number, step.number + 1
    step.clear()
    try:
        words = Comparison(group, number).known()
        leave(group, number, f"failed: {first_line(error)}")
    except Exception as failure:  # noqa: BLE001 (each framework has its own)
        return [f"the ranks' store of keys does not answer ({first_line(failure)})"]
    others = [rank for rank in range(group.size) if rank != group.rank]
    ended = [f"rank {rank} {words[rank]['end']}" for rank in others if "end" in words.get(rank, {})]
    silent = [rank for rank in others if rank not in words]
    if silent:
        ended.append(f"no word yet of {named(silent)} for comparison {number}")
    return ended


def leave(group: Group, number: int, how: str) -> None:
    """Leave word that this rank does not come to a comparison."""
    comparison = Comparison(group, number)
    said = {"end": how, "place": place()}
    group.put(comparison.key(group.rank), json.dumps(said))
    if group.rank == 0:
        verdict = comparison.judge({**comparison.known(), 0: said})
        group.put(comparison.key("verdict"), verdict)


def say_ended() -> None:
    """Tell the other ranks that this process ends, and by which error."""
    known = _compared[0]
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if is_named(error):
        return
    how = "has ended" if error is None else f"failed: {first_line(error)}"
    if known.group.waits:
        quietly(leave, known.group, known.step(known.group).number, how)


def quietly(call: Callable[..., None], *given: Any) -> None:
    """Call at the end of a process, where what it needs may be gone."""
    try:
        call(*given)
    except Exception:  # noqa: BLE001
        return
