"""A Function: forward graph and backward graph, what every replaced gradient is."""

from __future__ import annotations

from dataclasses import dataclass

from .ir.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A forward, and a backward that need not be its derivative.

    `backward` takes `grad_out`, then `tin` (the forward's input), then run-time params, then a key where it
    draws random numbers; it returns the gradient for `tin`.
    """

    name: str
    forward: Graph
    backward: Graph

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
    def saves(self) -> tuple[str, ...]:
        """What forward keeps for backward: the input, and only where backward reads its values."""
        return ("tin",) if self.backward.reads("tin") else ()
