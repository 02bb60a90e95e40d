"""Verification of a lock: its probes against the installed frameworks, its rules and Functions
against every backend. Each difference is a sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ...backend.discovery import backends, load_backend
from ...errors import MultigradError, UnsupportedOp
from ...functions.function import Function
from ...graph.ops.properties import OP_SET
from ...rules.model.rule import Rule
from ...rules.registry import resolve
from ...rules.saving import (
    conventions_of,
    decode,
    from_dict,
    make_evidence,
    read_evidence,
    read_file,
    run_vector,
)
from .lockfile import LockFile
from .probes import Answer, Outcome, Probe

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
    """The result of a verification.

    Attributes:
        changes: what differs; if there are none, the lock is kept.
        remarks: what was compared, what was not, and why.
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
    if now.absent:
        result.remarks.append(
            f"{framework} {locked.version} was locked and is not available here: {now.absent}"
        )
        return
    # Keras's version names its backend: numbers of two backends are not compared.
    before, after = locked.version.partition(" on "), now.version.partition(" on ")
    if before[2] != after[2]:
        result.remarks.append(
            f"{framework} was locked on {before[2]} and runs on {after[2]} here: not compared"
        )
        return
    words = _Words(probes, framework, locked.version, now.version)
    count = len(result.changes)
    rounded: Counter[str] = Counter()
    # Several probes may give one sentence, because names are shortened.
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
        """Return a function's name, with its arguments if another probe has the same name."""
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
    """Return whether two results count as the same, and how they still differ."""
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
    if numbers is None:
        return "none"
    words = ["NaN" if each == "nan" else f"{float.fromhex(each):.6g}" for each in numbers]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"


# --- rules and Functions: the evidence of their documents, held against what they are -------------


Data = Any
BACKENDS = ("numpy", "torch", "jax", "tensorflow")  # they have float64
# By dtype, relative to max(1, size): what kernels' roundings may differ by, as in docs/format.md.
CLOSE_IN = {"float64": 2.0**-40, "float32": 2.0**-16, "bfloat16": 2.0**-5, "float16": 2.0**-7}


def make_entry(word: str, found: Any) -> Data:
    """Return the entry of a file, or of the object that a word names."""
    if is_file(word):
        document = read_file(word)
        obj = from_dict(document)
        evidence = document.get("evidence")
    else:
        found = getattr(found, "captured_form", found)
        # By way of a document: the lock covers what a saved file would hold.
        document = (found if isinstance(found, Function) else resolve(found)).to_dict()
        obj, evidence = from_dict(document), None
    return {"kind": document["kind"], **(evidence or make_evidence(obj, document))}


def is_file(word: str) -> bool:
    """Return whether a word names a saved file."""
    return Path(word).suffix == ".json" or (":" not in word and Path(word).is_file())


def check_entries(lock: LockFile) -> None:
    for word, entry in lock.objects.items():
        read_evidence({name: entry[name] for name in entry if name != "kind"}, f"objects.{word}")


def verify_objects(lock: LockFile, find: Callable[[str], Any], result: Verification) -> None:
    installed = {row.name: row.version for row in backends() if row.installed}
    for word, locked in lock.objects.items():
        try:
            found = None if is_file(word) else find(word)
            now = make_entry(word, found)
            obj = _object(word, found)
        except (MultigradError, OSError) as error:
            result.changes.append(Change(word, "", f"{word} was locked, and now: {error}"))
            continue
        sentences = [*_differences(word, locked, now)]
        for name in BACKENDS:
            if name in installed:
                on = f"{name} {installed[name]}"
                sentences += _run(word, obj, locked["vectors"], on, result.remarks)
        result.changes += [Change(word, "", each) for each in sentences]
        said = "compared with what was locked" if sentences else "as locked"
        count = len(locked["vectors"])
        why = f": {locked['without']}" if "without" in locked else ""
        result.remarks.append(f"{word}: {count} vectors, {said}{why}")


def _object(word: str, found: Any) -> Rule | Function[..., Any]:
    if is_file(word):
        return from_dict(read_file(word))
    found = getattr(found, "captured_form", found)
    return from_dict((found if isinstance(found, Function) else resolve(found)).to_dict())


def _differences(word: str, locked: Data, now: Data) -> Iterator[str]:
    if locked["hash"] != now["hash"]:
        yield (
            f"{word} is not what was locked: its content is {_short(now['hash'])}, "
            f"and was {_short(locked['hash'])}"
        )
    if locked["op_set"] != OP_SET:
        yield f"{word} was locked with op set {locked['op_set']}, and this multigrad has {OP_SET}"
    # `conventions_of` reads no more of a graph than its ops.
    ops = {"nodes": [{"op": op} for op in locked["conventions"]]}
    for op, places in conventions_of(ops).items():
        for at, row in places.items():
            before = locked["conventions"][op].get(at)
            # A place that is not in the lock is newer than it.
            if before is not None and before != row:
                yield (
                    f"{op}'s derivative {at} is {_say(before)} in the lock of {word} "
                    f"and {_say(row)} in this multigrad"
                )


def _short(digest: str) -> str:
    return digest[: len("sha256:") + 12]


def _say(row: Data) -> str:
    return say(list(_leaves([row["value"], row["derivative"]])))


def _leaves(data: Data) -> Iterator[str]:
    if isinstance(data, list):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


# --- vectors -------------------------------------------------------------------------------------


def _run(word: str, obj: Any, vectors: Data, on: str, remarks: list[str]) -> Iterator[str]:
    backend = load_backend(on.partition(" ")[0])
    for vector in vectors:
        try:
            found = run_vector(obj, vector, backend)
        # An op that a backend lacks is no change.
        except UnsupportedOp as error:
            remarks.append(f"{word} is not compared on {on}: {error}")
            return
        except (MultigradError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            yield f"{word} does not run on {on}: {type(error).__name__}: {error}"
            return
        for what, before, now in _pairs(vector, found):
            place = _first_difference(before, now)
            if place is not None:
                yield (
                    f"{word}: {what} is {_at(before, place)} in the lock and {_at(now, place)} "
                    f"on {on}{_where(vector['inputs'], place)}"
                )


def _pairs(vector: Data, found: Mapping[str, Data]) -> Iterator[tuple[str, Data, Data]]:
    is_rule = "graph" in vector
    for i, pair in enumerate(zip_longest(vector["outputs"], found["outputs"])):
        yield ("the gradient" if is_rule else f"output {i}"), *pair
    for name, before in vector.get("gradients", {}).items():
        yield f"the gradient of {name}", before, found["gradients"].get(name)


def _first_difference(before: Data, now: Data) -> int | None:
    if before is None or now is None:
        return None if before is now else -1
    if before["shape"] != now["shape"] or before["dtype"] != now["dtype"]:
        # -1: the shape or the dtype differs, not a number.
        return -1
    a, b = (np.asarray(decode(each), np.float64).ravel() for each in (before, now))
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= CLOSE_IN.get(before["dtype"], 0.0) * np.maximum(1.0, np.abs(a))
    # The difference of two infinities is NaN, though they are equal.
    off = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    return int(np.argmax(off)) if off.any() else None


def _at(array: Data, place: int) -> str:
    if array is None:
        return "none"
    if place < 0:
        return f"{array['dtype']} of shape {tuple(array['shape'])}"
    value = array["values"][place]
    return say([value]) if isinstance(value, str) else str(value)


def _where(inputs: Mapping[str, Data], place: int) -> str:
    words = []
    for name, data in inputs.items():
        if isinstance(data, str):
            words.append(f"{name}={say([data])}")
        elif 0 <= place < len(data["values"]):
            words.append(f"{name}={_at(data, place)}")
    return f", at {', '.join(words)}" if words else ""
