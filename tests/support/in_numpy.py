"""How NumPy applies each transform: it has no autodiff but `xg.vjp`."""

from __future__ import annotations

import pickle
from typing import Any

import multigrad as xg

from . import ways
from .declared import NONLINEAR, Cells
from .kinds import GRAD_OUT, LAYER, WEIGHT, Kind, V, X, gradient_of, tangent_of


def pulled(function: Any) -> Any:
    _, pull = xg.vjp(function, X)
    return pull(GRAD_OUT)[0], gradient_of


def twice_pulled(kind: Kind) -> Any:
    """The pullback called again: a keyed rule repeats its draws."""
    _, pull = xg.vjp(kind.make(), X)
    pull(GRAD_OUT)
    return pull(GRAD_OUT)[0], gradient_of


def inside(kind: Kind) -> Any:
    function = kind.make()
    return pulled(xg.function(lambda x: function(x)))


def saved(kind: Kind) -> Any:
    if kind.name == LAYER:
        return xg.vjp(ways.saved_layer(), X, WEIGHT, None)[1](GRAD_OUT)[0], gradient_of
    return pulled(ways.saved(kind))


def ejected(kind: Kind) -> Any:
    _, pull = ways.ejected(kind, "numpy").vjp(X)
    found = pull(GRAD_OUT)
    return found[0] if isinstance(found, tuple) else found, gradient_of


TRANSFORMS = {
    "backward": lambda kind: pulled(kind.make()),
    "backward, repeated": twice_pulled,
    "`xg.jvp`": lambda kind: (xg.jvp(kind.make(), (X,), (V,))[1], tangent_of),
    "inside another Function": inside,
    "pickle": lambda kind: pulled(pickle.loads(pickle.dumps(kind.make()))),
    "another thread": ways.in_thread(pulled),
    "`xg.override`": lambda kind: pulled(ways.overriding(kind, xg.xp.relu, xg.xp.matmul)),
    "`xg.apply_to_gradients`": lambda kind: ways.applied(kind, GRAD_OUT),
    "saved and loaded (`xg.save`)": saved,
    "ejected, without multigrad (`xg.source(..., standalone=True)`)": ejected,
}
EXCEPTIONS = [
    Cells(
        ("`xg.jvp`",),
        NONLINEAR,
        "is not linear in grad_out, so it has no forward mode",
        "UnsupportedOp",
    ),
    Cells(
        ("`xg.jvp`",), ("as it is",), "runs as written, so it has no forward mode", "UnsupportedOp"
    ),
    Cells(("`xg.override`",), ("as it is",), "runs as written (native=True)", "TraceError"),
    Cells(
        ("`xg.override`",),
        ("rule of a layer",),
        "NumPy has no operation 'linear'",
        "RuleValueError",
    ),
    Cells(
        ("inside another Function",),
        ("random, with a key",),
        "under a key, which counts calls one by one",
        "TraceError",
    ),
    Cells(
        ("inside another Function",), ("as it is",), "runs as written (native=True)", "TraceError"
    ),
]
