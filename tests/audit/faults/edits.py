"""What each edit makes of a sound backward, the laws that find it, and the rows of what is planted.

An edit takes the namespace, the sound backward, the cotangent and the arguments. What it writes to,
where something lies, and what a call keeps are torch's; the other edits are of every framework.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy

from .sound import SHARED, last, logistic, root_of_mean, softmax

Gradients = tuple[Any, ...]
Change = Callable[[Any, Any], Any]
Edit = Callable[..., Gradients]


def with_gradients(change: Change) -> Edit:
    return lambda np, back, g, *x: tuple(change(np, d) for d in back(np, g, *x))


def with_cotangent(change: Change) -> Edit:
    return lambda np, back, g, *x: back(np, change(np, g), *x)


def with_arguments(change: Change) -> Edit:
    return lambda np, back, g, *x: back(np, g, *(change(np, a) for a in x))


def times(factor: float) -> Edit:
    return with_gradients(lambda np, d: factor * d)


def only(n: int, other: Edit) -> Edit:
    """One argument's gradient by another edit."""

    def edit(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
        found = list(back(np, g, *x))
        found[n] = other(np, back, g, *x)[n]
        return tuple(found)

    return edit


def cast(np: Any, x: Any, dtype: Any) -> Any:
    return x.to(dtype) if hasattr(x, "to") else np.asarray(x, dtype)


def narrow(name: str) -> Change:
    """A narrower dtype on the way."""
    return lambda np, x: cast(np, cast(np, x, getattr(np, name)), x.dtype)


def masked(mask: Callable[[int], Any]) -> Edit:
    """The first axis times numbers by its length."""

    def cut(np: Any, d: Any) -> Any:
        row = numpy.asarray(mask(d.shape[0]), numpy.float64)
        shaped = row.reshape((-1,) + (1,) * (len(d.shape) - 1))
        return d * cast(np, np.asarray(shaped), d.dtype)

    return with_gradients(cut)


# --- other formulas of one argument's gradient ----------------------------------------------------
def formula(other: Callable[..., Any]) -> Edit:
    return lambda np, back, g, x: (other(np, g, x),)


def slope(other: Change) -> Edit:
    return formula(lambda np, g, x: g * other(np, x))


def silu_by(s: Change, sign: float = 1.0) -> Edit:
    return slope(lambda np, x: s(np, x) + sign * x * s(np, x) * (1 - s(np, x)))


def rms_by(factor: float, r: Change = root_of_mean) -> Edit:
    """Another factor of the mean."""
    return formula(
        lambda np, g, x: r(np, x) * g + factor * x * r(np, x) ** 3 * last(np, g * x) / x.shape[-1]
    )


def softmax_by(sums: Change, y: Change = softmax) -> Edit:
    """Another sum of what the cotangent and the result are together."""
    return formula(lambda np, g, x: y(np, x) * (g - sums(np, g * y(np, x))))


def without_shift(np: Any, x: Any) -> Any:
    return np.exp(x) / last(np, np.exp(x))


def where(places: Change, change: Callable[[Any], Any]) -> Edit:
    """Another gradient in some places."""

    def edit(np: Any, back: Any, g: Any, x: Any) -> Gradients:
        (found,) = back(np, g, x)
        return (np.where(places(np, x), change(found), found),)

    return edit


# --- what is written to, shared and kept ----------------------------------------------------------
def after(write: Callable[..., Any]) -> Edit:
    """The cotangent or the arguments are written to, by no version that autograd would ask."""

    def edit(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
        found = tuple(d.clone() for d in back(np, g, *x))
        write(g.data, *(a.data for a in x))
        return found

    return edit


def shared(np: Any, x: Any) -> Any:
    """What another call may replace meanwhile."""
    SHARED["shared"] = x
    time.sleep(0.0005)
    return SHARED["shared"]


def first_of_shape(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    """What a shape met first is used ever after."""
    key = (back, g.shape, g.dtype)
    return back(np, g, *SHARED.setdefault(key, tuple(a.detach().clone() for a in x)))


def by_calls(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    SHARED["calls"] = SHARED.get("calls", 0) + 1
    return times(float(SHARED["calls"]))(np, back, g, *x)


def by_forwards(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    """A sum over the forwards since the last backward is taken for one of them."""
    return times(1.0 / max(SHARED.pop("forwards", 1), 1))(np, back, g, *x)


def doubling(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
    """Each backward of one call doubles what the next one gives."""
    SHARED["own"]["factor"] = 2 * SHARED["own"].get("factor", 0.5)
    return times(SHARED["own"]["factor"])(np, back, g, *x)


def in_buffer(np: Any, back: Any, g: Any, x: Any) -> Gradients:
    """What a call keeps is overwritten with the gradient."""
    slopes = back(np, np.ones_like(g), x)[0].detach()
    return (SHARED["own"].setdefault("buffer", slopes).mul_(g),)


def as_laid(np: Any, x: Any) -> Any:
    """What a kernel reads that takes memory for contiguous."""
    flat = np.as_strided(
        x, (min(x.numel(), x.untyped_storage().nbytes() // x.element_size()),), (1,)
    )
    return flat.repeat(-(-x.numel() // max(len(flat), 1)))[: x.numel()].reshape(x.shape)


def where_narrow(change: Callable[..., Gradients]) -> Edit:
    """Other gradients where autocast makes the cotangent narrower than the arguments."""

    def edit(np: Any, back: Any, g: Any, *x: Any) -> Gradients:
        found = back(np, g.to(x[0].dtype), *x)
        return found if g.dtype == x[0].dtype else change(np, *found)

    return edit


NAN = float("nan")
ONES = with_cotangent(lambda np, g: np.ones_like(g))
# The laws that each break, parted by commas, and the edit; without a law there is no fault.
EDITS: dict[str, tuple[str, Edit]] = {
    "as it is": ("", lambda np, back, g, *x: back(np, g, *x)),
    # factor and sign
    "twice": ("derivative", times(2.0)),
    "half more": ("derivative", times(1.5)),
    "one percent": ("derivative", times(1.01)),
    "last digits": ("derivative", times(1.0000005)),
    "five percent less": ("derivative", times(0.95)),
    "two thirds": ("derivative", times(2 / 3)),
    "half": ("derivative", times(0.5)),
    "quarter": ("derivative", times(0.25)),
    "quarter of the first": ("derivative", only(0, times(0.25))),
    "half of the last": ("derivative", only(-1, times(0.5))),
    "one percent of the last": ("derivative", only(-1, times(1.01))),
    "mean": ("derivative", with_gradients(lambda np, d: d / d.shape[0])),
    "mean for the last": ("derivative", lambda np, b, g, x, w: (
        b(np, g, x, w)[0], b(np, g, x, w)[1] / x.shape[0]
    )),
    "mean of rows": ("derivative", with_gradients(lambda np, d: d / d.shape[-1])),
    "random": ("derivative", with_gradients(
        lambda np, d: d * (1 + 1e-3 * d.new_empty(1).normal_())
    )),
    "negative": ("derivative", times(-1.0)),
    "negative of the first": ("derivative", only(0, times(-1.0))),
    "negative of the last": ("derivative", only(-1, times(-1.0))),
    "size": ("derivative", with_gradients(lambda np, d: abs(d))),
    "steeper": ("derivative", silu_by(lambda np, x: logistic(np, 1.1 * x))),
    "minus the second term": ("derivative", silu_by(logistic, -1.0)),
    "plus the mean": ("derivative", rms_by(1.0)),
    "sum of three for the mean": ("derivative", rms_by(-3.0)),
    "mean for the sum": ("derivative", softmax_by(lambda np, gy: last(np, gy) / gy.shape[-1])),
    "plus the sum": ("derivative", softmax_by(lambda np, gy: -last(np, gy))),
    "softmax of the negative": (
        "derivative", formula(lambda np, g, x: g[..., None] * softmax(np, -x))
    ),
    # dropped term
    "nothing for the last": ("derivative", only(-1, times(0.0))),
    "nothing for the first": ("derivative", only(0, times(0.0))),
    "None for the last": ("derivative", only(-1, lambda np, b, g, *x: (None,))),
    "no coupling": ("derivative", lambda np, b, g, *x: (
        b(np, g, *x)[0] + b(np, np.ones_like(g), *x)[0] * 0.0 + 0.1 * last(np, g) / 3,
    )),
    "no mean": ("derivative", rms_by(0.0)),
    "diagonal": ("derivative", softmax_by(lambda np, gy: gy)),
    "one hot": ("derivative", formula(lambda np, g, x: np.where(
        x == np.amax(x, -1)[..., None], g[..., None] + 0 * x, 0 * x
    ))),
    "no second term": ("derivative", slope(logistic)),
    "no one minus": ("derivative", slope(lambda np, x: 1 + 0 * np.tanh(x))),
    "no argument": ("derivative", slope(lambda np, x: -np.exp(-x * x))),
    "one argument less": ("derivative", slope(lambda np, x: 3 * x)),
    # ignored cotangent
    "ones": ("derivative", ONES),
    "ones for the first": ("linear, scale, zero, ones", only(0, ONES)),
    "ones in a formula": ("linear, scale, zero", formula(
        lambda np, g, x: softmax(np, x) * (1 - last(np, softmax(np, x) ** 2))
    )),
    "sign of cotangent": ("linear", with_cotangent(lambda np, g: np.sign(g))),
    "mean of cotangent": (
        "derivative", with_cotangent(lambda np, g: np.ones_like(g) * np.sum(g) / 15)
    ),
    "squared cotangent": ("linear, scale", with_cotangent(lambda np, g: g * g)),
    "clipped cotangent": (
        "linear, scale", with_cotangent(lambda np, g: np.where(abs(g) > 1, np.sign(g), g))
    ),
    "shortcut for ones": ("ones", with_cotangent(
        lambda np, g: np.where(g == 1, np.zeros_like(g), g)
    )),
    "division by cotangent": ("zero", with_cotangent(lambda np, g: g * g / g)),
    # written buffer
    "writes argument": ("written", after(lambda g, x, *_: x.mul_(2))),
    "writes row of argument": ("written", after(lambda g, x, *_: x[-1:].zero_())),
    "adds to the last argument": ("written", after(lambda g, *x: x[-1].add_(1.0))),
    "uses up argument": ("written", after(lambda g, x, *_: x.neg_())),
    "writes cotangent": ("written", after(lambda g, *_: g.mul_(2))),
    "writes row of cotangent": ("written", after(lambda g, *_: g[:1].zero_())),
    "in place of cotangent": ("written", lambda np, b, g, x: (
        g.mul_(b(np, np.ones_like(g), x)[0]),
    )),
    # lost dtype
    "float32": ("derivative", with_gradients(narrow("float32"))),
    "float16": ("derivative", with_gradients(narrow("float16"))),
    "bfloat16": ("derivative", with_gradients(narrow("bfloat16"))),
    "float16 for the last": ("derivative", only(-1, with_cotangent(narrow("float16")))),
    "bfloat16 for the last": ("derivative", only(-1, with_cotangent(narrow("bfloat16")))),
    "float16 argument": ("derivative", with_arguments(narrow("float16"))),
    "float16 logistic": (
        "derivative", silu_by(lambda np, x: narrow("float16")(np, logistic(np, x)))
    ),
    "float16 root": (
        "derivative", rms_by(-1.0, lambda np, x: narrow("float16")(np, root_of_mean(np, x)))
    ),
    "float16 exp": ("derivative", slope(
        lambda np, x: -2 * x * narrow("float16")(np, np.exp(-x * x))
    )),
    # wrong edge
    "NaN at 0": ("edges", where(lambda np, x: x == 0, lambda d: NAN * d)),
    "twice at 1": ("edges", where(lambda np, x: x == 1, lambda d: 2.0 * d)),
    "half at negative zero": (
        "zeros", where(lambda np, x: np.signbit(x) & (x == 0), lambda d: 0.5 * d)
    ),
    "other beyond 80": (
        "far numbers", where(lambda np, x: abs(x) > 80, lambda d: 10.0 * d + 1.0)
    ),
    "overflows": ("far numbers", lambda np, b, g, x: (b(np, g, x)[0] * np.exp(x) / np.exp(x),)),
    "first overflows": ("far numbers", lambda np, b, g, x, y: b(np, g, np.log(np.exp(x)), y)),
    "last overflows": ("far numbers", lambda np, b, g, x, y: b(np, g, x, np.log(np.exp(y)))),
    "overflows above": ("far numbers", slope(lambda np, x: 4 * np.exp(2 * x) / (
        np.exp(2 * x) + 1) ** 2)),
    "overflows below": ("far numbers", slope(lambda np, x: np.exp(-x) / (1 + np.exp(-x)) ** 2)),
    "no shift": ("far numbers", softmax_by(last, without_shift)),
    "no shift in a slope": (
        "far numbers", formula(lambda np, g, x: g[..., None] * without_shift(np, x))
    ),
    "logistic from one": ("far numbers", slope(lambda np, x: (
        1 - logistic(np, -x) + x * (1 - logistic(np, -x)) ** 2 * np.exp(-x)
    ))),
    "zero over zero": ("far numbers", slope(lambda np, x: 2 * x**3 / x**2)),
    "over the largest": ("not finite", lambda np, b, g, x: (
        b(np, g, x)[0] * (abs(x).max() / abs(x).max()),
    )),
    "half without axes": ("no axes", with_gradients(lambda np, d: d if d.ndim else d / 2)),
    # stale save, and what is kept
    "last forward's": ("interleaved", lambda np, b, g, *x: b(np, g, *SHARED["last"])),
    "first of a shape": ("edges", first_of_shape),
    "counts calls": ("repeatable", by_calls),
    "counts forwards": ("checkpoint", by_forwards),
    "doubling": ("backward twice", doubling),
    "in a buffer": ("backward twice, second derivative", in_buffer),
    "detached": ("second derivative", with_arguments(lambda np, a: a.detach())),
    # race
    "shared scratch": ("threads", with_arguments(shared)),
    "shared cotangent": ("threads", with_cotangent(shared)),
    "shared result": ("threads", with_gradients(shared)),
    # one row
    "no last row": ("derivative", masked(lambda n: [1.0] * (n - 1) + [0.0] if n else [])),
    "no first row": ("derivative", masked(lambda n: [0.0] + [1.0] * (n - 1) if n else [])),
    "no tail of four": ("derivative", masked(
        lambda n: [1.0] * (n // 4 * 4) + [0.0] * (n % 4)
    )),
    "cotangent as laid": ("strided cotangent", with_cotangent(as_laid)),
    "arguments as laid": ("strided input", with_arguments(as_laid)),
    "past one row": ("broadcast input", with_arguments(
        lambda np, x: x if x.untyped_storage().nbytes() >= x.nbytes else x.flip(-1)
    )),
    "first row for all": ("derivative", with_cotangent(lambda np, g: 0 * g + g[:1])),
    "first row of argument": ("derivative", with_arguments(lambda np, a: 0 * a + a[:1])),
    # autocast
    "cast cotangent": ("", lambda np, b, g, *x: b(np, g.to(x[0].dtype), *x)),
    "drops where narrow": ("autocast", where_narrow(lambda np, a, b: (a, None))),
    "rescales where narrow": ("autocast", where_narrow(lambda np, a, b: (0.5 * a, b))),
    # Steps of 8 bits, where the cotangent has 16.
    "narrower where narrow": ("autocast", where_narrow(
        lambda np, a, b: (a, 0.7 * narrow("float8_e5m2")(np, b))
    )),
}  # fmt: skip

# Of every gradient of the first set, and of those of torch.
ALL = "last forward's, no last row, counts calls"
OF_TORCH = "writes cotangent, adds to the last argument, doubling, shared result"
# The set, the framework, the gradient and its edits. Two authors who had not seen each other's
# faults planted the first and the second set; what is in both stands in the first.
PLANTED: tuple[tuple[str, str, str, str], ...] = (
    ("first", "torch", "square", ("five percent less, negative, half, ones, float16 argument, "
     f"overflows, cotangent as laid, {ALL}, {OF_TORCH}")),
    ("first", "torch", "product", ("one percent of the last, negative of the last, "
     "nothing for the last, ones for the first, bfloat16 for the last, last overflows, "
     f"cotangent as laid, {ALL}, {OF_TORCH}")),
    ("first", "torch", "softmax", ("mean for the sum, plus the sum, diagonal, ones in a formula, "
     f"float16 argument, no shift, cotangent as laid, {ALL}, {OF_TORCH}")),
    ("first", "torch", "silu", ("steeper, minus the second term, no second term, ones, "
     f"float16 logistic, logistic from one, cotangent as laid, {ALL}, {OF_TORCH}")),
    ("first", "torch", "rms", ("sum of three for the mean, plus the mean, no mean, ones, "
     f"float16 root, other beyond 80, {ALL}, {OF_TORCH}")),
    ("first", "torch", "linear", ("mean for the last, negative of the first, None for the last, "
     f"ones for the first, bfloat16 for the last, last overflows, {ALL}, {OF_TORCH}")),
    ("first", "torch", "logsumexp", ("mean of rows, softmax of the negative, one hot, ones, "
     f"float16 argument, no shift in a slope, {ALL}, {OF_TORCH}")),
    ("first", "jax", "bump", f"half, negative, no argument, ones, float16 exp, overflows, {ALL}"),
    ("first", "jax", "weighted", "quarter of the first, negative of the last, "
     "nothing for the last, ones for the first, bfloat16 for the last, last overflows, " + ALL),
    ("first", "tensorflow", "cube", ("two thirds, negative, one argument less, ones, "
     f"float16 argument, overflows, {ALL}")),
    ("first", "tensorflow", "wave", ("quarter, negative of the last, nothing for the last, "
     f"ones for the first, float16 for the last, first overflows, {ALL}")),
    ("second", "torch", "square", ("twice, sign of cotangent, writes argument, float32, "
     "shared scratch, arguments as laid")),
    ("second", "torch", "sine", ("one percent, negative, ones, writes cotangent, bfloat16, "
     "half at negative zero, first of a shape, shared cotangent, cotangent as laid")),
    ("second", "torch", "tanh", ("half, size, mean of cotangent, no one minus, float16, "
     "overflows above, NaN at 0, uses up argument, shared result, no first row")),
    ("second", "torch", "logistic", ("twice, clipped cotangent, overflows below, float32, "
     "writes row of argument, first row for all, last forward's")),
    ("second", "torch", "silu", ("one percent, shortcut for ones, float16, NaN at 0, "
     "no tail of four, shared scratch")),
    ("second", "torch", "relu", ("twice, NaN at 0, float32, writes cotangent, first of a shape, "
     "cotangent as laid, ones")),
    ("second", "torch", "cube", ("mean, size, clipped cotangent, twice at 1, "
     "writes row of cotangent, no last row, shared cotangent, arguments as laid")),
    ("second", "torch", "product", ("half of the last, ones, writes argument, shared scratch, "
     "no first row")),
    ("second", "torch", "squares", ("nothing for the first, half of the last, sign of cotangent, "
     "bfloat16, writes row of argument, first of a shape, shared result")),
    ("second", "torch", "modulate", ("negative of the last, nothing for the last, "
     "mean of cotangent, float32, writes cotangent, uses up argument, first row for all")),
    ("second", "torch", "bias", ("nothing for the last, half of the last, shortcut for ones, "
     "writes row of cotangent, shared cotangent")),
    ("second", "torch", "center", "no coupling, mean, float16, shared result"),
    ("second", "torch", "softmax", "no coupling, one percent, ones, writes argument"),
    ("second", "torch", "rms", ("no coupling, half, clipped cotangent, bfloat16, shared scratch, "
     "no tail of four")),
    ("second", "torch", "linear", ("negative of the last, nothing for the first, "
     "shortcut for ones, uses up argument, shared cotangent")),
    ("second", "jax", "tanh", "half, mean of cotangent, overflows above, no first row"),
    ("second", "jax", "product", "nothing for the last, negative of the last, ones"),
    ("second", "jax", "softmax", "no coupling, clipped cotangent, float16"),
    ("second", "tensorflow", "tanh", "one percent, negative, no tail of four"),
    ("second", "tensorflow", "product", "half of the last, sign of cotangent"),
    ("modes", "torch", "square", "counts forwards"),
    ("modes", "torch", "linear", ("cast cotangent, drops where narrow, rescales where narrow, "
     "narrower where narrow")),
    ("laws", "torch", "square", ("half more, last digits, random, squared cotangent, "
     "clipped cotangent, shortcut for ones, division by cotangent, in place of cotangent, "
     "zero over zero, over the largest, half without axes, in a buffer, detached, "
     "first row of argument, past one row")),
)  # fmt: skip
