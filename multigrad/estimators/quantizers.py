"""Quantizers with fixed, clipped or learned levels: DoReFa, PACT, LSQ, thresholds, noise.

Rounding is to the nearest level, ties to even. 16-bit tensors are computed in float32 and rounded
once, so that neither x / step nor a sum over many elements overflows. The number of elements that
scales the gradient of a step is that of the tensor in the call: of one example under `vmap`, of one
shard where a tensor is shared out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.trace.xp import all as xp
from ..engine.functions.function import Function
from ..errors import RuleTypeError, RuleValueError, suggest
from .declared import Estimator, catalogue, estimator, is_tensor, one_axis, summed, widened

Tensor = Any
Array = Any
BITS = ">= 1 and <= 16"
STEP = "> 0 and finite"


def levels_of(bits: int) -> float:
    return 2.0**bits - 1.0


@estimator(ranges={"bits": BITS})
def dorefa_activations(x: Tensor, bits: int = 2) -> Any:
    """round(n * clip(x, 0, 1)) / n with n = 2**bits - 1.

    Gradients: x: 1 where 0 <= x <= 1, else 0. Source: Zhou et al., 2016 (DoReFa-Net, arXiv
    1606.06160); `DoReFa(mode="activations")` of larq.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.dorefa_activations, np.array([-0.5, 0.4, 2.0]))
        >>> y.round(3), pull(np.ones(3))[0]
        (array([0.   , 0.333, 1.   ]), array([0., 1., 0.]))
    """
    n = levels_of(bits)
    level = xp.round(xp.clip(widened(x), 0.0, 1.0) * n) / n

    def grad(grad_out: Tensor) -> Tensor:
        return xp.where((x >= 0) & (x <= 1), grad_out, 0.0)

    return xp.cast_like(level, x), grad


# tanh takes most of the time, and weights are few beside activations.
@estimator(ranges={"bits": BITS}, residuals="time")
def dorefa_weights(x: Tensor, bits: int = 2) -> Any:
    """2 * round(n * (tanh(x) / m + 1) / 2) / n - 1 with n = 2**bits - 1 and m the largest |tanh(x)|
    of the whole tensor; where all of x is 0, m is 1.

    Gradients: x: (1 - tanh(x)**2) / m; m itself passes none. Source: Zhou et al., 2016 (DoReFa-Net,
    arXiv 1606.06160); `DoReFa(mode="weights")` of larq.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.dorefa_weights, np.array([-0.5, 0.1, 1.0]))
        >>> y.round(3), pull(np.ones(3))[0].round(3)
        (array([-0.333,  0.333,  1.   ]), array([1.033, 1.3  , 0.551]))
    """
    n = levels_of(bits)
    tanh = xp.tanh(widened(x))
    largest = xp.norm(tanh, ord=xp.inf)
    largest = xp.where(largest == 0, 1.0, largest)
    level = xp.round((tanh / largest * 0.5 + 0.5) * n) / n

    def grad(grad_out: Tensor) -> Tensor:
        slope = (1.0 - xp.square(tanh)) / largest
        return xp.cast_like(widened(grad_out) * slope, x)

    return xp.cast_like(2.0 * level - 1.0, x), grad


@estimator(ranges={"alpha": "> 0 and finite", "bits": BITS})
def pact(x: Tensor, alpha: Tensor, bits: int = 4) -> Any:
    """round(clip(x, 0, alpha) * n / alpha) * alpha / n with n = 2**bits - 1; alpha > 0, for all or
    per channel.

    Gradients: x: 1 where 0 <= x < alpha, else 0; alpha: 1 where x >= alpha, else 0, summed to its
    shape. Source: Choi et al., 2018 (PACT, arXiv 1805.06085), eq. 1 to 3.

    Examples:
        >>> x, alpha = np.array([-1.0, 0.5, 3.0]), np.array(2.0)
        >>> y, pull = xg.vjp(xg.estimators.pact, x, alpha)
        >>> y.round(3)
        array([0.   , 0.533, 2.   ])
        >>> grad_x, grad_alpha = pull(np.ones(3))[:2]
        >>> grad_x, float(grad_alpha)
        (array([0., 1., 0.]), 1.0)
    """
    n, wide_alpha = levels_of(bits), widened(alpha)
    level = xp.round(xp.clip(widened(x) / wide_alpha, 0.0, 1.0) * n)

    def grad(grad_out: Tensor) -> Any:
        wide = widened(grad_out)
        clipped = x >= alpha
        grad_x = xp.where((x >= 0) & (x < alpha), grad_out, 0.0)
        return grad_x, summed(xp.where(clipped, wide, 0.0), alpha)

    return xp.cast_like(level / n * wide_alpha, x), grad


@estimator(
    ranges={"low": "< high and finite", "high": "finite", "bits": ">= 2 and <= 16"},
    examples=(np.linspace(-1.6, 1.5, 12).reshape(3, 4), np.array(-1.1), np.array(1.3)),
)
def fake_quantize(x: Tensor, low: Tensor, high: Tensor, bits: int = 8, narrow: bool = False) -> Any:
    """scale * (round((clip(x, m, M) - m) / scale) - z) with scale = (high - low) / n, the zero
    point z = round(-low / scale) kept in 0..n, and the ends m = -z * scale, M = (n - z) * scale
    moved so that 0 is a level; n = 2**bits - 1, or 2**bits - 2 where narrow. low < high, each for
    all or per channel.

    Gradients: x: 1 where m <= x <= M, else 0; low: 1 where x <= m; high: 1 where x >= M, each
    summed to its shape; the edges count for both. Source: Jacob et al., 2018 (arXiv 1712.05877),
    section 3; `fake_quant_with_min_max_vars` of Keras, which rounds ties up.

    Examples:
        >>> low, high = np.array(-1.0), np.array(1.0)
        >>> y, pull = xg.vjp(xg.estimators.fake_quantize, np.array([-3.0, 0.1, 0.6]), low, high, 3)
        >>> y.round(3)
        array([-1.143,  0.   ,  0.571])
        >>> grad_x, grad_low, grad_high = pull(np.ones(3))[:3]
        >>> grad_x, float(grad_low), float(grad_high)
        (array([0., 1., 1.]), 1.0, 0.0)
    """
    n = levels_of(bits) - float(narrow)
    wide, bottom, top = widened(x), widened(low), widened(high)
    scale = (top - bottom) / n
    # In this order the zero point of -a and a is n / 2 exactly, whatever a is.
    zero = xp.clip(xp.round(-bottom / (top - bottom) * n), 0.0, n)
    lowest, highest = -zero * scale, (n - zero) * scale
    level = xp.round((xp.clip(wide, lowest, highest) - lowest) / scale)

    def grad(grad_out: Tensor) -> Any:
        upstream = widened(grad_out)
        return (
            xp.where((wide >= lowest) & (wide <= highest), grad_out, 0.0),
            summed(xp.where(wide <= lowest, upstream, 0.0), low),
            summed(xp.where(wide >= highest, upstream, 0.0), high),
        )

    return xp.cast_like((level - zero) * scale, x), grad


@estimator(ranges={"factor": ">= 0 and <= 1"})
def quantization_noise(x: Tensor, q: Tensor, factor: float = 1.0) -> Any:
    """x + factor * (q - x): x on its way to its quantized value q.

    Gradients: x: 1 - factor; q: none. Source: `quantized_bits(use_ste=False, qnoise_factor=...)` of
    qkeras.

    Examples:
        >>> x, q = np.array([0.4, 0.6]), np.array([0.0, 1.0])
        >>> y, pull = xg.vjp(xg.estimators.quantization_noise, x, q, 0.5)  # half of the way
        >>> y, pull(np.ones(2))[0]
        (array([0.2, 0.8]), array([0.5, 0.5]))
    """
    blend = xp.cast_like(x + factor * (q - x), x)
    return blend, lambda grad_out: grad_out * (1.0 - factor)


def ends(name: str, bits: int, signed: bool) -> tuple[float, float]:
    if not signed:
        return 0.0, 2.0**bits - 1.0
    if bits < 2:
        raise RuleValueError(f"function {name!r}: param 'bits' is >= 2 with signed = True, got 1")
    return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1.0


def scale_of(x: Tensor, argument: Any, high: float) -> Any:
    count = xp.size(x) / xp.size(argument) if is_tensor(argument) else xp.size(x)
    # Section 2.2 of the LSQ paper (arXiv 1902.08153).
    return 1.0 / xp.sqrt(xp.maximum(count, 1.0) * high)


@estimator(ranges={"step": STEP, "bits": BITS})
def lsq(
    x: Tensor, step: Tensor, bits: int = 4, signed: bool = True, scale_gradient: bool = True
) -> Any:
    """step * round(clip(x / step, Qn, Qp)) with Qn = -2**(bits - 1), Qp = 2**(bits - 1) - 1, or
    Qn = 0, Qp = 2**bits - 1 unless signed; step > 0, for all or per channel.

    Gradients: x: 1 where Qn < x / step < Qp, else 0; step: round(x / step) - x / step there, Qn
    below and Qp above, summed to its shape and, with scale_gradient, over sqrt(N * Qp), N the
    number of elements that share a step. Source: Esser et al., 2020 (LSQ, arXiv 1902.08153), eq. 1
    to 5.

    Examples:
        >>> x, step = np.array([-3.0, 0.3, 0.6]), np.array(0.5)
        >>> y, pull = xg.vjp(xg.estimators.lsq, x, step, 3)  # 3 bits: the levels -4 to 3
        >>> y
        array([-2. ,  0.5,  0.5])
        >>> grad_x, grad_step = pull(np.ones(3))[:2]
        >>> grad_x, round(float(grad_step), 3)
        (array([0., 1., 1.]), -1.267)
    """
    low, high = ends("lsq", bits, signed)
    size = widened(step)
    v = widened(x) / size
    level = xp.round(xp.clip(v, low, high))

    def grad(grad_out: Tensor) -> Any:
        upstream = widened(grad_out)
        is_inside = (v > low) & (v < high)
        # Esser et al., 2020 (arXiv 1902.08153), eq. 3.
        slope = xp.where(is_inside, level - v, level)
        if scale_gradient:
            slope = slope * scale_of(x, step, high)
        return xp.where(is_inside, grad_out, 0.0), summed(upstream * slope, step)

    return xp.cast_like(level * size, x), grad


@estimator(ranges={"step": STEP, "offset": "finite", "bits": BITS})
def lsq_plus(
    x: Tensor,
    step: Tensor,
    offset: Tensor,
    bits: int = 4,
    signed: bool = False,
    scale_gradient: bool = True,
) -> Any:
    """step * round(clip((x - offset) / step, Qn, Qp)) + offset with Qn and Qp as in lsq; step > 0,
    step and offset for all or per channel.

    Gradients, with v = (x - offset) / step: x: 1 where Qn < v < Qp, else 0; step: round(v) - v
    there, Qn below and Qp above; offset: 0 there, else 1; both summed to their shapes and, with
    scale_gradient, over sqrt(N * Qp) as in lsq. Source: Bhalgat et al., 2020 (LSQ+, arXiv
    2004.09576).

    Examples:
        >>> x, step, offset = np.array([-3.0, 0.3, 0.6]), np.array(0.5), np.array(0.25)
        >>> y, pull = xg.vjp(xg.estimators.lsq_plus, x, step, offset, 3)
        >>> y, pull(np.ones(3))[0]
        (array([0.25, 0.25, 0.75]), array([0., 1., 1.]))
    """
    low, high = ends("lsq_plus", bits, signed)
    size, shift = widened(step), widened(offset)
    v = (widened(x) - shift) / size
    level = xp.round(xp.clip(v, low, high))

    def grad(grad_out: Tensor) -> Any:
        upstream = widened(grad_out)
        is_inside = (v > low) & (v < high)
        of_step = upstream * xp.where(is_inside, level - v, level)
        of_offset = xp.where(is_inside, 0.0, upstream)
        if scale_gradient:
            of_step = of_step * scale_of(x, step, high)
            of_offset = of_offset * scale_of(x, offset, high)
        grad_x = xp.where(is_inside, grad_out, 0.0)
        return grad_x, summed(of_step, step), summed(of_offset, offset)

    return xp.cast_like(level * size + shift, x), grad


@estimator(
    ranges={"start": "finite"},
    shapes={"widths": one_axis},
    examples=(np.linspace(-0.5, 3.5, 12).reshape(3, 4), np.array([1.0, 0.5, 0.75])),
)
def n2uq(x: Tensor, widths: Tensor, start: Tensor = 0.0) -> Any:
    """How many of the thresholds lie below x, 0 to n for n widths; threshold i is the middle of
    segment i, segments follow each other from start, each as long as its width. widths > 0.

    Gradients: those of the line through the segments' ends, which climbs by 1 in each: x: 1 / w
    inside a segment of width w, else 0; widths: -(x - left end) / w**2 for that segment, -1 / w for
    those before it; start: -1 / w; summed to their shapes. A segment owns its right end.

    Source: Liu et al., 2022 (Nonuniform-to-Uniform Quantization, arXiv 2111.14826).

    Examples:
        >>> x, widths = np.array([0.2, 0.8, 1.6, 3.0]), np.array([1.0, 0.5, 0.75])
        >>> y, pull = xg.vjp(xg.estimators.n2uq, x, widths, 0.0)
        >>> y, pull(np.ones(4))[0].round(3)
        (array([0., 1., 2., 3.]), array([1.   , 1.   , 1.333, 0.   ]))
    """
    lengths = widened(widths)
    upper = xp.cumsum(lengths, axis=0) + widened(start)
    lower = upper - lengths
    points = xp.expand_dims(widened(x), -1)
    level = xp.sum(xp.where(points > lower + 0.5 * lengths, 1.0, xp.zeros_like(points)), axis=-1)
    # No threshold lies below NaN, which must not become level 0.
    level = xp.where(xp.isnan(x), x, xp.cast_like(level, x))

    def grad(grad_out: Tensor) -> Any:
        upstream = xp.expand_dims(widened(grad_out), -1)
        is_inside = (points > lower) & (points <= upper)
        slope = xp.where(is_inside, upstream / lengths, 0.0)
        inner_slope = xp.where(is_inside, slope * ((points - lower) / lengths), 0.0)
        slope_by_segment = xp.sum_to(slope, widths)  # by segment
        # A width moves all segments that follow its own.
        slope_after = xp.cumsum(slope_by_segment, axis=0, reverse=True) - slope_by_segment
        grad_x = xp.cast_like(xp.sum(slope, axis=-1), x)
        of_widths = xp.cast_like(-(slope_after + xp.sum_to(inner_slope, widths)), widths)
        of_start = summed(-xp.sum(slope, axis=-1), start)
        return grad_x, of_widths, of_start

    return level, grad


# --- of a layer's weights or inputs: an estimator with options, and what it learns from -----------
# A name, {"name": ..., option: value, ...}, or a Function of one tensor.
Description = str | Mapping[str, Any] | Function
BOTH = ("approx_sign", "fake_quantize", "lsq", "lsq_plus", "ste_sign", "ste_ternary", "swish_sign")
# Quantizers of weights, and of activations: pact, say, leaves no weight below 0.
NAMES: Mapping[str, Mapping[str, str]] = {
    "weights": {**dict(zip(BOTH, BOTH, strict=True)), "dorefa": "dorefa_weights"},
    "activations": {
        **dict(zip(BOTH, BOTH, strict=True)),
        "dorefa": "dorefa_activations",
        "pact": "pact",
        "ste_heaviside": "ste_heaviside",
    },
}


class Seen(NamedTuple):
    """Statistics of a tensor: the mean of |x|, the lowest and the highest x; never all 0."""

    size: Array
    low: Array
    high: Array


# Of unknown numbers: those of a standard normal variable, within 3 sigma.
STANDARD = Seen(np.array(math.sqrt(2 / math.pi)), np.array(-3.0), np.array(3.0))


def look_at(x: Array, axes: tuple[int, ...]) -> Seen:
    """Return statistics of an array for each index of these axes; empty means zeros."""
    try:
        x = np.asarray(x, np.float64)
    except (TypeError, ValueError):
        raise RuleTypeError(f"sample is an array of typical inputs, got {x!r:.60}") from None
    if not x.size:
        x = np.zeros([n if i in axes else 1 for i, n in enumerate(x.shape)])
    other_axes = tuple(i for i in range(x.ndim) if i not in axes)
    keep = bool(axes)
    size = np.abs(x).mean(other_axes, keepdims=keep)
    low = np.minimum(x.min(other_axes, keepdims=keep), 0.0)
    high = np.maximum(x.max(other_axes, keepdims=keep), 0.0)
    is_zero = size == 0
    return Seen(
        np.where(is_zero, 1.0, size), np.where(is_zero, -1.0, low), np.where(is_zero, 1.0, high)
    )


def axes_of(owner: str, axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes with separate quantizer parameters per index."""
    axes = tuple(axis) if isinstance(axis, tuple | list) else () if axis is None else (axis,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in axes):
        raise RuleTypeError(f"{owner}: axis is an int, several or None, got {axis!r:.60}")
    if any(not -ndim <= each < ndim for each in axes):
        raise RuleValueError(f"{owner} has {ndim} axes, and none is axis={axis!r}")
    return tuple(each % ndim for each in axes)


@dataclass(frozen=True, slots=True)
class Quantization:
    """A quantizer with its options.

    Attributes:
        function: the estimator, or the user's Function.
        learned: the names of the numbers that are learned, in the order of its arguments.
        options: its other arguments.
    """

    function: Function
    learned: tuple[str, ...]
    options: Mapping[str, Any]

    def __call__(self, x: Any, *learned: Any) -> Any:
        return self.function(x, *learned, **self.options)

    def start(self, seen: Seen) -> tuple[Array, ...]:
        name, options = self.function.name, self.options
        match name if self.learned else "":
            case "lsq":  # section 2.1 of the LSQ paper
                _, high = ends(name, options["bits"], options["signed"])
                return (2.0 * seen.size / math.sqrt(high),)
            case "lsq_plus":  # levels that reach from the lowest to the highest x
                low, high = ends(name, options["bits"], options["signed"])
                step = (seen.high - seen.low) / (high - low)
                return step, seen.low - low * step
            case "pact":
                return (np.where(seen.high > 0, seen.high, 1.0),)
            case "fake_quantize":
                return seen.low, seen.high
        return ()

    @property
    def words(self) -> str:
        """The name and the options, as `repr` of a layer says them."""
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return ", ".join([self.function.name, *options])


def read_quantization(owner: str, of: str, description: Any, bits: int) -> Quantization:
    """Return the quantization that a layer is asked for.

    Args:
        owner: the layer's name in errors.
        of: "weights" or "activations".
        bits: for an estimator that has bits, if the description has none.
    """
    if isinstance(description, Function) and not isinstance(description, Estimator):
        return Quantization(description, (), {})
    name = description.name if isinstance(description, Estimator) else description
    options = dict(description) if isinstance(description, Mapping) else {"name": name}
    name, standard_names = options.pop("name", None), NAMES[of]
    names = {**standard_names, **{each: each for each in standard_names.values()}}
    if not isinstance(name, str):
        raise RuleTypeError(
            f"{owner}: {of} is the name of an estimator ({', '.join(sorted(standard_names))}), or "
            '{"name": "lsq", "bits": 8, ...}, or a Function of one tensor, as '
            f"xg.custom_gradient makes it; got {type(description).__name__} {description!r:.60}"
        )
    if name not in names:
        raise RuleValueError(
            f"{owner}: no quantizer {name!r} of {of}{suggest(name, names)} ({of}: "
            f"{', '.join(sorted(standard_names))})"
        )
    quantizer: Any = catalogue()[names[name]]
    params = quantizer.arguments[1:]
    learned = tuple(each.name for each in params if each.annotation == "Tensor")
    if any(each.name == "bits" for each in params):
        options.setdefault("bits", bits)
    wrong = [word for word in options if word in learned]
    if wrong:
        raise RuleTypeError(f"{owner}: {wrong[0]!r} of {name!r} is learned, and no option")
    defaults = {each.name: each.default for each in params if each.name not in learned}
    starts = Quantization(quantizer, learned, defaults).start(STANDARD)
    quantizer.prepare((0.0, *map(float, starts)), options)  # wrong options are told as at a call
    quantization = Quantization(quantizer, learned, {**defaults, **options})
    # Refused here if the start values cannot be computed, not when the layer is built.
    quantization.start(STANDARD)
    return quantization
