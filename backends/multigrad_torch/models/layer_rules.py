"""Rules that read what a layer holds, on the calls that are that layer."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from multigrad.errors import RuleTypeError, RuleValueError
from multigrad.models.attribution.kinds import LayerRule, has_meaning, is_layer_rule, weight_axis
from multigrad.models.attribution.layers import merge_batch_norm
from multigrad.models.handle import named

from .. import dynamo
from .layer_kinds import OPERATIONS, CallOfLayer
from .rule_over import MERGES, PlainRule, is_compiling, may_have_gradient, refuse_symbols

Tensor: TypeAlias = torch.Tensor
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Merging:
    """What a layer computed, for a batch normalization that is merged with it."""

    call: CallOfLayer
    out: Tensor
    version: int


_keys = itertools.count()
RULES: weakref.WeakValueDictionary[str, WeightRule] = weakref.WeakValueDictionary()


class Functions:
    """Functions of layers, as attributes: of a dict Dynamo knows only its first keys."""


FUNCTIONS = Functions()


@dynamo.assume_constant_result
def make_function(key: str, kind: str, attributes: tuple[tuple[str, Any], ...]) -> str:
    """Make a rule's Function, which Dynamo cannot read; return its name among FUNCTIONS."""
    function = RULES[key].rule.over(kind, **dict(attributes))
    name = f"function_{function.identifier}"
    setattr(FUNCTIONS, name, function)
    return name


class WeightRule:
    """A rule that reads weights, for calls of operations of the kinds that it knows."""

    def __init__(self, rule: LayerRule, merges: bool = False) -> None:
        self.rule = rule
        self.name = named(rule)
        self.merges = merges
        self.key = f"weights_{next(_keys)}"
        RULES[self.key] = self

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operation with this rule for its gradient."""
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
        kept = first.clone()
        own = CallOfLayer(taken.kind, (kept, *others), taken.params, taken.attributes)
        out = forward(kept.detach().clone(), *(each.detach() for each in others))
        setattr(first, MERGES, None)
        return first.copy_(self.over(own, out))

    def over(self, taken: CallOfLayer, out: Tensor) -> Tensor:
        """Return what a layer computed, with the rule's gradient for its inputs."""
        inputs, given, shape = taken.inputs, out, out.shape
        if taken.is_single:
            inputs, given = tuple(each[None] for each in inputs), out[None]
        elif taken.shape is not None:
            given = out.reshape(taken.shape)
        if is_compiling():
            name = make_function(self.key, taken.kind, tuple(taken.attributes.items()))
            function = getattr(FUNCTIONS, name)
        else:
            function = self.rule.over(taken.kind, **taken.attributes)
        # What a Function returns of its inputs is a view of it, which none may write into.
        result = function(*inputs, *taken.params, given).clone().reshape(shape)
        if self.merges:
            setattr(result, MERGES, Merging(taken, out, version_of(result)))
        return result


class OwnGradient:
    """No rule: a call keeps its own gradient, whatever the model around says of such calls."""

    name = "own"

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operation as it is."""
        return func(*args, **kwargs)


CallRule: TypeAlias = PlainRule | WeightRule | OwnGradient
OWN = OwnGradient()


def rule_of_calls(rule: Any, merges: bool = False) -> CallRule:
    """Return what calls an operation under a rule; None is no rule."""
    if rule is None:
        return OWN
    return WeightRule(rule, merges) if is_layer_rule(rule) else PlainRule(rule)


def rule_of_operation(operation: str, rule: Any) -> CallRule:
    """Return what calls one operation under a rule.

    Raises:
        RuleTypeError: the rule reads weights and has no meaning for that operation.
    """
    row = OPERATIONS.get(operation)
    if is_layer_rule(rule) and (row is None or row.read is None):
        known = ", ".join(name for name, row in OPERATIONS.items() if row.read is not None)
        raise RuleTypeError(
            f"rule {named(rule)!r} reads what layers hold and has no meaning for operation "
            f"{operation!r} (operations: {known})"
        )
    return rule_of_calls(rule)


def rules_inside(rule: Any, merges: bool = False) -> Mapping[str, CallRule]:
    """Return, for the calls inside of a layer, a rule for it: all others keep their gradient."""
    weights = rule_of_calls(rule, merges)
    reads = is_layer_rule(rule)
    return {
        name: weights if reads and row.read is not None and has_meaning(rule, row.kind) else OWN
        for name, row in OPERATIONS.items()
    }


def version_of(x: Tensor) -> int:
    """Return how often a tensor was written into; compiled code does not know."""
    return 0 if is_compiling() else x._version


def call_merged(rule: WeightRule, module: Any, method: Call, x: Any) -> Tensor | None:
    """Return what a batch normalization computes, merged with the layer before it; None where its
    input is not what that layer computed last.

    Raises:
        RuleValueError: it is in training, where the statistics of the batch count.
    """
    merging = getattr(x, MERGES, None)
    if merging is None or merging.version != version_of(x):
        return None
    if module.training or module.running_mean is None:
        raise RuleValueError(
            "a batch normalization can be merged where it uses its running statistics: call "
            "model.eval() first, or make the composite with canonize=False"
        )
    taken = merging.call
    weight, bias = taken.params
    if taken.kind == "convolution_transpose" and taken.attributes["groups"] != 1:
        return None
    params = merge_batch_norm(
        weight,
        bias,
        mean=module.running_mean,
        variance=module.running_var,
        scale=module.weight,
        shift=module.bias,
        epsilon=module.eps,
        axis=weight_axis(taken.kind),
    )
    own = CallOfLayer(taken.kind, taken.inputs, params, taken.attributes, taken.is_single)
    with torch._C.DisableTorchFunction():
        return rule.over(own, method(module, merging.out))
