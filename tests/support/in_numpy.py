"""How NumPy applies each transform: it has no autodiff but `xg.vjp`."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import multigrad as xg

from . import ways
from .declared import Note, Refused
from .kinds import GRAD_OUT, LAYER, WEIGHT, Kind, V, X, gradient_of, tangent_of


def backward(kind: Kind, function: Any = None) -> Any:
    _, pull = xg.vjp(function or kind.make(), X)
    return pull(GRAD_OUT)[0], gradient_of


def twice_pulled(kind: Kind) -> Any:
    """The pullback called again: a keyed rule repeats its draws."""
    _, pull = xg.vjp(kind.make(), X)
    pull(GRAD_OUT)
    return pull(GRAD_OUT)[0], gradient_of


def in_thread(kind: Kind) -> Any:
    function = kind.make()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: backward(kind, function)).result()


def inside(kind: Kind) -> Any:
    function = kind.make()
    return backward(kind, xg.function(lambda x: function(x)))


def saved(kind: Kind) -> Any:
    if kind.name == LAYER:
        return xg.vjp(ways.saved_layer(), X, WEIGHT, None)[1](GRAD_OUT)[0], gradient_of
    return backward(kind, ways.saved(kind))


def ejected(kind: Kind) -> Any:
    _, pull = ways.ejected(kind, "numpy").vjp(X)
    found = pull(GRAD_OUT)
    return found[0] if isinstance(found, tuple) else found, gradient_of


def on_gradients(kind: Kind) -> Any:
    found, expected = ways.applied(kind, GRAD_OUT)
    return found, expected


TRANSFORMS = {
    "backward": backward,
    "backward, repeated": twice_pulled,
    "`xg.jvp`": lambda kind: (xg.jvp(kind.make(), (X,), (V,))[1], tangent_of),
    "inside another Function": inside,
    "pickle": lambda kind: backward(kind, pickle.loads(pickle.dumps(kind.make()))),
    "another thread": in_thread,
    "`xg.override`": lambda kind: backward(kind, ways.overriding(kind, xg.xp.relu, xg.xp.matmul)),
    "`xg.apply_to_gradients`": on_gradients,
    "saved and loaded (`xg.save`)": saved,
    "ejected, without multigrad (`xg.source(..., standalone=True)`)": ejected,
}
REFUSED = [
    Refused(
        ("`xg.jvp`",),
        (
            "with a reduction",
            "random, with a key",
            "random, without a key",
            "loop by values",
            "composed",
        ),
        "is not linear in grad_out, so it has no forward mode",
        "UnsupportedOp",
    ),
    Refused(
        ("`xg.jvp`",), ("as it is",), "runs as written, so it has no forward mode", "UnsupportedOp"
    ),
    Refused(("`xg.override`",), ("as it is",), "runs as written (native=True)", "TraceError"),
    Refused(
        ("`xg.override`",),
        ("rule of a layer",),
        "NumPy has no operation 'linear'",
        "RuleValueError",
    ),
    Refused(
        ("inside another Function",),
        ("random, with a key",),
        "under a key, which counts calls one by one",
        "TraceError",
    ),
    Refused(
        ("inside another Function",), ("as it is",), "runs as written (native=True)", "TraceError"
    ),
]
NOTES: list[Note] = []
