"""`FunctionGraph`: the forward and backward graphs of a replaced gradient, and what they are.

A FunctionGraph is never changed: each step returns another one. In order: what is asked of it, the
pairs that lowering makes of it, its cuts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace

from ...errors import TraceError, UnsupportedOp
from .. import ops
from ..backend.contract import Backend
from ..backend.emitted import Aliasing
from ..ir.graph import Graph
from ..ir.op import OWNING, Op, Type, is_float
from ..passes.decisions import EXACT_OPS, with_exact_decisions
from ..passes.residuals import Keepable, ResidualCut, Roles, cut_residuals
from ..passes.simplify import passed, rename_inputs, simplify, without_memory
from ..support.lazy_modules import of_engine
from ..support.params import Fused
from ..support.records import record
from ..trace.trace import NeedsConcrete
from .derivatives import pullbacks

# The ops of plain rules.
PLAIN = frozenset((ops.INPUT, ops.CONST, *ops.CORE_OPS, *EXACT_OPS)) - {ops.ARRAY}
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
        second_order: whether the backward has a derivative. `is_once` is true also of loops,
            through which none is taken.
        lost: functions with a gradient of their own that were replaced by their ops, on a path that
            a derivative of the backward would take; if there are any, there is no second order.
        keeps_output: the author keeps outputs for backward; a derivative of the backward passes
            through them by this pair again.
        unkept: inputs that the author's code does not itself keep for backward: it keeps what
            forward computed from them, so a later write into the input does not reach the
            gradient. Likewise such outputs, by name.
        unread: outputs that the author's backward computes again rather than reads, so a later
            write into them does not reach the gradient.
        refused: error messages by the names of inputs that have no derivative.
        pushed: `tangent 0, tangent 1, ..., *inputs, *params, [key] -> tangents of the outputs that
            carry a gradient`, where the author gives them; else they are the transpose of backward.
        is_pushed_first: whether backward is the transpose of `pushed`.
        residuals: what forward keeps, where that is chosen: one of `Residuals`.
        selects: whether, in the library the code is written in, a product with a mask is 0 where
            the mask is False, even for infinity and NaN.
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
    unread: tuple[str, ...] = ()
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
        names = dict.fromkeys((*self.backward.names, *self.forward.names))
        role_names = (*self.cotangents, *self.inputs, "key")
        object.__setattr__(self, "params", tuple([n for n in names if n not in role_names]))
        object.__setattr__(self, "is_random", "key" in names)

    def casts_in(self, backend: Backend) -> bool:
        """Return whether a framework chooses dtypes of the ops by itself, as under autocast."""
        casts = backend.autodiff.casts
        if casts is None or self.is_rule:
            return False
        return any(map(casts.of, self.forward.ops | self.backward.ops))

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

    def _is_derivative(self) -> bool:
        backward = self.backward
        computed_outputs = [output for output in self.forward.outputs if output.op is not ops.INPUT]
        if {*backward.nodes}.isdisjoint(computed_outputs) and "rows" not in backward.loops:
            return False  # it reads no output, so whether it may keep one does not matter
        if ops.OUTPUT in backward.ops:  # a derivative reads no output as forward gave it
            return False
        try:
            derivative = simplify(pullbacks(self.forward, self.wrt, self.seeds))
        except (UnsupportedOp, TraceError, NeedsConcrete):
            return False
        return derivative.outputs == without_memory(backward).outputs

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

    @property
    def is_plain(self) -> bool:
        """Whether it is a rule made of the core's ops alone, whose residuals are not chosen."""
        is_rule = self.is_rule and self.residuals == "auto"
        return is_rule and self.backward.ops | self.forward.ops <= PLAIN

    def cut(self, floats: bool = False, *, watched: bool = True, **more: bool) -> ResidualCut:
        """Return the backward split at what forward keeps for it.

        Args:
            floats: whether a float kept by forward keeps its derivative.
            watched: whether nobody writes into a kept output unnoticed.
            more: what other pairs may keep, as the engine's `cut_otherwise` says.
        """
        if not self.is_plain:
            return cut_otherwise(self, floats, watched=watched, **more)
        keepable = Keepable(
            floats=floats or self.first_order,
            outputs=self.outputs if self.first_order or self.is_derivative else (),
            deciding=watched,
        )
        return cut_residuals(self.forward, self.backward, self.roles, keepable)


cut_otherwise = of_engine(__name__, "cut_otherwise", "keeping more than a rule of elements does")


def find_aliasing(graphs: FunctionGraph) -> Aliasing:
    """Return which outputs may be an input, a view of one, or another output."""
    outputs = graphs.forward.outputs
    sources = [*map(passed, outputs)]
    passing = [i for i, node in enumerate(sources) if node.op is ops.INPUT]
    sharing = [i for i, node in enumerate(sources) if node in sources[:i]]
    views = [i for i, node in enumerate(outputs) if node.op.result not in OWNING]
    return Aliasing(passed=tuple(passing), shared=tuple(sharing), views=tuple(views))
