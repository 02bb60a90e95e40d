"""An attempt at a proof: a capture, what was captured, and how both are run on samples.

`functions.py` and `rules.py` make one of a Function and of a rule; `proof.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Graph
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.support.class_bases import dataclass
from . import samples
from .meanings import Change
from .rounding import Rounding
from .run import Outcome
from .samples import InputSlot, Sample
from .verdicts import ProofSubject


def _as_it_is(sample: Sample) -> Sample:
    return sample


@dataclass(frozen=True, slots=True)
class Attempt:
    """A capture to be proven.

    Attributes:
        subject: what it is, for messages.
        graphs, names: the graphs, and a name for each of their outputs, in order.
        shown: what messages call each result that is compared, by name.
        dtypes: those of results, by name, as the graphs have them.
        slots: the tensors that both sides get.
        slots_as_called: the tensors in the call's own shapes, for an original that takes no smaller
            ones; None: they are these already, or too large.
        numbers: the run-time numbers by name; those in `fixed_numbers` are part of the capture.
        may_act: whether the original may have side effects, so that it runs once.
        is_random: whether the graphs draw.
        run: runs both sides on samples; raises what the original raises for the first of them.
        recapture: captures once more, to find the line where the two part.
        add_cotangents: adds to a sample the cotangents, which have the shapes of its outputs.
        is_neutral: whether the code is for no library in particular: its dtypes are not NumPy's
            where it runs on that.
        numbers_adapt: whether numbers in code take the dtype of what they meet, as a rule's do.
        coarseness: by how much of a result the original's library is off, whatever the dtype.
        is_derived: whether no one wrote the derivative: those that frameworks derive differ in
            rounding, and on edges.
        replays_draws: whether the original's draws take the graph's keys.
        keeps_infinity: whether inf and NaN mean the same on both sides.
        is_known_in_float64: whether the graphs were compared in another dtype already: what they
            mean in float64 is the same for each.
        functions, objects: what the original runs, and what it is given besides tensors and
            numbers; what it changes of them is undone.
    """

    subject: ProofSubject
    graphs: tuple[Graph, ...]
    names: tuple[str, ...]
    shown: Mapping[str, str]
    dtypes: Mapping[str, str]
    slots: tuple[InputSlot, ...]
    numbers: Mapping[str, Any]
    fixed_numbers: frozenset[str]
    may_act: bool
    is_random: bool
    run: Callable[[Sequence[Sample]], list[Outcome]]
    recapture: Callable[[], Any]
    add_cotangents: Callable[[Sample], Sample] = _as_it_is
    slots_as_called: tuple[InputSlot, ...] | None = None
    is_neutral: bool = False
    numbers_adapt: bool = False
    coarseness: float = 0.0
    is_derived: bool = False
    replays_draws: bool = True
    keeps_infinity: bool = True
    is_known_in_float64: bool = False
    functions: Sequence[Any] = ()
    objects: Sequence[Any] = ()

    @property
    def dtype(self) -> Any:
        """The dtype that T stands for."""
        return as_numpy_dtype(samples.first_float(self.slots))

    @property
    def cotangents(self) -> tuple[str, ...]:
        """The names of the cotangents that the graphs read."""
        nodes = dict.fromkeys(node for graph in self.graphs for node in graph.inputs)
        names = [node.attr("name") for node in nodes]
        return tuple(name for name in names if name.startswith("grad_out_"))

    @property
    def ops(self) -> set[ops.Op]:
        """The ops of the graphs."""
        return {node.op for graph in self.graphs for node in graph.nodes}

    @property
    def has_loop(self) -> bool:
        """Whether a loop of the graphs ends by values, so that it may not end on a sample."""
        return ops.WHILE_LOOP in self.ops

    def rounding(self, sample: Sample, choose: Change | None = None) -> Rounding:
        """Return what rounding does to the graphs on a sample; see `Rounding` for `choose`."""
        return Rounding(self.graphs, self.names, sample, self.dtype, choose)

    def least_rounding(self, rounding: Rounding) -> float:
        """Return how coarsely each step may be rounded at least, whatever its dtype."""
        eps = rounding.eps_of_numbers() if self.numbers_adapt else 0.0
        return max(eps, self.coarseness)
