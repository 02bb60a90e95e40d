"""An attempt at a proof: a capture, what was captured, and how both are run on samples.

`functions.py` makes one; `proof.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....core import ops
from ....core.functions import samples
from ....core.functions.samples import InputSlot, Sample
from ....core.ir.graph import Graph
from ....core.ops.numerics import as_numpy_dtype
from .executions import FunctionUnderProof
from .run import Outcome
from .verdicts import ProofSubject


@dataclass(frozen=True, slots=True)
class Attempt:
    """A capture to be proven.

    Attributes:
        captured: the graphs, their code, and the arguments.
        subject: what it is, for messages.
        graphs, names: the graphs, and a name for each of their outputs, in order.
        shown: what messages call each result that is compared, by name.
        dtypes: those of results, by name, as the graphs have them.
        slots: the tensors that both sides get.
        slots_as_called: the tensors in the call's own shapes, for an original that takes no smaller
            ones; None: they are these already, or too large.
        numbers: the run-time numbers by name.
        run: runs both sides on samples; raises what the original raises for the first of them.
        recapture: captures once more, to find the line where the two part.
        dialect: that which the original is written in.
        add_cotangents: adds to a sample the cotangents, which have the shapes of its outputs.
        is_neutral: whether the code is for no one library: on NumPy its dtypes are not NumPy's.
    """

    captured: FunctionUnderProof
    subject: ProofSubject
    graphs: tuple[Graph, ...]
    names: tuple[str, ...]
    shown: Mapping[str, str]
    dtypes: Mapping[str, str]
    slots: tuple[InputSlot, ...]
    numbers: Mapping[str, Any]
    run: Callable[[Sequence[Sample]], list[Outcome]]
    recapture: Callable[[], Any]
    dialect: str
    add_cotangents: Callable[[Sample], Sample]
    slots_as_called: tuple[InputSlot, ...] | None
    is_neutral: bool

    @property
    def dtype(self) -> Any:
        """The dtype that T stands for."""
        return as_numpy_dtype(samples.first_float(self.slots))

    @property
    def ops(self) -> set[ops.Op]:
        return {node.op for graph in self.graphs for node in graph.nodes}
