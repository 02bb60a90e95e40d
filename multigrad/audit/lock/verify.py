"""A lock held against what is installed now; what differs is a sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .asking import Answer, Outcome
from .lockfile import LockFile
from .probes import Probe

CLOSE = 1e-5  # of float32 numbers, beside 1: what frameworks' roundings may differ by
SHORT = {"jax.numpy": "jnp", "multigrad.xp": "xp"}
BARE = ("torch",)  # frameworks whose functions people call by their last names


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        subject: the framework; or the word that names a rule or a Function.
        call: what gives another number; "" where it is something else.
        sentence: all of it in words.
    """

    subject: str
    call: str
    sentence: str

    def to_dict(self) -> dict[str, str]:
        return {"subject": self.subject, "call": self.call, "sentence": self.sentence}


@dataclass(slots=True)
class Verification:
    """What became of a lock.

    Attributes:
        changes: what differs; a lock without them is kept.
        remarks: what is said beside: what was not compared, and why.
    """

    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.changes

    def to_dict(self) -> dict[str, Any]:
        changes = [change.to_dict() for change in self.changes]
        return {"ok": self.ok, "changes": changes, "remarks": self.remarks}

    def __str__(self) -> str:
        count = len(self.changes)
        verdict = "nothing changed" if self.ok else f"{count} change{'s' * (count > 1)}"
        return "\n".join([*(change.sentence for change in self.changes), *self.remarks, verdict])


def verify_frameworks(lock: LockFile, now: Mapping[str, Answer]) -> Verification:
    """Compare a lock with what its probes give now, as far as they were asked."""
    result = Verification()
    for name, answer in now.items():
        if answer.version or answer.absent:
            compare_answers(lock.probes, name, lock.answers[name], answer, result)
    return result


def compare_answers(
    probes: Mapping[str, Probe], framework: str, locked: Answer, now: Answer, result: Verification
) -> None:
    """Add to a result what differs between two answers of a framework."""
    if now.absent:
        result.remarks.append(
            f"{framework} {locked.version} was locked and is not to be had here: {now.absent}"
        )
        return
    before, after = locked.version.partition(" on "), now.version.partition(" on ")
    if before[2] != after[2]:
        result.remarks.append(
            f"{framework} was locked on {before[2]} and runs on {after[2]} here: not compared"
        )
        return
    words = _Words(probes, framework, locked.version, now.version)
    count = len(result.changes)
    rounded: Counter[str] = Counter()
    seen = set()
    asked = sorted(set(locked.outcomes) & set(now.outcomes))
    for name in asked:
        pair = locked.outcomes[name], now.outcomes[name]
        for sentence in words.differences(probes[name], *pair, rounded):
            if sentence not in seen:
                seen.add(sentence)
                result.changes.append(Change(framework, probes[name].call, sentence))
    same = "as locked" if len(result.changes) == count else "compared with what was locked"
    result.remarks.append(
        f"{framework} {now.version}: {len(asked)} probes, {same} from {locked.version}"
    )
    result.remarks += [f"{framework}: {n} {what}" for what, n in sorted(rounded.items())]


@dataclass(frozen=True, slots=True)
class _Words:
    """How one framework's differences are said."""

    probes: Mapping[str, Probe]
    framework: str
    before: str
    after: str

    def differences(
        self, probe: Probe, locked: Outcome, now: Outcome, rounded: Counter[str]
    ) -> Iterator[str]:
        then = f"in {self.framework} {self.before}"
        here = f"in this one ({self.after})"
        name = self.name(probe)
        if "missing" in locked or "missing" in now:
            if "missing" not in now:
                yield f"{probe.path} is not {then}, and is {here}"
            elif "missing" not in locked:
                yield f"{probe.path} is {then}, and is not {here}"
            return
        if "raises" in locked or "raises" in now:
            if locked != now and {"raises": locked.get("raises")} != now:
                does = [_ends(each) for each in (locked, now)]
                yield f"{name} {probe.at} {does[0]} {then} and {does[1]} {here}"
            return
        pairs = [("", locked["value"], now["value"])]
        pairs += [(x, was, now["derivative"].get(x)) for x, was in locked["derivative"].items()]
        for letter, was, is_now in pairs:
            is_same, how = compare(was, is_now)
            rounded[how] += bool(how)
            if not is_same:
                what = f"{name}'s derivative" if letter else name
                of = f" for {letter}" if letter and len(locked["derivative"]) > 1 else ""
                yield f"{what}{of} {probe.at} is {say(was)} {then} and {say(is_now)} {here}"
        rounded.pop("", None)

    def name(self, probe: Probe) -> str:
        """Return a function's name, with its arguments where that alone could be another's."""
        last = probe.path.rpartition(".")[2]
        same = [
            each
            for each in self.probes.values()
            if each.at == probe.at
            and each.framework == probe.framework
            and each.path.rpartition(".")[2] == last
        ]
        space, _, _ = probe.path.rpartition(".")
        full = f"{SHORT[space]}.{last}" if space in SHORT else probe.path
        if len({each.path for each in same}) < len(same):
            return full + probe.call[len(probe.path) :]
        alone = len(same) == 1 and space not in SHORT
        return last if alone and self.framework in BARE else full


def _ends(outcome: Outcome) -> str:
    return f"raises {outcome['raises']}" if "raises" in outcome else "runs"


def compare(was: Sequence[str] | None, now: Sequence[str] | None) -> tuple[bool, str]:
    """Return whether two results count as the same, and how they differ if so."""
    if was is None or now is None:
        return was is now, ""
    if len(was) != len(now):
        return False, ""
    pairs = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(was, now, strict=True)]
    if not all(_is_close(a, b) for a, b in pairs):
        return False, ""
    if any(a == b == 0 and x != y for (a, b), x, y in zip(pairs, was, now, strict=True)):
        return True, "zeros have the other sign"
    return True, "" if list(was) == list(now) else "numbers differ in their last bits"


def _is_close(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= CLOSE * max(1.0, abs(a))


def say(numbers: Sequence[str] | None) -> str:
    """Return numbers as people write them."""
    if numbers is None:
        return "none"
    words = ["NaN" if each == "nan" else f"{float.fromhex(each):.6g}" for each in numbers]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"
