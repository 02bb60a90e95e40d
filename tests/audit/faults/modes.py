"""Faults of forward mode, checkpoints, autocast, and of what is kept, which no edit of a backward
makes: each beside a sound gradient of torch's that does the same without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy

from ...harness.torch_class import torch_class
from .sound import SHARED, inputs_of, last, make

Body = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A custom gradient, with a fault or without.

    Attributes:
        group: of faults that belong together.
        laws: what finds the fault, parted by commas; "" where there is none.
    """

    group: str
    laws: str
    name: str
    inputs: tuple[Any, ...]
    make: Callable[[], Any]
    framework: str = "torch"


def torch() -> Any:
    return import_module("torch")


# --- forward mode ---------------------------------------------------------------------------------
def pushed(change: Callable[..., Any]) -> Any:
    """The tangent of a product by a formula of its two terms, one of them zero where an argument
    has no tangent.
    """

    def jvp(ctx: Any, of_x: Any, of_y: Any) -> Any:
        x, y = ctx.saved_tensors
        return change(0 * x if of_x is None else of_x * y, 0 * y if of_y is None else of_y * x)

    return make("torch", "product", jvp=jvp)


def coupled(factor: float) -> Any:
    def jvp(ctx: Any, t: Any) -> Any:
        y = torch().softmax(*ctx.saved_tensors, -1)
        return y * (t - factor * last(torch(), t * y))

    return make("torch", "softmax", jvp=jvp)


# --- checkpoint -----------------------------------------------------------------------------------
def without_gradients(other: Callable[[Any], Any]) -> Any:
    """A fast way where nobody seems to ask for gradients, as in the first run of a checkpoint."""
    own = make("torch", "square")

    def run(x: Any) -> Any:
        return own.apply(x) if torch().is_grad_enabled() else other(x)

    return run


def leaves_marks(ctx: Any, x: Any) -> Any:
    """The first forward after a backward is another one."""
    ctx.factor = 2.0 if "mark" in SHARED else 1.0
    SHARED["mark"] = True
    ctx.save_for_backward(x)
    return x * x * ctx.factor


def clears_marks(ctx: Any, g: Any) -> Any:
    SHARED.clear()
    return 2 * ctx.saved_tensors[0] * g * ctx.factor


# --- autocast -------------------------------------------------------------------------------------
def linear(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    return x @ w


def linear_back(ctx: Any, g: Any) -> Any:
    x, w, *_ = ctx.saved_tensors
    return g @ w.mT, x.mT @ g


def in_dtype_of_input(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    g = g.to(x.dtype)
    return g @ w.mT, x.mT @ g


def wrapped(forward: Body, backward: Body, device: str = "cpu", **words: Any) -> Any:
    """A class that says that it takes autocast; "" for no word of its backward."""
    amp = torch().amp
    told = amp.custom_bwd(backward, device_type=device) if device else backward
    return torch_class(told)(amp.custom_fwd(forward, device_type=device or "cpu", **words))


def quick_where_cast(ctx: Any, x: Any, w: Any) -> Any:
    """The forward has another formula under autocast, of which the backward does not know."""
    ctx.save_for_backward(x, w)
    return x @ w * (2.0 if torch().is_autocast_enabled("cpu") else 1.0)


def quantized(ctx: Any, x: Any, step: Any) -> Any:
    ctx.save_for_backward(x, step)
    return (x / step).round() * step


def quantized_back(ctx: Any, g: Any) -> Any:
    x, step = ctx.saved_tensors
    return g, (g * ((x / step).round() - x / step)).sum()


# A quotient that is a tie in float32, and none in float64.
TIE, STEP = (numpy.array(each, "float32") for each in ([[-0.7, 0.1], [0.33, 0.5]], 0.2))


# --- what is kept ---------------------------------------------------------------------------------
def sigmoid(*names: str, apart: str = "", read: bool = False) -> Any:
    """A sigmoid, whose gradient needs its output alone, that keeps more.

    Args:
        names: what is saved: x, y, and others.
        apart: what is an attribute of ctx.
        read: whether the backward reads what is an attribute.
    """

    def forward(ctx: Any, x: Any) -> Any:
        y = torch().sigmoid(x)
        here = {"x": x, "y": y, "twice": 2 * x, "mask": x > 0, "slope": y * (1 - y)}
        ctx.save_for_backward(*(here[name] for name in names))
        if apart:
            setattr(ctx, apart, here[apart])
        return y

    def backward(ctx: Any, g: Any) -> Any:
        found = dict(zip(names, ctx.saved_tensors, strict=True))
        if read and apart == "slope":
            return g * ctx.slope
        if read and apart == "x":
            found["y"] = torch().sigmoid(ctx.x)
        elif read:
            found["y"] = getattr(ctx, apart)
        if "twice" in found:
            g = g.reshape(found["twice"].shape)
        return g * found["y"] * (1 - found["y"])

    return torch_class(backward)(forward)


def twice_kept(ctx: Any, x: Any, w: Any) -> Any:
    """A product that keeps its result too."""
    y = x @ w
    ctx.save_for_backward(x, w, y)
    return y


def a_number(ctx: Any, x: Any, number: Any) -> Any:
    """What may be a tensor, and is meant to be none."""
    ctx.number = number
    ctx.save_for_backward(x)
    return x * x


def kept_for_the_next() -> Any:
    """A product with a constant: of what it saves, one tensor is for its backward's backward."""

    def doubled(ctx: Any, x: Any) -> Any:
        y = x.new_full(x.shape, 2.0)
        ctx.save_for_backward(y, 2 * y)
        return x * y

    def again(ctx: Any, g: Any, y: Any, twice: Any) -> Any:
        ctx.save_for_backward(twice)
        return g * y

    own = torch_class(lambda ctx, g: (g * ctx.saved_tensors[0] / 2, None, None))(again)
    return torch_class(lambda ctx, g: own.apply(g, *ctx.saved_tensors))(doubled)


def in_a_list(ctx: Any, x: Any) -> Any:
    ctx.kept = [x]
    return x * x


# The law, what is planted, whose inputs it takes, and how it is made; no law of what is sound.
ROWS: tuple[tuple[str, str, str, Callable[[], Any]], ...] = (
    ("", "product", "product", lambda: pushed(lambda a, b: a + b)),
    ("forward mode", "half", "product", lambda: pushed(lambda a, b: (a + b) / 2)),
    ("forward mode", "sign", "product", lambda: pushed(lambda a, b: a - b)),
    ("forward mode", "dropped", "product", lambda: pushed(lambda a, b: a)),
    ("forward mode", "one row", "product", lambda: pushed(lambda a, b: a + b[:1])),
    ("", "softmax", "softmax", lambda: coupled(1.0)),
    ("forward mode", "uncoupled tangent", "softmax", lambda: coupled(0.0)),
    ("checkpoint", "leaves marks", "square", lambda: torch_class(clears_marks)(leaves_marks)),
    ("", "fast without", "square", lambda: without_gradients(lambda x: x * x)),
    ("checkpoint", "other without", "square", lambda: without_gradients(lambda x: x * x.abs())),
    ("checkpoint", "coarse without", "square", lambda: without_gradients(
        lambda x: (x * x).bfloat16().to(x.dtype)
    )),
    ("", "wrapped", "linear", lambda: wrapped(linear, linear_back)),
    ("", "in float32", "linear", lambda: wrapped(
        linear, linear_back, cast_inputs=torch().float32
    )),
    ("", "for CUDA", "linear", lambda: wrapped(linear, linear_back, "cuda")),
    ("autocast", "no custom_bwd", "linear", lambda: wrapped(linear, linear_back, "")),
    ("autocast", "other forward", "linear", lambda: (
        torch_class(in_dtype_of_input)(quick_where_cast)
    )),
    ("", "sigmoid", "logistic", lambda: sigmoid("y")),
    ("bytes", "input too", "logistic", lambda: sigmoid("x", "y")),
    ("bytes", "for its shape", "logistic", lambda: sigmoid("y", "twice")),
    ("bytes", "mask", "logistic", lambda: sigmoid("mask", "y")),
    ("bytes", "slope apart", "logistic", lambda: sigmoid("y", apart="slope")),
    ("bytes", "result", "linear", lambda: torch_class(linear_back)(twice_kept)),
    ("", "for the next", "square", kept_for_the_next),
    ("", "slope, read", "logistic", lambda: sigmoid(apart="slope", read=True)),
    ("", "number", "product", lambda: torch_class(
        lambda ctx, g: (2 * g * ctx.saved_tensors[0] + 0 * ctx.number, None)
    )(a_number)),
    ("saved", "output apart", "logistic", lambda: sigmoid(apart="y", read=True)),
    ("saved", "input apart", "logistic", lambda: sigmoid(apart="x", read=True)),
    ("saved", "in a list", "square", lambda: (
        torch_class(lambda ctx, g: 2 * ctx.kept[0] * g)(in_a_list)
    )),
    ("saved", "output and input", "logistic", lambda: sigmoid("x", apart="y", read=True)),
)  # fmt: skip
MODES = (
    *(Gradient("modes", law, f"{base}, {name}", inputs_of(base), made)
      for law, name, base, made in ROWS),
    Gradient("modes", "", "at a tie", (TIE, STEP), lambda: torch_class(quantized_back)(quantized)),
)  # fmt: skip
