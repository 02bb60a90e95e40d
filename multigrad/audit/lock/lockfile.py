"""The file `gradients.lock`: plain JSON, sorted, a probe on a line; docs/format.md specifies it.

A file is checked as a whole before any of its calls is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import FormatError
from ...functions.documents.format import digest, parse
from ...graph.passes.serialize import describe, fail, read_fields, read_text
from .probes import FRAMEWORKS, Answer, Probe
from .runner import RefusedProbe, framework_of, read_call

Data = Any
FORMAT, VERSION = "multigrad-lock", 1
FIELDS = ("format", "version", "hash", "frameworks", "objects")
# A float as C prints it by %a; float64 has at most 13 hex digits.
HEX = re.compile(r"-?0x[01](\.[0-9a-f]{1,13})?p[+-]\d{1,4}|nan|-?inf")
LETTER = re.compile(r"[a-z]")
OUTCOMES = {"missing": bool, "raises": str}
# Levels of lists in an input, a limit for untrusted files.
MOST_NESTED = 6


@dataclass(slots=True)
class LockFile:
    """The content of a lock file.

    Attributes:
        probes: by name.
        answers: what each framework gave.
        objects: the entry of each rule and Function, by the word that names it.
    """

    probes: dict[str, Probe] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    objects: dict[str, dict[str, Data]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Data]:
        frameworks = {
            name: {"version": answer.version, "places": self._places(answer)}
            for name, answer in self.answers.items()
            if not answer.absent
        }
        data = {
            "format": FORMAT,
            "version": VERSION,
            "frameworks": frameworks,
            "objects": self.objects,
        }
        # The hash covers all other fields, so that an edit by hand is noticed.
        return {**data, "hash": digest(data)}

    def _places(self, answer: Answer) -> dict[str, Data]:
        places: dict[str, Data] = {}
        for name, outcome in answer.outcomes.items():
            probe = self.probes[name]
            place = places.setdefault(probe.at, {"inputs": dict(probe.inputs), "calls": {}})
            place["calls"][probe.call] = dict(outcome)
        return places


# --- to text -------------------------------------------------------------------------------------


def format_lock(lock: LockFile) -> str:
    return "\n".join(_lines(lock.to_dict(), "", "")) + "\n"


def _lines(data: Data, name: str, indent: str) -> Iterator[str]:
    # One line for each probe, so that a diff of two locks shows single probes.
    head = f"{indent}{json.dumps(name)}: " if name else indent
    if _depth(data) <= 2:  # no more than an outcome
        yield head + json.dumps(data, sort_keys=True, ensure_ascii=False)
        return
    is_object = isinstance(data, dict)
    items = sorted(data.items()) if is_object else [("", item) for item in data]
    yield head + ("{" if is_object else "[")
    for i, (own, item) in enumerate(items):
        *lines, last = _lines(item, own, f"{indent}  ")
        yield from lines
        yield last + ("," if i < len(items) - 1 else "")
    yield indent + ("}" if is_object else "]")


def _depth(data: Data) -> int:
    if isinstance(data, dict):
        return 1 + max(map(_depth, data.values()), default=0)
    return max(map(_depth, data), default=0) if isinstance(data, list) else 0


# --- from text -----------------------------------------------------------------------------------


def read_lock(path: str | Path) -> LockFile:
    data = parse(Path(path).read_bytes())
    if type(data) is not dict or data.get("format") != FORMAT:
        fail(str(path), f'this is not a lock file: it has "format": "{FORMAT}"')
    version = data.get("version")
    # `type() is`, not isinstance: True is an int too.
    if type(version) is not int or version < 1:
        fail(f"{path}: version", f"expected {VERSION}, got {describe(version)}")
    if version > VERSION:
        newer = f"the lock has version {version}, newer than {VERSION}: upgrade multigrad"
        fail(f"{path}: version", newer)
    try:
        return _decode(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _decode(data: Data) -> LockFile:
    read_fields(data, "", FIELDS)
    said = data["hash"]
    # Before anything is decoded: an edited file is refused as a whole.
    if digest({name: data[name] for name in FIELDS if name != "hash"}) != said:
        fail("hash", "the lock is not as it was written: write it again, by multigrad lock")
    lock = LockFile(objects=_object(data["objects"], "objects"))
    for name, entry in lock.objects.items():
        _object(entry, f"objects.{name}")
    for framework, own in _object(data["frameworks"], "frameworks").items():
        where = f"frameworks.{framework}"
        if framework not in FRAMEWORKS:
            fail(where, f"expected one of {', '.join(FRAMEWORKS)}")
        fields = read_fields(own, where, ("version", "places"))
        answer = Answer(version=read_text(fields["version"], f"{where}.version"))
        lock.answers[framework] = answer
        for at, place in _object(fields["places"], f"{where}.places").items():
            for probe, outcome in _decode_place(place, f"{where}.places.{at}", at, framework):
                lock.probes[probe.name] = probe
                answer.outcomes[probe.name] = outcome
    return lock


def _decode_place(
    data: Data, where: str, at: str, framework: str
) -> Iterator[tuple[Probe, dict[str, Data]]]:
    read_text(at, where)
    fields = read_fields(data, where, ("inputs", "calls"))
    inputs = _object(fields["inputs"], f"{where}.inputs")
    for letter, number in inputs.items():
        if not LETTER.fullmatch(letter):
            fail(f"{where}.inputs", f"{letter!r:.60} is no letter")
        _check_numbers(number, f"{where}.inputs.{letter}", MOST_NESTED)
    for call, outcome in _object(fields["calls"], f"{where}.calls").items():
        try:
            # Parsed and checked against the functions that a probe may call; nothing runs.
            read_call(call)
            owner = framework_of(call)
        except RefusedProbe as error:
            fail(f"{where}.calls", str(error))
        if owner != framework:
            fail(f"{where}.calls", f"{call} is a call of {owner}")
        yield Probe(call, at, inputs), _decode_outcome(outcome, f"{where}.calls.{call}", inputs)


def _decode_outcome(data: Data, where: str, inputs: Mapping[str, Data]) -> dict[str, Data]:
    for name, kind in OUTCOMES.items():
        if type(data) is dict and list(data) == [name] and type(data[name]) is kind:
            return data
    fields = read_fields(data, where, ("value", "derivative"))
    _check_numbers(fields["value"], f"{where}.value", 1)
    derivative = read_fields(fields["derivative"], f"{where}.derivative", tuple(inputs))
    for letter, numbers in derivative.items():
        if numbers is not None:
            _check_numbers(numbers, f"{where}.derivative.{letter}", 1)
    return fields


def _check_numbers(data: Data, where: str, depth: int) -> None:
    if type(data) is list and depth > 0:
        for item in data:
            _check_numbers(item, where, depth - 1)
    elif type(data) is not str or not HEX.fullmatch(data):
        fail(where, f"expected hex floats, got {describe(data)}")


def _object(data: Data, where: str) -> dict[str, Data]:
    if type(data) is not dict:
        fail(where, f"expected an object, got {describe(data)}")
    return data
