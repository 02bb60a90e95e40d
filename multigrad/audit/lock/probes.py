"""Probes: calls of a framework's functions where there is no derivative, or more than one, so that
each framework chooses. `probes.txt` is the table.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .runner import NAMESPACES, framework_of, hex_of

TABLE = Path(__file__).with_name("probes.txt")
# Where a function that the table has not is asked.
ANYWHERE = """
at 0 {"x": 0}
at -0.0 {"x": -0.0}
at 1 {"x": 1}
at -1 {"x": -1}
at 0.5 {"x": 0.5}
at -0.5 {"x": -0.5}
at 3 {"x": 3}
at -3 {"x": -3}
at 6 {"x": 6}
at 20 {"x": 20}
at 100 {"x": 100}
at -100 {"x": -100}
at inf {"x": Infinity}
at -inf {"x": -Infinity}
at NaN {"x": NaN}
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """One call at one place.

    Attributes:
        at: as a sentence goes on after "its derivative".
        inputs: by the letters that stand in the call, hex floats or nested lists of them.
    """

    call: str
    at: str
    inputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.call} {self.at}"

    @property
    def framework(self) -> str:
        return framework_of(self.call)

    @property
    def path(self) -> str:
        """The function's dotted name."""
        return self.call.partition("(")[0]


@functools.cache
def read_table() -> Mapping[str, Probe]:
    """Return all probes of the table by name."""
    return {probe.name: probe for probe in read_probes(TABLE.read_text("utf-8"))}


def read_probes(text: str) -> Iterator[Probe]:
    """Yield the probes of a table's text: lines of places, then indented lines of calls."""
    places: list[tuple[str, Mapping[str, Any]]] = []
    have_calls = False
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            places = [] if have_calls else places
            have_calls = False
            at, _, inputs = line.partition(" {")
            numbers = json.loads("{" + inputs)
            places.append((at, {letter: _as_hex(number) for letter, number in numbers.items()}))
        else:
            have_calls = True
            for at, given in places:
                yield Probe(line.strip(), at, given)


def _as_hex(number: Any) -> Any:
    return [_as_hex(each) for each in number] if isinstance(number, list) else hex_of(float(number))


def find_probes(frameworks: Sequence[str] = tuple(NAMESPACES)) -> dict[str, Probe]:
    """Return the table's probes of these frameworks by name."""
    return {name: probe for name, probe in read_table().items() if probe.framework in frameworks}


def probes_of(path: str) -> dict[str, Probe]:
    """Return the table's probes of a function; of one of a single tensor, and of one that it has
    not, also those where most have their kinks.
    """
    known = {name: probe for name, probe in read_table().items() if probe.path == path}
    call = f"{path}(x)"
    if known and all(probe.call != call for probe in known.values()):
        return known
    return {**{probe.name: probe for probe in read_probes(f"{ANYWHERE}    {call}")}, **known}
