"""Elementwise functions under the names that other libraries give them: tensor methods, NumPy's and SciPy's ufuncs.

SciPy's are known once the rule's author has imported `scipy.special`; nothing here imports it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..ir import neutral
from ..ir.record import cast

Tensor = Any
Handler = Callable[..., Any]


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """torch limits x to [eps, 1 - eps] first, where eps is given."""
    return neutral.logit(x if eps is None else neutral.clip(x, eps, 1.0 - eps))


def gammaln(x: Tensor) -> Tensor:
    """SciPy's is -inf at -inf, where C's is inf."""
    return neutral.where(neutral.equal(x, -math.inf), -math.inf, neutral.lgamma(x))


def polygamma(x: Tensor, n: int) -> Tensor:
    return neutral.polygamma(n, x)


def nan_to_num(x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    return neutral.nan_to_num(x, 0.0 if nan is None else nan, posinf, neginf)


def to_int32(x: Tensor) -> Tensor:
    return cast(x, "int32")


METHODS: dict[str, Handler] = {
    "acos": neutral.acos, "acosh": neutral.acosh, "arccos": neutral.acos, "arccosh": neutral.acosh,
    "arcsin": neutral.asin, "arcsinh": neutral.asinh, "arctan2": neutral.atan2,
    "arctanh": neutral.atanh, "asin": neutral.asin, "asinh": neutral.asinh, "atan2": neutral.atan2,
    "atanh": neutral.atanh, "bitwise_and": neutral.bitwise_and,
    "bitwise_left_shift": neutral.bitwise_left_shift, "bitwise_not": neutral.bitwise_invert,
    "bitwise_or": neutral.bitwise_or, "bitwise_right_shift": neutral.bitwise_right_shift,
    "bitwise_xor": neutral.bitwise_xor, "copysign": neutral.copysign, "cosh": neutral.cosh,
    "deg2rad": neutral.deg2rad, "digamma": neutral.digamma, "erfc": neutral.erfc,
    "erfinv": neutral.erfinv, "exp2": neutral.exp2, "floor_divide": neutral.floor_divide,
    "fmax": neutral.fmax, "fmin": neutral.fmin, "fmod": neutral.fmod, "frac": neutral.frac,
    "hypot": neutral.hypot, "int": to_int32, "lerp": neutral.lerp, "lgamma": neutral.lgamma,
    "log10": neutral.log10, "log2": neutral.log2, "logaddexp": neutral.logaddexp, "logit": logit,
    "nan_to_num": nan_to_num, "polygamma": polygamma, "rad2deg": neutral.rad2deg,
    "remainder": neutral.remainder, "signbit": neutral.signbit, "sinc": neutral.sinc,
    "sinh": neutral.sinh, "tan": neutral.tan, "xlogy": neutral.xlogy,
}  # fmt: skip

UFUNCS: dict[Any, Handler] = {
    np.floor_divide: neutral.floor_divide, np.remainder: neutral.remainder, np.fmod: neutral.fmod,
    np.fmax: neutral.fmax, np.fmin: neutral.fmin, np.copysign: neutral.copysign,
    np.signbit: neutral.signbit, np.hypot: neutral.hypot, np.cbrt: neutral.cbrt,
    np.exp2: neutral.exp2, np.log2: neutral.log2, np.log10: neutral.log10,
    np.logaddexp: neutral.logaddexp, np.tan: neutral.tan, np.arcsin: neutral.asin,
    np.arccos: neutral.acos, np.arctan2: neutral.atan2, np.sinh: neutral.sinh,
    np.cosh: neutral.cosh, np.arcsinh: neutral.asinh, np.arccosh: neutral.acosh,
    np.arctanh: neutral.atanh, np.deg2rad: neutral.deg2rad, np.radians: neutral.deg2rad,
    np.rad2deg: neutral.rad2deg, np.degrees: neutral.rad2deg, np.sinc: neutral.sinc,
    np.bitwise_and: neutral.bitwise_and, np.bitwise_or: neutral.bitwise_or,
    np.bitwise_xor: neutral.bitwise_xor, np.invert: neutral.bitwise_invert,
    np.left_shift: neutral.bitwise_left_shift, np.right_shift: neutral.bitwise_right_shift,
}  # fmt: skip

SCIPY: dict[str, Handler] = {
    "cbrt": neutral.cbrt, "erf": neutral.erf, "erfc": neutral.erfc, "erfinv": neutral.erfinv,
    "exp2": neutral.exp2, "expit": neutral.sigmoid, "expm1": neutral.expm1,
    "gammaln": gammaln, "log1p": neutral.log1p, "log_expit": neutral.log_sigmoid,
    "log_ndtr": neutral.log_ndtr, "logit": neutral.logit, "ndtr": neutral.ndtr,
    "ndtri": neutral.ndtri, "psi": neutral.digamma, "xlog1py": neutral.xlog1py,
    "xlogy": neutral.xlogy,
}  # fmt: skip


class WithSciPy(Mapping[Any, Handler]):
    """NumPy's aliases, and those of scipy.special where it is imported."""

    def __init__(self, aliases: Mapping[Any, Handler]) -> None:
        self.aliases = aliases

    def __getitem__(self, function: Any) -> Handler:
        known = self.aliases.get(function)
        if known is not None:
            return known
        special = sys.modules.get("scipy.special")
        name = getattr(function, "__name__", "")
        if special is None or getattr(special, name, None) is not function:
            raise KeyError(function)
        return SCIPY[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.aliases)

    def __len__(self) -> int:
        return len(self.aliases)
