"""What traced code makes or looks up instead of calling: activations, rules by their name.

Dynamo cannot trace what rules do, so `readers.py` gives it these. An activation is made outside the
trace, and is passed by its name in CALLS; the params that are inputs of the graph are passed with
each call.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from multigrad.core.rules.activation import Activation, activation
from multigrad.core.rules.context import RuleInForce
from multigrad.core.rules.registry import get

from ..core import dynamo
from ..core.compile.calls import CALLS, NAMES, More, Refused, is_open, keep, make_concrete
from ..core.compile.compile import refusal_of
from ..core.compile.dynamo_guards import EPOCH, reads_numbers
from .arguments import describe, restore

Tensor: TypeAlias = torch.Tensor
OUTSIDE = "make it outside of the compiled function"
OBJECTS_REFUSED = Refused(
    f"an activation of objects or tensors is made in compiled code: {OUTSIDE}"
)


class WithNumbers:
    """An activation that traced code makes, with the params that are inputs of the graph."""

    def __init__(self, activation: Activation, numbers: dict[str, float]) -> None:
        self.activation, self.numbers = activation, numbers
        self.params = {**activation.params, **numbers}

    def own_in_force(self) -> RuleInForce:
        in_force = self.activation.own_in_force()
        assert in_force is not None
        values = tuple({**in_force.numbers, **self.numbers}.values())
        return in_force.with_values(values, in_force.own_token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.activation, name)

    def __call__(self, x: Tensor, **params: Any) -> Tensor:
        return self.activation(x, **{**self.numbers, **params})


def made_activation(forward: Any, rule: Any = None, params: Any = None, **options: Any) -> Any:
    """Return an activation that traced code makes, instead of `xg.activation`."""
    numbers = dict(params or {})
    made: Any = OBJECTS_REFUSED
    values = (forward, rule, *numbers.values(), *options.values())
    # An object may change later, and a tensor with each call.
    if all(each is None or isinstance(each, str | int | float) for each in values):
        given = describe({**options, "forward": forward, "rule": rule}, [], ())
        inputs: list[Tensor] = []
        described = describe(numbers, [], (), inputs)
        made = getattr(CALLS, make_activation(given, described, EPOCH.text))
        if isinstance(made, More):
            inputs, described = [], describe(numbers, [], ())
            made = getattr(CALLS, make_activation(given, described, EPOCH.text))
        if inputs and not isinstance(made, Refused):
            floats = {name: each for name, each in numbers.items() if isinstance(each, float)}
            return WithNumbers(made, floats)
    if isinstance(made, Refused):
        torch._dynamo.graph_break(msg=made.reason)
        return make_outside(forward, rule, params, **options)
    return made


def find_rule(rule: Any) -> Any:
    """Return a rule between graphs, instead of `xg.get`: Dynamo cannot trace what rules do."""
    if isinstance(rule, str):
        torch._dynamo.graph_break(msg=f"rule {rule!r} is looked up in compiled code: {OUTSIDE}")
    return find_outside(rule)


# Outside compiled code, after a graph break.
make_outside, find_outside = dynamo.disable(activation), dynamo.disable(get)


# --- outside the trace ---------------------------------------------------------------------------
@dynamo.assume_constant_result
def make_activation(described: Any, described_params: Any, epoch: str) -> str:
    """Make an activation; return its name in CALLS, or that of a refusal.

    If one of its params is open, each call passes all floats; that of More if its rule allows none.
    """
    key = (activation, repr((described, described_params)), epoch)  # 1, 1.0, True are equal
    floats: set[str] = set()
    try:
        if key not in NAMES:
            params = restore(described_params)
            if any(map(is_open, params.values())):
                floats = {name for name, v in params.items() if is_open(v) or type(v) is float}
                params = {name: value for name, value in params.items() if name not in floats}
            made = activation(**restore(described), params=params)
            if floats and not takes_inputs(made, floats):
                return keep(More(values=True))
            keep(made, key)
    except Exception as error:  # noqa: BLE001
        # Dynamo would wrap it; eager code raises it again after the graph break.
        return keep(More(values=True) if floats else refusal_of(error))
    return NAMES[key]


def takes_inputs(made: Activation, names: set[str]) -> bool:
    """Return whether the values of these params may be open: nothing but a call reads them."""
    in_force = made.own_in_force()
    if in_force is None or not names.issubset(made.runtime) or reads_numbers(in_force):
        return False
    return not in_force.specialization.rule.parts


def show_concrete(value: Any) -> str:
    return repr(make_concrete(value) if isinstance(value, int | float) else value)
