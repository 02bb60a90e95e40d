"""Faults of forward mode, checkpoints, autocast, and of what is kept: each beside a sound gradient
that does the same without it.

    python -m tests.audit.faults.modes
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy

import multigrad as xg

from .found import gradcheck

LAWS = ("forward mode", "checkpoint", "autocast", "bytes", "saved")
GENERATOR = numpy.random.default_rng(9)
X, Y, W = (
    GENERATOR.standard_normal(shape).astype(numpy.float32) for shape in ((5, 3), (5, 3), (3, 4))
)
HELD: list[Any] = []
Body = Callable[..., Any]


def torch() -> Any:
    return import_module("torch")


def planted(forward: Body, backward: Body, jvp: Body | None = None) -> Any:
    """Return a class of torch's."""
    methods = {"forward": forward, "backward": backward, **({"jvp": jvp} if jvp else {})}
    own = {name: staticmethod(body) for name, body in methods.items()}
    return type("Planted", (torch().autograd.Function,), own)


# --- forward mode ---------------------------------------------------------------------------------
def times(ctx: Any, x: Any, y: Any) -> Any:
    ctx.save_for_backward(x, y)
    ctx.save_for_forward(x, y)
    return x * y


def times_back(ctx: Any, g: Any) -> Any:
    x, y = ctx.saved_tensors
    return g * y, g * x


def pushed(change: Callable[..., Any]) -> Any:
    """The tangent of a product by a formula of its two terms, one of them zero where an argument
    has no tangent.
    """

    def jvp(ctx: Any, of_x: Any, of_y: Any) -> Any:
        x, y = ctx.saved_tensors
        return change(0 * x if of_x is None else of_x * y, 0 * y if of_y is None else of_y * x)

    return planted(times, times_back, jvp)


def pushes_by_the_sum(ctx: Any, of_x: Any, of_y: Any) -> Any:
    x, y = ctx.saved_tensors
    return (of_x + of_y) * (x + y) / 2


def softmax(ctx: Any, x: Any) -> Any:
    y = torch().softmax(x, -1)
    ctx.save_for_backward(y)
    ctx.save_for_forward(y)
    return y


def softmax_back(ctx: Any, g: Any) -> Any:
    (y,) = ctx.saved_tensors
    return y * (g - (g * y).sum(-1, keepdim=True))


def coupled(factor: float) -> Any:
    def jvp(ctx: Any, t: Any) -> Any:
        (y,) = ctx.saved_tensors
        return y * (t - factor * (t * y).sum(-1, keepdim=True))

    return planted(softmax, softmax_back, jvp)


# --- checkpoint -----------------------------------------------------------------------------------
def square(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x * x


def square_back(ctx: Any, g: Any) -> Any:
    return 2 * ctx.saved_tensors[0] * g


def counts_forwards(ctx: Any, x: Any) -> Any:
    HELD.append(0)
    return square(ctx, x)


def by_count(ctx: Any, g: Any) -> Any:
    factor = 1.0 / max(len(HELD), 1)
    HELD.clear()
    return square_back(ctx, g) * factor


def without_gradients(other: Callable[[Any], Any]) -> Any:
    """A fast way where nobody seems to ask for gradients, as in the first run of a checkpoint."""
    own = planted(square, square_back)

    def run(x: Any) -> Any:
        return own.apply(x) if torch().is_grad_enabled() else other(x)

    return run


def leaves_marks(ctx: Any, x: Any) -> Any:
    """The first forward after a backward is another one."""
    factor = 2.0 if HELD else 1.0
    HELD[:] = [0]
    ctx.factor = factor
    ctx.save_for_backward(x)
    return x * x * factor


def clears_marks(ctx: Any, g: Any) -> Any:
    HELD.clear()
    return square_back(ctx, g) * ctx.factor


# --- autocast -------------------------------------------------------------------------------------
def linear(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    return x @ w


def linear_back(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    return g @ w.mT, x.mT @ g


def in_dtype_of_input(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    g = g.to(x.dtype)
    return g @ w.mT, x.mT @ g


def wrapped(forward: Body, backward: Body, device: str = "cpu", **words: Any) -> Any:
    """A class that says that it takes autocast; "" for no word of its backward."""
    amp = torch().amp
    told = amp.custom_bwd(backward, device_type=device) if device else backward
    return planted(amp.custom_fwd(forward, device_type=device or "cpu", **words), told)


def drops_where_narrow(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    if g.dtype == x.dtype:
        return linear_back(ctx, g)
    return g.to(x.dtype) @ w.mT, None


def rescales_where_narrow(ctx: Any, g: Any) -> Any:
    first, second = in_dtype_of_input(ctx, g)
    factor = 1.0 if g.dtype == first.dtype else 0.5
    return first * factor, second


def narrow_sums(ctx: Any, g: Any) -> Any:
    """A sum in steps of 8 bits, where the cotangent has 16."""
    x, _ = ctx.saved_tensors
    first, second = in_dtype_of_input(ctx, g)
    lossy = g.dtype != x.dtype
    return first, second.to(torch().float8_e5m2).to(x.dtype) * 0.7 if lossy else second


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

    return planted(forward, backward)


def twice_kept(ctx: Any, x: Any, w: Any) -> Any:
    """A product that keeps its result too."""
    y = x @ w
    ctx.save_for_backward(x, w, y)
    return y


def first_two(ctx: Any, g: Any) -> Any:
    x, w, _ = ctx.saved_tensors
    return g @ w.mT, x.mT @ g


def a_number(ctx: Any, x: Any, number: Any) -> Any:
    """What may be a tensor, and is meant to be none."""
    ctx.number = number
    ctx.save_for_backward(x)
    return x * x


def doubled(ctx: Any, x: Any) -> Any:
    """A product with a constant, whose backward is another class."""
    y = x.new_full(x.shape, 2.0)
    ctx.save_for_backward(y, 2 * y)
    return x * y


def doubled_back(own: list[Any]) -> Body:
    """A backward of which one tensor is for its own backward alone."""

    def backward(ctx: Any, g: Any) -> Any:
        y, twice = ctx.saved_tensors
        return own[0].apply(g, y, twice)

    return backward


def kept_for_the_next() -> Any:
    own: list[Any] = []

    def again(ctx: Any, g: Any, y: Any, twice: Any) -> Any:
        ctx.save_for_backward(twice)
        return g * y

    own.append(planted(again, lambda ctx, g: (g * ctx.saved_tensors[0] / 2, None, None)))
    return planted(doubled, doubled_back(own))


def in_a_list(ctx: Any, x: Any) -> Any:
    ctx.kept = [x]
    return x * x


Made = Callable[[], Any]
# Law, what is planted, the arguments, and how it is made; without a law there is no fault.
PLANTED: tuple[tuple[str, str, tuple[Any, ...], Made], ...] = (
    ("", "product", (X, Y), lambda: pushed(lambda a, b: a + b)),
    ("forward mode", "half", (X, Y), lambda: pushed(lambda a, b: (a + b) / 2)),
    ("forward mode", "sign", (X, Y), lambda: pushed(lambda a, b: a - b)),
    ("forward mode", "dropped", (X, Y), lambda: pushed(lambda a, b: a)),
    ("forward mode", "one row", (X, Y), lambda: pushed(lambda a, b: a + b[:1])),
    ("", "softmax", (X,), lambda: coupled(1.0)),
    ("forward mode", "no coupling", (X,), lambda: coupled(0.0)),
    ("", "square", (X,), lambda: planted(square, square_back)),
    ("checkpoint", "counts forwards", (X,), lambda: planted(counts_forwards, by_count)),
    ("checkpoint", "leaves marks", (X,), lambda: planted(leaves_marks, clears_marks)),
    ("", "fast without", (X,), lambda: without_gradients(lambda x: x * x)),
    ("checkpoint", "other without", (X,), lambda: without_gradients(lambda x: x * x.abs())),
    ("checkpoint", "coarse without", (X,), lambda: without_gradients(
        lambda x: (x * x).bfloat16().to(x.dtype)
    )),
    ("", "linear, wrapped", (X, W), lambda: wrapped(linear, linear_back)),
    ("", "linear, in float32", (X, W), lambda: wrapped(
        linear, linear_back, cast_inputs=torch().float32
    )),
    ("", "linear for CUDA", (X, W), lambda: wrapped(linear, linear_back, "cuda")),
    ("", "linear, refused", (X, W), lambda: planted(linear, linear_back)),
    ("", "linear, cast", (X, W), lambda: planted(linear, in_dtype_of_input)),
    ("", "at a tie", (TIE, STEP), lambda: planted(quantized, quantized_back)),
    ("autocast", "no custom_bwd", (X, W), lambda: wrapped(linear, linear_back, "")),
    ("autocast", "drops", (X, W), lambda: planted(linear, drops_where_narrow)),
    ("autocast", "rescales", (X, W), lambda: planted(linear, rescales_where_narrow)),
    ("autocast", "narrow sums", (X, W), lambda: planted(linear, narrow_sums)),
    ("autocast", "other forward", (X, W), lambda: planted(quick_where_cast, in_dtype_of_input)),
    ("", "sigmoid", (X,), lambda: sigmoid("y")),
    ("bytes", "input too", (X,), lambda: sigmoid("x", "y")),
    ("bytes", "for its shape", (X,), lambda: sigmoid("y", "twice")),
    ("bytes", "mask", (X,), lambda: sigmoid("mask", "y")),
    ("bytes", "slope apart", (X,), lambda: sigmoid("y", apart="slope")),
    ("bytes", "result", (X, W), lambda: planted(twice_kept, first_two)),
    ("", "for the next", (X,), kept_for_the_next),
    ("", "slope, read", (X,), lambda: sigmoid(apart="slope", read=True)),
    ("", "number", (X, Y), lambda: planted(
        a_number, lambda ctx, g: (2 * g * ctx.saved_tensors[0] + 0 * ctx.number, None)
    )),
    ("saved", "output apart", (X,), lambda: sigmoid(apart="y", read=True)),
    ("saved", "input apart", (X,), lambda: sigmoid(apart="x", read=True)),
    ("saved", "in a list", (X,), lambda: planted(
        in_a_list, lambda ctx, g: 2 * ctx.kept[0] * g
    )),
    ("saved", "output and input", (X,), lambda: sigmoid("x", apart="y", read=True)),
)  # fmt: skip


def broken(row: tuple[str, str, tuple[Any, ...], Made]) -> list[str]:
    """Return which of these laws an audit says are broken."""
    HELD.clear()
    report = xg.audit(row[3](), *row[2], laws=LAWS, surrogate=False)
    assert not report.problem, report.problem
    return [finding.law for finding in report.findings]


def main() -> None:
    warnings.simplefilter("ignore")
    count = found = seen = accused = 0
    for row in PLANTED:
        law, name, arrays, make = row
        laws = broken(row)
        if not law:
            accused += bool(laws)
            if laws:
                print("accused:", name, laws)
            continue
        count, found = count + 1, found + (law in laws)
        made = make()
        HELD.clear()
        seen += hasattr(made, "apply") and not gradcheck(made, list(arrays))
        if law not in laws:
            print(f"missed: {law}, {name}: {laws}")
    print(f"{count} planted, {found} found by an audit, {seen} by gradcheck; {accused} accused")
    sys.exit(int(bool(accused) or found < count))


if __name__ == "__main__":
    main()
