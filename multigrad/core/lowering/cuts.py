"""Where backward is split for a backend: what forward keeps for it, and what shares memory.

`find_cuts` has one split for code that may run anywhere: under transforms, and where a derivative
is taken of it. Where none is taken, fast code may keep more and compute less: `Cuts.wide`.
"""

from __future__ import annotations

from .. import ops
from ..backend.contract import Backend
from ..backend.emitted import Aliasing
from ..ir.graph import Graph, walk
from ..ir.results import OWNING
from ..passes.memory import passed
from ..passes.residuals import ResidualCut
from ..support.records import record
from .function_graph import FunctionGraph


@record()
class WideCut:
    """A split that keeps more: what loops give at each turn, or what cost forward much.

    The forward of `graphs` runs the scans that backward reads.
    """

    graphs: FunctionGraph
    cut: ResidualCut


@record()
class Cuts:
    """Where backward is split: `anywhere` in code that may be differentiated, `wide` in fast code
    that keeps more (None if it keeps the same). `late` are inputs that only the former reads.
    """

    anywhere: ResidualCut
    wide: WideCut | None
    late: tuple[str, ...] = ()

    @property
    def histories(self) -> tuple[str, ...]:
        """The residuals that fast code keeps in addition."""
        if self.wide is None:
            return ()
        return tuple(r for r in self.wide.cut.residuals if r not in self.anywhere.residuals)

    @property
    def likes(self) -> tuple[str, ...]:
        """The residuals of which no code of backward reads more than the shape and dtype."""
        if self.wide is None:
            return self.anywhere.likes
        cuts = (self.anywhere, self.wide.cut)
        read_whole = {r for each in cuts for r in each.residuals if r not in each.likes}
        names = dict.fromkeys(r for each in cuts for r in each.residuals)
        return tuple(name for name in names if name not in read_whole)


def find_cuts(
    graphs: FunctionGraph, backend: Backend, *, forward_mode: bool, fast: bool, compiled: bool
) -> Cuts:
    """Split backward as a backend's code needs it.

    Args:
        forward_mode: whether the object pushes tangents itself.
        fast: whether the backend has fast code.
        compiled: whether a compiler reads the code, which takes no derivative of loops.
    """
    autodiff = backend.autodiff
    floats, is_watched = autodiff.keeps_float_derivatives, autodiff.watches_outputs
    # A tangent map of the author's own may read anything, also where it is run on what forward
    # keeps for backward; one that is transposed, only what is kept.
    is_own = graphs.pushed is not None and (forward_mode or autodiff.transposes)
    keeps_inputs = is_own or (forward_mode and not autodiff.transposes)
    apart = None if keeps_inputs else find_cuts_for_writes(graphs, backend, joins=fast or compiled)
    if apart is not None:
        return apart
    wide = None
    if not keeps_inputs and graphs.residuals not in ("input", "recompute"):
        wide = _find_wide(graphs, backend, fast, compiled)
    if wide is not None and floats:  # what it keeps has its derivative, so all code may keep it
        return Cuts(wide.cut, wide)
    if keeps_inputs or wide is not None:
        return Cuts(graphs.cut_at_inputs(pushes=autodiff.transposes), wide)
    packs = backend.kernels.bits is not None
    return Cuts(graphs.cut(floats, watched=is_watched, packs=packs), None)


def find_cuts_for_writes(graphs: FunctionGraph, backend: Backend, *, joins: bool) -> Cuts | None:
    """Return a split whose backward reads no input to which others may have written since, where
    the code itself keeps what it has computed of it instead; None if that is the usual split.

    `joins`: whether some code computes forward and what it keeps together.
    """
    floats, packs = backend.autodiff.keeps_float_derivatives, backend.kernels.bits is not None
    watched = backend.autodiff.watches_outputs
    if backend.tensors.write is None or not graphs.keeps_apart:
        return None
    if not graphs.reads_unkept(graphs.cut(floats, watched=watched, packs=packs)):
        return None
    if floats or graphs.is_once or graphs.first_order:
        return Cuts(graphs.cut(True, watched=watched, packs=packs, written=True), None)
    if not joins:
        return None
    pair = graphs.with_histories() or graphs
    cut = pair.cut(True, watched=False, loops=True, written=True)
    if any(map(cut.keep.reads, pair.outputs)):  # what is kept is computed of an output
        return None
    # The input itself as well, by which the derivative of a backward passes.
    return Cuts(graphs.cut_at_inputs(), WideCut(pair, cut), graphs.unkept)


def _find_wide(
    graphs: FunctionGraph, backend: Backend, fast: bool, compiled: bool
) -> WideCut | None:
    autodiff = backend.autodiff
    floats = autodiff.keeps_float_derivatives
    if not autodiff.joins_loops:
        return None
    if floats:
        # All code keeps what loops give. It may be differentiated, so its derivative must be that
        # of the ops, or none.
        keeps_loops = not graphs.keeps_output and (graphs.is_once or graphs.is_derivative)
    else:
        keeps_loops = fast or compiled
    wide = graphs if fast and graphs.keeps_costly(floats) else None
    if wide is None and keeps_loops:
        wide = graphs.with_histories()
    if wide is None:
        return None
    return WideCut(wide, wide.cut(floats, watched=autodiff.watches_outputs, loops=True))


def shares_work(graphs: FunctionGraph, cut: ResidualCut, fast: bool) -> bool:
    """Return whether forward and what it keeps share integers, or fast code work on smaller tensors
    only.
    """
    # Such as a scale. A value computed of all tensors is better computed again than kept.
    tensors = [node for node in graphs.forward.inputs if node.type.kind == "tensor"]
    common = {*graphs.forward.nodes}.intersection(cut.keep.nodes).difference(tensors)
    common = {node for node in common if node.type.kind == "tensor"}
    aliasing = find_aliasing(graphs)
    if not common or aliasing.passed or aliasing.shared:
        return False
    if any(cut.keep.reads(name) for name in graphs.outputs):
        return False
    has_integers = any("int" in node.type.dtype for node in common)  # they took long to find
    return has_integers or (fast and not any({*tensors} <= {*walk([node])} for node in common))


def join_forward_and_keep(graphs: FunctionGraph, cut: ResidualCut) -> Graph:
    """Return `*inputs, *params, [key] -> *outputs, *computed residuals`, which shares all work."""
    results = (*graphs.forward.outputs, *cut.keep.outputs)
    inputs = dict.fromkeys((*graphs.forward.inputs, *cut.keep.inputs))
    arguments = [node for node in inputs if node.attr("name") not in graphs.outputs]
    return Graph("forward", tuple(arguments), results, graphs.forward.locations)


def find_aliasing(graphs: FunctionGraph) -> Aliasing:
    """Return which outputs may be an input, a view of one, or another output."""
    outputs = graphs.forward.outputs
    sources = [*map(passed, outputs)]
    passing = [i for i, node in enumerate(sources) if node.op is ops.INPUT]
    sharing = [i for i, node in enumerate(sources) if node in sources[:i]]
    views = [i for i, node in enumerate(outputs) if node.op.result not in OWNING]
    return Aliasing(passed=tuple(passing), shared=tuple(sharing), views=tuple(views))
