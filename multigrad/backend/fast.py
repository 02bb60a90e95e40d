"""Fast kernels: rows that a backend declares beside its ops, for code without derivatives.

A row either rewrites a node into one of the backend's own kernels or says how an op writes over a
temporary that nobody else holds. A row keeps each bit of each result, or says that it rounds less
often; it gives its measured reason and can be turned off: `with
multigrad.lowering.patterns.without("torch.in_place"):`, or
MULTIGRAD_WITHOUT="torch.in_place,numpy.blocks" in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from ..graph.ir.graph import Graph, Node
from ..graph.ir.op import Op
from ..graph.ir.types import Type
from ..graph.support.data import dataclass

ENVIRONMENT = "MULTIGRAD_WITHOUT"
DISABLED: ContextVar[frozenset[str]] = ContextVar("disabled", default=frozenset())


Rewrite = Callable[[Node], Node | None]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A node that has a faster kernel.

    Attributes:
        name: "<backend>.<what it is>".
        reason: what was measured.
        rewrites: for each op, what gives a node of it in terms of the backend's own kernels, or
            None where it does not fit. A row without any asks `enabled(name)` where it is used.
        rewrite_graph: the same for what takes a look at a whole graph; these come first.
        rounds: whether it rounds otherwise than the ops where no number is prepared: what
            `xg.lower` gives has other bits without it.
    """

    name: str
    reason: str
    rewrites: Mapping[Op, Rewrite] = field(default_factory=dict)
    rewrite_graph: Callable[[Graph], Graph] | None = None
    rounds: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FastKernels:
    """A backend's fast rows.

    Attributes:
        patterns: the rewrites, in order, and the rows that are switches only.
        kernels: callables of the backend's own ops; each returns new memory.
        in_place: per op, for each operand, `f(operand, *others, **attrs)` that writes the result
            over the operand; None where there is none. Its switch is "<backend>.in_place".
        into: per op, `f(*operands, out=place)` that writes the result to a place of its dtype and
            shape, or into new memory where that is None; its first operand is a tensor.
        turns: `(carry, rows, constants, body, reverse, turn, assumed, held)`, a scan whose turns
            write into what it gives. `turn` is as `body`, but for what it takes besides: for each
            of its results a place, or None. It may count on the carry's keeping its shapes, and
            on those rows having the shape of a carry that `assumed` pairs. `held` pairs what it
            gives with the carry that this was before. Its switch is "<backend>.turns".
        constants: operands of ops, by position, where a number is better prepared as a tensor; its
            switch is "<backend>.constants".
        by_op: the rewrites of the patterns, in order, with the names of their rows.
    """

    patterns: tuple[Pattern, ...] = ()
    kernels: Mapping[Op, Callable[..., Any]] = field(default_factory=dict)
    in_place: Mapping[Op, tuple[Callable[..., Any] | None, ...]] = field(default_factory=dict)
    into: Mapping[Op, Callable[..., Any]] = field(default_factory=dict)
    turns: Callable[..., Any] | None = None
    constants: Mapping[Op, tuple[int, ...]] = field(default_factory=dict)
    by_op: Mapping[Op, Sequence[tuple[str, Rewrite]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_op: dict[Op, list[tuple[str, Rewrite]]] = {}
        for row in self.patterns:
            for op, rewrite in row.rewrites.items():
                by_op.setdefault(op, []).append((row.name, rewrite))
        object.__setattr__(self, "by_op", by_op)


def kernel(name: str, operands: str, result: Callable[..., Type]) -> Op:
    """Declare a backend's own op; it occurs only in emitted graphs."""
    return Op(
        name,
        tuple(operands.split()),
        {},
        coerce="raw",
        result=result,
        numpy=_structural,
        vjp=None,
        doc=name,
    )


def _structural(*args: Any, **attrs: Any) -> Any:
    raise TypeError("a backend's own kernel has no meaning in NumPy")


def disabled() -> frozenset[str]:
    """Return the names of the rows that are turned off here."""
    named = os.environ.get(ENVIRONMENT, "")
    return DISABLED.get() | {word.strip() for word in named.split(",") if word.strip()}


def enabled(name: str) -> bool:
    """Return whether a row may be used."""
    return name not in disabled()
