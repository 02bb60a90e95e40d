"""The layers in a jaxpr: which of its equations together are one linear layer, pooling or
activation.

A linear layer is a product of data with a weight, and an addition of one number per channel. A
batch normalization in inference is such numbers applied next. Data is all that depends on the
function's array arguments; everything else is weights.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core

from multigrad.errors import RuleValueError
from multigrad.models.attribution.kinds import kind_of_function

from ..jaxprs import all_equations, bind_unchanged, called_jaxpr, inner_jaxprs, walk
from .operations import OWN_DERIVATIVE, Inlined, find, is_float, name_of, outline

SHAPING = ("reshape", "squeeze", "transpose", "broadcast_in_dim", "convert_element_type")
AFFINE = ("add", "sub", "mul", "div")
PRODUCTS = ("dot_general", "conv_general_dilated")
SUMS = ("reduce_sum", "reduce_window_sum")  # with a division they are average poolings
# The functions of `jax.nn`, and a primitive, that are activations: all others are what they call.
ACTIVATIONS = frozenset(name for name in (*dir(jax.nn), "logistic") if kind_of_function(name))


@dataclass(slots=True)
class Plan:
    """One layer, found by the equation that begins it.

    Attributes:
        kind: the kind of layer, a key of `multigrad.models.attribution.kinds.KINDS`.
        equation: the equation that begins it.
        data_position: the position of the data among the operands of that equation.
        steps: the later equations of the layer, each with the atom of its number per channel.
        normalizing: the equations of a batch normalization that follows, each with its atom.
        divisor: for an average pooling, the number that divides the sum.
        rule: the rule on the layer; None: it keeps its own gradient.
    """

    kind: str
    equation: Any
    data_position: int = 0
    steps: list[tuple[Any, Any]] = field(default_factory=list)
    normalizing: list[tuple[Any, Any]] = field(default_factory=list)
    divisor: float | None = None
    rule: Any = None

    @property
    def axis(self) -> int:
        """The axis of the channels in a product's result."""
        if self.kind == "convolution":
            return self.equation.params["dimension_numbers"].out_spec[1]
        return self.equation.outvars[0].aval.ndim - 1 if self.data_position == 0 else 0


def flatten(closed: Any) -> Any:
    """Return a jaxpr of (constants, arguments) with its calls inlined."""

    def compute(equation: Any, operands: list[Any]) -> list[Any]:
        # activations and functions with a custom derivative stay calls
        inner = None if equation.primitive.name in OWN_DERIVATIVE else called_jaxpr(equation)
        if inner is not None and activation_of(equation) is None:
            return run(*inner, operands)
        with equation.ctx.manager:
            return bind_unchanged(equation, operands)

    def run(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        return walk(outline(jaxpr, inlined_activations()), constants, arguments, compute)

    types = [
        jax.ShapeDtypeStruct(t.shape, t.dtype, weak_type=getattr(t, "weak_type", False))
        for t in (variable.aval for variable in closed.jaxpr.invars)
    ]
    return jax.make_jaxpr(functools.partial(run, closed.jaxpr))(list(closed.consts), types)


@functools.cache
def inlined_activations() -> tuple[Inlined, ...]:
    names = sorted(name for name in ACTIVATIONS - {"relu"} if hasattr(jax.nn, name))
    activations = [find(getattr(jax.nn, name)) for name in names]
    return tuple(operation.inlined for operation in activations if operation.inlined is not None)


def activation_of(equation: Any) -> str | None:
    name = name_of(equation) or equation.primitive.name
    numbers = (atom for atom in equation.invars if isinstance(atom, core.Literal))
    if name == "max" and any(not atom.aval.shape and float(atom.val) == 0.0 for atom in numbers):
        return "relu"
    return kind_of_function(name) if name in ACTIVATIONS else None


class Layers:
    """The layers of a flat jaxpr.

    Attributes:
        plans: by the identity of the equation that begins a layer.
        inner: the identities of a layer's other equations, which pass their data through.
        data: the variables that depend on the arguments.
    """

    def __init__(self, jaxpr: Any, inputs: Sequence[Any], *, several: bool) -> None:
        self.equations = live(jaxpr)
        self.several = several
        self.data = set(inputs)
        for equation in self.equations:
            if self.has_data(equation):
                self.data.update(equation.outvars)
        # a result of the function counts as a use: it must stay what it is
        self.uses = Counter(
            atom
            for atoms in (*(equation.invars for equation in self.equations), jaxpr.outvars)
            for atom in atoms
            if not isinstance(atom, core.Literal)
        )
        self.user = {
            atom: equation
            for equation in self.equations
            for atom in equation.invars
            if not isinstance(atom, core.Literal)
        }
        self.makers = {out: each for each in self.equations for out in each.outvars}
        self.inner: set[int] = set()
        self.plans: dict[int, Plan] = {}
        for equation in self.equations:
            if id(equation) not in self.inner and self.has_data(equation):
                plan = self.plan(equation)
                if plan is not None:
                    self.plans[id(equation)] = plan

    def is_data(self, atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and atom in self.data

    def has_data(self, equation: Any) -> bool:
        return any(map(self.is_data, equation.invars))

    def plan(self, equation: Any) -> Plan | None:
        """Return the layer that an equation begins."""
        name = equation.primitive.name
        data_positions = [i for i, atom in enumerate(equation.invars) if self.is_data(atom)]
        if not any(map(is_float, equation.outvars)):
            return None
        kind = activation_of(equation)
        if kind is not None:
            return Plan(kind, equation, data_positions[0])
        if name == "add":
            return Plan("addition", equation) if len(data_positions) == 2 else None
        if name == "reduce_window_max":
            return Plan("max_pooling", equation)
        if name in PRODUCTS:
            return self._product(equation, data_positions)
        if name in SUMS:
            return self._pooling(equation)
        products = PRODUCTS if name not in OWN_DERIVATIVE else ()
        names_inside = {
            each.primitive.name for inner in inner_jaxprs(equation) for each in all_equations(inner)
        }
        if names_inside.intersection(products):
            raise RuleValueError(
                f"a layer lies inside {name!r}, where rules that read weights do not reach: "
                "write it without that loop or branch"
            )
        return None

    def _product(self, equation: Any, data_positions: list[int]) -> Plan | None:
        if len(data_positions) == 2:
            if self.several:
                raise RuleValueError(
                    "both sides of a product depend on the arguments, so that none is known to be "
                    "the weight: close over the weights, "
                    "xg.override(lambda x: model.apply(params, x), ...)"
                )
            return None
        (position,) = data_positions
        if equation.primitive.name == "dot_general":
            plan = Plan("linear", equation, position)
            if not has_columns(equation, position):
                return plan
        else:
            plan = Plan("convolution", equation, position)
        self._follow(plan, plan.axis)
        return plan

    def _follow(self, plan: Plan, axis: int) -> None:
        # a step on channels belongs to the layer only while nothing else reads its input
        (variable,) = plan.equation.outvars
        channel_steps: list[tuple[Any, Any]] = []
        while self.uses[variable] == 1 and variable in self.user:
            equation = self.user[variable]
            if equation.primitive.name in SHAPING:
                new_axis = moved_axis(equation, axis)
                if new_axis is None:
                    break
                axis = new_axis
            elif self._is_of_channels(equation, variable, axis):
                operand = equation.invars[1 - equation.invars.index(variable)]
                channel_steps.append((equation, self.numbers_of(operand, axis)))
            else:
                break
            (variable,) = equation.outvars
        if channel_steps and channel_steps[0][0].primitive.name == "add":
            # the first addition is the bias; a normalization needs a factor too
            plan.steps.append(channel_steps.pop(0))
        if any(equation.primitive.name in ("mul", "div") for equation, _ in channel_steps):
            plan.normalizing += channel_steps
        self.inner.update(id(equation) for equation, _ in (*plan.steps, *plan.normalizing))

    def _is_of_channels(self, equation: Any, variable: Any, axis: int) -> bool:
        if equation.primitive.name not in AFFINE:
            return False
        (out,) = equation.outvars
        position = equation.invars.index(variable)
        operand = equation.invars[1 - position]
        if self.is_data(operand) or out.aval.shape != variable.aval.shape:
            return False
        # a number divided by data is not linear in the data
        if equation.primitive.name == "div" and position == 1:
            return False
        return self.numbers_of(operand, axis) is not None

    def numbers_of(self, atom: Any, axis: int) -> Any:
        """Return the array behind an operand if it has one number per channel, or one for all."""
        shape = atom.aval.shape
        if not shape or all(n == 1 for i, n in enumerate(shape) if i != axis):
            return atom
        equation = self.makers.get(atom)
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return None
        (inner,) = equation.invars
        dimensions = list(map(int, equation.params["broadcast_dimensions"]))
        if axis in dimensions:
            return self.numbers_of(inner, dimensions.index(axis))
        return inner if inner.aval.size == 1 else None

    def _pooling(self, equation: Any) -> Plan | None:
        x, (variable,) = equation.invars[0], equation.outvars
        name = equation.primitive.name
        if name == "reduce_sum":
            rank = x.aval.ndim - len(equation.params["axes"])
            # the result is (examples, channels), or the channels of one example
            if not (rank == 2 or (rank == 1 and x.aval.ndim > 2)) or not equation.params["axes"]:
                return None
            count = math.prod(x.aval.shape[i] for i in equation.params["axes"])
        else:
            count = math.prod(equation.params["window_dimensions"])
        while self.uses[variable] == 1 and variable in self.user:
            next_equation = self.user[variable]
            if next_equation.primitive.name in SHAPING:
                (variable,) = next_equation.outvars
                continue
            divisor = next_equation.invars[-1]
            if next_equation.primitive.name != "div" or next_equation.invars[0] is not variable:
                return None
            # a sum is a pooling only if the number of its terms divides it
            if not isinstance(divisor, core.Literal) or float(divisor.val) != count:
                return None
            self.inner.add(id(next_equation))
            kind = "average_pooling" if name == "reduce_window_sum" else "adaptive_average_pooling"
            return Plan(kind, equation, divisor=float(count))
        return None


def live(jaxpr: Any) -> list[Any]:
    reads = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    equations: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or reads.intersection(equation.outvars):
            reads.update(atom for atom in equation.invars if not isinstance(atom, core.Literal))
            equations.append(equation)
    return equations[::-1]


def has_columns(equation: Any, position: int) -> bool:
    """Return whether a product's weight has one axis of columns."""
    (contraction, batch) = equation.params["dimension_numbers"]
    if batch[0]:
        raise RuleValueError(
            "a product with an own weight for each part of its input is no linear layer that a "
            "rule reads: write it as a convolution with groups, or as several layers"
        )
    return equation.invars[1 - position].aval.ndim - len(contraction[1 - position]) == 1


def moved_axis(equation: Any, axis: int) -> int | None:
    """Return the position of an axis after a reshaping; None if it is merged with others."""
    name, params = equation.primitive.name, equation.params
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if name == "convert_element_type":
        return axis
    if name == "transpose":
        return tuple(params["permutation"]).index(axis)
    if name == "broadcast_in_dim":
        return int(params["broadcast_dimensions"][axis])
    for i, n in enumerate(after):
        # a reshape keeps an axis if the elements before it stay as many
        if n == before[axis] and math.prod(after[:i]) == math.prod(before[:axis]):
            return i
    return None
