"""How NumPy applies each transform: it has no autodiff but `xg.vjp`."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import multigrad as xg

from .declared import Note, Refused
from .kinds import GRAD_OUT, Kind, X, gradient_of


def backward(kind: Kind, function: Any = None) -> Any:
    _, pull = xg.vjp(function or kind.make(), X)
    return pull(GRAD_OUT)[0], gradient_of


def twice_pulled(kind: Kind) -> Any:
    """The pullback called again: a keyed rule repeats its draws."""
    _, pull = xg.vjp(kind.make(), X)
    pull(GRAD_OUT)
    return pull(GRAD_OUT)[0], gradient_of


def pickled(kind: Kind) -> Any:
    return backward(kind, pickle.loads(pickle.dumps(kind.make())))


def in_thread(kind: Kind) -> Any:
    function = kind.make()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: backward(kind, function)).result()


def inside(kind: Kind) -> Any:
    function = kind.make()
    return backward(kind, xg.function(lambda x: function(x)))


TRANSFORMS = {
    "backward": backward,
    "backward, repeated": twice_pulled,
    "inside of another Function": inside,
    "pickle": pickled,
    "another thread": in_thread,
}
REFUSED = [
    Refused(
        ("inside of another Function",),
        ("random, with a key",),
        "under a key, which counts calls one by one",
        "TraceError",
    ),
    Refused(
        ("inside of another Function",), ("as it is",), "runs as it is (native=True)", "TraceError"
    ),
]
NOTES: list[Note] = []
