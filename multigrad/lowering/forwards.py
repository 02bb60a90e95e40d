"""The eleven activations, declared once: name, op, and the graph of each."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .. import ops
from ..errors import RuleValueError, suggest
from ..ir.graph import Graph
from ..ir.op import Op
from ..ir.types import INPUT
from ..passes.simplify import simplify
from ..tracing.derivatives import pullback
from ..tracing.trace import Trace, apply


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """An activation: an op with attributes; no op is the identity.

    `differentiable` is False where frameworks have no derivative for it, so that ours is used.
    """

    name: str
    op: Op | None
    attrs: Any = field(default_factory=dict)
    differentiable: bool = True

    @functools.cache  # noqa: B019 (the rows live for ever)
    def graph(self) -> Graph:
        """Return `tin -> output`."""
        trace = Trace(self.name)
        tin = trace.input("tin", INPUT)
        output = tin if self.op is None else apply(self.op, tin, **self.attrs)
        return Graph(self.name, (tin.node,), (output.node,))

    @functools.cache  # noqa: B019
    def derivative(self) -> Graph:
        """Return `(grad_out, tin) -> grad` of the true derivative."""
        return simplify(pullback(self.graph()))


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
    Forward("Heaviside", ops.HEAVISIDE, differentiable=False),
)
ACTIVATIONS = MappingProxyType({row.name: row for row in _ROWS})
_BY_LOWER = {name.lower(): row for name, row in ACTIVATIONS.items()}


def find_forward(name: str) -> Forward:
    """Return the activation of that name, in any case.

    Raises:
        RuleValueError: there is none.
    """
    row = _BY_LOWER.get(name.lower()) if isinstance(name, str) else None
    if row is None:
        raise RuleValueError(
            f"no activation {name!r}{suggest(str(name), ACTIVATIONS)} "
            f"(activations: {', '.join(ACTIVATIONS)})"
        )
    return row
