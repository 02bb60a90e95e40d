"""`Variant`: what one capture of a function gave, for one layout of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from ...capture.types.oracle import Reach
from ...errors import DisprovedError
from ...graph.support.class_bases import dataclass
from ...lowering.function_graph import FunctionGraph
from ...trace.assertions import Assumption
from .arguments import Layout
from .effects.attributes import Note
from .effects.updates import Update


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A function captured for one layout of its arguments.

    Attributes:
        graphs: the tensors and the numbers of the layout are their inputs, in order.
        layout: of the arguments.
        outputs: the nesting of the outputs.
        fixed: outputs that are no tensors, by position.
        facts: what was fixed for the capture.
        proofs: by the dtype of the first float tensor: "" where the graphs were compared with what
            they were captured from, why that could not be done, or the error that says that they
            are not the same.
        omissions: what its graphs leave out of the code, by kind; see `Trace.omissions`.
        weak: the positions of outputs whose dtype gives way to others', on its own framework.
        assumed: what it asserts of values.
        notes: attributes that it sets on tensors; its own framework runs the original for them too.
        updates: arguments that it updates in place, as only its own framework does.
        combines: whether cotangents become one otherwise than by a sum, as no autodiff has it.
        lowered: what it was lowered to, by backend.
        reach: tells in which dtypes of 16 bits it holds, too; None: none is known.
    """

    graphs: FunctionGraph
    layout: Layout
    outputs: Any
    fixed: Mapping[int, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    proofs: dict[str, str | DisprovedError] = field(default_factory=dict)
    omissions: Mapping[str, str] = field(default_factory=dict)
    weak: tuple[int, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    notes: tuple[Note, ...] = ()
    updates: tuple[Update, ...] = ()
    combines: bool = False
    lowered: dict[str, Any] = field(default_factory=dict)
    reach: Reach | None = None

    def laid_out(self, layout: Layout) -> Variant:
        """Return this variant with another layout of the same key."""
        return self if self.layout is layout else replace(self, layout=layout)
