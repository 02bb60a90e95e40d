"""`LayerParams`: the params of an `Activation`'s own rule, as Variables of the layer.

A layer has one such object at a time. `layer.params = ...` sets its Variables where the rule's code
stays the same (`assign`), and else replaces the object. Both happen within `unchanged_on_failure`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import keras
import numpy as np

from ..rules.model.rule import Rule
from ..rules.model.rule_in_force import RuleInForce
from ..trace.moving_numbers import Moving, settle
from .compiled_steps import HOST, is_taken, read_array, read_value
from .params import RuleParams


class LayerParams(RuleParams):
    """The params of a layer's own rule by name.

    `layer.params["width"].assign(2.0)` and `layer.params["width"] = 2.0` do the same.

    Args:
        layer: the layer, which gets the Variables.
        given: the params that it was given.
        rule, bound_rule: its own rule, and this with values for all params; None if `use` decides.

    Attributes:
        given: the params that the layer was given; `assign` replaces them.
    """

    def __init__(
        self,
        layer: Any,
        given: Mapping[str, Any],
        rule: Rule | None,
        bound_rule: RuleInForce | None,
    ) -> None:
        super().__init__(
            layer.name, {}, {}, partial(add_variable, layer), find_rule=lambda: bound_rule
        )
        self.given = dict(given)
        self._layer = layer
        self._defaults: dict[str, Any] = {}
        # The Variables of params that `with_params` has bound to a schedule: nobody may set them.
        self._bound: set[str] = set()
        # For each run-time param of the rule, in its order: its Variable or None, and its value.
        self._runtime_params: tuple[tuple[Any, Any], ...] = ()
        if rule is not None and bound_rule is not None:
            self._add_params(rule, bound_rule)

    def _add_params(self, rule: Rule, bound_rule: RuleInForce) -> None:
        may_be_tensors = set(bound_rule.tensor_params())
        defaults = {**rule.params, **common_defaults(rule)}
        self._defaults = {
            name: defaults[name] for name in may_be_tensors if isinstance(defaults.get(name), float)
        }
        for name, value in bound_rule.params.items():
            if name in rule.bound:
                continue
            if name in may_be_tensors:
                self.variables[name] = self._add_variable(name, float(settle(value)), "float32")
            else:
                self.fixed[name] = value
        numbers = bound_rule.numbers.items()
        moving = {name: value for name, value in numbers if isinstance(value, Moving)}
        for name in moving.keys() & may_be_tensors - self.variables.keys():
            self.variables[name] = self._add_variable(name, moving[name].value, "float32")
            self._bound.add(name)
        self.follow_schedules(moving)
        if self.variables:
            self._runtime_params = tuple((self.variables.get(n), value) for n, value in numbers)

    def __setitem__(self, name: str, value: Any) -> None:
        self[name]  # raises for an unknown name
        self._layer.params = {**self.numbers(), name: value}

    def __repr__(self) -> str:
        return repr(self.numbers())

    def runtime_values(self) -> tuple[Any, ...]:
        """Return the values to apply the rule with, in its order; () without numbers."""
        params = self._runtime_params
        values = tuple(value if v is None else read_value(v.value) for v, value in params)
        # a region that is computed again must use the numbers of its first run
        if HOST.compiler.recall is not None and values:
            return HOST.compiler.recall((id(self), "values"), values)
        return values

    def assign(self, given: Mapping[str, Any], bound_rule: RuleInForce) -> None:
        """Take new params, and set the Variables from the rule that is bound with them."""
        self.given = dict(given)
        values = bound_rule.numbers
        for name, variable in self.variables.items():
            variable.assign(float(settle(values[name])))
        self.follow_schedules({name: v for name, v in values.items() if isinstance(v, Moving)})

    def numbers(self) -> dict[str, Any]:
        """Return the params now; of a Variable the exact number that it was given, if unchanged."""
        self.catch_up()
        known = {**self._defaults, **self.given}
        numbers = {
            name: self.schedules[name] if name in self.schedules else read_as_given(v, known[name])
            for name, v in self.variables.items()
            if name not in self._bound
        }
        return {**numbers, **self.fixed}

    def _models(self) -> Iterable[Any]:
        return self._layer._traced_models

    def _drop_variable(self, variable: Any) -> None:
        self._layer._untrack_variable(variable)

    def given_fixed(self) -> dict[str, Any]:
        """Return the given params that are part of the rule's code."""
        return {name: value for name, value in self.fixed.items() if name in self.given}

    def saved_in_config(self) -> dict[str, Any]:
        """Return the params that a config saves: those given, or changed from their defaults."""
        now = self.numbers()
        changed = {
            k: now[k] for k in self.variables if k in now and now[k] != self._defaults.get(k)
        }
        return {**{name: now[name] for name in self.given if name in now}, **changed}


@contextmanager
def unchanged_on_failure(layer: Any) -> Iterator[None]:
    """Restore a layer's params, their Variables and numbers if the body raises.

    The body may set numbers of `layer._params` (`assign`), or put new params in their place.
    """
    params, tracked = layer._params, [*layer._non_trainable_variables]
    given, schedules = params.given, params.schedules  # replaced as a whole, never changed
    count_variables = copy(params.count_variables)
    variables = params.all_variables().values()
    numbers = [(each, read_array(each)) for each in variables if not is_taken(each)]
    try:
        yield
    except BaseException:
        for schedule in params.schedules.values():
            schedule.unfollow(params)
        params.given, params.schedules = given, schedules
        params.count_variables = count_variables
        for schedule in schedules.values():
            schedule.follow(params)
        layer._params = params
        with unlocked(layer):  # all of them, which keeps their order
            for variable in [*layer._non_trainable_variables]:
                layer._untrack_variable(variable)
            for variable in tracked:
                layer._track_variable(variable)
        for variable, number in numbers:
            variable.assign(number)
        raise


def add_variable(layer: Any, name: str, value: float, dtype: str) -> Any:
    """Add a Variable to a layer, even one that is built."""
    if dtype == "float32" and layer.compute_dtype == "float64":
        dtype = "float64"
    with unlocked(layer):
        return layer.add_weight(
            name=name,
            shape=(),
            initializer=keras.initializers.Constant(value),
            dtype=dtype,
            trainable=False,
            autocast=False,
        )


@contextmanager
def unlocked(layer: Any) -> Iterator[None]:
    """Let a layer that is built take Variables."""
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if locked:
            layer._tracker.lock()


def read_as_given(variable: Any, given: Any) -> float:
    """Return a Variable's number; the unrounded one that it was given, if it has just that."""
    try:
        value = read_array(variable)
    except (TypeError, AttributeError, NotImplementedError):
        return float(given)  # taken over by a step, or in its trace
    same = np.array_equal(value, np.asarray(given, value.dtype), equal_nan=True)
    return float(given) if same else float(value)


def common_defaults(rule: Rule) -> dict[str, float]:
    """Return the default numbers of a composed rule's params on which its parts agree.

    Of `xg.compose("triangular", "clip_norm")` {"width": 1.0, "max_norm": 1.0, "eps": 1e-12}; of a
    rule that is no composition {}.
    """
    if rule.function is not None:
        return {}
    return {
        name: next(iter(values))
        for name, values in find_defaults(rule).items()
        if len(values) == 1 and all(isinstance(value, float) for value in values)
    }


def find_defaults(rule: Rule) -> dict[str, set[Any]]:
    """Return each settable param of a rule, with the defaults of its parts."""
    if rule.function is not None:
        return {name: {value} for name, value in rule.params.items()}
    defaults: dict[str, set[Any]] = {}
    for part in rule._resolved_parts():
        for name, values in find_defaults(part).items():
            defaults.setdefault(name, set()).update(values)
    return {name: values for name, values in defaults.items() if name not in rule.bound}
