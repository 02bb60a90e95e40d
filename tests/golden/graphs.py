"""The text of each captured call, or the words of its refusal."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.rules.rule_names import OWN
from multigrad.engine.capture.dialect import AT_KINK
from multigrad.errors import MultigradError

from ..dtypes.table import ALL_PATTERNS, NO_WAY, Library, names_of, patterns_of, values

# The source that each backend is given for each rule under each forward that it is used with.


# Forwards whose backward needs nothing, a mask, the output, and one without a derivative.
FORWARDS = ("Linear", "ReLU", "Tanh", "Heaviside")
NAMES = [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]


def emitted_texts(backend: str) -> Iterator[tuple[str, str]]:
    """Yield each rule under a forward, and the source, or the words by which it is refused."""
    for name in NAMES:
        for forward in FORWARDS:
            yield f"{name} under {forward}", _source(name, backend, forward)
    for forward in xg.activations():
        yield f"{forward} alone", _source(None, backend, forward)


def _source(name: str | None, backend: str, forward: str) -> str:
    try:
        return str(xg.source(name, backend, forward=forward))
    except MultigradError as error:
        return f"{type(error).__name__}: {error}"


PLACES = re.compile(
    r"  # \S+:\d+$|\(?\b[\w.]+\.py:\d+\)?|0x[0-9a-f]+|(?<=installed backend )\([\w, ]+\)"
    rf"|(?<={AT_KINK} )\w+ as \w+ \S+",
    re.MULTILINE,
)


def without_places(text: str) -> str:
    """Return a text without what an edit or another environment changes: lines of files, addresses,
    the list of installed backends, a framework's version.
    """
    return PLACES.sub("", text)


def captured_texts(dialect: str, known: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield each name of a dialect with a way to call it, and the text of the graphs: generic ones,
    as they stand after a call with NumPy's float32, which compiles nothing.

    Args:
        known: these alone; otherwise all ways that the library itself takes.
    """
    library, functions = Library(dialect), names_of(dialect)
    warnings.simplefilter("ignore")
    given = [values("float32", False) / n for n in (1, 2, 3)]
    ways = (key[:-1].partition("(")[::2] for key in known) if known else (
        (name, pattern) for name, function in functions.items()
        for pattern in (*patterns_of(library, function),) or (NO_WAY,)
    )  # fmt: skip
    for name, pattern in ways:
        if name in functions:
            yield f"{name}({pattern})", _text(dialect, functions[name], pattern, given)


def _text(dialect: str, function: Any, pattern: str, given: list[Any]) -> str:
    if pattern == NO_WAY:
        return ""

    def call(x: Any, y: Any, z: Any) -> Any:
        args, kwargs = ALL_PATTERNS[pattern](x, y, z)
        return function(*args, **kwargs)

    made = xg.function(
        call, lambda g, x, y, z: (None, None, None), native=False, dialect=dialect, prove=False
    )
    try:
        with np.errstate(all="ignore"):
            made(*given)
    except Exception as error:  # noqa: BLE001  (the words of a refusal are a text, too)
        return without_places(f"{type(error).__name__}: {error}")
    variants = made.captures.variants.values()
    return "\n".join(
        # What the test's own function reads is no fact about its arguments.
        f"{sorted(fact for fact in variant.facts if not getattr(fact, 'is_of_code', False))}\n"
        f"{without_places(str(variant.graphs.forward))}"
        for variant in variants
    )
