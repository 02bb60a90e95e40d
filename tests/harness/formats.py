"""HTML and JSON as tests read them: each element that opens closes, data fit a schema."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any


class Markup(HTMLParser):
    """The tags, the attributes and the words of a text, these by the element that they stand in."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        self.words += data


KINDS = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip
WORDS = {
    "$schema", "title", "description", "$defs", "$ref", "type", "enum", "const", "anyOf", "pattern",
    "required", "properties", "additionalProperties", "items", "minItems", "maxItems", "minimum",
}  # fmt: skip


def fits(data: Any, schema: Any, root: Any) -> bool:
    assert schema.keys() <= WORDS
    if "$ref" in schema:
        return fits(data, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    kinds = schema.get("type", list(KINDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(
        isinstance(data, KINDS[kind]) and (kind == "boolean") >= (type(data) is bool)
        for kind in kinds
    ):
        return False
    if data not in schema.get("enum", [data]) or data != schema.get("const", data):
        return False
    if "anyOf" in schema and not any(fits(data, each, root) for each in schema["anyOf"]):
        return False
    if isinstance(data, str):
        return re.search(schema.get("pattern", ""), data) is not None
    if isinstance(data, list):
        within = schema.get("minItems", 0) <= len(data) <= schema.get("maxItems", len(data))
        return within and all(fits(each, schema.get("items", {}), root) for each in data)
    if isinstance(data, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        rest = [each for name, each in data.items() if name not in known]
        return (
            set(schema.get("required", ())) <= data.keys()
            and all(fits(data[name], each, root) for name, each in known.items() if name in data)
            and (isinstance(others, dict) or others or not rest)
            and (isinstance(others, bool) or all(fits(each, others, root) for each in rest))
        )
    return data is None or data >= schema.get("minimum", data)
