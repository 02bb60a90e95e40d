"""Whether data fit a JSON schema of the few words that ours are written in."""

from __future__ import annotations

import re
from typing import Any

KINDS = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip
WORDS = {
    "$schema", "title", "description", "$defs", "$ref", "type", "enum", "const", "anyOf", "pattern",
    "required", "properties", "additionalProperties", "items", "minItems", "maxItems", "minimum",
}  # fmt: skip


def fits(data: Any, schema: Any, root: Any) -> bool:
    """Whether data fit a schema of these words."""
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
