"""The kinds of rules: each a function of four numbers, and what its gradient is by definition.

The meaning comes from NumPy, where a rule is called by itself: no transform has a part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.backend.discovery import load_backend

Tensor = Any
Array = np.ndarray[Any, Any]
# Away from every kink of the curves below.
X = np.array([-0.75, 0.25, 0.5, 1.5], np.float32)
GRAD_OUT = np.array([0.5, -2.0, 1.0, 3.0], np.float32)
V = np.array([1.0, 0.5, -1.0, 2.0], np.float32)
WEIGHT = np.array(
    [[1.0, -0.5, 0.25, 2.0], [0.5, 1.0, -1.0, 0.5], [2.0, 0.25, 1.0, -1.0], [0.5, 1.5, 1.0, 1.0]],
    np.float32,
)
LAYER = "rule of a layer"
# A rule whose graph has a loop that values end; written once, as `xg.save` does.
HALVED = Path(__file__).parent / "halved.json"


class NotApplicable(Exception):
    """A transform that has no meaning for a kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of rule.

    Attributes:
        name: what the table calls it.
        example: one in words.
        make: makes what is called with a tensor.
        meaning: (x, grad_out) -> the gradient of x, in NumPy; None where it is drawn.
        linear: whether the gradient is linear in grad_out, so that a forward mode has a meaning.
        smooth: whether second derivatives are those of the meaning.
        rule: gives the rule with its numbers, of what is one and needs no key of a call.
    """

    name: str
    example: str
    make: Callable[[], Callable[[Tensor], Tensor]]
    meaning: Callable[[Array, Array], Array] | None
    linear: bool = True
    smooth: bool = True
    rule: Callable[[], Any] | None = None


def rule(name: str, **params: Any) -> Callable[[Array, Array], Array]:
    """Return what a rule does to a gradient, in NumPy."""
    found = xg.get(name)
    return lambda x, grad_out: found(None, grad_out, x, **params)


def bound(name: str, **params: Any) -> Callable[[], Any]:
    return lambda: xg.get(name).with_params(**params)


def by_activation(forward: str, name: Any, **params: Any) -> Callable[[], Any]:
    return lambda: xg.activation(forward, name, params or None)


@xg.register("support: halved or not", native=True)
def branching(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    """Run as it is: nothing of it is captured."""
    return grad_out * 0.5


COMPOSED = xg.compose("clip_norm", xg.get("scale").with_params(s=0.5))


def keyed() -> Any:
    return xg.get("noise").under("Linear").bind({"sigma": 0.5}, key=7)


def moving() -> Any:
    width = xg.schedule.linear(3.0, 1.0, steps=2)
    width.step()
    return xg.get("triangular").with_params(width=width)


def scheduled() -> Any:
    width = moving().bound["width"]
    return xg.activation("Heaviside", "triangular", {"width": width})


def loop() -> Any:
    return xg.load(HALVED)


def halved(x: Array, grad_out: Array) -> Array:
    while np.abs(grad_out).max() > 1.0:
        grad_out = grad_out * 0.5
    return grad_out


class OfLayer:
    """A linear layer with a rule of relevance."""

    def __init__(self) -> None:
        self.layer = xg.attribution.epsilon(0.25).over("linear", layout="in_out")

    def __call__(self, x: Tensor) -> Tensor:
        return self.layer(x, weight_for(x), None)

    def __reduce__(self) -> Any:
        return OfLayer, ()


FRAMEWORK = ["numpy"]  # of the cell that runs now: a symbol has none


def weight_for(x: Tensor) -> Tensor:
    """Return the layer's weight as a tensor of x's framework."""
    return tensor_for(x, WEIGHT)


def tensor_for(x: Tensor, array: Array) -> Tensor:
    if isinstance(x, np.ndarray):
        return array
    made = load_backend(FRAMEWORK[0]).tensors.from_numpy(array)
    if type(x).__name__ != "DTensor":
        return made
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(made, x.device_mesh, [Replicate()])


def layer_meaning(x: Array, grad_out: Array) -> Array:
    z = x @ WEIGHT
    return x * ((grad_out / (z + np.where(z < 0, -0.25, 0.25))) @ WEIGHT.T)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "element by element",
            '`xg.activation("Heaviside", "triangular")`',
            by_activation("Heaviside", "triangular", width=2.0),
            rule("triangular", width=2.0),
            rule=bound("triangular", width=2.0),
        ),
        Kind(
            "with a reduction",
            '`xg.activation("Linear", "clip_norm")`',
            by_activation("Linear", "clip_norm", max_norm=1.0),
            rule("clip_norm", max_norm=1.0),
            linear=False,
            rule=bound("clip_norm", max_norm=1.0),
        ),
        Kind(
            "random, with a key",
            '`xg.use("noise", key=7)`',
            keyed,
            rule("noise", sigma=0.5, key=7),
            linear=False,
        ),
        Kind(
            "random, without a key",
            '`xg.activation("Linear", "noise")`',
            by_activation("Linear", "noise", sigma=0.5),
            None,
            linear=False,
            rule=bound("noise", sigma=0.5),
        ),
        Kind(
            "own forward",
            "`xg.estimators.ste_sign`",
            lambda: xg.estimators.ste_sign,
            lambda x, grad_out: grad_out * (np.abs(x) <= 1),
        ),
        Kind(
            "loop by values",
            "a `while_loop` in a rule",
            lambda: loop().under("Linear"),
            halved,
            linear=False,
            rule=loop,
        ),
        Kind(
            "as it is",
            "`xg.register(..., native=True)`",
            by_activation("Linear", "support: halved or not"),
            lambda x, grad_out: grad_out * 0.5,
            rule=bound("support: halved or not"),
        ),
        Kind(
            "composed",
            '`xg.compose("clip_norm", "scale")`',
            by_activation("Linear", COMPOSED, max_norm=1.0),
            lambda x, grad_out: 0.5 * rule("clip_norm", max_norm=1.0)(x, grad_out),
            linear=False,
            rule=lambda: COMPOSED.with_params(max_norm=1.0),
        ),
        Kind(
            "scheduled number",
            "`xg.schedule.linear(...)`",
            scheduled,
            rule("triangular", width=2.0),
            rule=moving,
        ),
        Kind(
            LAYER,
            '`xg.attribution.epsilon().over("linear")`',
            OfLayer,
            layer_meaning,
            rule=lambda: xg.attribution.epsilon(0.25),
        ),
    )
}


# --- what a transform must give -------------------------------------------------------------------


def gradient_of(kind: Kind, x: Array = X) -> Array:
    assert kind.meaning is not None
    return np.asarray(kind.meaning(x, GRAD_OUT), np.float64)


def bare(kind: Kind) -> Array:
    """Return what a rule gives for the bare gradient GRAD_OUT, in NumPy."""
    if kind.rule is None:  # the keyed one
        return np.asarray(xg.get("noise")(None, GRAD_OUT, None, sigma=0.5, key=7), np.float64)
    return np.asarray(kind.rule()(None, GRAD_OUT, None), np.float64)


def whole_of(kind: Kind, count: int) -> Any:
    """Return what must come out of `count` rows X, the rule's input being all of them."""
    if kind.meaning is None:
        return "drawn"

    def meant(_: Kind) -> Array:
        assert kind.meaning is not None
        rows = np.tile(X, (count, 1)), np.tile(GRAD_OUT, (count, 1))
        return np.asarray(kind.meaning(*rows), np.float64)

    return meant


def second_of(kind: Kind) -> Array:
    """Return the derivative of sum(gradient * V) at X, by central differences of the meaning."""
    assert kind.meaning is not None
    found = np.zeros(4)
    x, h = X.astype(np.float64), 1e-4
    for i in range(4):
        step = h * np.eye(4)[i]
        high, low = (kind.meaning(x + s, GRAD_OUT.astype(np.float64)) for s in (step, -step))
        found[i] = ((high - low) @ V) / (2 * h)
    return found


def tangent_of(kind: Kind) -> Array:
    """Return the tangent along V: the gradient's map, transposed; of a linear one alone."""
    assert kind.meaning is not None
    rows = [kind.meaning(X, unit) for unit in np.eye(4, dtype=np.float32)]
    return np.array(rows) @ V
