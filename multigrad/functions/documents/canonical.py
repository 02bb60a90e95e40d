"""The content hash of a document: of what is computed, and not of how it is written down.

docs/format.md is the specification, by which others compute the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

Data = Any
READ_BY_PEOPLE = ("doc", "evidence")  # and "at" of a node: where in a source it stood


def hash_of(document: Mapping[str, Data]) -> str:
    """Return the hash of a rule's or a Function's document."""
    return digest(_meaning(document))


def digest(data: Data) -> str:
    """Return the hash of plain data by their canonical bytes."""
    return f"sha256:{hashlib.sha256(canonical(data)).hexdigest()}"


def canonical(data: Data) -> bytes:
    """Return the canonical bytes of plain data: JSON in ASCII without spaces, sorted by names, each
    float as `{"float": hex}`.
    """
    text = json.dumps(_plain(data), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode("ascii")


def hex_of(number: float) -> str:
    """Return a float as C prints it by %a: 0x1.8p+0; nan, inf or -inf."""
    return re.sub(r"\.?0*p", "p", float(number).hex())


def _plain(data: Data) -> Data:
    if isinstance(data, dict):
        return {name: _plain(item) for name, item in data.items()}
    if isinstance(data, list):
        return [_plain(item) for item in data]
    return {"float": hex_of(data)} if isinstance(data, float) else data


def _meaning(document: Mapping[str, Data]) -> Data:
    kept = {name: data for name, data in document.items() if name not in READ_BY_PEOPLE}
    for name, of_one in (("parts", _meaning), ("graphs", _graph), ("forms", _form)):
        if isinstance(kept.get(name), list):
            kept[name] = [of_one(each) for each in kept[name]]
    return kept


def _form(form: Data) -> Data:
    return {**form, **{way: _graph(form[way]) for way in ("forward", "backward")}}


def _graph(graph: Data) -> Data:
    return {**graph, "nodes": [_node(node) for node in graph["nodes"]]}


def _node(node: Data) -> Data:
    kept = {name: data for name, data in node.items() if name != "at"}
    if "attrs" in kept:
        kept["attrs"] = {name: _attr(data) for name, data in kept["attrs"].items()}
    return kept


def _attr(data: Data) -> Data:
    is_graph = isinstance(data, dict) and set(data) == {"graph"}
    return {"graph": _graph(data["graph"])} if is_graph else data
