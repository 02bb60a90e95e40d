"""The params of a layer's own rule: its numbers are non-trainable Variables.

So a callback changes a number without a retrace, and it is saved with the weights. What the rule's Python code looks at
(a count, a word, a number that it branches on) is part of the compiled step, and stays what it is.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from ..activation import Activation as AnyActivation
from ..errors import RuleError, suggest
from ..registry import resolve
from ..rule import Rule, Spec
from .tracing import HOST

if TYPE_CHECKING:
    from .layer import Activation

Tensor = Any


class Params(Mapping[str, Any]):
    """The params of a layer's own rule by name: Variables, and what is no number as it is.

    `layer.params["width"].assign(2.0)` and `layer.params["width"] = 2.0` do the same.

    Attributes:
        given: what the layer was given.
        variables: the Variables by name.
    """

    def __init__(
        self, layer: Activation, activation: AnyActivation, given: Mapping[str, Any]
    ) -> None:
        self.given = dict(given)
        self.variables: dict[str, Any] = {}
        self._layer = layer
        self._settled: dict[str, Any] = {}
        self._defaults: dict[str, Any] = {}
        self._runtime: tuple[
            tuple[Any, Any], ...
        ] = ()  # the Variable, if it is one, else the value
        application = activation.application()
        if application is None:
            return
        rule = resolve(activation.rule)  # type: ignore[arg-type]
        spec, bound = application.spec, rule.bound
        free = set(spec.tensor_params())
        own = {**rule.params, **spread_defaults(rule)}
        self._defaults = {name: own[name] for name in free if isinstance(own.get(name), float)}
        for name, value in spec.params.items():
            if name in bound:
                continue
            if name in free:
                self.variables[name] = add_variable(layer, name, float(value))
            else:
                self._settled[name] = value
        if self.variables:
            values = zip(spec.family.runtime, spec.values, strict=True)
            self._runtime = tuple((self.variables.get(name), value) for name, value in values)

    def __getitem__(self, name: str) -> Any:
        if name in self.variables:
            return self.variables[name]
        if name in self._settled:
            return self._settled[name]
        raise RuleError(
            f"{self._layer.name} has no param {name!r}{suggest(name, list(self))} (params: {', '.join(self)})"
        )

    def __setitem__(self, name: str, value: Any) -> None:
        self[name]  # says what there is
        self._layer.params = {**self.numbers(), name: value}

    def __iter__(self) -> Iterator[str]:
        return iter((*self.variables, *self._settled))

    def __len__(self) -> int:
        return len(self.variables) + len(self._settled)

    def __repr__(self) -> str:
        return repr(self.numbers())

    def runtime(self) -> tuple[Any, ...]:
        """Return the values to apply the rule with, in its order; none where it has no Variables."""
        read = HOST.read_number
        if read is None:
            return tuple(value if v is None else v.value for v, value in self._runtime)
        return tuple(value if v is None else read(v.value) for v, value in self._runtime)

    def assign(self, given: Mapping[str, Any], spec: Spec) -> None:
        """Take what was given anew, and the Variables' values from the rule with it."""
        self.given = dict(given)
        for name, variable in self.variables.items():
            variable.assign(float(spec.params[name]))

    def numbers(self) -> dict[str, Any]:
        """Return the params as they are now, the Variables as the numbers that they were given where they hold them."""
        known = {**self._defaults, **self.given}
        found = {name: read(v, known[name]) for name, v in self.variables.items()}
        return {**found, **self._settled}

    def settled(self) -> dict[str, Any]:
        """Return those params that were given and are part of the rule's code."""
        return {name: value for name, value in self._settled.items() if name in self.given}

    def to_save(self) -> dict[str, Any]:
        """Return what a config holds: what was given, and what has another value than its default now."""
        now = self.numbers()
        changed = {k: now[k] for k in self.variables if now[k] != self._defaults.get(k)}
        return {**{name: now[name] for name in self.given if name in now}, **changed}


def add_variable(layer: Any, name: str, value: float) -> Any:
    """Return a new Variable of a layer, also of one that has been built."""
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        return layer.add_weight(
            name=name,
            shape=(),
            initializer=keras.initializers.Constant(value),
            dtype="float64" if layer.compute_dtype == "float64" else "float32",
            trainable=False,
            autocast=False,
        )
    finally:
        if locked:
            layer._tracker.lock()


def read(variable: Any, given: Any) -> float:
    """Return the number in a Variable; the one it was given where it holds just that, rounded."""
    try:
        value = np.asarray(keras.ops.convert_to_numpy(variable.value))
    except (
        TypeError,
        AttributeError,
        NotImplementedError,
    ):  # taken over by a step, or in its trace
        return float(given)
    same = np.array_equal(value, np.asarray(given, value.dtype), equal_nan=True)
    return float(given) if same else float(value)


def spread_defaults(rule: Any) -> dict[str, float]:
    """Return the numbers among a composed rule's params on whose default its parts agree."""
    rule = resolve(rule)
    if rule.function is not None:
        return {}
    return {
        name: next(iter(values))
        for name, values in find_defaults(rule).items()
        if len(values) == 1 and all(isinstance(value, float) for value in values)
    }


def find_defaults(rule: Rule) -> dict[str, set[Any]]:
    """Return each settable param of a rule with the defaults that its parts have for it."""
    if rule.function is not None:
        return {name: {value} for name, value in rule.params.items()}
    found: dict[str, set[Any]] = {}
    for part in rule.resolved_parts():
        for name, values in find_defaults(part).items():
            found.setdefault(name, set()).update(values)
    return {name: values for name, values in found.items() if name not in rule.bound}
