"""Elementwise functions under other libraries' names: tensor methods, SciPy's ufuncs.

SciPy's are known once the rule's author has imported `scipy.special`; nothing here imports it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from ...graph.ir.types import is_float
from ...trace.trace import Value, copy_of
from ...trace.xp import all as xp
from ..code.names import spelled, written
from ..meanings import composites
from ..meanings.matrices import scipy

Tensor = Any
Handler = Callable[..., Any]


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """torch limits x to [eps, 1 - eps] first, where eps is given."""
    if eps is None:
        return xp.logit(x)
    limited = xp.clip(x, eps, 1.0 - eps)
    if eps:
        return xp.logit(limited)
    outside = xp.not_equal(x, limited) & ~xp.isnan(x)  # where no gradient meets an infinite slope
    return xp.where(
        outside, xp.logit(xp.stop_gradient(limited)), xp.logit(xp.where(outside, 0.5, x))
    )


def gammaln(x: Tensor) -> Tensor:
    """SciPy's is -inf at -inf, where C's is inf."""
    return xp.where(xp.equal(x, -math.inf), -math.inf, xp.lgamma(x))


def is_whole(x: Any) -> bool:
    """Return whether something is of integers or bools."""
    if isinstance(x, Value):
        return not is_float(x.node.type)
    return isinstance(x, int) or "int" in str(getattr(x, "dtype", ""))


def quotient(x: Tensor, other: Any, floor_divide: Any = xp.floor_divide) -> Tensor:
    """The quotient of integers, rounded towards zero."""
    below = floor_divide(x, other)  # not that of absolute values: the least integer has none
    is_off = xp.logical_and(xp.less(below, 0), xp.not_equal(below * other, x))
    return xp.where(is_off, below + 1, below)


def nan_to_num(x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    if is_whole(x):
        return copy_of(x)
    return xp.nan_to_num(x, 0.0 if nan is None else nan, posinf, neginf)


def hard_shrink(x: Tensor, lambd: Any = 0.5) -> Tensor:
    """Zero within lambd of zero, which 16 bits round before they are compared; ours does not."""
    if is_short(lambd):
        return xp.hard_shrink(x, lambd)
    return xp.where((x >= -lambd) & (x <= lambd), 0.0, x)


def is_above(x: Tensor, number: Any) -> Tensor:
    """Return where x lies above a number that 16 bits do not round before they are compared."""
    if is_short(number) or isinstance(number, Value):
        return x > number
    return xp.greater(xp.threshold(x, number, -math.inf), -math.inf)


def is_short(number: Any) -> bool:
    """Return whether a number is the same in 16 bits of either kind, which have eight digits."""
    if type(number) not in (int, float) or not (number == 0 or 2**-14 <= abs(number) < 2**15):
        return False
    return math.frexp(number)[0] * 256 % 1 == 0


METHODS: dict[str, Handler] = {
    **spelled("""
        fmax; fmin; copysign; frac; floor_divide; remainder; fmod; hypot; atan2: arctan2 atan2;
        lerp; exp2; log2; log10; logaddexp; xlogy; tan; asin: arcsin asin; acos: acos arccos;
        deg2rad; rad2deg; sinh; cosh; asinh: arcsinh asinh; acosh: acosh arccosh;
        atanh: arctanh atanh; erfc; erfinv; lgamma; digamma; sinc; signbit; bitwise_and; bitwise_or;
        bitwise_xor; bitwise_invert: bitwise_not; bitwise_left_shift; bitwise_right_shift;
        nextafter
    """),
    "logit": logit,
    "nan_to_num": nan_to_num,
    **written({composites: "polygamma(x, n): polygamma"}),
}

SCIPY: dict[str, Handler] = {
    **spelled("""
        cbrt; expm1; exp2; log1p; xlogy; xlog1py; erf; erfc; erfinv; ndtr; ndtri; log_ndtr;
        digamma: psi; i0e; i1e; sigmoid: expit; log_sigmoid: log_expit; logit
    """),
    "entr": composites.entr,
    "gammaln": gammaln,
    "rel_entr": composites.rel_entr,
}


def of_scipy(function: Any) -> Handler:
    """Return what a function of scipy.special or scipy.linalg records, where it is imported.

    Raises:
        KeyError: it is none of them.
    """
    special = sys.modules.get("scipy.special")
    name = getattr(function, "__name__", "")
    if special is None or getattr(special, name, None) is not function:
        return scipy.functions()[function]
    return SCIPY[name]


def clamp_stopping(x: Any, low: Any, high: Any) -> Any:
    """Limited on one side or both, by a gradient that passes inside of the limits alone."""
    above = x if low is None else xp.where(x <= low, low, x)
    return above if high is None else xp.where(above >= high, high, above)
