"""`RuleParams`: the params of a rule by name, whose numbers are non-trainable Variables.

So a callback changes a number without a retrace, and it is saved with the weights. Params that the
rule's Python code reads (a count, a word, a number that it branches on) are part of the compiled
step and fixed. Of `params={"width": 2.0, "sigma": xg.schedule.linear(...), "hard": True}`:

    variables         {"width": Variable(2.0), "sigma": Variable(the schedule's value)}
    fixed             {"hard": True}
    schedules         {"sigma": Schedule}
    count_variables   {"sigma": CountVariable}, the step at which the schedule stands

The optimizer's rule has such params; those of a layer are `LayerParams`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import keras
import numpy as np

from ..core.rules.rule import Rule
from ..core.rules.rule_in_force import RuleInForce
from ..core.support.params import as_number
from ..core.trace.active_rules import settle
from ..engine.rules.model.rule_graphs import tensor_params
from ..errors import MultigradError, RuleError, RuleTypeError, suggest
from ..schedule import Schedule
from .compiled_steps import BACKEND, HOST, assign_number, is_taken, read_array, read_value

AddVariable = Callable[[str, float, str], Any]  # by name, number and dtype
# Suffixes of a param's name, for the step of its schedule: the name of its Variable, which a
# checkpoint restores, and the name in a `.keras` or `.weights.h5` file.
COUNT_VARIABLE_SUFFIX = "_count"
COUNT_IN_FILE_SUFFIX = ":count"


class RuleParams(MutableMapping[str, Any]):
    """The params of a rule by name: Variables for numbers, other values unchanged.

    It follows each of its schedules, which calls `before_step` whenever its count is read or about
    to change, and `on_move` after a change.

    Args:
        owner: whose params they are, for messages.
        variables, fixed: the Variables by name, and the other params.
        add_variable: makes the Variable of a schedule's step.
        schedules: the schedules that Variables follow, by the Variables' names.
        find_rule: returns the rule that `check` asks for its ranges; None if there is none.
    """

    __slots__ = ("__weakref__", "_add_variable", "_find_rule", "_owner")
    __slots__ += ("count_variables", "fixed", "schedules", "variables")

    def __init__(
        self,
        owner: str,
        variables: dict[str, Any],
        fixed: dict[str, Any],
        add_variable: AddVariable,
        schedules: Mapping[str, Schedule] | None = None,
        find_rule: Callable[[], RuleInForce | None] = lambda: None,
    ) -> None:
        self._owner = owner
        self._find_rule = find_rule
        self.variables = variables
        self.fixed = fixed
        self.schedules: dict[str, Schedule] = {}
        self.count_variables: dict[str, CountVariable] = {}
        self._add_variable = add_variable
        self.follow_schedules(schedules or {})

    def all_variables(self) -> dict[str, Any]:
        """Return all Variables by name: the numbers, then the steps of their schedules."""
        counts = self.count_variables.items()
        steps = {name + COUNT_VARIABLE_SUFFIX: each.variable for name, each in counts}
        return {**self.variables, **steps}

    # --- schedules --------------------------------------------------------------------------------

    def follow_schedules(self, schedules: Mapping[str, Schedule]) -> None:
        """Let Variables follow these schedules from now on, and no others."""
        for schedule in self.schedules.values():
            schedule.unfollow(self)
        self.schedules = {}
        for name, schedule in schedules.items():
            if name not in self.variables or not isinstance(schedule, Schedule):
                raise RuleTypeError(
                    f"{self._owner}: param {name!r} is part of the rule's code, so it cannot "
                    "follow a schedule; pass a number"
                )
            # Read before it is followed: reading calls `before_step` of all followers, and here
            # the schedule's own count must win over the Variable's.
            count = schedule.count
            if name in self.count_variables:
                self.count_variables[name].write(count, self._models())
            else:
                variable = self._add_variable(name + COUNT_VARIABLE_SUFFIX, count, "int32")
                self.count_variables[name] = CountVariable(variable, count)
            self.schedules[name] = schedule
            schedule.follow(self)
        for name in self.count_variables.keys() - self.schedules.keys():
            self._drop_variable(self.count_variables.pop(name).variable)

    def before_step(self, moving: Schedule) -> None:
        """Set a schedule to the step that a checkpoint has restored, if one has."""
        for name, schedule in self.schedules.items():
            if schedule is moving:
                count = self.count_variables[name].take_restored()
                if count is not None:
                    schedule.load_state_dict({"count": count})

    def on_move(self, moving: Schedule) -> None:
        """Set the Variables of a schedule that has moved."""
        for name, schedule in self.schedules.items():
            if schedule is moving:
                # The count first: reading it may restore a step, and so change the value.
                count = schedule.count
                self._set(name, schedule.value)
                self.count_variables[name].write(count, self._models())

    def catch_up(self) -> None:
        """Set all schedules to the steps that a checkpoint has restored."""
        for schedule in self.schedules.values():
            self.before_step(schedule)

    def check(self, name: str, number: float) -> None:
        """Check a number for a Variable, together with the rule's fixed numbers."""
        rule = self._find_rule()
        if rule is None:
            return
        rule.specialization.check_numbers(
            tuple(
                number if each == name else as_number(None if each in self.variables else value)
                for each, value in rule.numbers.items()
            )
        )

    def _set(self, name: str, number: float) -> None:
        if not assign_number(self.variables[name], number, self._models()):
            raise MultigradError(
                f"{self._owner}: param {name!r} is with a running step of fit, which would "
                "overwrite it: reach it by the callback's self.model, or let Anneal() step it"
            )

    def _models(self) -> Iterable[Any]:
        """Return the models that may run a step with these Variables; `fit` tells an optimizer."""
        return ()

    def _drop_variable(self, variable: Any) -> None:
        """Drop a Variable; an optimizer keeps its own."""

    def __getitem__(self, name: str) -> Any:
        for params in (self.variables, self.fixed):
            if name in params:
                return params[name]
        raise RuleError(
            f"{self._owner} has no param {name!r}{suggest(name, list(self))} "
            f"(params: {', '.join(self) or 'none'})"
        )

    def __setitem__(self, name: str, value: Any) -> None:
        self[name]  # raises for an unknown name
        number = as_number(value)
        if number is None or name in self.fixed or name in self.schedules:
            raise RuleTypeError(
                f"{self._owner}: expected a number, for a param that is neither part of the rule's "
                f"code nor follows a schedule, got params[{name!r}] = {value!r:.40}"
            )
        self.check(name, number)
        self._set(name, number)

    def __delitem__(self, name: str) -> None:
        raise RuleTypeError(f"{self._owner} keeps {name!r}; write params[{name!r}] = number")

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError:  # in none of `__slots__`; it would change no param
            words = f"{self._owner}: write params[{name!r}] = {value!r:.40}, not params.{name}"
            raise AttributeError(words) from None

    def __iter__(self) -> Iterator[str]:
        return iter((*self.variables, *self.fixed))

    def __len__(self) -> int:
        return len(self.variables) + len(self.fixed)

    def __repr__(self) -> str:
        return repr({**self.variables, **self.fixed})

    def save(self, store: Any) -> None:
        """Store the Variables by name, and the steps of their schedules."""
        self.catch_up()
        for name, variable in self.variables.items():
            store[name] = read_array(variable)
        for name, schedule in self.schedules.items():
            store[name + COUNT_IN_FILE_SUFFIX] = np.asarray(schedule.count)

    def load(self, store: Any) -> None:
        """Load the stored numbers and steps that are there."""
        for name, schedule in self.schedules.items():
            key = name + COUNT_IN_FILE_SUFFIX
            if key in store.keys():  # noqa: SIM118  (Keras's store has no `in`)
                schedule.load_state_dict({"count": int(np.asarray(store[key]))})
        # A Variable that follows a schedule gets its number from there.
        for name in (self.variables.keys() - self.schedules.keys()) & set(store.keys()):
            self.variables[name].assign(store[name])


class CountVariable:
    """The step of one schedule, so that whatever restores Variables restores it with the number.

    `tf.train.Checkpoint`, Orbax and state trees, and torch's state dicts restore without telling
    us, so `take_restored` is called before the schedule moves on and before it is saved.

    Attributes:
        variable: the Variable.
        count: the value that we wrote or read last.
        last_identity: `identity_of_value` at that time.
    """

    __slots__ = ("count", "last_identity", "variable")

    def __init__(self, variable: Any, count: int) -> None:
        self.variable = variable
        self.count = count
        self.last_identity = identity_of_value(variable)

    def write(self, count: int, models: Iterable[Any]) -> None:
        assign_number(self.variable, count, models)
        self.count = count
        self.last_identity = identity_of_value(self.variable)

    def take_restored(self) -> int | None:
        """Return a step that a checkpoint has restored, once; None if there is none."""
        if is_taken(self.variable):  # by a step of fit, which does not change it
            return None
        new, old = identity_of_value(self.variable), self.last_identity
        # the value itself, and the number of its version
        if new is not None and old is not None and new[0] is old[0] and new[1] == old[1]:
            return None
        self.last_identity = new
        last_count = self.count
        self.count = int(read_array(self.variable))
        return None if self.count == last_count else self.count


def identity_of_value(variable: Any) -> tuple[Any, ...] | None:
    """Return objects that are others if the value may have changed, so that the device need not be
    read; None for a TensorFlow Variable, which has none.
    """
    value = getattr(variable, "_value", None)
    if value is None or BACKEND == "tensorflow":
        return None
    return value, getattr(value, "_version", None)


class LayerParams(RuleParams):
    """The params of a layer's own rule by name; a layer has one such object at a time.

    `layer.params["width"] = 2.0` does what `layer.params["width"].assign(2.0)` does, after a check
    of the range. `layer.params = ...` sets the Variables where the rule's code stays the same
    (`assign`), and else replaces the object. Both happen within `unchanged_on_failure`.

    Args:
        layer: the layer, which gets the Variables.
        given: the params that it was given.
        rule, bound_rule: its own rule, and this with values for all params; None if `use` decides.

    Attributes:
        given: the params that the layer was given; `assign` replaces them.
    """

    __slots__ = ("_bound", "_defaults", "_layer", "_runtime_params", "given")

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
        may_be_tensors = set(tensor_params(bound_rule))
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
        moving = {name: value for name, value in numbers if isinstance(value, Schedule)}
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
        self.follow_schedules({name: v for name, v in values.items() if isinstance(v, Schedule)})

    def numbers(self) -> dict[str, Any]:
        """Return the params now; of a Variable the exact number that it was given, if unchanged."""
        self.catch_up()
        given = {**self._defaults, **self.given}
        numbers = {
            name: self.schedules[name] if name in self.schedules else read_as_given(v, given[name])
            for name, v in self.variables.items()
            if name not in self._bound
        }
        return {**numbers, **self.fixed}

    def _models(self) -> Iterable[Any]:
        return self._layer._traced_models

    def _drop_variable(self, variable: Any) -> None:
        self._layer._untrack_variable(variable)

    def given_fixed(self) -> dict[str, Any]:
        return {name: value for name, value in self.fixed.items() if name in self.given}

    def saved_in_config(self) -> dict[str, Any]:
        """Return the params that a config saves: those given, or changed from their defaults."""
        now = self.numbers()
        changes = {
            k: now[k] for k in self.variables if k in now and now[k] != self._defaults.get(k)
        }
        return {**{name: now[name] for name in self.given if name in now}, **changes}


@contextmanager
def unchanged_on_failure(layer: Any) -> Iterator[None]:
    """Restore a layer's params, their Variables and numbers if the body raises.

    The body may set numbers of `layer._params` (`assign`), or put new params in their place.
    """
    params, tracked_variables = layer._params, [*layer._non_trainable_variables]
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
            for variable in tracked_variables:
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
    is_same = np.array_equal(value, np.asarray(given, value.dtype), equal_nan=True)
    return float(given) if is_same else float(value)


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
