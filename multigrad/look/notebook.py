"""Notebook pages: for each kind of object the HTML that a notebook shows.

`html_of` finds the function for an object's class in the table `PAGES`. A page never raises: if
something cannot be captured or read, it says why. The last section draws a graph as an SVG picture:
boxes in layers, each below its operands, and lines between them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from html import escape
from inspect import Parameter
from typing import Any

from ..errors import MultigradError
from ..functions.calls.decision import SHOWN
from ..functions.calls.parameters import BoundFunction
from ..functions.captures import find_variant
from ..functions.chain import Chain
from ..functions.function import Function
from ..graph.ir.graph import Graph, Node, Region
from ..graph.support import html
from ..lowering.function_graph import FunctionGraph
from ..rules.activation import Activation
from ..rules.estimators.declared import Estimator
from ..rules.model.activation_function import ForwardOfCode
from ..rules.model.rule import Rule
from ..rules.registry import RuleNames, get
from ..trace.trace import NeedsConcrete
from .rule_description import Described, describe, describe_estimator
from .source import captured_graph, describe_residuals


def html_of(obj: Any) -> str:
    # Subclasses come before their bases in PAGES: the first match draws.
    for kind, draw in PAGES:
        if isinstance(obj, kind):
            try:
                return draw(obj)
            except Exception as error:
                return html.page(
                    repr(obj), html.faint_paragraph(f"{type(error).__name__}: {error}")
                )
    return html.page(repr(obj))


# --- graphs ---------------------------------------------------------------------------------------


def draw_graph(graph: Graph, title: str = "") -> str:
    """Return a graph as an SVG picture, or as text if it is large, and where it was written."""
    picture = graph_svg(graph) or html.pre(graph)
    origin = html.faint_paragraph(graph.origin)
    return f"{html.heading(title) if title else ''}{picture}{origin}"


def draw_pair(graphs: FunctionGraph) -> str:
    """Return forward and backward side by side, and what is kept between them."""
    pictures = html.beside(
        draw_graph(graphs.forward, "forward"), draw_graph(graphs.backward, "backward")
    )
    return pictures + html.pre(describe_residuals(graphs))


def draw_or_say_why(draw: Callable[..., str], *args: Any) -> str:
    """Return a part of a page, drawn of the arguments, or the reason why there is none."""
    try:
        return draw(*args)
    except (MultigradError, NeedsConcrete) as error:
        return html.faint_paragraph(error)


# --- rules and Functions --------------------------------------------------------------------------


def draw_rule(rule: Rule) -> str:
    bound = [(name, repr(value), "bound") for name, value in rule.bound.items()]
    picture = draw_or_say_why(draw_backward, rule)
    return draw_described(rule, describe(rule), "param", bound, picture)


def draw_estimator(function: Estimator) -> str:
    picture = draw_captured(function)
    return draw_described(function, describe_estimator(function), "argument", [], picture)


def draw_described(
    obj: Any, description: Described, what: str, bound: list[Any], picture: str
) -> str:
    rows = [(each.name, default_text(each), each.range or "any") for each in description.params]
    gradients, source = description.gradients, description.source
    return html.page(
        title_of(obj),
        html.paragraph(description.formula),
        html.paragraph(f"Gradients: {gradients}" if gradients else ""),
        html.table((what, "default", "range"), rows + bound) if rows or bound else "",
        picture,
        html.faint_paragraph(f"Source: {source}" if source else ""),
    )


def default_text(param: Any) -> str:
    return "required" if param.default is Parameter.empty else repr(param.default)


def draw_backward(rule: Rule) -> str:
    if rule.native is True:
        return html.faint_paragraph("It runs as written (native=True), so it has no graph.")
    return draw_graph(captured_graph(rule.bound_rule()))


def draw_function(function: Function) -> str:
    summary, *_ = (getattr(function, "__doc__", "") or "").strip().partition("\n\n")
    return html.page(title_of(function), html.paragraph(summary), draw_captured(function))


def title_of(obj: Rule | Function | BoundFunction) -> str:
    return repr(obj).removeprefix("<").removesuffix(">")


def draw_captured(function: Function) -> str:
    return draw_or_say_why(lambda: draw_pair(find_variant(function, SHOWN).graphs))


def draw_bound(bound: BoundFunction) -> str:
    rows = [(name, repr(value)) for name, value in bound.params.items()]
    table = html.table(("argument", "value"), rows)
    return html.page(title_of(bound), table, draw_captured(bound.function))


def draw_activation(activation: Activation) -> str:
    forward = activation.forward
    if activation.rule is None and isinstance(forward, ForwardOfCode):
        return html.page(repr(activation), draw_captured(forward.function))
    return html.page(repr(activation), draw_or_say_why(draw_graphs_of, activation))


def draw_graphs_of(activation: Activation) -> str:
    in_force, forward = activation.own_in_force(), activation.forward
    backward = forward.derivative if in_force is None else captured_graph(in_force)
    first = draw_graph(forward.graph_for({}), "forward")
    note = "The rule that `use` puts in force acts in its place." if in_force is None else ""
    return html.beside(first, draw_graph(backward, "backward")) + html.faint_paragraph(note)


# --- the list of rules ----------------------------------------------------------------------------


def draw_names(names: RuleNames) -> str:
    rows = [row_of_rule(name) for name in names[: html.MAX_ROWS]]
    return html.page(f"{len(names)} rules", html.table(("rule", "params", "formula"), rows))


def row_of_rule(name: str) -> tuple[str, str, str]:
    try:
        described = describe(get(name))
    except MultigradError:  # it was removed after the list was made
        return name, "", ""
    return (
        name,
        ", ".join(
            each.name if each.default is Parameter.empty else f"{each.name}={each.default!r}"
            for each in described.params
        ),
        described.formula,
    )


# The first match wins: an Estimator and a Chain are Functions too.
PAGES: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Rule, draw_rule),
    (Chain, lambda chain: html.page(title_of(chain), draw_captured(chain))),
    (Estimator, draw_estimator),
    (Function, draw_function),
    (BoundFunction, draw_bound),
    (Activation, draw_activation),
    (Graph, lambda graph: html.page(graph.name, draw_graph(graph))),
    (FunctionGraph, lambda graphs: html.page(graphs.name, draw_pair(graphs))),
    (RuleNames, draw_names),
)


# --- a graph as an SVG picture --------------------------------------------------------------------
MOST_NODES = 60
MAX_CHARACTERS = 30  # of a label
# In pixels: the width of a letter, the height of a box, the least space between boxes of a layer
# and between layers, and the margin.
LETTER, HEIGHT, GAP, DROP, EDGE = 7.0, 26.0, 16.0, 28.0, 6.0
STROKE = 'fill="none" stroke="currentColor" stroke-opacity=".45" stroke-width="1.2"'
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


@dataclass(slots=True)
class Box:
    """A node in the picture, or a place where a line passes a layer.

    Attributes:
        label, title: what is written, and what is shown where the mouse rests.
        kind: "input", "node" or "line".
        operands: the keys of the boxes from which lines come.
        layer: from 0, at the top.
        x, y: its middle, set by `place_boxes`.
    """

    label: str
    title: str
    kind: str
    operands: tuple[Hashable, ...]
    layer: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return LETTER * len(self.label) + 18.0 if self.kind != "line" else 4.0


Boxes = dict[Hashable, Box]  # by node; a line's place by the node that it comes from, and a layer


def graph_svg(graph: Graph) -> str:
    """Return a graph as an SVG element, "" if it is too large to read."""
    boxes = make_boxes(graph)
    count = len(boxes)
    if not count or count > MOST_NODES:
        return ""
    # A copy: `point_above` adds boxes for the lines.
    for box in list(boxes.values()):  # lines over several layers have a place in each of these
        box.operands = tuple(point_above(each, box.layer - 1, boxes) for each in box.operands)
    layers = place_boxes(boxes)
    width = max(box.x + box.width / 2 for box in boxes.values()) + EDGE
    height = len(layers) * (HEIGHT + DROP) - DROP + 2 * EDGE + 14.0
    edges = [path for box in boxes.values() for path in edges_to(box, boxes)]
    arrows = [
        output_arrow(boxes[node], i, graph) for i, node in enumerate(graph.outputs) if node in boxes
    ]
    shapes = "".join([*edges, *arrows, *map(draw_box, boxes.values())])
    label = escape(f"the graph of {graph.name}, {count} nodes")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{label}" '
        f'style="max-width:100%;height:auto;color:inherit" font-family="{MONO}" font-size="11.5">'
        f"{shapes}</svg>"
    )


def make_boxes(graph: Graph) -> Boxes:
    """Return a box for each input and each node that is not a plain number."""
    outputs, boxes = set(graph.outputs), Boxes()
    for node in graph.nodes:
        if node.op.name == "const" and node not in outputs:
            continue
        # Inputs that nobody reads and plain numbers have no box, so no edge either.
        operands = tuple(each for each in node.operands if each in boxes)
        place = f", {graph.locations[node]}" if node in graph.locations else ""
        title = f"{node.op.name}: {node.type}{place}"
        label, kind, layer_above = label_of(node, boxes), "node", 0
        if node in graph.inputs:
            label, kind, layer_above = str(node.attr("name")), "input", -1
        # One layer below the lowest operand; inputs are at the top.
        layer = 1 + max((boxes[each].layer for each in operands), default=layer_above)
        boxes[node] = Box(cut(label), title, kind, operands, layer)
    return boxes


def label_of(node: Node, boxes: Mapping[Hashable, Box]) -> str:
    if node.op.name == "const":
        return number_text(node.attr("value"))
    words = ["·" if each in boxes else number_text(each.attr("value")) for each in node.operands]
    attributes = [
        f"{key}={value.graph.name if isinstance(value, Region) else cut(str(value), 14)}"
        for key, value in node.attrs
        if value is not None
    ]
    has_numbers = any(word != "·" for word in words)
    inner = ", ".join([*(words if has_numbers else []), *attributes])
    return f"{node.op.name}({inner})" if inner else node.op.name


def number_text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else cut(repr(value), 12)


def cut(text: str, most: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def point_above(node: Hashable, layer: int, boxes: Boxes) -> Hashable:
    """Return where the line from a node crosses a layer: the node itself if it is there."""
    if boxes[node].layer == layer:
        return node
    # Memoized in `boxes`: edges from one node share their line.
    if (node, layer) not in boxes:
        point = point_above(node, layer - 1, boxes)
        boxes[node, layer] = Box("", "", "line", (point,), layer)
    return node, layer


def place_boxes(boxes: Mapping[Hashable, Box]) -> list[list[Box]]:
    """Set the positions of all boxes, and return them by layer."""
    layers: list[list[Box]] = [[] for _ in range(1 + max(box.layer for box in boxes.values()))]
    for box in boxes.values():
        layers[box.layer].append(box)
    # From the top, because a box goes near its operands, which are placed by then.
    for depth, layer in enumerate(layers):
        if depth:
            layer.sort(key=lambda box: wished_x(box, boxes))
        spread(layer, boxes)
        for box in layer:
            box.y = EDGE + HEIGHT / 2 + depth * (HEIGHT + DROP)
    left_edge = min(box.x - box.width / 2 for box in boxes.values())
    for box in boxes.values():
        box.x += EDGE - left_edge
    return layers


def wished_x(box: Box, boxes: Mapping[Hashable, Box]) -> float:
    if not box.operands:
        return box.x
    return sum(boxes[each].x for each in box.operands) / len(box.operands)


def spread(layer: list[Box], boxes: Mapping[Hashable, Box]) -> None:
    """Place the boxes of a layer side by side, near their operands."""
    edge, shifts = float("-inf"), []
    for box in layer:
        wish = wished_x(box, boxes)
        # The first box has no neighbor, and inf - inf would be NaN.
        box.x = max(wish, edge + GAP + box.width / 2) if edge > float("-inf") else wish
        edge = box.x + box.width / 2
        shifts.append(box.x - wish)
    shift = sum(shifts) / len(shifts)  # all to the left by what they were pushed to the right
    for box in layer:
        box.x -= shift


def edges_to(box: Box, boxes: Mapping[Hashable, Box]) -> list[str]:
    """Return the lines to a box from its operands, which meet it from left to right."""
    paths = []
    for i, each in enumerate(box.operands):
        source = boxes[each]
        end = box.x + (i + 1) / (len(box.operands) + 1) * box.width - box.width / 2
        top, bottom = source.y + HEIGHT / 2, box.y - HEIGHT / 2
        bend = min(0.5 * (bottom - top), 40.0)
        paths.append(
            f'<path d="M{source.x:.1f} {top:.1f}C{source.x:.1f} {top + bend:.1f} {end:.1f} '
            f'{bottom - bend:.1f} {end:.1f} {bottom:.1f}" {STROKE}/>'
        )
    return paths


def output_arrow(box: Box, place: int, graph: Graph) -> str:
    top = box.y + HEIGHT / 2
    label = f"{place + 1}" if len(graph.outputs) > 1 else ""
    return (
        f'<path d="M{box.x:.1f} {top:.1f}v9m-4 -4l4 4l4 -4" fill="none" stroke="currentColor" '
        f'stroke-opacity=".8" stroke-width="1.4"/><text x="{box.x + 8:.1f}" y="{top + 11:.1f}" '
        f'fill="currentColor" fill-opacity=".7" font-size="9.5">{label}</text>'
    )


FILLS = {"input": "rgba(56,132,255,.22)", "node": "rgba(128,128,128,.16)"}


def draw_box(box: Box) -> str:
    """Return a node as a rectangle with its label, or a line's passage as a line."""
    left, top = box.x - box.width / 2, box.y - HEIGHT / 2
    if box.kind == "line":
        return f'<path d="M{box.x:.1f} {top:.1f}v{HEIGHT:.0f}" {STROKE}/>'
    round_by = HEIGHT / 2 if box.kind == "input" else 5.0
    return (
        f'<g><title>{escape(box.title)}</title><rect x="{left:.1f}" y="{top:.1f}" '
        f'width="{box.width:.1f}" height="{HEIGHT:.0f}" rx="{round_by:.0f}" '
        f'fill="{FILLS[box.kind]}" stroke="currentColor" stroke-opacity=".4"/>'
        f'<text x="{box.x:.1f}" y="{box.y + 4:.1f}" '
        f'text-anchor="middle" fill="currentColor">{escape(box.label)}</text></g>'
    )
