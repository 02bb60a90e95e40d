"""A Function: forward graph and backward graph, what every replaced gradient is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .ir.graph import Graph
from .ir.passes import rename_inputs
from .ir.residuals import Cut, cut_residuals
from .ir.residuals import keep_input as cut_at_input

RESIDUAL = re.compile(r"kept(_\d+)?")  # the names that residuals get


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A forward, and a backward that need not be its derivative.

    `backward` takes `grad_out`, then `tin` (the forward's input), then run-time params, then a key where it
    draws random numbers; it returns the gradient for `tin`. `first_order` is its author's promise that nobody
    differentiates the backward, so that floats computed in forward may be kept.
    """

    name: str
    forward: Graph
    backward: Graph
    first_order: bool = False

    @property
    def params(self) -> tuple[str, ...]:
        """The run-time params of the backward, in order."""
        names = [node.attr("name") for node in self.backward.inputs]
        return tuple(name for name in names if name not in ("grad_out", "tin", "key"))

    @property
    def is_random(self) -> bool:
        """Whether the backward draws random numbers."""
        return self.backward.input("key") is not None

    @property
    def is_derivative(self) -> bool:
        """Whether the backward is the forward's true derivative, node by node."""
        if self.forward.outputs[0] not in set(self.backward.nodes()):
            return False  # where it is not even read, the answer is of no use
        from .errors import UnsupportedOp
        from .ir.derivatives import pullback
        from .ir.passes import simplify

        try:
            return simplify(pullback(self.forward)).outputs == self.backward.outputs
        except UnsupportedOp:
            return False

    def cut(self, floats: bool = False, *, keep_input: bool = False) -> Cut:
        """Return the backward split at what forward keeps for it.

        Args:
            floats: whether a float kept by forward keeps its derivative.
            keep_input: keep the input and nothing else.
        """
        if keep_input:
            return cut_at_input(self.forward, self.backward)
        # An output's derivative is this Function's own: elsewhere it is not that of the op in the backward.
        output = self.first_order or self.is_derivative
        return cut_residuals(
            self.forward, self.backward, floats=floats or self.first_order, output=output
        )

    def with_safe_names(self, reserved: Iterable[str]) -> Function:
        """Return the Function with params renamed that are called like a word of the emitted code."""
        reserved = set(reserved)
        taken = {*reserved, *self.params}
        renamed: dict[str, str] = {}
        for name in self.params:
            if name in reserved or RESIDUAL.fullmatch(name):
                safe = f"{name}_"
                while safe in taken:
                    safe += "_"
                renamed[name] = safe
                taken.add(safe)
        if not renamed:
            return self
        backward = rename_inputs(self.backward, renamed)
        return Function(self.name, self.forward, backward, self.first_order)
