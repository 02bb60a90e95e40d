"""The kinds of layers that have rules of their own, and the protocol of a rule over a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Protocol

from ...errors import RuleTypeError
from ...functions.function import Function
from ...graph.support.class_bases import dataclass
from ...rules.model.rule import Rule


# The tensors of each kind's Function, and its attributes, which are fixed, by keyword. `out` is
# last and may be left out: the layer's output for the tensors before it, as a constant with regard
# to x (of `x.detach()`). It is returned unchanged and with its own gradient, so that weights keep
# theirs.
#   linear(x, weight, bias, out): weight (in, out), bias (out,) or None; over the last axis of x
#   convolution(x, weight, bias, out, *, strides, padding, dilations, groups): layouts of `xp.conv`,
#       x (batch, channels, *lengths), weight (out, in / groups, *sizes); padding ((before, after),
#       ...) of zeros
#   convolution_transpose: the same with weight (in, out / groups, *sizes), padding of what comes
#       out, and `out` needed, whose shape tells what is added to the ends
#   average_pooling(x, out, *, sizes, strides, padding, counts_padding): layouts as for convolution
#   adaptive_average_pooling(x, out, *, counts): as many windows on each of the last axes
#   addition(a, b, out), of shapes that broadcast
#   relu, activation (any other), max_pooling, batch_normalization: chosen by composites, with a
#       rule that reads no weights
# A batch normalization that is merged makes one layer with the linear layer or convolution before
# it, of its kind and with its x, the weight and bias of `merge_batch_norm`, and out from itself.
@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of layers.

    Attributes:
        part_of: the kind whose rule in a composite holds for this one, unless it has its own.
        channels: the axis of output channels in a weight; None: it has no weight.
        example: attributes as a layer of this kind may have them.
    """

    part_of: str | None = None
    channels: int | None = None
    example: Mapping[str, Any] = field(default_factory=dict)


_STEPS = {"strides": (1,), "padding": ((0, 0),), "dilations": (1,), "groups": 1}
_WINDOWS = {"sizes": (1,), "strides": (1,), "padding": ((0, 0),), "counts_padding": True}
KINDS: Mapping[str, LayerKind] = MappingProxyType(
    {
        "linear": LayerKind(channels=-1),
        "convolution": LayerKind(channels=0, example=_STEPS),
        "convolution_transpose": LayerKind("convolution", channels=1, example=_STEPS),
        "average_pooling": LayerKind(example=_WINDOWS),
        "adaptive_average_pooling": LayerKind("average_pooling", example={"counts": (1,)}),
        "max_pooling": LayerKind(),
        "addition": LayerKind(),
        "relu": LayerKind("activation"),
        "activation": LayerKind(),
        "batch_normalization": LayerKind(),
    }
)


def weight_axis(kind: str) -> int:
    """Return the axis of output channels in a weight, of a kind that has one."""
    channels = KINDS[kind].channels
    assert channels is not None
    return channels


def has_weight(kind: str | None) -> bool:
    return kind is not None and KINDS[kind].channels is not None


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


def has_meaning(rule: LayerRule, kind: str) -> bool:
    try:
        rule.over(kind, **KINDS[kind].example)
    except RuleTypeError:
        return False
    return True
