"""Functions of jax computed with the rules of a composite on their layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from multigrad.errors import RuleTypeError, RuleValueError
from multigrad.models.attribution.composites import Composite
from multigrad.models.attribution.kinds import KINDS, is_layer_rule
from multigrad.models.interpose import named, over, put_over
from multigrad.models.override import parts_of

from ..jaxprs import bind, walk
from .layer_kinds import Layers, Plan, flatten

Tensor = Any
OPERATORS = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide}


def reads_layers(rules: Any) -> bool:
    """Return whether rules are a composite, or read the weights of layers."""
    if isinstance(rules, Composite):
        return True
    return any(is_layer_rule(rule) for rule in rules.values())


def composite_of(rules: Any) -> Composite:
    """Return the composite for rules that are given by kinds of layers."""
    if isinstance(rules, Mapping):
        flat = dict(parts_of(rules))
        odd = next((part for part in flat if part not in KINDS), None)
        if odd is not None:
            raise RuleTypeError(
                f"rules that read layers are chosen by kinds ({', '.join(KINDS)}), not by {odd!r}"
            )
        return Composite("override", flat, canonize=True)
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

    Raises:
        RuleValueError: it has no layer with a rule.
    """
    flat = flatten(closed)
    first = len(closed.consts)
    inputs = flat.jaxpr.invars[first : first + len(arguments)]
    layers = Layers(flat.jaxpr, inputs, several=len(arguments) > 1)
    choose(composite, list(layers.plans.values()))
    if all(plan.rule is None for plan in layers.plans.values()):
        kinds = sorted({plan.kind for plan in layers.plans.values()})
        raise RuleValueError(
            f"function {name!r} has no layer with a rule in composite {composite.name!r} (its "
            f"layers: {', '.join(kinds) or 'none'})"
        )
    return RelevanceRun(composite, layers).run(flat, [*closed.consts, *arguments, *state])


def choose(composite: Composite, plans: Sequence[Plan]) -> None:
    """Give each layer its rule."""
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
        """Return the results, in the jaxpr's order."""
        equations = sorted(self.layers.equations, key=self.layers.has_data)
        # weights first: a layer reads all of its own at its first equation
        ordered = flat.jaxpr.replace(eqns=equations)
        return walk(ordered, flat.consts, arguments, self.compute, values=self.values)

    def compute(self, equation: Any, operands: list[Tensor]) -> list[Tensor]:
        key = id(equation)
        if key in self.layers.plans:
            return [self.layer(self.layers.plans[key], operands)]
        if key not in self.layers.taken:
            return bind(equation, operands)
        data = zip(operands, equation.invars, strict=True)
        # an equation within a layer, which is already computed: its data passes through
        return [next(x for x, atom in data if self.layers.is_data(atom))]

    def layer(self, plan: Plan, operands: list[Tensor]) -> Tensor:
        rule = plan.rule
        if plan.kind in ("linear", "convolution"):
            return self.product(rule, plan, operands)
        if plan.divisor is not None:
            return self.pooling(rule, plan, operands)
        if rule is None:
            return bind(plan.equation, operands)[0]
        if plan.kind == "addition":
            (out,) = bind(plan.equation, list(map(jax.lax.stop_gradient, operands)))
            return acting(rule, "addition", {})(*operands, out)
        x = operands[plan.at]
        held = [jax.lax.stop_gradient(x) if n == plan.at else y for n, y in enumerate(operands)]
        (out,) = bind(plan.equation, held)
        if is_layer_rule(rule):
            raise RuleTypeError(f"rule {rule.name!r} reads weights, which a {plan.kind} has not")
        return put_plain(rule, plan.kind, x, out)

    # --- linear layers and convolutions -----------------------------------------------------------
    def product(self, rule: Any, plan: Plan, operands: list[Tensor]) -> Tensor:
        """Return a product with the steps on its channels, each with its rule."""
        # a normalization that follows is merged into the weight, as canonizers do
        merges = self.composite.canonize and bool(plan.normalizing) and rule is not None
        normalizing: Any = self.composite.rule("batch_normalization")
        axis = plan.axis
        given = list(operands)
        if rule is not None:
            given[plan.at] = jax.lax.stop_gradient(operands[plan.at])
        (out,) = bind(plan.equation, given)
        for equation, held in plan.steps:
            out = self.step(equation, held, out, axis)
        if rule is not None and not merges:
            out = self.over_product(rule, plan, operands, out)
        if not plan.normalizing:
            return out
        x = out
        if normalizing is not None and not merges:
            out = jax.lax.stop_gradient(out)
        for equation, held in plan.normalizing:
            out = self.step(equation, held, out, axis)
        if merges:
            return self.over_product(rule, plan, operands, out)
        return out if normalizing is None else put_plain(normalizing, plan.kind, x, out)

    def step(self, equation: Any, held: Any, out: Tensor, axis: int) -> Tensor:
        """Apply a per-channel step to an array with channels on another axis."""
        at, numbers = self.numbers(equation, held)
        if numbers.ndim:
            numbers = numbers.reshape([-1 if n == axis else 1 for n in range(out.ndim)])
        apply = OPERATORS[equation.primitive.name]
        return apply(out, numbers) if at == 0 else apply(numbers, out)

    def numbers(self, equation: Any, held: Any) -> tuple[int, Tensor]:
        """Return the position of the data in an equation, and its numbers, per channel or one."""
        at = next(i for i, atom in enumerate(equation.invars) if self.layers.is_data(atom))
        numbers = jnp.asarray(self.read(held))
        return at, numbers.reshape(-1) if numbers.size > 1 else numbers.reshape(())

    def over_product(self, rule: Any, plan: Plan, operands: list[Tensor], out: Tensor) -> Tensor:
        """Return a layer's output, with the rule's gradient for its input."""
        scale, shift = self.affine(plan)
        own = convolution if plan.kind == "convolution" else linear
        x, weight, attributes, outward, inward = own(plan, operands)
        columns = weight.shape[0] if plan.kind == "convolution" else weight.shape[1]
        if scale is not None:
            kept = (
                scale
                if plan.kind == "linear" or not scale.ndim
                else scale.reshape(-1, *(1,) * (weight.ndim - 1))
            )
            weight = weight * kept
        bias = None if shift is None else jnp.broadcast_to(shift, (columns,)).astype(weight.dtype)
        function = acting(rule, plan.kind, attributes)
        return inward(function(x, weight, bias, outward(out)))

    def affine(self, plan: Plan) -> tuple[Tensor | None, Tensor | None]:
        """Return the factor and the summand of each channel, or None."""
        scale, shift = None, None
        merged = plan.normalizing if self.composite.canonize else []
        for equation, held in (*plan.steps, *merged):
            name = equation.primitive.name
            at, numbers = self.numbers(equation, held)
            if name == "add":
                shift = numbers if shift is None else shift + numbers
            elif name == "sub":
                if at == 1:
                    scale = -1.0 if scale is None else -scale
                    shift = None if shift is None else -shift
                signed = numbers if at == 1 else -numbers
                shift = signed if shift is None else shift + signed
            else:
                factor = numbers if name == "mul" else 1.0 / numbers
                scale = factor if scale is None else scale * factor
                shift = None if shift is None else shift * factor
        return None if scale is None else jnp.asarray(scale), shift

    def pooling(self, rule: Any, plan: Plan, operands: list[Tensor]) -> Tensor:
        (x,) = operands
        held = x if rule is None else jax.lax.stop_gradient(x)
        out = bind(plan.equation, [held])[0] / plan.divisor
        if rule is None:
            return out
        params = plan.equation.params
        if plan.kind == "adaptive_average_pooling":
            axes = [int(axis) for axis in params["axes"]]
            others = [axis for axis in range(x.ndim) if axis not in axes]
            given = x.transpose([*others, *axes])
            function = acting(rule, plan.kind, {"counts": (1,) * len(axes)})
            return function(given, out.reshape([*out.shape, *(1,) * len(axes)])).reshape(out.shape)
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
        moved = out.transpose(order)
        single = (-1, 1, *(x.shape[i] for i in axes))
        result = acting(rule, plan.kind, attributes)(
            x.transpose(order).reshape(single),
            moved.reshape(-1, 1, *moved.shape[len(order) - len(axes) :]),
        )
        return result.reshape(moved.shape).transpose(inverse(order))


def acting(rule: Any, kind: str, attributes: dict[str, Any]) -> Any:
    if is_layer_rule(rule):
        function = rule.over(kind, **attributes)
        # a model's weights may be NumPy arrays
        return lambda *given: function(*(None if t is None else jnp.asarray(t) for t in given))
    return lambda *given: put_plain(rule, kind, given[0], given[-1])


def put_plain(rule: Any, kind: str, x: Tensor, out: Tensor) -> Tensor:
    return put_over(over(rule), named(rule), f"a layer of kind {kind!r}", x, out)


def inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(i) for i in range(len(order))]


def linear(plan: Plan, operands: list[Tensor]) -> Any:
    """Return the data and weight of a product as a linear layer, and maps between layouts."""
    (contracted, _) = plan.equation.params["dimension_numbers"]
    x, weight = operands[plan.at], operands[1 - plan.at]
    of_x, of_weight = list(contracted[plan.at]), list(contracted[1 - plan.at])
    rest = [i for i in range(x.ndim) if i not in of_x]
    columns = [i for i in range(weight.ndim) if i not in of_weight]
    size = math.prod(x.shape[i] for i in of_x)
    rows = x.transpose([*rest, *of_x]).reshape([*(x.shape[i] for i in rest), size])
    shape = [weight.shape[i] for i in columns]
    matrix = weight.transpose([*of_weight, *columns]).reshape(size, -1)
    count = len(columns)

    def outward(out: Tensor) -> Tensor:
        if plan.at == 1:
            out = jnp.moveaxis(out, range(count), range(-count, 0)) if count else out
        return out.reshape([*rows.shape[:-1], -1])

    def inward(out: Tensor) -> Tensor:
        out = out.reshape([*rows.shape[:-1], *shape])
        if plan.at == 1 and count:
            out = jnp.moveaxis(out, range(-count, 0), range(count))
        return out

    return rows, matrix, {}, outward, inward


def convolution(plan: Plan, operands: list[Tensor]) -> Any:
    """Return the same for a convolution.

    Raises:
        RuleValueError: no rule reads a convolution of this form.
    """
    params = plan.equation.params
    if any(n != 1 for n in params["lhs_dilation"]) or params["batch_group_count"] != 1:
        raise RuleValueError(
            "a transposed convolution, or one with groups of examples, has no rule that reads "
            "layers on jax"
        )
    if plan.at != 0:
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

    def outward(out: Tensor) -> Tensor:
        return out.transpose(numbers.out_spec)

    def inward(out: Tensor) -> Tensor:
        return out.transpose(inverse(numbers.out_spec))

    x, weight = operands[0].transpose(numbers.lhs_spec), operands[1].transpose(numbers.rhs_spec)
    return x, weight, attributes, outward, inward
