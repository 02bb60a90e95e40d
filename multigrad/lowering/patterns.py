"""Fast kernels: rows that a backend declares beside its ops, used where no derivative is taken of the code.

A row either rewrites a node into one of the backend's own kernels or says how an op writes over a temporary that
nobody else holds. A row keeps each bit of each result, or says that it rounds less often; it gives its measured reason
and can be turned off:
`with without("torch.in_place"):`, or MULTIGRAD_WITHOUT="torch.in_place,numpy.blocks" in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..errors import MultigradError, suggest
from ..ir.graph import Graph, Node
from ..ir.op import Op
from ..ir.passes import rebuild
from ..ir.types import Type

ENVIRONMENT = "MULTIGRAD_WITHOUT"
_disabled: ContextVar[frozenset[str]] = ContextVar("disabled", default=frozenset())


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A node that has a faster kernel.

    Attributes:
        name: "<backend>.<what it is>".
        reason: what was measured.
        rewrite: the node in terms of the backend's own kernels; None where it does not fit. None for a row
            that is not a rewrite: then who uses it asks `enabled(name)`.
        rewrite_graph: the same for what takes a look at a whole graph; these come first.
    """

    name: str
    reason: str
    rewrite: Callable[[Node], Node | None] | None = None
    rewrite_graph: Callable[[Graph], Graph] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FastKernels:
    """A backend's fast rows.

    Attributes:
        patterns: the rewrites, in order, and the rows that are switches only.
        kernels: callables of the backend's own ops; each returns new memory.
        in_place: per op, for each operand, `f(operand, *others, **attrs)` that writes the result over the
            operand; None where there is none. Its switch is "<backend>.in_place".
        constants: operands of ops, by position, where a number is better prepared as a tensor; its switch is
            "<backend>.constants".
    """

    patterns: tuple[Pattern, ...] = ()
    kernels: Mapping[Op, Callable[..., Any]] = field(default_factory=dict)
    in_place: Mapping[Op, tuple[Callable[..., Any] | None, ...]] = field(default_factory=dict)
    constants: Mapping[Op, tuple[int, ...]] = field(default_factory=dict)


def kernel(name: str, operands: str, result: Callable[..., Type]) -> Op:
    """Declare an op of a backend's own; it stands in no graph but an emitted one."""
    return Op(name, tuple(operands.split()), (), "raw", result, _structural, None, name)


def _structural(*args: Any, **attrs: Any) -> Any:
    raise TypeError("a backend's own kernel has no meaning in NumPy")


def disabled() -> frozenset[str]:
    """Return the names of the rows that are turned off here."""
    named = os.environ.get(ENVIRONMENT, "")
    return _disabled.get() | {word.strip() for word in named.split(",") if word.strip()}


def enabled(name: str) -> bool:
    """Return whether a row may be used."""
    return name not in disabled()


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Turn rows off for what is lowered inside of the block (`xg.lower`; layers keep what they have).

    Raises:
        MultigradError: no loaded backend has a row of that name.
    """
    known = all_patterns()
    for name in names:
        if name not in known:
            raise MultigradError(
                f"no fast kernel {name!r}{suggest(name, known)} (of the loaded backends: "
                f"{', '.join(sorted(known)) or 'none'})"
            )
    token = _disabled.set(_disabled.get() | set(names))
    try:
        yield
    finally:
        _disabled.reset(token)


def all_patterns() -> dict[str, Pattern]:
    """Return the rows of all loaded backends by name."""
    from .backend import loaded

    return {row.name: row for backend in loaded() for row in backend.fast.patterns}


def apply_patterns(graph: Graph, patterns: tuple[Pattern, ...]) -> Graph:
    """Return the graph in a backend's own kernels."""
    off = disabled()
    for row in patterns:
        if row.rewrite_graph is not None and row.name not in off:
            graph = row.rewrite_graph(graph)
    rewrites = [row.rewrite for row in patterns if row.rewrite is not None and row.name not in off]
    if not rewrites:
        return graph

    def change(node: Node) -> Node:
        for rewrite in rewrites:
            better = rewrite(node)
            if better is not None:
                return better
        return node

    return rebuild(graph, change)
