"""How MLX applies each transform; tox -e mlx runs it."""

from __future__ import annotations

import pickle
from typing import Any

import mlx.core as mx
import numpy as np

import multigrad as xg

from . import ways
from .declared import Cells
from .kinds import GRAD_OUT, Kind, V, X, gradient_of, second_of, tangent_of

G, TANGENT, AT = mx.array(GRAD_OUT), mx.array(V), mx.array(X)


def gradient(function: Any) -> Any:
    return lambda x: mx.vjp(function, [x], [G.astype(x.dtype)])[1][0]


def pulled(function: Any) -> Any:
    return np.array(gradient(function)(AT)), gradient_of


def second(kind: Kind) -> Any:
    run = gradient(kind.make())
    return np.array(mx.grad(lambda x: (run(x) * TANGENT).sum())(AT)), second_of


def vmapped(kind: Kind) -> Any:
    return np.array(mx.vmap(gradient(kind.make()))(mx.stack([AT, AT]))[1]), gradient_of


def forward_mode(kind: Kind) -> Any:
    return np.array(mx.jvp(kind.make(), [AT], [TANGENT])[1][0]), tangent_of


def pushed(kind: Kind) -> Any:
    return np.array(xg.jvp(kind.make(), (AT,), (TANGENT,))[1]), tangent_of


def compiled(kind: Kind) -> Any:
    return np.array(mx.compile(gradient(kind.make()))(AT)), gradient_of


def jitted(kind: Kind) -> Any:
    return np.array(xg.jit(gradient(kind.make()), "mlx")(AT)), gradient_of


def half(kind: Kind) -> Any:
    found = gradient(kind.make())(AT.astype(mx.bfloat16))
    return np.array(found.astype(mx.float32)), gradient_of


TRANSFORMS = {
    "backward": lambda kind: pulled(kind.make()),
    "second derivative": second,
    "vmap": vmapped,
    "forward mode": forward_mode,
    "`xg.jvp`": pushed,
    "the framework's compiler": compiled,
    "`xg.jit`": jitted,
    "recomputed (checkpoint)": lambda kind: pulled(mx.checkpoint(kind.make())),
    "bfloat16": half,
    "pickle": lambda kind: pulled(pickle.loads(pickle.dumps(kind.make()))),
    "`xg.override`": lambda kind: pulled(ways.overriding(kind, xg.xp.relu, mx.matmul)),
    "`xg.apply_to_gradients`": lambda kind: ways.applied(kind, G),
    "saved and loaded (`xg.save`)": ways.through(pulled, ways.saved),
    "ejected, without multigrad (`xg.source(..., standalone=True)`)": ways.through(
        pulled, ways.ejected, "mlx"
    ),
    "run by NumPy (a bridge)": ways.through(pulled, ways.bridged, "numpy"),
}
EXCEPTIONS = [
    Cells(("`xg.override`",), (), "backend 'mlx' overrides no functions", "RuleTypeError"),
    Cells(
        ("ejected, without multigrad (`xg.source(..., standalone=True)`)",),
        (),
        "backend 'mlx' does not define standalone files",
        "UnsupportedOp",
    ),
    # the first row that covers a cell is its own
    Cells(("run by NumPy (a bridge)",), ("loop by values",), "NumPy has the loop that MLX lacks"),
    Cells((), ("loop by values",), "uses while_loop, which mlx lacks", "UnsupportedOp"),
    Cells(
        ("forward mode", "`xg.jvp`"),
        (
            "with a reduction",
            "random, with a key",
            "random, without a key",
            "composed",
        ),
        "is not linear in grad_out, so it has no forward mode",
        "GradientError",
    ),
    Cells(
        ("forward mode", "`xg.jvp`"),
        ("as it is",),
        "runs as written, so it has no forward mode",
        "GradientError",
    ),
    Cells(
        ("the framework's compiler", "`xg.jit`"),
        ("random, without a key",),
        "pass inputs=mx.random.state, outputs=mx.random.state, or a key to `use`",
        "StaleTraceError",
    ),
]
