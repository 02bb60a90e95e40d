"""Versions of the format: a form of a rule as it is now, and what version 1 had in its place.

Since version 2 a rule has forms as a Function has, a forward and a backward; in version 1 it had
`graphs`, its backwards alone. What version 1 wrote is translated before it is decoded. A content's
hash is that of its document in version 1, so that the files and locks of both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....core.ir.types import INPUT, T
from ...passes.serialize import MOST_INPUTS, encode_type, read_fields, read_list

Data = Any
VERSION = 2
GRAPH = ("inputs", "nodes", "outputs")
RULE_FIELDS = ("name", "first_order", "bound", "doc", "params", "arrays")
OVER = ("over",)


def rule_form(has_tin: bool, facts: Data, params: Sequence[Data], backward: Data) -> Data:
    """Return a rule's graph as the backward of a function that returns its input.

    Args:
        has_tin: whether the rule gets the forward's input; if not, its graph does not read it.
        params: of its document; those without a fixed value are arguments, as numbers.
    """
    numbers = [each.get("name") for each in params if type(each) is dict and "value" not in each]
    return {
        "tin": has_tin,
        "arguments": [
            {"name": "tin", "path": "tin", "kind": "tensor", "dtype": T},
            *({"name": name, "path": name, "kind": "number"} for name in numbers),
        ],
        "nesting": {"tuple": [{"tuple": [*range(1 + len(numbers))]}, {"dict": []}]},
        "facts": facts,
        "outputs": 0,
        "fixed": [],
        "first_order": False,
        "keeps_output": False,
        "twice": True,
        "undifferentiable": [],
        "wrt": ["tin"],
        "forward": {"inputs": [["tin", encode_type(INPUT)]], "nodes": [], "outputs": [0]},
        "backward": backward,
    }


def from_version_1(data: Data, where: str = "") -> Data:
    """Return the fields of a rule's document of version 1 as this version has them."""
    dot = f"{where}." if where else ""
    if type(data) is dict and "parts" in data:
        items = read_list(data["parts"], f"{dot}parts", MOST_INPUTS)
        parts = [from_version_1(item, f"{dot}parts[{i}]") for i, item in enumerate(items)]
        return {**data, "parts": parts}
    read_fields(data, where, (*RULE_FIELDS, "graphs"), (*OVER, "evidence"))
    params = read_list(data["params"], f"{dot}params", MOST_INPUTS)
    forms = []
    for i, graph in enumerate(read_list(data["graphs"], f"{dot}graphs", MOST_INPUTS)):
        read_fields(graph, f"{dot}graphs[{i}]", ("tin", "facts", *GRAPH))
        backward = {name: graph[name] for name in GRAPH}
        forms.append(rule_form(graph["tin"], graph["facts"], params, backward))
    return {**{name: data[name] for name in data if name != "graphs"}, "forms": forms}


def as_version_1(document: Mapping[str, Data]) -> dict[str, Data]:
    """Return a document, or a part of one, as version 1 had it."""
    fields = {**document, "version": 1} if "version" in document else dict(document)
    if "parts" in fields:
        fields["parts"] = [as_version_1(part) for part in fields["parts"]]
    elif "params" in fields and "forms" in fields:
        fields["graphs"] = [
            {"tin": form["tin"], "facts": form["facts"], **form["backward"]}
            for form in fields.pop("forms")
        ]
    return fields
