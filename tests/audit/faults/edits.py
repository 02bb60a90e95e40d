"""The faults: what each edit makes of a sound backward, and the 120 rows of a gradient with one.

An edit takes the namespace, the sound backward, the cotangent and the arguments. What it writes to
and what it keeps is torch's; the other edits are of every framework.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy

from .sound import last, logistic

Gradients = tuple[Any, ...]
Edit = Callable[..., Gradients]
SHARED: dict[Any, Any] = {}


def each(gradients: Gradients, change: Callable[[Any], Any]) -> Gradients:
    return tuple(map(change, gradients))


def times(factor: float) -> Edit:
    return lambda np, back, g, *x: each(back(np, g, *x), lambda d: factor * d)


def only(n: int, factor: float) -> Edit:
    """One argument's gradient times a factor."""

    def edit(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
        found = list(back(np, g, *x))
        found[n] = factor * found[n]
        return tuple(found)

    return edit


def with_cotangent(change: Callable[[Any, Any], Any]) -> Edit:
    return lambda np, back, g, *x: back(np, change(np, g), *x)


def slope(formula: Callable[[Any, Any], Any]) -> Edit:
    """Another formula for an elementwise slope."""
    return lambda np, back, g, x: (g * formula(np, x),)


def masked(mask: Callable[[int], Any]) -> Edit:
    """The first axis times numbers by its length."""

    def edit(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
        def cut(d: Any) -> Any:
            row = numpy.asarray(mask(d.shape[0]), numpy.float64)
            shaped = row.reshape((-1,) + (1,) * (len(d.shape) - 1))
            return d * cast(np, np.asarray(shaped), d)

        return each(back(np, g, *x), cut)

    return edit


def cast(np: Any, x: Any, like: Any) -> Any:
    if hasattr(x, "to"):
        return x.to(like.dtype)
    return np.asarray(x, like.dtype)


def through(name: str) -> Edit:
    """A narrower dtype on the way."""

    def edit(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
        def narrow(d: Any) -> Any:
            way = getattr(np, name)
            return d.to(way).to(d.dtype) if hasattr(d, "to") else cast(np, cast_to(np, d, way), d)

        return each(back(np, g, *x), narrow)

    return edit


def cast_to(np: Any, x: Any, dtype: Any) -> Any:
    return np.asarray(x, dtype)


# --- torch's own: what is written to, where something lies, and what is kept ----------------------
def writes_argument(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    found = back(np, g, *x)
    x[0].mul_(2)
    return found


def writes_slice(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    found = back(np, g, *x)
    x[0][-1].zero_()
    return found


def writes_cotangent(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    found = each(back(np, g, *x), lambda d: d.clone())
    g.mul_(2)
    return found


def writes_row_of_cotangent(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    found = each(back(np, g, *x), lambda d: d.clone())
    g[0].zero_()
    return found


def kept_in(key: Any) -> Edit:
    """What the last forward left is used."""
    return lambda np, back, g, *x: back(np, g, *SHARED[key])


def waits(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    SHARED["scratch"] = x
    time.sleep(0.0005)
    return back(np, g, *SHARED["scratch"])


def waits_with_cotangent(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    SHARED["cotangent"] = g
    time.sleep(0.0005)
    return back(np, SHARED["cotangent"], *x)


def waits_with_result(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    SHARED["result"] = back(np, g, *x)
    time.sleep(0.0005)
    return SHARED["result"]


def first_of_shape(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    """What a shape met first is used ever after."""
    key = (back, g.shape, g.dtype)
    return back(np, g, *SHARED.setdefault(key, tuple(a.detach().clone() for a in x)))


def once(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    """A second backward finds what the first one has used up."""
    found = back(np, g, *x)
    if found[0].requires_grad:
        return found
    x[0].neg_()
    return found


def as_laid(np: Any, x: Any) -> Any:
    """What a kernel reads that takes memory for contiguous."""
    flat = np.as_strided(
        x, (min(x.numel(), x.untyped_storage().nbytes() // x.element_size()),), (1,)
    )
    return flat.repeat(-(-x.numel() // max(len(flat), 1)))[: x.numel()].reshape(x.shape)


def reads_arguments(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    return back(np, g, *(as_laid(np, a) for a in x))


# --- edges ----------------------------------------------------------------------------------------
def at(number: float, factor: float) -> Edit:
    """At one number, the gradient times a factor."""

    def edit(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
        (found,) = back(np, g, *x)
        return (np.where(x[0] == number, factor * found, found),)

    return edit


def at_negative_zero(np: Any, back: Any, g: Any, x: Any) -> Gradients:
    (found,) = back(np, g, x)
    return (np.where(np.signbit(x) & (x == 0), 0.5 * found, found),)


NAN = float("nan")
EDITS: dict[str, tuple[str, Edit]] = {
    "twice": ("factor", times(2.0)),
    "one percent": ("factor", times(1.01)),
    "half": ("factor", times(0.5)),
    "half of the last": ("factor", only(-1, 0.5)),
    "mean": ("factor", lambda np, b, g, *x: each(b(np, g, *x), lambda d: d / d.shape[0])),
    "negative": ("sign", times(-1.0)),
    "negative of the last": ("sign", only(-1, -1.0)),
    "size": ("sign", lambda np, b, g, *x: each(b(np, g, *x), abs)),
    "nothing for the last": ("dropped term", only(-1, 0.0)),
    "nothing for the first": ("dropped term", only(0, 0.0)),
    "no coupling": ("dropped term", lambda np, b, g, *x: (
        b(np, g, *x)[0] + b(np, np.ones_like(g), *x)[0] * 0.0 + 0.1 * last(np, g) / 3,
    )),
    "no second term": ("dropped term", slope(lambda np, x: logistic(np, x))),
    "no one minus": ("dropped term", slope(lambda np, x: 1 + 0 * np.tanh(x))),
    "ones": ("ignored cotangent", with_cotangent(lambda np, g: np.ones_like(g))),
    "sign of cotangent": ("ignored cotangent", with_cotangent(lambda np, g: np.sign(g))),
    "mean of cotangent": (
        "ignored cotangent", with_cotangent(lambda np, g: np.ones_like(g) * np.sum(g) / 15)
    ),
    "clipped cotangent": (
        "ignored cotangent",
        with_cotangent(lambda np, g: np.where(abs(g) > 1, np.sign(g), g)),
    ),
    "shortcut for ones": ("ignored cotangent", with_cotangent(
        lambda np, g: np.where(g == 1, np.zeros_like(g), g)
    )),
    "writes argument": ("written buffer", writes_argument),
    "writes row of argument": ("written buffer", writes_slice),
    "writes cotangent": ("written buffer", writes_cotangent),
    "writes row of cotangent": ("written buffer", writes_row_of_cotangent),
    "float32": ("lost dtype", through("float32")),
    "float16": ("lost dtype", through("float16")),
    "bfloat16": ("lost dtype", through("bfloat16")),
    "twice at 0": ("wrong edge", at(0.0, 2.0)),
    "NaN at 0": ("wrong edge", at(0.0, NAN)),
    "twice at 1": ("wrong edge", at(1.0, 2.0)),
    "negative zero": ("wrong edge", at_negative_zero),
    "overflows above": ("wrong edge", slope(lambda np, x: 4 * np.exp(2 * x) / (
        np.exp(2 * x) + 1) ** 2)),
    "overflows below": ("wrong edge", slope(lambda np, x: np.exp(-x) / (1 + np.exp(-x)) ** 2)),
    "last forward's": ("stale save", kept_in("last")),
    "first of a shape": ("stale save", first_of_shape),
    "used up": ("stale save", once),
    "shared scratch": ("race", waits),
    "shared cotangent": ("race", waits_with_cotangent),
    "shared result": ("race", waits_with_result),
    "no last row": ("one row", masked(lambda n: [1.0] * (n - 1) + [0.0] if n else [])),
    "no first row": ("one row", masked(lambda n: [0.0] + [1.0] * (n - 1) if n else [])),
    "no tail of four": ("one row", masked(lambda n: [1.0] * (n // 4 * 4) + [0.0] * (n % 4))),
    "cotangent as laid": ("one row", with_cotangent(as_laid)),
    "arguments as laid": ("one row", reads_arguments),
    "first row for all": ("one row", with_cotangent(lambda np, g: 0 * g + g[:1])),
}  # fmt: skip

PLANTED: tuple[tuple[str, str, str], ...] = tuple(
    (framework, base, edit)
    for framework, base, edits in (
        ("torch", "square", ("twice, negative, sign of cotangent, writes argument, float32, "
         "no last row, last forward's, shared scratch, arguments as laid")),
        ("torch", "sine", ("one percent, negative, ones, writes cotangent, bfloat16, "
         "negative zero, first of a shape, shared cotangent, cotangent as laid")),
        ("torch", "tanh", ("half, size, mean of cotangent, no one minus, float16, overflows above, "
         "NaN at 0, used up, shared result, no first row")),
        ("torch", "logistic", ("twice, clipped cotangent, overflows below, float32, "
         "writes row of argument, first row for all, last forward's")),
        ("torch", "silu", ("no second term, one percent, shortcut for ones, float16, NaN at 0, "
         "no tail of four, shared scratch")),
        ("torch", "relu", ("twice, NaN at 0, float32, writes cotangent, "
         "first of a shape, cotangent as laid, ones")),
        ("torch", "cube", ("mean, size, clipped cotangent, twice at 1, writes row of cotangent, "
         "no last row, shared cotangent, arguments as laid")),
        ("torch", "product", ("half of the last, negative of the last, nothing for the last, ones, "
         "writes argument, last forward's, shared scratch, no first row")),
        ("torch", "squares", ("nothing for the first, half of the last, sign of cotangent, "
         "bfloat16, writes row of argument, first of a shape, shared result")),
        ("torch", "modulate", ("negative of the last, nothing for the last, mean of cotangent, "
         "float32, writes cotangent, used up, first row for all")),
        ("torch", "bias", ("nothing for the last, half of the last, shortcut for ones, "
         "writes row of cotangent, shared cotangent")),
        ("torch", "center", "no coupling, mean, float16, shared result"),
        ("torch", "softmax", ("no coupling, one percent, ones, writes argument, last forward's, "
         "no last row")),
        ("torch", "rms", ("no coupling, half, clipped cotangent, bfloat16, shared scratch, "
         "no tail of four")),
        ("torch", "linear", ("negative of the last, nothing for the first, shortcut for ones, "
         "used up, shared cotangent")),
        ("jax", "tanh", "half, mean of cotangent, overflows above, no first row"),
        ("jax", "product", "nothing for the last, negative of the last, ones"),
        ("jax", "softmax", "no coupling, clipped cotangent, float16"),
        ("tensorflow", "tanh", "one percent, negative, no tail of four"),
        ("tensorflow", "product", "half of the last, sign of cotangent"),
    )
    for edit in edits.split(", ")
)  # fmt: skip
