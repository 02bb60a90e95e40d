"""The debug check MULTIGRAD_CHECK_RANKS: do all ranks of a program apply the same rules?

Each rank notes in lines what `use` puts in force and, in eager code, what is applied:

    use triangular(width=1.0) <code 41d2>
    gradients under triangular(width=1.0) <code 41d2> 3 times

At the end of a step it writes its lines to the framework's key-value store and reads those of all
ranks (`compare`); no collective of the training is touched. A step ends when the outermost `use` is
left, before torch's `optimizer.step()`, and after an `apply_to_gradients` outside any `use`. Work
of one rank alone belongs on another thread than the main one, where nothing is compared.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import re
import sys
import time
import types
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ...core.backend.compiler_events import is_tracing
from ...core.backend.discovery import loaded
from ...core.backend.values import concrete_number
from ...core.support.threads import make_lock
from ...core.trace.active_rules import ActiveRules, Moving, RuleInForce
from ...errors import GradientError, MultigradError, RuleValueError
from ..backend.features import Group
from .random_keys import key_pair

VARIABLE = "MULTIGRAD_CHECK_RANKS"
TIMEOUT = "MULTIGRAD_CHECK_RANKS_TIMEOUT"
RULES, EVERYTHING = "rules", "1"
UNORDERED = ("gradients ", "draws ")  # prefixes of lines that autograd's threads note
PAUSE = 0.003  # seconds between two reads of the other ranks' lines
MOST_NOTED = 10_000  # different lines of a step
MOST_SHOWN = 400  # characters of a line, or of an error, in a message
# Packages without user code: a message names the innermost line outside them.
OWN = (
    "multigrad", "multigrad_torch", "multigrad_jax", "multigrad_tensorflow", "torch", "jax",
    "tensorflow", "keras", "contextlib", "threading", "optax", "optree",
)  # fmt: skip


def read_setting() -> str:
    """Return how much is compared: "" (nothing), "rules" or "1" (everything)."""
    word, seconds = os.environ.get(VARIABLE, ""), os.environ.get(TIMEOUT, "")
    if word not in ("", "0", RULES, EVERYTHING):
        raise RuleValueError(f"{VARIABLE} is 0, 1 or rules, got {word!r}")
    if seconds and not re.fullmatch(r"(?=.*[1-9])[0-9]*\.?[0-9]*", seconds):
        raise RuleValueError(f"{TIMEOUT} is a number of seconds above 0, got {seconds!r}")
    return "" if word == "0" else word


CHECKED = read_setting()  # once, at import


# --- the lines of a step --------------------------------------------------------------------------
class ComparisonStep(NamedTuple):
    """The number of a rank's next comparison, and the lines for it in order of their first
    occurrence, with counts.
    """

    number: int
    lines: Counter[str]


_steps: dict[Any, ComparisonStep] = {}  # by store, size, lane and rank
_latest_group: list[Group] = []  # at most one
_noting = make_lock()  # around both


def find_group() -> Group | None:
    """Return the ranks that run this code too; None on a thread that other ranks may lack."""
    groups = (backend.ranks.group() for backend in loaded() if backend.ranks.group is not None)
    return next((group for group in groups if group is not None), None)


def current_step(group: Group, *, ends: bool = False) -> ComparisonStep:
    """Return the current step of this rank; `ends` begins the next one."""
    if not _latest_group:
        atexit.register(tell_end)
    _latest_group[:] = [group]
    rank = group.put, group.size, group.lane, group.rank
    step = _steps.setdefault(rank, ComparisonStep(0, Counter()))
    if ends:
        _steps[rank] = ComparisonStep(step.number + 1, Counter())
    return step


def note_for_ranks(what: str, *rules: Any) -> None:
    """Note what this rank puts in force or applies, for the next comparison."""
    is_ordered = not what.startswith(UNORDERED)
    group = find_group()
    if group is None and _latest_group and not is_ordered:
        group = _latest_group[0]
    if group is None or (CHECKED == RULES and what != "use"):
        return
    line = " ".join([what, *map(describe, rules)])
    with _noting:
        lines = current_step(group).lines
        if len(lines) < MOST_NOTED:
            lines[line] += 1


# --- the comparison -------------------------------------------------------------------------------
class RankReport(NamedTuple):
    """What a rank did in a step: its lines, and the line of the user's code that ended it."""

    lines: list[str]
    place: str


# What is in the store under a rank's key, as JSON: its report; or text in place of one, that says
# what is wrong, from a rank that failed, has ended, or has waited in vain for others.
Entry = RankReport | str


def compare(what: str) -> None:
    """Compare the lines of the step with the other ranks' once `what` has ended on all."""
    group = find_group()
    if group is None:
        return
    with _noting:
        number, counts = current_step(group, ends=True)
    events = sorted(counts, key=lambda line: line if line.startswith(UNORDERED) else "")
    lines = [f"{line} {counts[line]} times" if counts[line] > 1 else line for line in events]
    lines.append(what + (" in a trace" if is_tracing() else ""))
    seconds = float(os.environ.get(TIMEOUT) or group.timeout())
    message = exchange(group, number, RankReport(lines, place()), seconds)
    if message:
        error = GradientError(message)
        error.__dict__["of_ranks"] = True  # it names the ranks: see `name_rank`
        raise error


def exchange(group: Group, number: int, entry: Entry, seconds: float) -> str:
    """Publish this rank's entry, read those of all ranks, and return what is wrong with them.

    "" if nothing is wrong, or if the ranks run one after another and others are still to come.

    Args:
        number: that of the comparison.
        seconds: waits at most so long for the others.
    """
    keys = keys_of(group, number)
    own_key = keys[group.rank]
    try:
        group.put(own_key, json.dumps(entry))
        entries = wait_for_entries(group, keys, seconds if group.waits else 0.0)
        if None in entries and not group.waits:
            return ""  # the last one compares
        wrong = judge(entries, name_of(number), seconds)
        if not is_decided(entries):  # a rank that comes too late finds this, and raises the same
            group.drop(own_key)
            group.put(own_key, json.dumps(wrong))
        if not group.waits:  # all have been read, by this rank
            for key in keys:
                group.drop(key)
        elif number and not wrong:  # all have come here, so nobody reads the last comparison's keys
            group.drop(keys_of(group, number - 1)[group.rank])
        return wrong
    except Exception as error:  # noqa: BLE001 (each framework has its own)
        return (
            f"[rank {group.rank}] cannot compare its rules with the other ranks': their store of "
            f"keys, mostly in the process of rank 0, does not answer: {error}"
        )


def keys_of(group: Group, number: int) -> list[str]:
    """Return the keys of a comparison, one for each rank; others use the store too."""
    return [f"multigrad/{group.lane}/{number}/{rank}" for rank in range(group.size)]


def wait_for_entries(group: Group, keys: list[str], seconds: float) -> list[Entry | None]:
    """Return the entries under these keys (None: no entry), once they decide or time is up."""
    deadline = time.monotonic() + seconds
    while True:
        answers = [json.loads(group.look(key) or "null") for key in keys]
        entries = [RankReport(*each) if isinstance(each, list) else each for each in answers]
        if is_decided(entries) or time.monotonic() >= deadline:
            return entries
        time.sleep(PAUSE)


def is_decided(entries: list[Entry | None]) -> bool:
    return None not in entries or any(isinstance(entry, str) for entry in entries)


def judge(entries: list[Entry | None], comparison: str, seconds: float) -> str:
    """Describe how the entries of the ranks disagree; "" if they agree."""
    absent = ", ".join(str(rank) for rank, entry in enumerate(entries) if entry is None)
    reports = [entry for entry in entries if isinstance(entry, RankReport)]
    told_wrong = dict.fromkeys(entry for entry in entries if isinstance(entry, str))
    if told_wrong:
        return "; ".join(told_wrong) + (f"; no word yet of rank {absent}" if absent else "")
    if absent:
        return (
            f"rank {absent} did not come to {comparison} within {seconds:g} s. A rank that does "
            "not come applies no rule, hangs in a collective, or was killed"
        )
    # The last line of a rank is the event that ended its step, which no other rank has earlier.
    for row in zip(*(report.lines for report in reports), strict=False):
        if len(set(row)) > 1:
            ranks_by_text: dict[str, list[str]] = {}
            for rank, line in enumerate(row):
                text = f"{line[:MOST_SHOWN]} (at {reports[rank].place})"
                ranks_by_text.setdefault(text, []).append(str(rank))
            differences = "; ".join(
                f"rank {', '.join(ranks)}: {text}" for text, ranks in ranks_by_text.items()
            )
            return f"the ranks apply different rules ({comparison}): {differences}"
    return ""


def name_of(comparison: int) -> str:
    return f"comparison {comparison} of {VARIABLE}"


def place() -> str:
    frame: Any = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


# --- a rank that fails or ends --------------------------------------------------------------------
def name_rank(error: BaseException, doing: str = "") -> None:
    """Note on an error the rank that it is on, and under the check tell the other ranks.

    Without the check, only our own errors are noted, or one with words for what failed.
    """
    cause: BaseException | None = error  # TensorFlow recreates errors that leave a tf.function
    while cause is not None and not hasattr(cause, "of_ranks"):
        cause = cause.__cause__ or cause.__context__
    is_noted = cause is not None
    is_ours = isinstance(error, Exception if CHECKED or doing else MultigradError)
    group = find_group() if is_ours and not is_noted else None
    if group is None:
        return
    error.__dict__["of_ranks"] = True
    text = f"[rank {group.rank}] of {group.size}{doing and f': {doing}'}"
    # A rank that fails tells the others, which would else wait until the timeout.
    if CHECKED and group.waits:
        number, _ = current_step(group, ends=True)
        text += "; " + exchange(group, number, describe_end(group, number, error), 0.0)
    error.add_note(text)


def tell_end() -> None:
    group, error = _latest_group[0], getattr(sys, "last_value", None)
    if group.waits:
        number, _ = current_step(group)
        exchange(group, number, describe_end(group, number, error), 0.0)


def describe_end(group: Group, number: int, error: BaseException | None) -> str:
    """Say that this rank comes to no more comparisons; None: without an error."""
    failure = f"failed: {type(error).__name__}: {str(error)[:MOST_SHOWN]}"
    end = "has ended" if error is None else failure
    return f"rank {group.rank} {end}, before {name_of(number)}"


# --- rules in force in words that are equal on every process of a program -------------------------
# Attributes that are equal in all processes if two functions do the same: no addresses or lines.
INSIDE: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__code__", "__defaults__", "__kwdefaults__", "__closure__"),
    types.CellType: ("cell_contents",),
    types.CodeType: ("co_code", "co_names", "co_consts"),
    types.MethodType: ("__func__",),
    functools.partial: ("func", "args", "keywords"),
}
MOST_LEVELS = 12  # of functions in functions: a recursive one has no end


def describe(rules: ActiveRules | RuleInForce | None) -> str:
    """Describe rules in force, such as "triangular(width=1.0) <code 41d2>"."""
    if rules is None:
        return "no rule"
    if isinstance(rules, ActiveRules):
        acts, pars = rules.activations, rules.params
        each = {"activations": acts, "params": pars}.items() if acts is not pars else ()
        parts = [f"{describe(rule)} for {scope}" for scope, rule in each if rule is not None]
        return " and ".join(parts) or describe(acts)
    rule, params = rules.rule, sorted(rules.params.items())
    values = ", ".join(f"{name}={_value(value)}" for name, value in params)
    words = f"{rule._words}{values and f'({values})'}"
    if rules.key is not None:
        words += f" with key {_value(rules.key, lambda key: tuple(map(int, key_pair(key))))}"
    return f"{words} <code {digest(rule)}>"


def _value(value: Any, read: Callable[[Any], Any] = concrete_number) -> str:
    if isinstance(value, Moving):
        return repr(value.value)
    if not hasattr(value, "dtype"):
        return repr(value)
    try:
        number = read(value)
    except Exception:  # noqa: BLE001 (each framework has its own for what it cannot read here)
        number = None
    return "<tensor>" if number is None else repr(number)


@functools.lru_cache(256)
def digest(rule: Any) -> str:
    """Return four digits that almost always differ if the code of two rules does."""
    parts = [(part.name, digest(part)) for part in rule._resolved_parts()]
    return hashlib.sha256(_code((rule.function, parts)).encode()).hexdigest()[:4]


def _code(value: Any, levels: int = MOST_LEVELS) -> str:
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return repr(value)
    parts: Any = value.items() if isinstance(value, dict) else value
    if not isinstance(value, tuple | list | set | frozenset | dict):
        try:
            parts = [getattr(value, name) for name in INSIDE.get(type(value), ())]
        except ValueError:  # a cell of a name that has no value yet
            parts = ()
    texts = [_code(each, levels - 1) for each in parts] if levels else []
    texts = sorted(texts) if isinstance(value, set | frozenset) else texts
    return f"{type(value).__qualname__}({', '.join(texts)})"
