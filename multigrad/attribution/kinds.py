"""The kinds of layers that have rules of their own, and what a rule over a layer is."""

from __future__ import annotations

from typing import Any, Protocol

from ..functions.function import Function

# What each computes, as its Function takes it. Attributes are fixed, by keyword.
#   linear(x, weight, bias): weight (in, out), bias (out,) or None; over the last axis of x
#   convolution(x, weight, bias, *, strides, padding, dilations, groups): layouts of `xp.conv`, x
#       (batch, channels, *lengths), weight (out, in / groups, *sizes); padding ((before, after),
#       ...) of zeros
#   average_pooling(x, *, sizes, strides, padding, counts_padding): layouts as for convolution
#   addition(a, b), of equal shapes
#   activation, normalization, max_pooling: chosen by composites, with a rule that reads no weights
KINDS = (
    "linear", "convolution", "average_pooling", "max_pooling", "addition", "activation",
    "normalization",
)  # fmt: skip


class LayerRule(Protocol):
    """A rule that reads what its layer holds: relevance, for those kinds that have it.

    Attributes:
        name: what tables and messages call it.
    """

    name: str

    def over(self, kind: str, **attributes: Any) -> Function:
        """Return the layer's forward with this rule for its gradient, as a Function of the tensors
        that `KINDS` names; the same object for the same arguments.

        Raises:
            RuleTypeError: the rule has no meaning for that kind.
        """
        ...
