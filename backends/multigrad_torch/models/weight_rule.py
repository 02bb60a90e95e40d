"""A rule that reads weights, over one call: it gets the call's tensors as a layer of a known kind.

A batch normalization may be merged with the layer before it (`call_merged`): that layer's output
carries its call in an attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.errors import RuleValueError
from multigrad.models.attribution.kinds import LayerRule
from multigrad.models.gradient_replacement import named

from .. import dynamo
from .layer_kinds import OPERATIONS, CallOfLayer
from .traced_code import KEYED, is_compiling, key_of, may_have_gradient, refuse_symbols, version_of

Tensor: TypeAlias = torch.Tensor
Call = Callable[..., Any]
# Attribute of a tensor with what a batch normalization needs from the layer that made it.
MERGES = "_multigrad_merges"


class WeightRule:
    """A rule that reads weights, for calls of operations of the kinds that it knows.

    Args:
        merges: whether a batch normalization after the layer may be merged with it.
    """

    def __init__(self, rule: LayerRule, merges: bool = False) -> None:
        self.rule = rule
        self.name = named(rule)
        self.merges = merges
        self.key = key_of(self)

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operation under the rule; with its own gradient where the rule has no meaning."""
        read = OPERATIONS[name].read
        refuse_symbols(name, args[0] if args else kwargs.get("input"))
        given = {key: value for key, value in kwargs.items() if key != "out"}
        taken = read(*args, **given) if read is not None and len(given) == len(kwargs) else None
        if taken is None or not any(map(may_have_gradient, taken.inputs)):
            return func(*args, **kwargs)
        first, *others = taken.inputs

        def forward(*inputs: Tensor) -> Tensor:
            if "input" in kwargs:
                return func(*inputs[1:], **{**kwargs, "input": inputs[0]})
            if len(others) and len(args) < 2:
                return func(inputs[0], **{**kwargs, "other": inputs[1]})
            return func(*inputs, *args[len(inputs) :], **kwargs)

        if not in_place:
            return self.over(taken, forward(*(each.detach() for each in taken.inputs)))
        # The operation overwrites x, but the rule needs its value.
        kept = first.clone()
        own = replace(taken, inputs=(kept, *others))
        out = forward(kept.detach().clone(), *(each.detach() for each in others))
        setattr(first, MERGES, None)
        return first.copy_(self.over(own, out))

    def over(self, taken: CallOfLayer, out: Tensor) -> Tensor:
        """Return a layer's output with the rule's gradient for its inputs."""
        inputs, output, shape = taken.inputs, out, out.shape
        if taken.is_single:
            inputs, output = tuple(each[None] for each in inputs), out[None]
        elif taken.shape is not None:
            output = out.reshape(taken.shape)
        if is_compiling():
            name = make_function(self.key, taken.kind, tuple(taken.attributes.items()))
            function = getattr(FUNCTIONS, name)
        else:
            function = self.rule.over(taken.kind, **taken.attributes)
        # A Function that returns its input returns a view, which must not be written to: hence a
        # clone.
        result = function(*inputs, *taken.params, output).clone().reshape(shape)
        if self.merges:
            setattr(result, MERGES, MergedCall(taken, out, version_of(result)))
        return result


class Functions:
    """A namespace of Functions. Dynamo guards each attribute, but of a dict only the first keys."""


FUNCTIONS = Functions()


@dynamo.assume_constant_result
def make_function(key: str, kind: str, attributes: tuple[tuple[str, Any], ...]) -> str:
    """Make a rule's Function, which Dynamo cannot trace; return its name in FUNCTIONS."""
    function = KEYED[key].rule.over(kind, **dict(attributes))
    name = f"function_{function.identifier}"
    setattr(FUNCTIONS, name, function)
    return name


# --- merged batch normalizations -----------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MergedCall:
    """A layer's call and output, for a batch normalization that is merged with it.

    `version` is that of the output: a write into it since then means that nothing is merged.
    """

    call: CallOfLayer
    out: Tensor
    version: int


def call_merged(rule: WeightRule, module: Any, method: Call, x: Any) -> Tensor | None:
    """Return the output of a batch normalization merged with the layer before it, or None."""
    merging = getattr(x, MERGES, None)
    # The input is not the last output of that layer.
    if merging is None or merging.version != version_of(x):
        return None
    if module.training or module.running_mean is None:
        raise RuleValueError(
            "a batch normalization can be merged where it uses its running statistics: call "
            "model.eval() first, or make the composite with canonize=False"
        )
    taken = merging.call
    if taken.kind == "convolution_transpose" and taken.attributes["groups"] != 1:
        return None
    statistics = module.running_mean, module.running_var, module.weight, module.bias
    own = taken.merged(*statistics, epsilon=module.eps)
    with torch._C.DisableTorchFunction():
        return rule.over(own, method(module, merging.out))
