"""The kinds of layers that have rules of their own, and what a rule over a layer is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ...functions.function import Function
from ...rules.model.rule import Rule

# What each computes, as its Function takes it; attributes are fixed, by keyword. `out` is last and
# may be left out: what the layer computed of the tensors before it, as a constant with regard to x
# (of `x.detach()`). It is returned as it is, and its own gradient is left to it, so that weights
# keep theirs.
#   linear(x, weight, bias, out): weight (in, out), bias (out,) or None; over the last axis of x
#   convolution(x, weight, bias, out, *, strides, padding, dilations, groups): layouts of `xp.conv`,
#       x (batch, channels, *lengths), weight (out, in / groups, *sizes); padding ((before, after),
#       ...) of zeros
#   convolution_transpose: the same with weight (in, out / groups, *sizes), padding of what comes
#       out, and `out` needed, whose shape says what is added to the ends
#   average_pooling(x, out, *, sizes, strides, padding, counts_padding): layouts as for convolution
#   adaptive_average_pooling(x, out, *, counts): as many windows on each of the last axes
#   addition(a, b, out), of shapes that broadcast
#   relu, activation (any other), max_pooling, batch_normalization: chosen by composites, with a
#       rule that reads no weights
# A batch normalization that is merged makes one layer with the linear layer or convolution before
# it, of its kind and with its x, the weight and bias of `merge_batch_norm`, and out from itself.
KINDS = (
    "linear", "convolution", "convolution_transpose", "average_pooling",
    "adaptive_average_pooling", "max_pooling", "addition", "relu", "activation",
    "batch_normalization",
)  # fmt: skip
# What a composite says of the kind on the right holds for that on the left, where it says nothing
# of that.
PARTS_OF: Mapping[str, str] = MappingProxyType(
    {
        "relu": "activation",
        "convolution_transpose": "convolution",
        "adaptive_average_pooling": "average_pooling",
    }
)


class LayerRule(Protocol):
    """A rule that reads what its layer holds: relevance, for those kinds that have it.

    Attributes:
        name: what tables and messages call it.
    """

    @property
    def name(self) -> str: ...

    def over(self, kind: str, **attributes: Any) -> Function:
        """Return the layer's forward with this rule for its gradient, as a Function of the tensors
        that `KINDS` names; the same object for the same arguments.

        Raises:
            RuleTypeError: the rule has no meaning for that kind.
        """
        ...


def is_layer_rule(rule: Any) -> bool:
    """Return whether a rule reads what its layer holds; a `Rule` reads a gradient and an input."""
    return callable(getattr(rule, "over", None)) and not isinstance(rule, Rule)
