"""Versions: of the format, a form of a rule as it is now and what version 1 had in its place; and
of the ops, by what they give at kinks.

Since version 2 a rule has forms as a Function has, a forward and a backward; in version 1 it had
`graphs`, its backwards alone. What version 1 wrote is translated before it is decoded. A content's
hash is that of its document in version 1, so that the files and locks of both agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from typing import Any

from ....core.ir.op import INPUT, T
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


# --- kinks: what ops give there, at poles and at jumps -------------------------------------------
# Documents carry the rows of the ops that they use; a test compares each row with its op. OP_SET
# rises when an existing op changes its meaning; a new op leaves it unchanged.
OP_SET = 1
Numbers = Any  # a float, or a tuple of floats
# A row: op, place, operands there, value, derivatives for a cotangent of 1, 2 and so on.
KINKS: tuple[tuple[str, str, tuple[Numbers, ...], Numbers, tuple[Numbers, ...]], ...] = (
    ("abs", "at 0", (0.0,), 0.0, (0.0,)),
    ("acosh", "at 1", (1.0,), 0.0, (inf,)),
    ("asin", "at 1", (1.0,), 1.5707963267948966, (inf,)),
    ("atan2", "at (0, 0)", (0.0, 0.0), 0.0, (0.0, -0.0)),
    ("atanh", "at 1", (1.0,), inf, (inf,)),
    ("cbrt", "at 0", (0.0,), 0.0, (inf,)),
    ("ceil", "at 0", (0.0,), 0.0, (0.0,)),
    ("ceil", "at 2", (2.0,), 2.0, (0.0,)),
    ("clip", "at its lower bound", (0.0, 0.0, 1.0), 0.0, (1.0, 0.0, 0.0)),
    ("clip", "at its upper bound", (1.0, 0.0, 1.0), 1.0, (1.0, 0.0, 0.0)),
    ("clip", "where the bounds cross", (0.5, 1.0, 0.0), 0.0, (0.0, 0.0, 1.0)),
    ("clip", "at NaN", (nan, 0.0, 1.0), nan, (0.0, 0.0, 0.0)),
    ("copysign", "at (0, 1)", (0.0, 1.0), 0.0, (1.0, 0.0)),
    ("cummax", "where all are equal", ((1.0, 1.0),), (1.0, 1.0), ((1.0, 2.0),)),
    ("cummin", "where all are equal", ((1.0, 1.0),), (1.0, 1.0), ((1.0, 2.0),)),
    ("cumprod", "where one is 0", ((0.0, 2.0),), (0.0, 0.0), ((5.0, 0.0),)),
    ("div", "at (0, 0)", (0.0, 0.0), nan, (inf, nan)),
    ("erfinv", "at 1", (1.0,), inf, (inf,)),
    ("floor", "at 0", (0.0,), 0.0, (0.0,)),
    ("floor", "at 2", (2.0,), 2.0, (0.0,)),
    ("floor_divide", "at (2, 1)", (2.0, 1.0), 2.0, (0.0, 0.0)),
    ("fmax", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("fmax", "where the first is NaN", (nan, 1.0), 1.0, (0.0, 1.0)),
    ("fmax", "where the second is NaN", (1.0, nan), 1.0, (1.0, 0.0)),
    ("fmin", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("fmin", "where the first is NaN", (nan, 1.0), 1.0, (0.0, 1.0)),
    ("fmin", "where the second is NaN", (1.0, nan), 1.0, (1.0, 0.0)),
    ("fmod", "at (2, 1)", (2.0, 1.0), 0.0, (1.0, -2.0)),
    ("frac", "at 0", (0.0,), 0.0, (1.0,)),
    ("frac", "at 2", (2.0,), 0.0, (1.0,)),
    ("hard_shrink", "at 0.5", (0.5,), 0.0, (0.0,)),
    ("hard_sigmoid", "at -3", (-3.0,), 0.0, (0.0,)),
    ("hard_sigmoid", "at 3", (3.0,), 1.0, (0.0,)),
    ("hard_silu", "at -3", (-3.0,), -0.0, (0.0,)),
    ("hard_silu", "at 3", (3.0,), 3.0, (1.0,)),
    ("hard_tanh", "at -1", (-1.0,), -1.0, (0.0,)),
    ("hard_tanh", "at 1", (1.0,), 1.0, (0.0,)),
    ("heaviside", "at 0", (0.0,), 0.0, (0.0,)),
    ("hypot", "at (0, 0)", (0.0, 0.0), 0.0, (0.0, 0.0)),
    ("leaky_relu", "at 0", (0.0,), 0.0, (0.01,)),
    ("log", "at 0", (0.0,), -inf, (inf,)),
    ("logaddexp", "at (-inf, -inf)", (-inf, -inf), -inf, (nan, nan)),
    ("logsumexp", "where all are -inf", ((-inf, -inf),), (-inf,), ((0.0, 0.0),)),
    ("max", "where all are equal", ((1.0, 1.0),), (1.0,), ((0.5, 0.5),)),
    ("maximum", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("maximum", "where the first is NaN", (nan, 1.0), nan, (0.0, 1.0)),
    ("maximum", "where the second is NaN", (1.0, nan), nan, (0.0, 1.0)),
    ("median", "where all are equal", ((1.0, 1.0),), (1.0,), ((0.5, 0.5),)),
    ("min", "where all are equal", ((1.0, 1.0),), (1.0,), ((0.5, 0.5),)),
    ("minimum", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("minimum", "where the first is NaN", (nan, 1.0), nan, (0.0, 1.0)),
    ("minimum", "where the second is NaN", (1.0, nan), nan, (0.0, 1.0)),
    ("nan_to_num", "at NaN", (nan,), 0.0, (0.0,)),
    ("nan_to_num", "at inf", (inf,), 1.7976931348623157e308, (0.0,)),
    ("norm", "at a vector of zeros", ((0.0, 0.0),), (0.0,), ((0.0, 0.0),)),
    ("pow", "at (0, 0)", (0.0, 0.0), 1.0, (0.0, 0.0)),
    ("prod", "where one is 0", ((0.0, 2.0),), (0.0,), ((2.0, 0.0),)),
    ("prod", "where two are 0", ((0.0, 0.0),), (0.0,), ((0.0, 0.0),)),
    ("reciprocal", "at 0", (0.0,), inf, (-inf,)),
    ("relu", "at 0", (0.0,), 0.0, (0.0,)),
    ("relu6", "at 0", (0.0,), 0.0, (0.0,)),
    ("relu6", "at 6", (6.0,), 6.0, (0.0,)),
    ("remainder", "at (2, 1)", (2.0, 1.0), 0.0, (1.0, -2.0)),
    ("round", "at 0.5", (0.5,), 0.0, (0.0,)),
    ("round", "at 1.5", (1.5,), 2.0, (0.0,)),
    ("round", "at 2", (2.0,), 2.0, (0.0,)),
    ("rsqrt", "at 0", (0.0,), inf, (-inf,)),
    ("selu", "at 0", (0.0,), 0.0, (1.7580993408473766,)),
    ("sign", "at 0", (0.0,), 0.0, (0.0,)),
    ("soft_shrink", "at 0.5", (0.5,), 0.0, (0.0,)),
    ("sort", "where all are equal", ((1.0, 1.0),), (1.0, 1.0), ((1.0, 2.0),)),
    ("sparse_plus", "at -1", (-1.0,), 0.0, (0.0,)),
    ("sparse_plus", "at 1", (1.0,), 1.0, (1.0,)),
    ("sparse_sigmoid", "at -1", (-1.0,), 0.0, (0.0,)),
    ("sparse_sigmoid", "at 1", (1.0,), 1.0, (0.0,)),
    ("sqrt", "at 0", (0.0,), 0.0, (inf,)),
    ("trunc", "at 0", (0.0,), 0.0, (0.0,)),
    ("trunc", "at 2", (2.0,), 2.0, (0.0,)),
    ("xlogy", "at (0, 0)", (0.0, 0.0), 0.0, (0.0, 0.0)),
)


def kinks_of(names: Iterable[str]) -> dict[str, dict[str, dict[str, Numbers]]]:
    op_names = set(names)
    kinks: dict[str, dict[str, dict[str, Numbers]]] = {}
    for name, place, operands, value, derivative in KINKS:
        if name in op_names:
            row = {"of": operands, "value": value, "derivative": derivative}
            kinks.setdefault(name, {})[place] = row
    return kinks
