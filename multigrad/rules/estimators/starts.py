"""Quantizations of a layer's weights or inputs: an estimator with its options, and the start
values of the numbers that it learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...errors import RuleTypeError, RuleValueError, suggest
from ...functions.function import Function
from ...graph.support.class_bases import dataclass
from .declared import Estimator, catalogue
from .quantizers import ends

Array = Any
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
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    keep = bool(axes)
    size = np.abs(x).mean(rest, keepdims=keep)
    low = np.minimum(x.min(rest, keepdims=keep), 0.0)
    high = np.maximum(x.max(rest, keepdims=keep), 0.0)
    is_zero = size == 0
    return Seen(
        np.where(is_zero, 1.0, size), np.where(is_zero, -1.0, low), np.where(is_zero, 1.0, high)
    )


def start_lsq(seen: Seen, bits: int, signed: bool) -> tuple[Array, ...]:
    """Return 2 * mean|x| / sqrt(Qp): section 2.1 of the paper."""
    return (2.0 * seen.size / math.sqrt(ends("lsq", bits, signed)[1]),)


def start_lsq_plus(seen: Seen, bits: int, signed: bool) -> tuple[Array, ...]:
    """Return the step and the offset whose levels reach from the lowest to the highest x."""
    low, high = ends("lsq_plus", bits, signed)
    step = (seen.high - seen.low) / (high - low)
    return step, seen.low - low * step


def start_pact(seen: Seen) -> tuple[Array, ...]:
    return (np.where(seen.high > 0, seen.high, 1.0),)


def start_fake_quantize(seen: Seen) -> tuple[Array, ...]:
    return seen.low, seen.high


# By estimator, the function of its start values, and the options that these depend on.
STARTS: Mapping[str, tuple[Callable[..., tuple[Array, ...]], tuple[str, ...]]] = {
    "fake_quantize": (start_fake_quantize, ()),
    "lsq": (start_lsq, ("bits", "signed")),
    "lsq_plus": (start_lsq_plus, ("bits", "signed")),
    "pact": (start_pact, ()),
}


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
        """Return the start values of the learned numbers."""
        if not self.learned:
            return ()
        make, needed = STARTS[self.function.name]
        return make(seen, **{name: self.options[name] for name in needed})

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
        description: of it.
        bits: for an estimator that has bits, if the description has none.
    """
    if isinstance(description, Function) and not isinstance(description, Estimator):
        return Quantization(description, (), {})
    name = description.name if isinstance(description, Estimator) else description
    options = dict(description) if isinstance(description, Mapping) else {"name": name}
    name, known = options.pop("name", None), NAMES[of]
    names = {**known, **{each: each for each in known.values()}}
    if not isinstance(name, str):
        raise RuleTypeError(
            f"{owner}: {of} is the name of an estimator ({', '.join(sorted(known))}), or "
            '{"name": "lsq", "bits": 8, ...}, or a Function of one tensor, as '
            f"xg.custom_gradient makes it; got {type(description).__name__} {description!r:.60}"
        )
    if name not in names:
        raise RuleValueError(
            f"{owner}: no quantizer {name!r} of {of}{suggest(name, names)} ({of}: "
            f"{', '.join(sorted(known))})"
        )
    estimator: Any = catalogue()[names[name]]
    rest = estimator.arguments[1:]
    learned = tuple(each.name for each in rest if each.annotation == "Tensor")
    if any(each.name == "bits" for each in rest):
        options.setdefault("bits", bits)
    wrong = [word for word in options if word in learned]
    if wrong:
        raise RuleTypeError(f"{owner}: {wrong[0]!r} of {name!r} is learned, and no option")
    every = {each.name: each.default for each in rest if each.name not in learned}
    usual = Quantization(estimator, learned, every).start(STANDARD)
    estimator.prepare((0.0, *map(float, usual)), options)  # wrong options are told as at a call
    quantization = Quantization(estimator, learned, {**every, **options})
    # Refused here if the start values cannot be computed, not when the layer is built.
    quantization.start(STANDARD)
    return quantization
