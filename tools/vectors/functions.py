"""The cases of a Function whose forward is elementwise: its graph's ops, each by its own formula.

The gradient is the chain of the formulas' derivatives, and nothing of the Function's own backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multigrad.core.ir.graph import Graph, Node
from multigrad.core.ir.op import FLOATS, T
from multigrad.engine.functions.decision import SHOWN
from multigrad.engine.functions.documents.format import hex_of
from multigrad.engine.functions.function import Function
from multigrad.engine.functions.known_forms import find_variant
from multigrad_conformance.vectors import NoVectors

from . import cases, points
from .discrete import OF_BOOLS, OF_FLOATS, operands_of
from .elementwise import FORMULAS
from .rounding import Format, High, is_finite, round_to
from .witness import evaluate, library

Data = dict[str, Any]
FAR = 100.0  # beyond it a few exponentials in turn are no numbers
OF_TWO = (0.0, 0.011, 0.3, 1.0, 1.3, 2.6, 7.0)
ROWS = 60  # of three operands and more
MASKS = {**OF_FLOATS, **OF_BOOLS}
STAY = "stay"  # the name of a step that changes nothing
USUAL = 0.5  # of a number without a default


@dataclass(frozen=True, slots=True)
class Step:
    """A node: how it is computed, of which values, and what it is in Python's notation."""

    name: str
    operands: tuple[int, ...]
    attrs: tuple[Any, ...] = ()
    number: float | None = None
    text: str = ""


@dataclass(slots=True)
class Chain:
    """A forward as steps; the first are its inputs."""

    name: str
    inputs: tuple[str, ...]
    numbers: dict[str, float]
    steps: list[Step] = field(default_factory=list)
    output: int = 0

    @property
    def formula(self) -> str:
        """Its text: a line for each step, of which the last is the result."""
        names = [f"v{i}" for i in range(len(self.steps))]
        names[: len(self.inputs)] = self.inputs
        shown = []
        for i, step in enumerate(self.steps):
            words = [names[o] for o in step.operands]
            if step.number is not None:
                names[i] = step.text
            elif step.name:
                own = zip(_operands(step.name), words, strict=False)
                text = cases.reworded(step.text, dict(own))
                shown.append(f"{names[i]} = {text}")
        return "; ".join([*shown, names[self.output]])


def _operands(name: str) -> Sequence[str]:
    if name in MASKS:
        return operands_of(name)
    return FORMULAS[name].operands if name in FORMULAS else ("x",)


def chain_of(function: Function) -> Chain:
    if function.is_surrogate:
        raise NoVectors(
            f"the gradient of {function.name!r} is meant to differ from its forward's derivative, "
            "which is all that the witness knows of a Function"
        )
    variant = find_variant(function, SHOWN)
    graph, leaves = variant.graphs.forward, variant.layout.leaves
    tensors = tuple(leaf.name for leaf in leaves if leaf.kind == "tensor")
    kept = {leaf.name for leaf in leaves if leaf.kind == "number"}
    signature = function.parameters
    declared = {} if signature is None else signature.parameters
    given = {**{n: each.default for n, each in declared.items()}, **function.completion.named()}
    numbers = {
        name: float(given[name]) if isinstance(given.get(name), int | float) else USUAL
        for name in kept
    }
    if variant.graphs.is_random:
        raise NoVectors(f"{function.name!r} draws at random")
    if len(graph.outputs) != 1:
        raise NoVectors(f"{function.name!r} has {len(graph.outputs)} outputs, and not one")
    return _read(Chain(function.name, tensors, numbers), graph)


def _read(chain: Chain, graph: Graph) -> Chain:
    places: dict[Node, int] = {}
    chain.steps = [Step("", (), text=name) for name in chain.inputs]
    for node in graph.nodes:
        if node.op.name == "input" and node.attr("name") in chain.inputs:
            if node.type.dtype not in (T, *FLOATS):
                raise NoVectors(f"{chain.name!r} takes {node.attr('name')!r}, which is no float")
            places[node] = chain.inputs.index(node.attr("name"))
        else:
            places[node] = len(chain.steps)
            where = graph.locations.get(node, "its graph")
            operands = tuple(places[o] for o in node.operands)
            chain.steps.append(_step(chain, node, operands, str(where)))
    chain.output = places[graph.outputs[0]]
    return chain


def _step(chain: Chain, node: Node, operands: tuple[int, ...], where: str) -> Step:
    name, attrs = node.op.in_xp or node.op.name, dict(node.attrs)
    if node.op.name in ("input", "const"):
        number = chain.numbers[attrs["name"]] if node.op.name == "input" else attrs["value"]
        text = attrs["name"] if node.op.name == "input" else repr(number)
        return Step(name, (), number=float(number), text=text)
    if node.op.name == "cast" and attrs["dtype"] == T:
        return Step(STAY, operands, text="x")
    if name in MASKS:
        return Step(name, operands, text=MASKS[name][0])
    name = "gelu, approximate" if name == "gelu" and attrs.get("approximate") else name
    formula = FORMULAS.get(name)
    if formula is None or node.op.name == "cast" or node.type.dtype not in (T, *FLOATS):
        raise NoVectors(
            f"{chain.name!r} uses {node.op.name!r} ({where}), of which the "
            "witness has no formula; it knows the elementwise ops"
        )
    text = cases.reworded(formula.value, {k: repr(attrs[k]) for k in formula.attrs})
    return Step(name, operands, tuple(attrs[k] for k in formula.attrs), text=text)


# --- numbers --------------------------------------------------------------------------------------


def set_of(chain: Chain, format: Format) -> Data:
    """Return the cases of a dtype, to which numbers of the graph are rounded first."""
    count = len(chain.inputs)
    rows, kept, kinks = _rows(chain, format), [], []
    for row in rows:
        at_kink: list[bool] = []
        functions = [_of(chain, format, i, at_kink) for i in range(-1, count)]
        found = [evaluate(function, row, format) for function in functions]
        if all(number is not None and is_finite(number) for number in found):
            kept.append((row, found))
            kinks.append(any(at_kink))
    cotangents = points.cotangents(len(kept))
    inputs = [[row[i] for row, _ in kept] for i in range(count)]
    columns = cases.Columns(format, inputs, cotangents)
    columns.results = [round_to(found[0], format) for _, found in kept]
    columns.gradients = [
        [
            cases.multiplied(cotangent, found[i + 1], format)
            for (_, found), cotangent in zip(kept, cotangents, strict=True)
        ]
        for i in range(count)
    ]
    for i in (i for i, is_kink in enumerate(kinks) if is_kink):
        columns.mark("kink", i)
    numbers = {name: hex_of(points.fit([x], format)[0]) for name, x in chain.numbers.items()}
    return columns.to_dict(**({"params": numbers} if numbers else {}))


def _rows(chain: Chain, format: Format) -> list[tuple[float, ...]]:
    count = len(chain.inputs)
    if count == 1:
        marks = [step.number for step in chain.steps if step.number is not None]
        near = points.of_one_operand(format, [m for m in marks if abs(m) < FAR])
        return [(x,) for x in near if abs(x) <= FAR]
    values = points.fit([*OF_TWO, *(-x for x in OF_TWO[1:])], format)
    if count == 2:
        return list(itertools.product(values, values))
    generator = np.random.default_rng(count)
    return [tuple(row) for row in generator.choice(values, (ROWS, count)).tolist()]


def _of(chain: Chain, format: Format, which: int, at_kink: list[bool]) -> Callable[..., High]:
    """Return the value (-1), or the slope in an input, as a function of mpmath's numbers."""

    def compute(*given: High) -> High:
        mp = library("mpmath").mp
        zeros = [mp.mpf(0)] * len(given)
        values: list[High] = list(given)
        slopes = [[mp.mpf(int(i == n)) for n in range(len(given))] for i in range(len(given))]
        for step in chain.steps[len(given) :]:
            operands = [values[o] for o in step.operands]
            if step.number is not None:
                values.append(mp.mpf(points.fit([step.number], format)[0]))
                slopes.append(zeros)
            elif step.name in MASKS:
                values.append(bool(MASKS[step.name][1](*operands)))
                slopes.append(zeros)
            else:
                exact = [mp.mpf(int(x)) if isinstance(x, bool) else x for x in operands]
                value, own, is_kink = _stepped(step, exact, format)
                at_kink.append(is_kink)
                values.append(value)
                parts = zip(step.operands, own, strict=True)
                moved = [(slopes[o], slope) for o, slope in parts if slope]
                slopes.append(
                    [sum((s[n] * slope for s, slope in moved), zeros[0]) for n in range(len(given))]
                )
        return values[chain.output] if which < 0 else slopes[chain.output][which]

    return compute


def _stepped(step: Step, exact: list[High], format: Format) -> tuple[High, list[High], bool]:
    """Return a step's value, its slopes, and whether it is at a kink."""
    if step.name == STAY:
        return exact[0], [1], False
    value, slopes = cases.compiled(step.name)
    attrs = [cases.as_attr(number, format) for number in step.attrs]
    taken = cases.kink_at(step.name, exact)
    own = [slope(*exact, *attrs) for slope in slopes] if taken is None else list(taken)
    return value(*exact, *attrs), own, taken is not None
