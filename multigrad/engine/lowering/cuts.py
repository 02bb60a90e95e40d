"""Where the backward of other pairs than plain rules is split: for code that others may write
beside, loops, forward mode, and rules whose residuals are chosen.

There is one split for code that may run anywhere: under transforms, and where a derivative is taken
of it. Where none is taken, fast code may keep more and compute less: `Cuts.wide`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...core import ops
from ...core.backend.contract import Autodiff, Backend
from ...core.ir.graph import Graph, walk
from ...core.lowering.function_graph import FunctionGraph, find_aliasing
from ...core.passes.residuals import ResidualCut, cut_residuals
from ...core.passes.simplify import nodes_of, simplify, without_memory
from ...core.support.records import record
from ..passes.memory import apart_from_constants, is_kept_copy, owned
from ..passes.residuals import (
    KeepMore,
    computed_at_cost,
    drop_marks,
    keep_inputs,
    marks,
    pack_masks,
)
from .calls import drop_calls, gradients_lost
from .loops import run_scans_of_backward

# Of what `residuals=` may be: what forward keeps.
TIME = "time"
CHEAP_MASKS = ("mask", "packed", "recompute")
PACKED = ("packed", "recompute")


# --- what is asked of a pair ----------------------------------------------------------------------
def keeps_apart(pair: FunctionGraph) -> bool:
    """Return whether the code keeps what it computed of an input, so that a write to it matters."""
    is_chosen = pair.residuals in ("auto", TIME)
    return is_chosen and (bool(pair.unkept) or keeps_copies(pair))


def reads_unkept(pair: FunctionGraph, cut: ResidualCut) -> bool:
    """Return whether a cut reads values of inputs or outputs that the code did not keep itself,
    or may compute again what it kept.
    """
    return keeps_copies(pair) or not {*pair.unkept}.isdisjoint(
        {*cut.residuals}.difference(cut.likes)
    )


def keeps_copies(pair: FunctionGraph) -> bool:
    return any(map(is_kept_copy, nodes_of(pair.backward, ops.MEMORY)))


def keeps_costly(pair: FunctionGraph, floats: bool) -> bool:
    """Return whether fast code keeps what cost forward much, with residuals="time" only."""
    if pair.residuals != TIME or floats or "rows" in pair.backward.loops:
        return False
    return bool(computed_at_cost(pair.forward, pair.backward))


def with_histories(pair: FunctionGraph) -> FunctionGraph | None:
    """Return the pair whose forward runs the scans that backward reads; None without scans."""
    return run_scans_of_backward(pair) if "rows" in pair.backward.loops else None


def without_needless_marks(pair: FunctionGraph) -> FunctionGraph:
    """Return the pair without marks of outputs, if its gradient is that of their ops."""
    if not marks(pair.backward):
        # Without marks any cut may keep the outputs.
        return replace(pair, keeps_output=False) if pair.keeps_output else pair
    bare = replace(pair, backward=simplify(drop_marks(pair.backward)))
    if pair.first_order or not pair.second_order or bare.is_derivative:
        return pair if keeps_apart(bare) and reads_unkept(bare, bare.cut()) else bare
    return pair


def settle(pair: FunctionGraph, backend: Backend) -> FunctionGraph:
    """Return a pair as it is lowered: with ops instead of calls, and with what results share as the
    backend has it.
    """
    shares_memory = ops.MEMORY in backend.kernels.rows
    pair = without_calls(mapped(pair, apart_from_constants if shares_memory else without_memory))
    pair = as_far_as_written(pair, backend)
    is_owning = backend.tensors.write is not None and backend.tensors.address is None
    return mapped(pair, owned) if is_owning and not pair.is_rule else pair


def as_far_as_written(pair: FunctionGraph, backend: Backend) -> FunctionGraph:
    """Return the pair of which any output may be kept where nobody writes to one."""
    return replace(pair, unread=()) if pair.unread and backend.tensors.write is None else pair


def without_calls(pair: FunctionGraph) -> FunctionGraph:
    """Return the pair with ops instead of calls of functions that have their own gradients.

    `pushed` keeps them, because a saved pair is without it.
    """
    plain = mapped(pair, drop_calls)
    if plain is pair:
        return pair
    lost = (*pair.lost, *gradients_lost(pair.backward))
    return replace(
        pair,
        forward=replace(simplify(plain.forward), origin=pair.forward.origin),
        backward=simplify(plain.backward),
        second_order=pair.second_order and not lost,
        lost=lost,
    )


def mapped(pair: FunctionGraph, change: Callable[[Graph], Graph]) -> FunctionGraph:
    """Return the pair of both graphs as `change` returns them."""
    forward, backward = change(pair.forward), change(pair.backward)
    if forward is pair.forward and backward is pair.backward:
        return pair
    return replace(pair, forward=forward, backward=backward)


# --- its cuts -------------------------------------------------------------------------------------
def cut_otherwise(
    pair: FunctionGraph,
    floats: bool = False,
    *,
    watched: bool = True,
    packs: bool = False,
    loops: bool = False,
    written: bool = False,
) -> ResidualCut:
    """Return the backward split at what forward keeps for it.

    Args:
        floats: whether a float kept by forward keeps its derivative.
        watched: whether nobody writes into a kept output unnoticed.
        packs: whether masks may be kept as bits.
        loops: whether what scans give is kept, so that none runs again, and with
            residuals="time" also what cost forward much.
        written: whether others may write to inputs and outputs.
    """
    if pair.residuals == "input":
        return cut_at_inputs(pair)
    # The derivative of an output is that of this pair. Unless that is the derivative of its
    # ops, only marked outputs may be kept.
    is_promised = pair.first_order or (pair.keeps_output and pair.is_once)
    may_keep_outputs = not written and (is_promised or pair.is_derivative)
    results = zip(pair.outputs, pair.forward.outputs, strict=True)
    unread = {name: node for name, node in results if name in pair.unread}
    keepable = KeepMore(
        floats=floats or pair.first_order,
        outputs=[n for n in pair.outputs if n not in unread] if may_keep_outputs else (),
        deciding=pair.is_rule and watched,
        forward=pair.forward,
        loops=loops,
        costly=loops and pair.residuals == TIME,
        bits=pair.residuals in CHEAP_MASKS,
        unkept=pair.unkept if written else (),
        written=written,
        unread=unread,
    )
    cut = cut_residuals(pair.forward, pair.backward, pair.roles, keepable)
    return pack_masks(cut, pair.cotangents) if packs and pair.residuals in PACKED else cut


def cut_at_inputs(pair: FunctionGraph, pushes: bool = False) -> ResidualCut:
    """Return the backward split at the inputs, and at outputs that it reads as forward gave
    them; `pushes`: at those that the author's tangents read, too.
    """
    pushed = pair.pushed if pushes else None
    return keep_inputs(pair.forward, pair.backward, pair.roles, pushed)


def cut_with_costly(pair: FunctionGraph, floats: bool) -> ResidualCut | None:
    """Return the cut of fast code that also keeps costly values; None if there is none."""
    return cut_otherwise(pair, loops=True) if keeps_costly(pair, floats) else None


@record()
class WideCut:
    """A split that keeps more: what loops give at each turn, or what cost forward much.

    The forward of `graphs` runs the scans that backward reads.
    """

    graphs: FunctionGraph
    cut: ResidualCut


@record()
class Cuts:
    """Where backward is split.

    Attributes:
        anywhere: in code that may be differentiated.
        late: inputs that only code reads which may be differentiated.
        wide: in fast code, which keeps more and computes less; None if it keeps the same.
    """

    anywhere: ResidualCut
    late: tuple[str, ...] = ()
    wide: WideCut | None = None

    @property
    def is_wide(self) -> bool:
        return self.wide is not None

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

    def split(
        self, graphs: FunctionGraph, autodiff: Autodiff, *, wide: bool, fast: bool
    ) -> tuple[ResidualCut, Graph | None]:
        """Return the split of some code, and the graph of forward joined with what it keeps."""
        is_wide, cut = wide and self.wide is not None, self.anywhere
        if wide and self.wide is not None:
            graphs, cut = self.wide.graphs, self.wide.cut
        may_join = autodiff.joins_loops and (fast or autodiff.keeps_float_derivatives)
        may_join = may_join and not graphs.is_rule
        joins = is_wide or (may_join and shares_work(graphs, cut, fast))
        return cut, join_forward_and_keep(graphs, cut) if joins else None


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
    if graphs.is_plain and not forward_mode:
        return Cuts(graphs.cut(floats, watched=is_watched))
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
        return Cuts(wide.cut, wide=wide)
    if keeps_inputs or wide is not None:
        return Cuts(cut_at_inputs(graphs, pushes=autodiff.transposes), wide=wide)
    packs = backend.kernels.bits is not None
    return Cuts(cut_otherwise(graphs, floats, watched=is_watched, packs=packs))


def find_cuts_for_writes(graphs: FunctionGraph, backend: Backend, *, joins: bool) -> Cuts | None:
    """Return a split whose backward reads no input to which others may have written since, where
    the code itself keeps what it has computed of it instead; None if that is the usual split.

    `joins`: whether some code computes forward and what it keeps together.
    """
    floats, packs = backend.autodiff.keeps_float_derivatives, backend.kernels.bits is not None
    watched = backend.autodiff.watches_outputs
    if backend.tensors.write is None or not keeps_apart(graphs):
        return None
    if not reads_unkept(graphs, cut_otherwise(graphs, floats, watched=watched, packs=packs)):
        return None
    if floats or graphs.is_once or graphs.first_order:
        return Cuts(cut_otherwise(graphs, True, watched=watched, packs=packs, written=True))
    if not joins:
        return None
    pair = with_histories(graphs) or graphs
    cut = cut_otherwise(pair, True, watched=False, loops=True, written=True)
    if any(map(cut.keep.reads, pair.outputs)):  # what is kept is computed of an output
        return None
    # The input itself as well, by which the derivative of a backward passes.
    return Cuts(cut_at_inputs(graphs), graphs.unkept, WideCut(pair, cut))


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
    wide = graphs if fast and keeps_costly(graphs, floats) else None
    if wide is None and keeps_loops:
        wide = with_histories(graphs)
    if wide is None:
        return None
    return WideCut(wide, cut_otherwise(wide, floats, watched=autodiff.watches_outputs, loops=True))


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
