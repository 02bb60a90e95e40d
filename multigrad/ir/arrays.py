"""The op table, array family: reductions, shapes, random draws."""

from __future__ import annotations

from typing import Any

from . import array_meaning as meaning
from . import array_pullbacks as pullbacks
from .op import Op, drawn, expanded, integer, key, op, reduced, shaped_like_second

# --- reductions --------------------------------------------------------------------------------
AXIS = ("axis", "keepdims")


def reduction(name: str, numpy: Any, vjp: Any, doc: str, *attrs: str, coerce: str = "float") -> Op:
    """Declare a reduction over `axis` (int, tuple or None for all)."""
    return op(
        name, "x", attrs=(*AXIS, *attrs), coerce=coerce, numpy=numpy, vjp=vjp, doc=doc,
        result=reduced,
    )  # fmt: skip


SUM = reduction("sum", meaning.sum_, pullbacks.sum_, "The sum; 0 where there is nothing.")
MEAN = reduction("mean", meaning.mean, pullbacks.mean, "The mean; NaN where there is nothing.")
MAX = reduction("max", meaning.max_, pullbacks.extreme, "The largest; NaN propagates.")
MIN = reduction("min", meaning.min_, pullbacks.extreme, "The smallest; NaN propagates.")
ANY = reduction("any", meaning.any_, pullbacks.zero, "At least one.", coerce="bool")
ALL = reduction("all", meaning.all_, pullbacks.zero, "Every one.", coerce="bool")
NORM = reduction(
    "norm", meaning.norm, pullbacks.norm, "The Euclidean norm; inf where squares overflow."
)
VAR = reduction("var", meaning.var, pullbacks.var, "Variance; divides by n - correction.", "correction")  # fmt: skip
STD = reduction("std", meaning.std, pullbacks.std, "Standard deviation, as var.", "correction")

# --- shapes ------------------------------------------------------------------------------------
SUM_TO = op(
    "sum_to", "x like", numpy=meaning.sum_to, vjp=pullbacks.sum_to, coerce="raw",
    result=shaped_like_second, doc="x summed to the shape of `like` (undoes broadcasting).",
)  # fmt: skip
BROADCAST_TO = op(
    "broadcast_to", "x like", numpy=meaning.broadcast_to, vjp=pullbacks.broadcast_to, coerce="raw",
    result=shaped_like_second, doc="x repeated to the shape of `like`.",
)  # fmt: skip
EXPAND_DIMS = op(
    "expand_dims", "x", attrs=("axis",), numpy=meaning.expand_dims, vjp=pullbacks.expand_dims,
    coerce="raw", result=expanded, doc="A new axis of length 1.",
)  # fmt: skip
DIM = op(
    "dim", "x", attrs=("axis",), coerce="raw", numpy=meaning.dim, vjp=pullbacks.zero,
    result=integer, doc="The length of one axis, an integer known at run time.",
)  # fmt: skip
SIZE = op(
    "size", "x", coerce="raw", numpy=meaning.size, vjp=pullbacks.zero, result=integer,
    doc="The number of elements, an integer known at run time.",
)  # fmt: skip

# --- random draws: pure, the key is an operand ---------------------------------------------------
FOLD_IN = op(
    "fold_in", "key", attrs=("n",), coerce="raw", numpy=meaning.fold_in, vjp=pullbacks.zero,
    result=key, doc="The n-th key derived from a key.",
)  # fmt: skip
UNIFORM_LIKE = op(
    "uniform_like", "key x", coerce="raw", numpy=meaning.uniform_like, vjp=pullbacks.zero,
    result=drawn, doc="Uniform on [0, 1), of x's shape and dtype.", random=True,
)  # fmt: skip
NORMAL_LIKE = op(
    "normal_like", "key x", coerce="raw", numpy=meaning.normal_like, vjp=pullbacks.zero,
    result=drawn, doc="Standard normal, of x's shape and dtype.", random=True,
)  # fmt: skip
