"""A graph as an SVG picture: inputs on top, what is returned below, operands from left to right.

Nodes lie in layers by their longest way from the inputs, each near to what it reads; a line over
several layers has a place of its own in each. Numbers stand inside of the nodes that read them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from html import escape

from ..graph.ir.graph import Graph, Node, Region

MOST_NODES = 60
MOST_LETTERS = 30  # of a label
LETTER, HEIGHT, GAP, DROP, EDGE = 7.0, 26.0, 16.0, 28.0, 6.0
STROKE = 'fill="none" stroke="currentColor" stroke-opacity=".45" stroke-width="1.2"'
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


@dataclass(slots=True)
class Box:
    """A node's place: its middle, what it reads and what is written in it; or that of a line that
    passes a layer.
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


Boxes = dict[Hashable, Box]  # by node; a line by the node that it comes from, and its layer


def draw_graph(graph: Graph) -> str:
    """Return a graph as an SVG element; "" where it is too large to be read."""
    boxes = boxes_of(graph)
    count = len(boxes)
    if not count or count > MOST_NODES:
        return ""
    lead_lines(boxes)
    layers = place(boxes)
    width = max(box.x + box.width / 2 for box in boxes.values()) + EDGE
    height = len(layers) * (HEIGHT + DROP) - DROP + 2 * EDGE + 14.0
    edges = [path for box in boxes.values() for path in edges_to(box, boxes)]
    outs = [leave(boxes[node], i, graph) for i, node in enumerate(graph.outputs) if node in boxes]
    drawn = "".join([*edges, *outs, *map(draw_box, boxes.values())])
    label = escape(f"the graph of {graph.name}, {count} nodes")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{label}" '
        f'style="max-width:100%;height:auto;color:inherit" font-family="{MONO}" font-size="11.5">'
        f"{drawn}</svg>"
    )


def boxes_of(graph: Graph) -> Boxes:
    """Return a box for each input that is read and each node that is no number."""
    returned = {node for node in graph.outputs}
    boxes: Boxes = {}
    for node in graph.nodes:
        if node.op.name == "const" and node not in returned:
            continue
        operands = tuple(each for each in node.operands if each in boxes)
        where = f", {graph.locations[node]}" if node in graph.locations else ""
        label, kind = label_of(node, boxes), "node"
        if node in graph.inputs:
            label, kind = str(node.attr("name")), "input"
        title = f"{node.op.name}: {node.type}{where}"
        layer = 1 + max(
            (boxes[each].layer for each in operands), default=-1 if kind == "input" else 0
        )
        boxes[node] = Box(cut(label), title, kind, operands, layer)
    return boxes


def label_of(node: Node, boxes: Mapping[Hashable, Box]) -> str:
    """Return what is written in a node: its op, with the numbers and attributes that it has."""
    if node.op.name == "const":
        return number(node.attr("value"))
    words = ["·" if each in boxes else number(each.attr("value")) for each in node.operands]
    attributes = [f"{key}={attribute(value)}" for key, value in node.attrs if value is not None]
    has_numbers = any(word != "·" for word in words)
    inner = ", ".join([*(words if has_numbers else []), *attributes])
    return f"{node.op.name}({inner})" if inner else node.op.name


def number(value: object) -> str:
    """Return a constant in few letters."""
    return f"{value:.6g}" if isinstance(value, float) else cut(repr(value), 12)


def attribute(value: object) -> str:
    return value.graph.name if isinstance(value, Region) else cut(str(value), 14)


def cut(text: str, most: int = MOST_LETTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def lead_lines(boxes: Boxes) -> None:
    """Give the lines over several layers a place in each of these."""
    for box in list(boxes.values()):
        box.operands = tuple(step_above(each, box.layer - 1, boxes) for each in box.operands)


def step_above(node: Hashable, layer: int, boxes: Boxes) -> Hashable:
    """Return where the line from a node passes a layer: the node itself where it lies there."""
    if boxes[node].layer == layer:
        return node
    if (node, layer) not in boxes:
        before = step_above(node, layer - 1, boxes)
        boxes[node, layer] = Box("", "", "line", (before,), layer)
    return node, layer


def place(boxes: Mapping[Hashable, Box]) -> list[list[Box]]:
    """Give each box its place; return them by layers."""
    layers: list[list[Box]] = [[] for _ in range(1 + max(box.layer for box in boxes.values()))]
    for box in boxes.values():
        layers[box.layer].append(box)
    for depth, layer in enumerate(layers):
        if depth:
            layer.sort(key=lambda box: wished(box, boxes))
        spread(layer, boxes)
        for box in layer:
            box.y = EDGE + HEIGHT / 2 + depth * (HEIGHT + DROP)
    left = min(box.x - box.width / 2 for box in boxes.values())
    for box in boxes.values():
        box.x += EDGE - left
    return layers


def wished(box: Box, boxes: Mapping[Hashable, Box]) -> float:
    """Return the middle of what a box reads."""
    if not box.operands:
        return box.x
    return sum(boxes[each].x for each in box.operands) / len(box.operands)


def spread(layer: list[Box], boxes: Mapping[Hashable, Box]) -> None:
    """Put the boxes of a layer beside each other, near to what they read."""
    right, wishes = float("-inf"), []
    for box in layer:
        wish = wished(box, boxes)
        box.x = max(wish, right + GAP + box.width / 2) if right > float("-inf") else wish
        right = box.x + box.width / 2
        wishes.append(box.x - wish)
    back = sum(wishes) / len(wishes)  # all to the left by what they were pushed to the right
    for box in layer:
        box.x -= back


def edges_to(box: Box, boxes: Mapping[Hashable, Box]) -> list[str]:
    """Return the lines from what a box reads; operands meet it from left to right."""
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


def leave(box: Box, place: int, graph: Graph) -> str:
    """Return the mark below a node that is returned."""
    top = box.y + HEIGHT / 2
    which = f"{place + 1}" if len(graph.outputs) > 1 else ""
    return (
        f'<path d="M{box.x:.1f} {top:.1f}v9m-4 -4l4 4l4 -4" fill="none" stroke="currentColor" '
        f'stroke-opacity=".8" stroke-width="1.4"/><text x="{box.x + 8:.1f}" y="{top + 11:.1f}" '
        f'fill="currentColor" fill-opacity=".7" font-size="9.5">{which}</text>'
    )


FILLS = {"input": "rgba(56,132,255,.22)", "node": "rgba(128,128,128,.16)"}


def draw_box(box: Box) -> str:
    """Return a node as a rectangle with its label, a line as a line."""
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
