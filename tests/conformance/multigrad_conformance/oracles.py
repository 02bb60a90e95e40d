"""Oracles for tests that share nothing with the library: float64 with bounds on roundings.

An `Exact` is a float64 array, rounded to a dtype's range but not to its precision, with a bound on
how far the roundings of that dtype can take a computation away from it. The formulas of the rules
(RULES) are written in it, from the papers and FreeGrad's documentation; the random draws are a slow
Threefry in Python integers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

import multigrad as xg
from multigrad.engine.rules.saving import FACTORS

Array = Any
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
FLOAT16, BFLOAT16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
DTYPES = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)
# How many ulps a framework's exp or tanh may be off; basic arithmetic 1, where IEEE asks for half.
KERNEL_ULPS = 4


def finfo(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype)


def slack(dtype: Any) -> float:
    """Return the absolute error below which results underflow."""
    # Nothing flushes float16, so its slack is small.
    info = finfo(dtype)
    return float(info.smallest_subnormal if dtype == FLOAT16 else info.smallest_normal)


@dataclass(frozen=True, eq=False)
class Exact:
    """A value, the bound of its error in `dtype`, and the largest magnitude met on the way.

    A bool value whose outcome the roundings decide has error 1.
    """

    value: Array
    error: Array
    largest: Array
    dtype: Any

    def __add__(self, other: Any) -> Exact:
        return self._arithmetic(np.add, other, lambda a, b: a.error + b.error)

    def __sub__(self, other: Any) -> Exact:
        return self._arithmetic(np.subtract, other, lambda a, b: a.error + b.error)

    def __mul__(self, other: Any) -> Exact:
        return self._arithmetic(np.multiply, other, _product_error)

    def __truediv__(self, other: Any) -> Exact:
        return self._arithmetic(np.true_divide, other, _quotient_error)

    def __rsub__(self, other: Any) -> Exact:
        return self.lift(other) - self

    def __rtruediv__(self, other: Any) -> Exact:
        return self.lift(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Exact:
        return Exact(-self.value, self.error, self.largest, self.dtype)

    def __abs__(self) -> Exact:
        return Exact(np.abs(self.value), self.error, self.largest, self.dtype)

    def __lt__(self, other: Any) -> Exact:
        return self._compare(np.less, other)

    def __le__(self, other: Any) -> Exact:
        return self._compare(np.less_equal, other)

    def __gt__(self, other: Any) -> Exact:
        return self._compare(np.greater, other)

    def __ge__(self, other: Any) -> Exact:
        return self._compare(np.greater_equal, other)

    def __and__(self, other: Exact) -> Exact:
        return self._mask(self.value & other.value, np.maximum(self.error, other.error))

    def __or__(self, other: Exact) -> Exact:
        return self._mask(self.value | other.value, np.maximum(self.error, other.error))

    def __invert__(self) -> Exact:
        return self._mask(~self.value, self.error)

    def lift(self, number: Any) -> Exact:
        """Return a number in this dtype, which rounds it, or an Exact unchanged."""
        if isinstance(number, Exact):
            return number
        value = np.asarray(number, np.float64)
        rounded = np.asarray(number, self.dtype).astype(np.float64)
        error = np.where(value == rounded, 0.0, np.abs(np.nan_to_num(value) - rounded))
        return Exact(rounded, error, np.abs(value), self.dtype)

    def rounded(self, value: Array, error: Array, ulps: float, *operands: Exact) -> Exact:
        """Return the result of one operation, with its own rounding added to the propagated error.

        A NaN in `error` says that roundings decide about an infinity.
        """
        value = np.asarray(value, np.float64)
        top = float(finfo(self.dtype).max)
        error = error + ulps * float(finfo(self.dtype).eps) * np.abs(value) + slack(self.dtype)
        # At the end of the range roundings decide whether the result is infinite.
        near_top = np.abs(np.abs(value) - top) <= error
        value = np.where(np.abs(value) > top, np.copysign(np.inf, value), value)
        unknown = near_top | np.isnan(error)
        error = np.where(unknown, np.inf, np.where(np.isfinite(value), error, 0.0))
        largest = functools.reduce(np.maximum, [operand.largest for operand in operands])
        return Exact(value, error, np.fmax(largest, np.abs(value)), self.dtype)

    def apply(self, function: Callable[[Array], Array], ulps: float = KERNEL_ULPS) -> Exact:
        """Return a function of this operand, with its errors at the ends of the interval."""
        value = function(self.value)
        ends = [function(self.value + sign * self.error) - value for sign in (-1, 1)]
        error = np.where(self.error > 0, np.maximum(np.abs(ends[0]), np.abs(ends[1])), 0.0)
        return self.rounded(value, error, ulps, self)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Exact:
        """Return the sum; 16-bit floats are accumulated in float32 and rounded once."""
        value = np.sum(self.value, axis=axis, keepdims=keepdims)
        # Sums of 16-bit floats run in float32.
        eps = min(float(finfo(dtype).eps) for dtype in (self.dtype, FLOAT32))
        error = self.error + 2 * eps * np.abs(self.value)
        largest = np.max(self.largest, axis=axis, keepdims=keepdims, initial=0.0)
        whole = Exact(value, error, largest, self.dtype)
        return whole.rounded(value, np.sum(error, axis=axis, keepdims=keepdims), 1, whole)

    def _arithmetic(self, operation: Any, other: Any, propagate: Any) -> Exact:
        other = self.lift(other)
        value = operation(np.asarray(self.value, np.float64), np.asarray(other.value, np.float64))
        return self.rounded(value, np.asarray(propagate(self, other)), 1, self, other)

    def _compare(self, operation: Any, other: Any) -> Exact:
        if not isinstance(other, Exact):
            other = self.lift(other)
            other = Exact(other.value, 0.0, 0.0, self.dtype)  # rounded first, then compared exactly
        doubt = np.asarray(self.error + other.error)
        close = (doubt > 0) & (np.abs(self.value - other.value) <= doubt)
        return self._mask(operation(self.value, other.value), close.astype(np.float64))

    def _mask(self, value: Array, error: Array) -> Exact:
        return Exact(np.asarray(value), error, np.zeros_like(error), self.dtype)


def _product_error(a: Exact, b: Exact) -> Array:
    # An exact zero stays one whatever it meets.
    left = np.where(b.error == 0, 0.0, np.abs(a.value) * b.error)
    right = np.where(a.error == 0, 0.0, np.abs(b.value) * a.error)
    both = np.where((a.error == 0) | (b.error == 0), 0.0, np.multiply(a.error, b.error))
    maybe_nan = _may_be_zero(a) & np.isinf(b.value) | _may_be_zero(b) & np.isinf(a.value)
    return np.where(maybe_nan, np.nan, left + right + both)


def _quotient_error(a: Exact, b: Exact) -> Array:
    # The divisor may be smaller by its error.
    nearest = np.abs(b.value) - b.error
    spread = np.abs(a.value / b.value) * b.error + a.error
    bound = np.where(spread == 0, 0.0, spread / nearest)
    return np.where(
        _may_be_zero(b), np.nan, np.where(nearest > 0, np.nan_to_num(bound, posinf=np.inf), 0.0)
    )


def _may_be_zero(x: Exact) -> Array:
    # An exact zero leaves no doubt.
    return (x.error > 0) & (np.abs(x.value) <= x.error)


def exact(array: Array) -> Exact:
    """Return an array of some float dtype as an Exact without error."""
    value = np.asarray(array).astype(np.float64)
    return Exact(value, np.zeros_like(value), np.abs(value), np.asarray(array).dtype)


def where(condition: Exact, a: Any, b: Any) -> Exact:
    """Return a or b; where the condition is in doubt, the error covers both."""
    like = a if isinstance(a, Exact) else b if isinstance(b, Exact) else condition
    a, b = like.lift(a), like.lift(b)
    error = np.where(condition.value, a.error, b.error)
    doubt = np.where(condition.error > 0, np.abs(a.value - b.value) + a.error + b.error, error)
    largest = np.where(condition.value, a.largest, b.largest)
    value = np.where(condition.value, a.value, b.value)
    return Exact(value, doubt, largest, like.dtype)


def maximum(a: Exact, b: Any) -> Exact:
    b = a.lift(b)
    # Intervals that do not overlap leave no doubt about the larger one.
    error = np.where(a.value - a.error > b.value + b.error, a.error, np.maximum(a.error, b.error))
    error = np.where(a.value + a.error < b.value - b.error, b.error, error)
    return Exact(np.maximum(a.value, b.value), error, np.fmax(a.largest, b.largest), a.dtype)


def minimum(a: Exact, b: Any) -> Exact:
    return -maximum(-a, -a.lift(b))


def sigmoid(x: Exact) -> Exact:
    return x.apply(special.expit)


def square(x: Exact) -> Exact:
    return x * x


def sign(x: Exact) -> Exact:
    return where(x > 0, 1.0, where(x < 0, -1.0, 0.0 * x))


def nowhere(x: Exact) -> Exact:
    return where(x > np.inf, 1.0, 0.0)


FORWARDS: dict[str, Callable[[Exact], Exact]] = {
    "Linear": lambda x: x,
    "ReLU": lambda x: maximum(x, 0.0),
    "ReLU6": lambda x: minimum(maximum(x, 0.0), 6.0),
    "LeakyReLU": lambda x: where(x >= 0, x, 0.01 * x),
    "ELU": lambda x: where(x > 0, x, x.apply(np.expm1)),
    "Tanh": lambda x: x.apply(np.tanh),
    "Logistic": sigmoid,
    "SiLU": lambda x: x * sigmoid(x),
    "GELU": lambda x: x * (0.5 * (-(0.5**0.5) * x).apply(special.erfc)),
    "Softplus": lambda x: maximum(x, 0.0) + (-abs(x)).apply(np.exp).apply(np.log1p),
    "Heaviside": lambda x: where(x > 0, 1.0, 0.0),
    "Sign": sign,
    "Round": lambda x: replace(x, value=np.rint(x.value)),
    "Floor": lambda x: replace(x, value=np.floor(x.value)),
    "Ternary": lambda x: where(abs(x) > 0.05, sign(x), 0.0 * x),
}
# Tests of rules under activations take Heaviside for all of these, whose numbers rules do not
# change.
STEPS = ("Sign", "Round", "Floor", "Ternary")
UNDER_RULES = [name for name in FORWARDS if name not in STEPS]
DERIVATIVES: dict[str, Callable[[Exact], Exact]] = {
    "Linear": lambda x: x - x + 1.0,
    "ReLU": FORWARDS["Heaviside"],
    "ReLU6": lambda x: where((x > 0) & (x < 6), 1.0, 0.0),
    "LeakyReLU": lambda x: where(x > 0, 1.0, 0.01),
    "ELU": lambda x: where(x > 0, 1.0, x.apply(np.exp)),
    "Tanh": lambda x: 1.0 - square(x.apply(np.tanh)),
    "Logistic": lambda x: sigmoid(x) * (1.0 - sigmoid(x)),
    "SiLU": lambda x: sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x))),
    "GELU": lambda x: (
        0.5 * (1.0 + (0.5**0.5 * x).apply(special.erf))
        + x * ((-0.5 * x * x).apply(np.exp) * (2 * np.pi) ** -0.5)
    ),
    "Softplus": sigmoid,
    "Heaviside": nowhere,
    **dict.fromkeys(STEPS, nowhere),
}


# --- the rules, from their formulas ---------------------------------------------------------------


@dataclass(frozen=True)
class Draws:
    """The random numbers of one application, as arrays of the shape and dtype of the gradient."""

    key: tuple[int, int]
    like: Array

    def uniform(self) -> Exact:
        return exact(uniform(self.key, self.like.size, self.like.dtype).reshape(self.like.shape))

    def normal(self) -> Exact:
        """Return sqrt(2) erfinv(2u - 1), with u moved by half a step."""
        wide = FLOAT64 if self.like.dtype == FLOAT64 else FLOAT32
        half_step = 2.0**-53 if wide == FLOAT64 else 2.0**-24
        u = uniform(self.key, self.like.size, wide).astype(np.float64)
        value = 2**0.5 * special.erfinv((2 * u - 1) + half_step).reshape(self.like.shape)
        # jax.random.normal's polynomial, which all backends share, is up to 90 ulp off in float32.
        off = np.abs(value) * (16 if wide == FLOAT64 else 90)
        draw = Exact(value, off * float(finfo(wide).eps), off, self.like.dtype)
        return draw.apply(np.positive, 1)


def jam(g: Exact, draws: Draws, inside: Exact | None) -> Exact:
    u = draws.uniform()
    return g * (u if inside is None else where(inside, u, 0.0))


RULES: dict[str, Callable[..., Exact]] = {
    "d(Linear)": lambda g, x, draws: g,
    "straight_through": lambda g, x, draws: g,
    "pass": lambda g, x, draws: g,
    "guided": lambda g, x, draws: maximum(g, 0.0) * (x > 0),
    "deconvnet": lambda g, x, draws: maximum(g, 0.0),
    "beta_smooth": lambda g, x, draws, beta=10.0: g * sigmoid(beta * x),
    "d(ReLU)": lambda g, x, draws: g * (x > 0),
    "rectangular": lambda g, x, draws, a=-0.5, b=0.5: g * ((x >= a) & (x <= b)),
    "clipped_straight_through": lambda g, x, draws, clip=1.0: g * (abs(x) <= clip),
    "triangular": lambda g, x, draws, width=1.0: g * maximum(1.0 - abs(x) / max(width, 1e-6), 0.0),
    "arctan": lambda g, x, draws, alpha=2.0: (
        g * (alpha / 2 / (1.0 + square(x * (np.pi * alpha / 2))))
    ),
    "fast_sigmoid": lambda g, x, draws, slope=25.0: g / square(1.0 + slope * abs(x)),
    "sigmoid_surrogate": lambda g, x, draws, alpha=4.0: (
        g * (alpha * (sigmoid(alpha * x) * sigmoid(-alpha * x)))
    ),
    "scale": lambda g, x, draws, s=1.0: g * s,
    "gradient_reversal": lambda g, x, draws, alpha=1.0: -alpha * g,
    "clip_norm": lambda g, x, draws, max_norm=1.0, eps=1e-12: (
        g * minimum(max_norm / maximum(square(g).sum().apply(np.sqrt), eps), 1.0)
    ),
    "centralize": lambda g, x, draws, dim=-1, keepdim=True: (
        g - g.sum(axis=dim, keepdims=True) / (g.value.shape[dim] if g.value.ndim else 1)
    ),
    "noise": lambda g, x, draws, sigma=0.1: g + sigma * draws.normal(),
    "full_jam": lambda g, x, draws: jam(g, draws, None),
    "positive_jam": lambda g, x, draws: jam(g, draws, x >= 0),
    "rectangular_jam": lambda g, x, draws, a=-5.0, b=5.0: jam(g, draws, (x >= a) & (x <= b)),
}


LIBRARY = tuple(sorted(RULES))  # not xg.rules(): other tests register their own


LARGE = 300.0


def settings(rule: xg.Rule) -> list[dict[str, Any]]:
    """Return two settings of a rule's params other than its defaults, within their ranges: in the
    second the signs of floats change, or the floats are 0, where the ranges permit it.
    """
    found: list[dict[str, Any]] = []
    for turn in (0, 1):
        params = dict(rule.params)
        for i, (name, default) in enumerate(rule.params.items()):
            for other in _other_values(default, i, turn):
                with suppress(xg.RuleError):  # out of range
                    rule.with_params(**params | {name: other})
                    params[name] = other
                    break
        if params != rule.params:
            found.append(params)
    floats = {name: value for name, value in rule.params.items() if isinstance(value, float)}
    fixed = [name for name in floats if all(each[name] == floats[name] for each in found)]
    assert not fixed, f"{rule.name}: FACTORS of {__name__} give no other {fixed} in its range"
    return found


def large(rule: xg.Rule) -> list[dict[str, Any]]:
    """Return a setting whose floats have squares beyond float16, where their ranges permit it."""
    params = dict(rule.params)
    for name in (name for name, value in params.items() if isinstance(value, float)):
        with suppress(xg.RuleError):
            rule.with_params(**params | {name: LARGE})
            params[name] = LARGE
    return [] if params == rule.params else [params]


def _other_values(default: Any, i: int, turn: int) -> tuple[Any, ...]:
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return (default + 1,)
    if not isinstance(default, float):
        return ()
    one, other = (factor * (default or 1.0) for factor in FACTORS[i : i + 2])
    return (-one, 0.0, other) if turn else (one, other)


def edge_values(dtype: Any, *thresholds: float) -> Array:
    """Return signed zeros, infinities, NaN, ends of the range, thresholds and their neighbors."""
    info = finfo(dtype)
    tiny, top = float(info.smallest_normal), float(info.max)
    values = [
        0.0,
        np.inf,
        np.nan,
        tiny,
        4 * tiny,
        top,
        0.7 * top,
        top**0.5 / 3,
        1e-3,
        20.0,
        88.0,
        1e4,
    ]
    marks = np.array([0.5, 1.0, 2.0, 5.0, 6.0, *thresholds]).astype(dtype)
    near = np.concatenate([np.nextafter(marks, np.asarray(end, dtype)) for end in (0, np.inf)])
    positive = np.concatenate([np.array(values).astype(dtype), marks, near])
    return np.concatenate([positive, -positive])


def subnormals(dtype: Any) -> Array:
    """Return the smallest number and the largest subnormal one, of both signs."""
    info = finfo(dtype)
    least, tiny = float(info.smallest_subnormal), float(info.smallest_normal)
    return np.array([least, tiny - least, -least, least - tiny]).astype(dtype)


def spread(shape: Any, dtype: Any, seed: int = 0, width: float = 2.0) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * width).astype(dtype)


def assert_same_numbers(
    actual: Array, expected: Exact, what: str, within_design: bool = True, tin: Array | None = None
) -> None:
    """Check dtype, shape, infinities and NaN exactly, and every number within its bound; `tin` is
    shown where they differ.

    The bound is the smaller of two: what rounding each operation can do, and 4 eps times the
    largest intermediate value (`within_design`; without it, masks may be in doubt).
    """
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, not {expected.dtype}"
    assert actual.shape == np.shape(expected.value), f"{what}: {actual.shape}"
    got, want = np.asarray(actual, np.float64), np.asarray(expected.value, np.float64)
    limit = np.asarray(expected.error)
    if within_design:
        cap = 4 * float(finfo(expected.dtype).eps) * expected.largest + slack(expected.dtype)
        limit = np.where(np.isinf(limit), limit, np.minimum(limit, cap))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        wrong = ~(same | (np.abs(got - want) <= limit) | np.isinf(limit))
    if np.any(wrong):
        bound = np.broadcast_to(limit, got.shape)
        where_ = [tuple(map(int, index)) for index in np.argwhere(wrong)[:5]]
        places = where_ if tin is None else [f"at tin = {tin[i]}" for i in where_]
        rows = [
            f"{place}: {got[i]}, expected {want[i]} +- {bound[i]:.3g}"
            for place, i in zip(places, where_, strict=True)
        ]
        raise AssertionError(f"{what}: {wrong.sum()} of {wrong.size} differ\n" + "\n".join(rows))


def threefry(key: tuple[int, int], x: int, y: int) -> tuple[int, int]:
    """Return the words of Threefry-2x32 with 20 rounds (Salmon et al., 2011)."""
    mask = 0xFFFFFFFF
    words = (*key, 0x1BD11BDA ^ key[0] ^ key[1])
    x, y = (x + words[0]) & mask, (y + words[1]) & mask
    for i in range(20):
        bits = ((13, 15, 26, 6), (17, 29, 16, 24))[i // 4 % 2][i % 4]
        x = (x + y) & mask
        y = ((y << bits | y >> (32 - bits)) & mask) ^ x
        # A rotation after each round, a key injection after every fourth.
        if i % 4 == 3:
            n = i // 4 + 1
            x, y = (x + words[n % 3]) & mask, (y + words[(n + 1) % 3] + n) & mask
    return x, y


def fold_in(key: tuple[int, int], n: int) -> tuple[int, int]:
    return threefry(key, 0, n)


def uniform(key: tuple[int, int], size: int, dtype: Any) -> Array:
    """Return uniforms in [0, 1) as jax.random.uniform draws them: mantissa bits below a one."""
    words = [threefry(key, 0, i) for i in range(size)]
    if dtype == np.float64:
        return np.array([(x << 32 | y) >> 12 for x, y in words], np.float64) * 2.0**-52
    # 32-bit words; float16 takes the low 16 bits of one, bfloat16 the low 8, and drops the lowest
    # of them.
    low, kept = {"float32": (32, 23), "float16": (16, 10), "bfloat16": (8, 7)}[np.dtype(dtype).name]
    bits = [((x ^ y) & ((1 << low) - 1)) >> (low - kept) for x, y in words]
    return (np.array(bits, np.float64) * 2.0**-kept).astype(dtype)
