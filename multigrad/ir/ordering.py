"""The op table, ordering family: cumulative ops, sorting, masks of the largest, quantiles.

What would be an index elsewhere is a mask or a permutation here, so that every value keeps its input's shape.
NaN counts as larger than every number; among equal values the one with the lower index comes first.
"""

from __future__ import annotations

from typing import Any

from . import order_meaning as meaning
from . import order_pullbacks as pullbacks
from .op import Op, held, kept, masked, op, reduced, reordered


def cumulative(name: str, numpy: Any, vjp: Any, doc: str, *attrs: str) -> Op:
    """Declare an op along one axis that keeps the shape."""
    return op(
        name, "x", attrs=("axis", *attrs), numpy=numpy, vjp=vjp, doc=doc, result=kept
    )  # fmt: skip


CUMSUM = cumulative("cumsum", meaning.cumsum, pullbacks.cumsum, "The sum of each element and those before it (`reverse`: after it).", "reverse")  # fmt: skip
CUMPROD = cumulative("cumprod", meaning.cumprod, pullbacks.cumprod, "The product of each element and those before it.")  # fmt: skip
CUMMAX = cumulative("cummax", meaning.cummax, pullbacks.cumulative_extreme, "The largest so far; NaN from the first NaN on.")  # fmt: skip
CUMMIN = cumulative("cummin", meaning.cummin, pullbacks.cumulative_extreme, "The smallest so far; NaN from the first NaN on.")  # fmt: skip
HOLD = op(
    "hold", "x mask", attrs=("axis",), coerce="raw", numpy=meaning.hold, vjp=pullbacks.hold,
    result=held, doc="The last value at which the mask held; 0 before the first.",
)  # fmt: skip
UNHOLD = op(
    "unhold", "x mask", attrs=("axis",), coerce="raw", numpy=meaning.unhold, vjp=pullbacks.unhold,
    result=held, doc="Sums from each place where the mask holds to the next; 0 elsewhere.",
)  # fmt: skip

# --- sorting -----------------------------------------------------------------------------------
SORT = cumulative("sort", meaning.sort, pullbacks.sort, "Sorted along an axis, stable; NaN is the largest.", "descending")  # fmt: skip
SORT_LIKE = op(
    "sort_like", "values x", attrs=("axis", "descending"), coerce="raw", numpy=meaning.sort_like,
    vjp=pullbacks.sort_like, result=reordered, doc="Values in the order that sorts x.",
)  # fmt: skip
UNSORT = op(
    "unsort", "values x", attrs=("axis", "descending"), coerce="raw", numpy=meaning.unsort,
    vjp=pullbacks.unsort, result=reordered, doc="Values in the order of sorted x, put back.",
)  # fmt: skip


def mask(name: str, numpy: Any, doc: str, *attrs: str) -> Op:
    """Declare a mask over x's elements."""
    return op(
        name, "x", attrs=("axis", *attrs), numpy=numpy, vjp=pullbacks.zero, doc=doc, result=masked
    )


ARGMAX_MASK = mask("argmax_mask", meaning.argmax_mask, "True at the first of the largest; NaN is larger.")  # fmt: skip
ARGMIN_MASK = mask("argmin_mask", meaning.argmin_mask, "True at the first of the smallest; NaN is smaller.")  # fmt: skip
TOP_K_MASK = mask("top_k_mask", meaning.top_k_mask, "True at the k largest, all where there are fewer.", "k")  # fmt: skip

# --- quantiles ---------------------------------------------------------------------------------
MEDIAN = op(
    "median", "x", attrs=("axis", "keepdims"), numpy=meaning.median, vjp=pullbacks.median,
    result=reduced, doc="The middle value, the mean of two; NaN propagates.",
)  # fmt: skip
QUANTILE = op(
    "quantile", "x", attrs=("axis", "keepdims", "q"), numpy=meaning.quantile,
    vjp=pullbacks.quantile, result=reduced, doc="The q-quantile, linear between neighbors; NaN propagates.",
)  # fmt: skip
QUANTILE_WEIGHTS = op(
    "quantile_weights", "x", attrs=("axis", "q"), numpy=meaning.quantile_weights,
    vjp=pullbacks.zero, result=kept, doc="What each element contributes to the q-quantile.",
)  # fmt: skip
