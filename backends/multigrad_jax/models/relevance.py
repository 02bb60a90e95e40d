"""Functions of jax computed with the rules of a composite on their layers.

`flatten` inlines the calls of a jaxpr, `Layers` (layer_kinds.py) groups its equations into `Plan`s,
`choose` gives each plan its rule, and `RelevanceRun` evaluates the jaxpr with these rules.
Tested by tests/models/override/test_override_composites.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from multigrad.errors import RuleTypeError, RuleValueError
from multigrad.models.attribution.composites import Composite
from multigrad.models.attribution.kinds import KINDS, check_bounds, is_layer_rule
from multigrad.models.gradient_replacement import named, replace_gradient, replacement_for
from multigrad.models.override import parts_of
from multigrad.models.selectors import (
    GAP,
    Row,
    empty_message,
    multiplies,
    shares_relevance,
    warn_of_gaps,
)

from ..jaxprs import bind_unchanged, walk
from .layer_kinds import Layers, Plan, flatten
from .operations import is_float, name_of

Tensor: TypeAlias = jax.Array
OPERATORS = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide}


def reads_layers(rules: Any) -> bool:
    if isinstance(rules, Composite):
        return True
    return any(is_layer_rule(rule) for rule in rules.values())


def composite_of(rules: Any) -> Composite:
    """Return the composite for rules that are given by kinds of layers."""
    if isinstance(rules, Mapping):
        rules_by_kind = dict(parts_of(rules))
        kind = next((part for part in rules_by_kind if part not in KINDS), None)
        if kind is not None:
            raise RuleTypeError(
                f"rules that read layers are chosen by kinds ({', '.join(KINDS)}), not by {kind!r}"
            )
        return Composite("override", rules_by_kind, canonize=True)
    if rules.names:
        raise RuleTypeError(
            f"composite {rules.name!r} chooses layers by name, and a function of jax has none: "
            "choose by kinds"
        )
    return rules


def run(
    composite: Composite,
    name: str,
    closed: Any,
    arguments: Sequence[Tensor],
    state: Sequence[Tensor],
) -> list[Tensor]:
    """Compute a jaxpr, with the rules of a composite on its layers.

    Args:
        arguments: the data.
        state: the arrays of objects, which count as weights.
    """
    flat_jaxpr = flatten(closed)
    n_constants = len(closed.consts)
    inputs = flat_jaxpr.jaxpr.invars[n_constants : n_constants + len(arguments)]
    layers = Layers(flat_jaxpr.jaxpr, inputs, several=len(arguments) > 1)
    choose(composite, list(layers.plans.values()))
    if all(plan.rule is None for plan in layers.plans.values()):
        kinds = {plan.kind for plan in layers.plans.values()}
        raise RuleValueError(f"function {name!r}: {empty_message(composite, kinds)}")
    if shares_relevance(composite):
        advice = "A product has a rule if one side is a weight with an axis of columns"
        warn_of_gaps(composite, gaps_in(composite, layers), advice, stacklevel=6)
    return RelevanceRun(composite, layers).run(flat_jaxpr, [*closed.consts, *arguments, *state])


def gaps_in(composite: Composite, layers: Layers) -> list[Row]:
    """Return a row for each operation without a rule whose gradient may multiply relevance."""
    is_free = not composite.canonize and composite.rule("batch_normalization") is None
    gaps = []
    for equation in layers.equations:
        plan, name = layers.plans.get(id(equation)), name_of(equation) or equation.primitive.name
        data = [atom for atom in equation.invars if layers.is_data(atom)]
        has_rule = plan.rule is not None if plan is not None else id(equation) in layers.inner
        if has_rule or not any(map(is_float, equation.outvars)):
            if plan is not None and plan.normalizing and is_free:
                gaps.append(("batch_normalization", "a layer"))
        elif multiplies(name, len(data), name == "sub" and equation.invars[0] not in data):
            is_scaled = any(not (x in data or isinstance(x, core.Literal)) for x in equation.invars)
            words = "a weight" if is_scaled else "an activation"
            gaps.append((name, "activations" if len(data) > 1 else words))
    return [Row(name, "operation", GAP, words) for name, words in dict.fromkeys(gaps)]


def choose(composite: Composite, plans: Sequence[Plan]) -> None:
    rows = [(str(i), plan.kind) for i, plan in enumerate(plans)]
    for plan, rule in zip(plans, composite.choose(rows), strict=True):
        if composite.canonize or plan.kind != "addition":
            plan.rule = rule


class RelevanceRun:
    """One computation of a function with rules on its layers."""

    def __init__(self, composite: Composite, layers: Layers) -> None:
        self.composite = composite
        self.layers = layers
        self.values: dict[Any, Tensor] = {}

    def read(self, atom: Any) -> Tensor:
        return atom.val if isinstance(atom, core.Literal) else self.values[atom]

    def run(self, flat: Any, arguments: Sequence[Tensor]) -> list[Tensor]:
        equations = sorted(self.layers.equations, key=self.layers.has_data)
        # weights first: a layer reads all its weights at its first equation
        ordered = flat.jaxpr.replace(eqns=equations)
        return walk(ordered, flat.consts, arguments, self.compute, values=self.values)

    def compute(self, equation: Any, operands: list[Tensor]) -> list[Tensor]:
        """Return the results of an equation; the first one of a layer gives the layer's output."""
        key = id(equation)
        if key in self.layers.plans:
            return [self.layer(self.layers.plans[key], operands)]
        if key not in self.layers.inner:
            return bind_unchanged(equation, operands)
        data = zip(operands, equation.invars, strict=True)
        # an equation within a layer, which is already computed: its data passes through
        return [next(x for x, atom in data if self.layers.is_data(atom))]

    def layer(self, plan: Plan, operands: list[Tensor]) -> Tensor:
        rule = plan.rule
        if plan.kind in ("linear", "convolution"):
            return self.product(rule, plan, operands)
        if plan.divisor is not None:
            return pooling(rule, plan, operands)
        if rule is None:
            return bind_unchanged(plan.equation, operands)[0]
        if plan.kind == "addition":
            (out,) = bind_unchanged(plan.equation, list(map(jax.lax.stop_gradient, operands)))
            return function_with_rule(rule, "addition", {})(*operands, out)
        (out,) = bind_unchanged(plan.equation, without_data_gradient(plan, operands))
        if is_layer_rule(rule):
            raise RuleTypeError(f"rule {rule.name!r} reads weights, which a {plan.kind} has not")
        return with_elementwise_rule(rule, plan.kind, operands[plan.data_position], out)

    def product(self, rule: Any, plan: Plan, operands: list[Tensor]) -> Tensor:
        if rule is not None:
            inputs = without_data_gradient(plan, operands)
            if plan.normalizing and self.composite.canonize:
                # canonizers merge a normalization that follows into the weight: one layer, one rule
                steps = (*plan.steps, *plan.normalizing)
                out = self.with_steps(steps, plan.axis, bind_unchanged(plan.equation, inputs)[0])
                return self.product_with_rule(rule, plan, operands, out)
            out = self.with_steps(plan.steps, plan.axis, bind_unchanged(plan.equation, inputs)[0])
            out = self.product_with_rule(rule, plan, operands, out)
        else:
            out = self.with_steps(plan.steps, plan.axis, bind_unchanged(plan.equation, operands)[0])
        normalizing: Any = self.composite.rule("batch_normalization") if plan.normalizing else None
        if normalizing is None:
            return self.with_steps(plan.normalizing, plan.axis, out)
        normalized = self.with_steps(plan.normalizing, plan.axis, jax.lax.stop_gradient(out))
        return with_elementwise_rule(normalizing, "batch_normalization", out, normalized)

    def with_steps(self, steps: Sequence[tuple[Any, Any]], axis: int, out: Tensor) -> Tensor:
        """Apply per-channel steps to an array with its channels on an axis."""
        for equation, atom in steps:
            position, numbers = self.numbers(equation, atom)
            if numbers.ndim:
                numbers = numbers.reshape([-1 if n == axis else 1 for n in range(out.ndim)])
            apply = OPERATORS[equation.primitive.name]
            out = apply(out, numbers) if position == 0 else apply(numbers, out)
        return out

    def numbers(self, equation: Any, atom: Any) -> tuple[int, Tensor]:
        """Return the position of the data in a step, and its numbers: one per channel, or one."""
        position = next(i for i, each in enumerate(equation.invars) if self.layers.is_data(each))
        numbers = jnp.asarray(self.read(atom))
        return position, numbers.reshape(-1) if numbers.size > 1 else numbers.reshape(())

    def product_with_rule(
        self, rule: Any, plan: Plan, operands: list[Tensor], out: Tensor
    ) -> Tensor:
        scale, shift = self.affine(plan)
        is_convolution = plan.kind == "convolution"
        as_layer = (convolution if is_convolution else linear)(plan, operands)
        weight = as_layer.weight
        channel_count = weight.shape[0] if is_convolution else weight.shape[1]
        if scale is not None:
            if is_convolution and scale.ndim:  # the channels are the first axis of its weight
                scale = scale.reshape(-1, *(1,) * (weight.ndim - 1))
            weight = weight * scale
        bias = None
        if shift is not None:
            bias = jnp.broadcast_to(shift, (channel_count,)).astype(weight.dtype)
        function = function_with_rule(rule, plan.kind, as_layer.attributes)
        result = function(as_layer.x, weight, bias, as_layer.to_layer_layout(out))
        return as_layer.to_jax_layout(result)

    def affine(self, plan: Plan) -> tuple[Tensor | None, Tensor | None]:
        """Return the factor and the summand of each channel, or None."""
        scale, shift = None, None
        merged_steps = plan.normalizing if self.composite.canonize else []
        for equation, atom in (*plan.steps, *merged_steps):
            name = equation.primitive.name
            position, numbers = self.numbers(equation, atom)
            if name == "add":
                shift = numbers if shift is None else shift + numbers
            elif name == "sub":
                if position == 1:
                    scale = -1.0 if scale is None else -scale
                    shift = None if shift is None else -shift
                summand = numbers if position == 1 else -numbers
                shift = summand if shift is None else shift + summand
            else:
                factor = numbers if name == "mul" else 1.0 / numbers
                scale = factor if scale is None else scale * factor
                shift = None if shift is None else shift * factor
        return None if scale is None else jnp.asarray(scale), shift


def without_data_gradient(plan: Plan, operands: list[Tensor]) -> list[Tensor]:
    """Return the operands of a layer, its data without a gradient: the rule gives that one."""
    inputs = list(operands)
    inputs[plan.data_position] = jax.lax.stop_gradient(inputs[plan.data_position])
    return inputs


def function_with_rule(rule: Any, kind: str, attributes: dict[str, Any]) -> Callable[..., Tensor]:
    """Return a function of a layer's arrays, its output last, with the rule's gradient."""
    if is_layer_rule(rule):
        function = rule.over(kind, **attributes)

        def call(*arrays: Any) -> Tensor:
            check_bounds(rule, arrays[0])
            # a model's weights may be NumPy arrays
            return function(*(None if t is None else jnp.asarray(t) for t in arrays))

        return call
    return lambda *arrays: with_elementwise_rule(rule, kind, arrays[0], arrays[-1])


def with_elementwise_rule(rule: Any, kind: str, x: Tensor, out: Tensor) -> Tensor:
    """Return `out`, with the gradient for `x` by a rule that reads no weights."""
    return replace_gradient(replacement_for(rule), named(rule), f"a layer of kind {kind!r}", x, out)


def pooling(rule: Any, plan: Plan, operands: list[Tensor]) -> Tensor:
    """Return an average pooling: its equation is a sum, which the plan's divisor divides."""
    if rule is None:
        return bind_unchanged(plan.equation, operands)[0] / plan.divisor
    inputs = without_data_gradient(plan, operands)
    out = bind_unchanged(plan.equation, inputs)[0] / plan.divisor
    is_adaptive = plan.kind == "adaptive_average_pooling"
    with_rule = adaptive_pooling if is_adaptive else window_pooling
    return with_rule(rule, plan, operands[0], out)


def adaptive_pooling(rule: Any, plan: Plan, x: Tensor, out: Tensor) -> Tensor:
    """Return a mean over whole axes, which a rule takes as the last ones."""
    axes = [int(axis) for axis in plan.equation.params["axes"]]
    other_axes = [axis for axis in range(x.ndim) if axis not in axes]
    function = function_with_rule(rule, plan.kind, {"counts": (1,) * len(axes)})
    out_with_axes = out.reshape([*out.shape, *(1,) * len(axes)])
    return function(x.transpose([*other_axes, *axes]), out_with_axes).reshape(out.shape)


def window_pooling(rule: Any, plan: Plan, x: Tensor, out: Tensor) -> Tensor:
    """Return a mean over windows, which a rule takes as (examples, one channel, *pooled axes)."""
    params = plan.equation.params
    if any(n != 1 for key in ("base_dilation", "window_dilation") for n in params[key]):
        raise RuleValueError("a dilated pooling has no rule that reads layers")
    sizes = params["window_dimensions"]
    axes = [i for i, n in enumerate(sizes) if n != 1 or params["window_strides"][i] != 1]
    order = [*(i for i in range(x.ndim) if i not in axes), *axes]
    attributes = {
        "sizes": tuple(int(sizes[i]) for i in axes),
        "strides": tuple(int(params["window_strides"][i]) for i in axes),
        "padding": tuple(tuple(map(int, params["padding"][i])) for i in axes),
        "counts_padding": True,
    }
    outputs = out.transpose(order)
    result = function_with_rule(rule, plan.kind, attributes)(
        x.transpose(order).reshape(-1, 1, *(x.shape[i] for i in axes)),
        outputs.reshape(-1, 1, *(out.shape[i] for i in axes)),
    )
    return result.reshape(outputs.shape).transpose(np.argsort(order))


class AsLayer(NamedTuple):
    """A product as a layer that rules know.

    Attributes:
        x: the data, as the layer takes it.
        weight: the weight, as the layer has it.
        attributes: the layer's settings.
        to_layer_layout: maps an output of the equation to the layer's layout.
        to_jax_layout: maps it back.
    """

    x: Tensor
    weight: Tensor
    attributes: dict[str, Any]
    to_layer_layout: Callable[[Tensor], Tensor]
    to_jax_layout: Callable[[Tensor], Tensor]


def linear(plan: Plan, operands: list[Tensor]) -> AsLayer:
    """Return a product as a linear layer: rows of data times a matrix with a column per channel."""
    (contraction, _) = plan.equation.params["dimension_numbers"]
    position = plan.data_position
    x, weight = operands[position], operands[1 - position]
    x_sum_axes, weight_sum_axes = list(contraction[position]), list(contraction[1 - position])
    row_axes = [i for i in range(x.ndim) if i not in x_sum_axes]
    channel_axes = [i for i in range(weight.ndim) if i not in weight_sum_axes]
    size = math.prod(x.shape[i] for i in x_sum_axes)
    rows = x.transpose([*row_axes, *x_sum_axes]).reshape([*(x.shape[i] for i in row_axes), size])
    channel_shape = [weight.shape[i] for i in channel_axes]
    matrix = weight.transpose([*weight_sum_axes, *channel_axes]).reshape(size, -1)
    # `dot_general` puts the axes of its first operand first: channels, if that is the weight
    first_axes, last_axes = range(len(channel_axes)), range(-len(channel_axes), 0)

    def to_layer_layout(out: Tensor) -> Tensor:
        if position == 1:
            out = jnp.moveaxis(out, first_axes, last_axes)
        return out.reshape([*rows.shape[:-1], -1])

    def to_jax_layout(out: Tensor) -> Tensor:
        out = out.reshape([*rows.shape[:-1], *channel_shape])
        return jnp.moveaxis(out, last_axes, first_axes) if position == 1 else out

    return AsLayer(rows, matrix, {"layout": "in_out"}, to_layer_layout, to_jax_layout)


def convolution(plan: Plan, operands: list[Tensor]) -> AsLayer:
    """Return a convolution as a layer with channels before the axes of its windows."""
    params = plan.equation.params
    if any(n != 1 for n in params["lhs_dilation"]) or params["batch_group_count"] != 1:
        raise RuleValueError(
            "a transposed convolution, or one with groups of examples, has no rule that reads "
            "layers on jax"
        )
    if plan.data_position != 0:
        raise RuleValueError("a convolution by the data has no rule that reads layers")
    numbers = params["dimension_numbers"]
    attributes = {
        "strides": tuple(map(int, params["window_strides"])),
        "padding": tuple(tuple(map(int, each)) for each in params["padding"]),
        "dilations": tuple(map(int, params["rhs_dilation"])),
        "groups": int(params["feature_group_count"]),
    }
    if any(n < 0 for each in attributes["padding"] for n in each):
        raise RuleValueError("a convolution with negative padding has no rule that reads layers")

    def to_layer_layout(out: Tensor) -> Tensor:
        return out.transpose(numbers.out_spec)

    def to_jax_layout(out: Tensor) -> Tensor:
        return out.transpose(np.argsort(numbers.out_spec))

    x, weight = operands[0].transpose(numbers.lhs_spec), operands[1].transpose(numbers.rhs_spec)
    return AsLayer(x, weight, attributes, to_layer_layout, to_jax_layout)
