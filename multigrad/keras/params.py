"""The params of a layer's own rule, whose numbers are non-trainable Variables.

So a callback changes a number without a retrace, and it is saved with the weights. Params that the
rule's Python code reads (a count, a word, a number that it branches on) are part of the compiled
step and fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import keras
import numpy as np

from ..errors import MultigradError, RuleError, RuleTypeError, suggest
from ..graph.support.params import as_number
from ..rules.model.rule import Rule
from ..rules.model.rule_in_force import RuleInForce
from ..rules.schedule import Schedule
from ..trace.moving_numbers import Moving, settle
from .compiled_steps import BACKEND, HOST, assign_number, is_taken, read_array, read_value

# --- the step counts of schedules, as Variables ---------------------------------------------------
# A schedule's number is a Variable, and so is its step: whatever restores Variables restores both
# (`tf.train.Checkpoint`, Orbax and state trees, torch's state dicts). None of them tells, so the
# step is read before the schedule moves on and before it is saved.
COUNT_VARIABLE = "_count"  # the suffix of such a Variable's name


class CountVariable:
    """The step of one schedule.

    Attributes:
        variable: the Variable.
        count: the value that it is known to have.
    """

    __slots__ = ("count", "seen", "variable")

    def __init__(self, variable: Any, count: int) -> None:
        self.variable = variable
        self.count = count
        self.seen = note_value(variable)

    def put(self, count: int, models: Iterable[Any]) -> None:
        assign_number(self.variable, count, models)
        self.count = count
        self.seen = note_value(self.variable)

    def brought(self) -> int | None:
        """Return a step that a checkpoint has restored, once; None if there is none."""
        if is_taken(self.variable):  # by a step of fit, which does not change it
            return None
        now = note_value(self.variable)
        if now is not None and self.seen is not None and all(map(_is, now, self.seen)):
            return None
        self.seen = now
        before = self.count
        self.count = int(read_array(self.variable))
        return None if self.count == before else self.count


def note_value(variable: Any) -> tuple[Any, ...] | None:
    # objects that are replaced with the value, so that the device is not read; TensorFlow has none
    value = getattr(variable, "_value", None)
    if value is None or BACKEND == "tensorflow":
        return None
    return value, getattr(value, "_version", None)


def _is(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) is int and a == b)


# --- params ---------------------------------------------------------------------------------------
Tensor = Any
COUNT = ":count"  # the suffix of a schedule's count in a file
AddVariable = Callable[[str, float, str], Any]  # by name, number and dtype


class RuleParams(Mapping[str, Any]):
    """The params of a rule by name: Variables for numbers, other values unchanged.

    Attributes:
        variables: the Variables by name.
        settled: the others.
        schedules: those that some of the Variables follow.
        counts: their steps.
    """

    def __init__(
        self,
        owner: str,
        variables: dict[str, Any],
        settled: dict[str, Any],
        add_variable: AddVariable,
        schedules: Mapping[str, Moving] | None = None,
        look_up: Callable[[], RuleInForce | None] = lambda: None,
    ) -> None:
        self._owner = owner
        self._look_up = look_up
        self.variables = variables
        self.settled = settled
        self.schedules: dict[str, Schedule] = {}
        self.counts: dict[str, CountVariable] = {}
        self._add_variable = add_variable
        self.follow(schedules or {})

    def state(self) -> dict[str, Any]:
        """Return all Variables by name: the numbers, then the steps of their schedules."""
        steps = {name + COUNT_VARIABLE: each.variable for name, each in self.counts.items()}
        return {**self.variables, **steps}

    def follow(self, schedules: Mapping[str, Moving]) -> None:
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
            # Read before it is followed, as its own count must win over the Variable's.
            count = schedule.count
            if name in self.counts:
                self.counts[name].put(count, self._models())
            else:
                made = self._add_variable(name + COUNT_VARIABLE, count, "int32")
                self.counts[name] = CountVariable(made, count)
            self.schedules[name] = schedule
            schedule.follow(self)
        for name in self.counts.keys() - self.schedules.keys():
            self._drop_variable(self.counts.pop(name).variable)

    def on_move(self, moving: Moving) -> None:
        """Set the Variables of a schedule that has moved."""
        for name, schedule in self.schedules.items():
            if schedule is moving:
                count = schedule.count  # read first: this may restore a count from other followers
                self._set(name, schedule.value)
                self.counts[name].put(count, self._models())

    def before_step(self, moving: Moving) -> None:
        """Set a schedule to the step that a checkpoint has restored."""
        for name, schedule in self.schedules.items():
            if schedule is moving:
                count = self.counts[name].brought()
                if count is not None:
                    schedule.load_state_dict({"count": count})

    def catch_up(self) -> None:
        """Set all schedules to the steps that a checkpoint has restored."""
        for schedule in self.schedules.values():
            self.before_step(schedule)

    def _drop_variable(self, variable: Any) -> None:
        """Drop a Variable; an optimizer keeps its own."""

    def check(self, name: str, number: float) -> None:
        """Check a number for a Variable, together with the rule's fixed numbers."""
        bound_rule = self._look_up()
        if bound_rule is None:
            return
        pairs = bound_rule.numbers.items()
        bound_rule.specialization.check_numbers(
            tuple(
                number if each == name else as_number(None if each in self.variables else value)
                for each, value in pairs
            )
        )

    def _set(self, name: str, number: float) -> None:
        if not assign_number(self.variables[name], number, self._models()):
            raise MultigradError(
                f"{self._owner}: param {name!r} is with a running step of fit, which would "
                f"overwrite it: let the callback multigrad.keras.Anneal() step its schedule"
            )

    def _models(self) -> Iterable[Any]:
        return ()

    def __getitem__(self, name: str) -> Any:
        for params in (self.variables, self.settled):
            if name in params:
                return params[name]
        raise RuleError(
            f"{self._owner} has no param {name!r}{suggest(name, list(self))} "
            f"(params: {', '.join(self) or 'none'})"
        )

    def __iter__(self) -> Iterator[str]:
        return iter((*self.variables, *self.settled))

    def __len__(self) -> int:
        return len(self.variables) + len(self.settled)

    def __repr__(self) -> str:
        return repr({**self.variables, **self.settled})

    def save(self, store: Any) -> None:
        """Store the Variables by name, and the steps of their schedules."""
        self.catch_up()
        for name, variable in self.variables.items():
            store[name] = read_array(variable)
        for name, schedule in self.schedules.items():
            store[name + COUNT] = np.asarray(schedule.count)

    def load(self, store: Any) -> None:
        """Load the stored numbers and steps that are there."""
        for name, schedule in self.schedules.items():
            if name + COUNT in store.keys():  # noqa: SIM118  (Keras's store has no `in`)
                schedule.load_state_dict({"count": int(np.asarray(store[name + COUNT]))})
        # A Variable that follows a schedule gets its number from there.
        for name in (self.variables.keys() - self.schedules.keys()) & set(store.keys()):
            self.variables[name].assign(store[name])


class Params(RuleParams):
    """The params of a layer's own rule by name.

    `layer.params["width"].assign(2.0)` and `layer.params["width"] = 2.0` do the same.

    Attributes:
        given: the params that the layer was given.
    """

    def __init__(
        self,
        layer: Any,
        given: Mapping[str, Any],
        rule: Rule | None,
        bound_rule: RuleInForce | None,
    ) -> None:
        super().__init__(
            layer.name, {}, {}, partial(add_variable, layer), look_up=lambda: bound_rule
        )
        self.given = dict(given)
        self._layer = layer
        self._defaults: dict[str, Any] = {}
        self._bound: set[str] = set()  # Variables of params that the rule has bound to a schedule
        # The Variable, if it is one, else the value.
        self._runtime: tuple[tuple[Any, Any], ...] = ()
        if rule is None or bound_rule is None:
            return
        free = set(bound_rule.tensor_params())
        own = {**rule.params, **spread_defaults(rule)}
        self._defaults = {name: own[name] for name in free if isinstance(own.get(name), float)}
        for name, value in bound_rule.params.items():
            if name in rule.bound:
                continue
            if name in free:
                self.variables[name] = self._add_variable(name, float(settle(value)), "float32")
            else:
                self.settled[name] = value
        pairs = bound_rule.numbers.items()
        moving = {name: value for name, value in pairs if isinstance(value, Moving)}
        for name in moving.keys() & free - self.variables.keys():  # bound by `with_params`
            self.variables[name] = self._add_variable(name, moving[name].value, "float32")
            self._bound.add(name)
        self.follow(moving)
        if self.variables:
            self._runtime = tuple((self.variables.get(name), value) for name, value in pairs)

    def __setitem__(self, name: str, value: Any) -> None:
        self[name]  # raises for an unknown name
        self._layer.params = {**self.numbers(), name: value}

    def __repr__(self) -> str:
        return repr(self.numbers())

    def runtime(self) -> tuple[Any, ...]:
        """Return the values to apply the rule with, in its order; () without numbers."""
        values = tuple(value if v is None else read_value(v.value) for v, value in self._runtime)
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
        self.follow({name: v for name, v in values.items() if isinstance(v, Moving)})

    def numbers(self) -> dict[str, Any]:
        """Return the params now; of a Variable the exact number that it was given, if unchanged."""
        self.catch_up()
        known = {**self._defaults, **self.given}
        numbers = {
            name: self.schedules[name] if name in self.schedules else read_as_given(v, known[name])
            for name, v in self.variables.items()
            if name not in self._bound
        }
        return {**numbers, **self.settled}

    def _models(self) -> Iterable[Any]:
        return self._layer._traced_for

    def _drop_variable(self, variable: Any) -> None:
        self._layer._untrack_variable(variable)

    def code(self) -> dict[str, Any]:
        """Return the given params that are part of the rule's code."""
        return {name: value for name, value in self.settled.items() if name in self.given}

    def to_save(self) -> dict[str, Any]:
        """Return the params that a config saves: those given, or changed from their defaults."""
        now = self.numbers()
        changed = {
            k: now[k] for k in self.variables if k in now and now[k] != self._defaults.get(k)
        }
        return {**{name: now[name] for name in self.given if name in now}, **changed}


@contextmanager
def unchanged_on_failure(layer: Any) -> Iterator[None]:
    """Restore a layer's params and their numbers if the body raises."""
    params, tracked = layer._params, [*layer._non_trainable_variables]
    held = {name: copy(each) for name, each in vars(params).items() if isinstance(each, dict)}
    numbers = [(each, read_array(each)) for each in params.state().values() if not is_taken(each)]
    try:
        yield
    except BaseException:
        for schedule in params.schedules.values():
            schedule.unfollow(params)
        vars(params).update(held)
        for schedule in params.schedules.values():
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


def spread_defaults(rule: Rule) -> dict[str, float]:
    """Return the default numbers of a composed rule's params on which its parts agree."""
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
