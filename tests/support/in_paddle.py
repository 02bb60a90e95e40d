"""How Paddle applies each transform; tox -e paddle runs it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import paddle
from paddle.distributed.fleet.utils import recompute

import multigrad as xg

from . import ways
from .declared import Note, Refused
from .kinds import GRAD_OUT, Kind, V, X, gradient_of, second_of, tangent_of

G, TANGENT = paddle.to_tensor(GRAD_OUT), paddle.to_tensor(V)


def leaf() -> Any:
    return paddle.to_tensor(X, stop_gradient=False)


def pulled(function: Any) -> Any:
    x = leaf()
    return paddle.grad(function(x), x, G)[0].numpy(), gradient_of


def backward(kind: Kind) -> Any:
    return pulled(kind.make())


def repeated(kind: Kind) -> Any:
    x = leaf()
    y = kind.make()(x)
    paddle.grad(y, x, G, retain_graph=True)
    return paddle.grad(y, x, G)[0].numpy(), gradient_of


def second(kind: Kind) -> Any:
    x = leaf()
    (grad,) = paddle.grad(kind.make()(x), x, G, create_graph=True)
    if grad.stop_gradient:
        return np.zeros(4), second_of
    (found,) = paddle.grad((grad * TANGENT).sum(), x, allow_unused=True)
    return (np.zeros(4) if found is None else found.numpy()), second_of


def jacobian(kind: Kind) -> Any:
    x = leaf()
    y = kind.make()(x)
    rows = [paddle.grad(y[i], x, retain_graph=True)[0].numpy() for i in range(4)]
    return np.array(rows) @ V, tangent_of


def step_of(kind: Kind) -> Any:
    """Return a plain function: Paddle's compiler reads nothing else."""
    function = kind.make()

    def step(x: Any) -> Any:
        return function(x)

    return step


def compiled(kind: Kind) -> Any:
    return pulled(paddle.jit.to_static(step_of(kind)))


def jitted(kind: Kind) -> Any:
    return pulled(xg.jit(step_of(kind), "paddle"))


def checkpointed(kind: Kind) -> Any:
    function = kind.make()
    return pulled(lambda x: recompute(function, x, use_reentrant=False))


def half(kind: Kind) -> Any:
    x = paddle.to_tensor(X, dtype="bfloat16", stop_gradient=False)
    (grad,) = paddle.grad(kind.make()(x), x, G.astype("bfloat16"))
    return grad.astype("float32").numpy(), gradient_of


def pickled(kind: Kind) -> Any:
    return pulled(pickle.loads(pickle.dumps(kind.make())))


def overridden(kind: Kind) -> Any:
    return pulled(ways.overriding(kind, xg.xp.relu, paddle.matmul))


def on_gradients(kind: Kind) -> Any:
    found, expected = ways.applied(kind, G)
    return found.numpy(), expected


TRANSFORMS = {
    "backward": backward,
    "backward, repeated": repeated,
    "second derivative": second,
    "Jacobian by reverse mode": jacobian,
    "the framework's compiler": compiled,
    "`xg.jit`": jitted,
    "recomputed (checkpoint)": checkpointed,
    "bfloat16": half,
    "pickle": pickled,
    "`xg.override`": overridden,
    "`xg.apply_to_gradients`": on_gradients,
    "saved and loaded (`xg.save`)": ways.through(pulled, ways.saved),
    "ejected, without multigrad (`xg.source(..., standalone=True)`)": ways.through(
        pulled, ways.ejected, "paddle"
    ),
    "run by NumPy (a bridge)": ways.through(pulled, ways.bridged, "numpy"),
}
REFUSED = [
    Refused(("`xg.override`",), (), "backend 'paddle' overrides no functions", "RuleTypeError"),
    Refused(
        ("ejected, without multigrad (`xg.source(..., standalone=True)`)",),
        (),
        "backend 'paddle' does not define standalone files",
        "UnsupportedOp",
    ),
    Refused(
        ("run by NumPy (a bridge)",),
        (),
        "backend 'paddle' cannot call: it has no bridge to other frameworks",
        "UnsupportedOp",
    ),
    Refused((), ("loop by values",), "uses while_loop, which paddle lacks", "UnsupportedOp"),
]
NOTES = [
    Note(
        ("Jacobian by reverse mode",),
        ("with a reduction", "random, with a key", "random, without a key", "composed"),
        "Each row is the result for a gradient with a single 1: not the matrix of a linear map.",
    ),
]
