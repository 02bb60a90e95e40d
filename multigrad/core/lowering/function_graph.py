"""`FunctionGraph`: the forward and backward graphs of a replaced gradient, and what they are.

A FunctionGraph is never changed: each step returns another one. In order: what is asked of it, the
pairs that lowering makes of it, its cuts; then masks that are kept as bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ...errors import TraceError, UnsupportedOp
from .. import ops
from ..backend.contract import Backend
from ..backend.rows import kernel
from ..ir.graph import Graph, Node, make_node
from ..ir.op import BOOL, SCALAR_SHAPE, UNKNOWN, Op, Type, is_float
from ..ir.results import kept
from ..passes.decisions import with_exact_decisions
from ..passes.memory import nodes_of, without_memory
from ..passes.residuals import (
    Keepable,
    ResidualCut,
    Roles,
    computed_at_cost,
    cut_residuals,
    drop_marks,
    is_kept_copy,
    keep_inputs,
    marks,
)
from ..passes.simplify import rename_inputs, simplify, substitute
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.params import Fused
from ..support.records import record
from ..trace.trace import NeedsConcrete
from .derivatives import drop_calls, gradients_lost, pullbacks

# Of what `residuals=` may be: what forward keeps.
TIME = "time"
CHEAP_MASKS = ("mask", "packed", "recompute")
PACKED = ("packed", "recompute")

# The names that residuals, cotangents and outputs get, and the shapes that backward compares with.
OWN_NAMES = re.compile(r"(kept|history|grad_out|output|tangent)(_\d+)?|shape_of_\w+")


def numbered(word: str, count: int) -> tuple[str, ...]:
    """Return `count` names: "output" alone, or "output_0", "output_1", ..."""
    return (word,) if count == 1 else tuple(f"{word}_{i}" for i in range(count))


@record()
class FunctionGraph:
    """A forward, and a backward that need not be its derivative.

    Attributes (what `Emitted` has too is the same there):
        forward: `*inputs, *params, [key] -> *outputs`.
        backward: `*cotangents, *inputs, *params, [key] -> *gradients` of the inputs `wrt`; params
            are run-time numbers, and there is a key if one of the graphs draws random numbers.
        first_order: the author's promise that nobody differentiates the backward, so that floats
            computed in forward may be kept.
        second_order: whether the backward may be differentiated.
        lost: the functions with gradients of their own of which only the ops are left, where a
            derivative of the backward would pass: with one there is no second order.
        keeps_output: the author keeps outputs for backward, which differentiates them by this pair
            again.
        unkept: the inputs that the author's code does not keep for backward themselves, but what
            it has computed of them, which a later write does not reach; and such outputs of them.
        refused: error messages by the names of inputs that have no derivative.
        pushed: `tangent 0, tangent 1, ..., *inputs, *params, [key] -> tangents of the outputs that
            carry a gradient`, where the author gives them; else they are the transpose of backward.
        is_pushed_first: whether backward is the transpose of `pushed`.
        residuals: what forward keeps, where that is chosen: one of `Residuals`.
        selects: whether a product with a mask selects in the library that it is written in.
        widens: float32 in both graphs stands for float64 where the inputs have that.
        params: the run-time params of both graphs, in order.
        is_random: whether it draws random numbers.
    """

    name: str
    forward: Graph
    backward: Graph
    first_order: bool = False
    inputs: tuple[str, ...] = ("tin",)
    cotangents: tuple[str, ...] = ("grad_out",)
    wrt: tuple[str, ...] = ("tin",)
    keeps_output: bool = False
    undifferentiable: tuple[int, ...] = ()
    second_order: bool = True
    lost: tuple[str, ...] = ()
    unkept: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    is_rule: bool = False
    pushed: Graph | None = None
    is_pushed_first: bool = False
    fused: Fused = "auto"
    residuals: str = "auto"
    selects: bool = False
    widens: bool = False
    params: tuple[str, ...] = field(init=False)
    is_random: bool = field(init=False)
    # What `is_derivative` found, in a list because the fields are frozen.
    _known_derivative: list[bool] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        nodes = dict.fromkeys((*self.backward.inputs, *self.forward.inputs))
        role_names = (*self.cotangents, *self.inputs, "key")
        names = [node.attr("name") for node in nodes]
        object.__setattr__(self, "params", tuple([n for n in names if n not in role_names]))
        object.__setattr__(self, "is_random", "key" in names)

    def casts_in(self, backend: Backend) -> bool:
        """Return whether a framework chooses dtypes of the ops by itself, as under autocast."""
        casts, nodes = backend.autodiff.casts, (*self.forward.nodes, *self.backward.nodes)
        return casts is not None and not self.is_rule and any(casts.of(n.op) for n in nodes)

    @property
    def outputs(self) -> tuple[str, ...]:
        return numbered("output", len(self.forward.outputs))

    @property
    def tangents(self) -> tuple[str, ...]:
        return numbered("tangent", len(self.inputs))

    @property
    def seeds(self) -> tuple[str | None, ...]:
        """The names of the cotangents, None for outputs that carry no gradient."""
        return tuple(
            name if is_float(output.type) and i not in self.undifferentiable else None
            for i, (name, output) in enumerate(
                zip(self.cotangents, self.forward.outputs, strict=True)
            )
        )

    @property
    def roles(self) -> Roles:
        return Roles(self.inputs, self.outputs, self.cotangents)

    def type_of(self, name: str) -> Type | None:
        node = self.forward.input(name) or self.backward.input(name)
        return None if node is None else node.type

    @property
    def is_once(self) -> bool:
        """Whether no derivative of the backward may be taken: one of a loop has none."""
        if not self.second_order or "values" not in self.backward.loops:
            return not self.second_order
        return any(n.op.loop == "values" and is_float(n.type) for n in self.backward.nodes)

    @property
    def is_derivative(self) -> bool:
        """Whether the backward is the forward's true derivative, node by node."""
        if not self._known_derivative:
            self._known_derivative.append(self._is_derivative())
        return self._known_derivative[0]

    @property
    def keeps_apart(self) -> bool:
        """Whether the code keeps what it computed of an input, so that a write to it matters."""
        is_chosen = self.residuals in ("auto", TIME)
        return is_chosen and (bool(self.unkept) or self._keeps_copies)

    def reads_unkept(self, cut: ResidualCut) -> bool:
        """Return whether a cut reads values of inputs or outputs that the code did not keep itself,
        or may compute again what it kept.
        """
        return self._keeps_copies or not {*self.unkept}.isdisjoint(
            {*cut.residuals}.difference(cut.likes)
        )

    def _is_derivative(self) -> bool:
        computed_outputs = [output for output in self.forward.outputs if output.op is not ops.INPUT]
        if set(self.backward.nodes).isdisjoint(computed_outputs) and not self._scans:
            return False  # where none is even read, the answer is of no use
        if marks(self.backward):  # a derivative has none
            return False
        try:
            derivative = simplify(pullbacks(self.forward, self.wrt, self.seeds))
        except (UnsupportedOp, TraceError, NeedsConcrete):
            return False
        return derivative.outputs == without_memory(self.backward).outputs

    @property
    def _scans(self) -> bool:
        return "rows" in self.backward.loops

    @property
    def _keeps_copies(self) -> bool:
        return any(map(is_kept_copy, nodes_of(self.backward, ops.MEMORY)))

    def without_calls(self) -> FunctionGraph:
        """Return the pair with ops instead of calls of functions that have their own gradients.

        `pushed` keeps them, because a saved pair is without it.
        """
        pair = self.mapped(drop_calls)
        if pair is self:
            return self
        lost = (*self.lost, *gradients_lost(self.backward))
        return replace(
            self,
            forward=replace(simplify(pair.forward), origin=self.forward.origin),
            backward=simplify(pair.backward),
            second_order=self.second_order and not lost,
            lost=lost,
        )

    def mapped(self, change: Callable[[Graph], Graph]) -> FunctionGraph:
        """Return the pair of both graphs as `change` returns them."""
        forward, backward = change(self.forward), change(self.backward)
        if forward is self.forward and backward is self.backward:
            return self
        return replace(self, forward=forward, backward=backward)

    def without_needless_marks(self) -> FunctionGraph:
        """Return the pair without marks of outputs, if its gradient is that of their ops."""
        if not marks(self.backward):
            # Without marks any cut may keep the outputs.
            return replace(self, keeps_output=False) if self.keeps_output else self
        pair = replace(self, backward=simplify(drop_marks(self.backward)))
        if self.first_order or not self.second_order or pair.is_derivative:
            return self if pair.keeps_apart and pair.reads_unkept(pair.cut()) else pair
        return self

    def with_safe_names(self, reserved: Iterable[str]) -> FunctionGraph:
        """Return the pair with new names for params and inputs that are words of emitted code."""
        reserved = set(reserved)
        inputs = tuple(name for name in self.inputs if name != "tin")
        used_names = {*reserved, *self.params, *inputs}
        new_names: dict[str, str] = {}
        for name in (*inputs, *self.params):
            if name in reserved or OWN_NAMES.fullmatch(name):
                safe = f"{name}_"
                # Another param may have the name with an underscore.
                while safe in used_names:
                    safe += "_"
                new_names[name] = safe
                used_names.add(safe)
        if not new_names:
            return self
        return replace(
            self,
            forward=rename_inputs(self.forward, new_names),
            backward=rename_inputs(self.backward, new_names),
            pushed=None if self.pushed is None else rename_inputs(self.pushed, new_names),
            inputs=tuple(new_names.get(name, name) for name in self.inputs),
            wrt=tuple(new_names.get(name, name) for name in self.wrt),
            unkept=tuple(new_names.get(name, name) for name in self.unkept),
        )

    def with_exact_decisions(self, kernels: Collection[Op]) -> FunctionGraph:
        """Return the pair in which these exact ops compute what decisions read."""
        graphs = [self.forward, self.backward, *([] if self.pushed is None else [self.pushed])]
        exact = with_exact_decisions(graphs, kernels)
        if exact is graphs:
            return self
        forward, backward, *pushed = exact
        return replace(self, forward=forward, backward=backward, pushed=next(iter(pushed), None))

    def with_histories(self) -> FunctionGraph | None:
        """Return the pair whose forward runs the scans that backward reads; None without scans."""
        return run_scans_of_backward(self) if self._scans else None

    def cut_at_inputs(self, pushes: bool = False) -> ResidualCut:
        """Return the backward split at the inputs, and at outputs that it reads as forward gave
        them; `pushes`: at those that the author's tangents read, too.
        """
        pushed = self.pushed if pushes else None
        return keep_inputs(self.forward, self.backward, self.roles, pushed)

    def cut(
        self,
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
        if self.residuals == "input":
            return self.cut_at_inputs()
        # The derivative of an output is that of this pair. Unless that is the derivative of its
        # ops, only marked outputs may be kept.
        is_promised = self.first_order or (self.keeps_output and self.is_once)
        keepable = Keepable(
            floats=floats or self.first_order,
            outputs=not written and (is_promised or self.is_derivative),
            deciding=self.is_rule and watched,
            loops=loops,
            costly=loops and self.residuals == TIME,
            bits=self.residuals in CHEAP_MASKS,
            unkept=self.unkept if written else (),
            written=written,
        )
        cut = cut_residuals(self.forward, self.backward, self.roles, keepable)
        return pack_masks(cut, self.cotangents) if packs and self.residuals in PACKED else cut

    def cut_with_costly(self, floats: bool) -> ResidualCut | None:
        """Return the cut of fast code that also keeps costly values; None if there is none."""
        return self.cut(loops=True) if self.keeps_costly(floats) else None

    def keeps_costly(self, floats: bool) -> bool:
        """Return whether fast code keeps what cost forward much, with residuals="time" only."""
        if self.residuals != TIME or floats or self._scans:
            return False
        return bool(computed_at_cost(self.forward, self.backward))


@provided
def run_scans_of_backward(pair: FunctionGraph) -> FunctionGraph:
    """Return the pair whose forward runs the scans that backward reads."""
    raise UnsupportedOp(f"{pair.name!r} has a loop, which {NEEDS_ENGINE}")


# --- masks as bits --------------------------------------------------------------------------------

# Eight to a byte, for residuals="packed" and "recompute". The two ops for it are in emitted graphs
# only, and call `Kernels.bits`.
BITS = Type("tensor", "uint8", UNKNOWN)
PACK = kernel("pack_bits", "mask", kept)
UNPACK = kernel("unpack_bits", "bits like", kept).with_fields(shape_only=(1,))


def pack_masks(cut: ResidualCut, cotangents: Sequence[str]) -> ResidualCut:
    """Return a cut whose masks are bits, those that a cotangent has the shape of.

    By that cotangent a mask is unpacked.
    """
    cotangent_of: dict[Any, Node] = {}  # by shape
    for node in cut.backward.inputs:
        if node.attr("name") in cotangents and node.type.kind == "tensor":
            cotangent_of.setdefault(node.type.shape, node)
    input_of = {node.attr("name"): node for node in cut.backward.inputs}
    outputs, changes = [], {}
    for name, node in zip(cut.computed, cut.keep.outputs, strict=True):
        like = cotangent_of.get(node.type.shape)
        # Without a cotangent of its shape, nothing would tell how many bits to unpack.
        if node.type.dtype != BOOL or node.type.shape in (UNKNOWN, SCALAR_SHAPE) or like is None:
            outputs.append(node)
            continue
        outputs.append(make_node(PACK, (node,), {}, BITS))
        mask = input_of[name]
        bits = make_node(mask.op, (), {"name": name}, BITS)
        changes[mask] = make_node(UNPACK, (bits, like), {}, mask.type)
    if not changes:
        return cut
    inputs = [
        changes[node].operands[0] if node in changes else node for node in cut.backward.inputs
    ]
    backward = replace(substitute(cut.backward, changes), inputs=tuple(inputs))
    return replace(cut, keep=replace(cut.keep, outputs=tuple(outputs)), backward=backward)


def without_packing(keep: Graph, backward: Graph) -> tuple[Graph, Graph]:
    """Return the graphs with the masks of `pack_masks` as bools, for code that packs by itself."""
    outputs = [node.operands[0] if node.op is PACK else node for node in keep.outputs]
    masks = {
        node: make_node(node.operands[0].op, (), {"name": node.operands[0].attr("name")}, node.type)
        for node in backward.nodes
        if node.op is UNPACK
    }
    return replace(keep, outputs=tuple(outputs)), substitute(backward, masks)
