"""The op table, array family: reductions, shapes, random draws."""

from __future__ import annotations

from typing import Any

from . import array_meaning as meaning
from . import array_pullbacks as pullbacks
from .op import (
    Op,
    contracted,
    drawn,
    expanded,
    integer,
    kept,
    key,
    multiplied,
    multiplied_last,
    op,
    reduced,
    reshaped,
    shaped_like_second,
)  # fmt: skip
from .types import UNKNOWN, Type

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
PROD = reduction("prod", meaning.prod, pullbacks.prod, "The product; 1 where there is nothing.")
COUNT_NONZERO = reduction(
    "count_nonzero", meaning.count_nonzero, pullbacks.zero, "How many are not 0, in x's dtype."
)
NORM = reduction(
    "norm", meaning.norm, pullbacks.norm,
    "The norm of order `ord` > 0 (2: Euclidean); inf where powers overflow.", "ord",
)  # fmt: skip
LOGSUMEXP = reduction(
    "logsumexp", meaning.logsumexp, pullbacks.logsumexp, "The log of the sum of exponentials."
)
VAR = reduction("var", meaning.var, pullbacks.var, "Variance; divides by n - correction.", "correction")  # fmt: skip
STD = reduction("std", meaning.std, pullbacks.std, "Standard deviation, as var.", "correction")

# --- the softmax family ------------------------------------------------------------------------
SOFTMAX = op(
    "softmax", "x", attrs=("axis",), numpy=meaning.softmax, vjp=pullbacks.softmax, result=kept,
    doc="Exponentials divided by their sum.",
)  # fmt: skip
LOG_SOFTMAX = op(
    "log_softmax", "x", attrs=("axis",), numpy=meaning.log_softmax, vjp=pullbacks.log_softmax,
    result=kept, doc="The log of softmax.",
)  # fmt: skip
GLU = op(
    "glu", "x", attrs=("axis",), numpy=meaning.glu, vjp=pullbacks.glu, result=reshaped,
    doc="The first half along an axis times the sigmoid of the second.",
)  # fmt: skip

# --- products ----------------------------------------------------------------------------------
MATMUL = op(
    "matmul", "a b", numpy=meaning.matmul, vjp=pullbacks.matmul, result=reshaped,
    doc="The product of matrices in the last two axes; vectors are taken too.",
)  # fmt: skip
MATMUL_LEFT = op(
    "matmul_left", "cotangent b like", numpy=meaning.matmul_left, vjp=pullbacks.matmul_left,
    result=multiplied, doc="The cotangent of the left operand of matmul, in its shape.",
)  # fmt: skip
MATMUL_RIGHT = op(
    "matmul_right", "a cotangent like", numpy=meaning.matmul_right, vjp=pullbacks.matmul_right,
    result=multiplied_last, doc="The cotangent of the right operand of matmul, in its shape.",
)  # fmt: skip
EINSUM = op(
    "einsum", "*arrays", attrs=("subscripts",), numpy=meaning.einsum, vjp=pullbacks.einsum,
    result=contracted, doc="A sum of products over named axes, as 'ij,jk->ik'.",
)  # fmt: skip

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


# --- constants -----------------------------------------------------------------------------------
def of_dtype(like: Type, *, dtype: str, value: Any) -> Type:
    return Type("tensor", dtype, UNKNOWN)


ARRAY = op(
    "array", "like", attrs=("dtype", "value"), numpy=meaning.array, vjp=pullbacks.zero, coerce="raw",
    result=of_dtype, doc="A constant array in the given dtype, on the device of `like`.",
)  # fmt: skip


def draw(name: str, operands: str, numpy: Any, doc: str) -> Op:
    """Declare a random draw of x's shape and dtype."""
    return op(
        name, operands, coerce="raw", numpy=numpy, vjp=pullbacks.zero, result=drawn, doc=doc,
        random=True,
    )  # fmt: skip


BERNOULLI_LIKE = draw("bernoulli_like", "key x p", meaning.bernoulli_like, "1 with probability p, else 0.")  # fmt: skip
RADEMACHER_LIKE = draw("rademacher_like", "key x", meaning.rademacher_like, "1 or -1.")
EXPONENTIAL_LIKE = draw("exponential_like", "key x", meaning.exponential_like, "Exponential with mean 1.")  # fmt: skip
GUMBEL_LIKE = draw("gumbel_like", "key x", meaning.gumbel_like, "Standard Gumbel.")
