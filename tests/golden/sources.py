"""The source that each backend is given for each rule under each forward that it is used with."""

from __future__ import annotations

from collections.abc import Iterator

import multigrad as xg
from multigrad.errors import MultigradError

OWN = "multigrad.rules.library."
# Forwards whose backward needs nothing, a mask, the output, and one without a derivative.
FORWARDS = ("Linear", "ReLU", "Tanh", "Heaviside")
NAMES = [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]


def emitted_texts(backend: str) -> Iterator[tuple[str, str]]:
    """Yield each rule under a forward, and the source, or the words by which it is refused."""
    for name in NAMES:
        for forward in FORWARDS:
            yield f"{name} under {forward}", _text(name, backend, forward)
    for forward in xg.activations():
        yield f"{forward} alone", _text(None, backend, forward)


def _text(name: str | None, backend: str, forward: str) -> str:
    try:
        return str(xg.source(name, backend, forward=forward))
    except MultigradError as error:
        return f"{type(error).__name__}: {error}"
