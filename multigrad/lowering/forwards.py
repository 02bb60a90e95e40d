"""The eleven activations, declared once: name, op, and the graph of each."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from .. import ops
from ..errors import RuleTypeError, RuleValueError, suggest
from ..ir.graph import Graph
from ..ir.op import Op
from ..ir.types import INPUT
from ..passes.simplify import simplify
from ..tracing import xp_all as xp
from ..tracing.derivatives import pullback
from ..tracing.trace import Trace, Value, apply


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """An activation: an op with attributes; no op is the identity.

    `differentiable` is False where frameworks have no derivative for it, so that ours is used.
    `at_zero` is the value at the jump, where there is one: it is part of the name, by which all
    that is made of a forward is remembered, copied and saved.
    """

    name: str
    op: Op | None
    attrs: Any = field(default_factory=dict)
    differentiable: bool = True
    at_zero: float | None = None

    @functools.cache  # noqa: B019 (the rows live for ever)
    def graph(self) -> Graph:
        """Return `tin -> output`."""
        trace = Trace(self.name)
        tin = trace.input("tin", INPUT)
        output = tin if self.op is None else apply(self.op, tin, **self.attrs)
        if self.at_zero:
            output = jumping(tin, output, self.at_zero)
        return Graph(self.name, (tin.node,), (output.node,))

    @functools.cache  # noqa: B019
    def derivative(self) -> Graph:
        """Return `(grad_out, tin) -> grad` of the true derivative."""
        return simplify(pullback(self.graph()))


def jumping(tin: Value, step: Value, at_zero: float) -> Value:
    """Return a step that is `at_zero` at both zeros."""
    if at_zero == 1.0:
        return apply(ops.CAST, xp.greater_equal(tin, 0.0), dtype=tin.node.type.dtype)
    return xp.where(xp.equal(tin, 0.0), at_zero, step)


_ROWS = (
    Forward("Linear", None),
    Forward("ReLU", ops.RELU),
    Forward("ReLU6", ops.RELU6),
    Forward("LeakyReLU", ops.LEAKY_RELU, {"slope": 0.01}),
    Forward("ELU", ops.ELU, {"alpha": 1.0}),
    Forward("Tanh", ops.TANH),
    Forward("Logistic", ops.SIGMOID),
    Forward("SiLU", ops.SILU),
    Forward("GELU", ops.GELU, {"approximate": False}),
    Forward("Softplus", ops.SOFTPLUS),
    Forward("Heaviside", ops.HEAVISIDE, differentiable=False, at_zero=0.0),
)
ACTIVATIONS = MappingProxyType({row.name: row for row in _ROWS})
_BY_LOWER = {name.lower(): row for name, row in ACTIVATIONS.items()}


_WITH_VALUE = re.compile(r"(?P<name>\w+)\(at_zero=(?P<value>[^()]+)\)")


def find_forward(name: str, at_zero: float | None = None) -> Forward:
    """Return the activation of that name, in any case.

    Args:
        at_zero: the value at the jump, of Heaviside alone; None is what the name says, 0 where it
            says nothing. "Heaviside(at_zero=1.0)" is the name with its value.

    Raises:
        RuleValueError: there is none of the name, or its value at zero is no finite number.
        RuleTypeError: a value at zero for an activation that has no jump there, or no number.
    """
    found = _WITH_VALUE.fullmatch(name) if isinstance(name, str) else None
    if found is not None:
        row = _find_row(found["name"])
        try:
            said = float(found["value"])
        except ValueError:
            raise RuleValueError(
                f"activation {name!r}: {found['value']!r} is no number; write "
                "'Heaviside(at_zero=1.0)'"
            ) from None
        return _with_value(row, said if at_zero is None else at_zero)
    row = _find_row(name)
    return row if at_zero is None else _with_value(row, at_zero)


def _find_row(name: str) -> Forward:
    row = _BY_LOWER.get(name.lower()) if isinstance(name, str) else None
    if row is None:
        raise RuleValueError(
            f"no activation {name!r}{suggest(str(name), ACTIVATIONS)} "
            f"(activations: {', '.join(ACTIVATIONS)})"
        )
    return row


def _with_value(row: Forward, at_zero: float) -> Forward:
    """Return an activation with another value at its jump; one for each value."""
    if row.at_zero is None:
        raise RuleTypeError(
            f"activation {row.name!r} takes no at_zero: it has no jump at zero; Heaviside has"
        )
    if isinstance(at_zero, bool) or not isinstance(at_zero, int | float):
        raise RuleTypeError(f"at_zero is a number, such as 1.0; got {at_zero!r}")
    if not math.isfinite(at_zero):
        raise RuleValueError(f"at_zero is a finite number, such as 1.0; got {at_zero!r}")
    return _jumping(row, float(at_zero)) if at_zero else row


@functools.cache
def _jumping(row: Forward, at_zero: float) -> Forward:
    return replace(row, name=f"{row.name}(at_zero={at_zero!r})", at_zero=at_zero)
