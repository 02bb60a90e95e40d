"""What a saved file carries beside the graphs: their hash, the op set, the conventions of the ops
at kinks, and vectors. A file without them loads as before; docs/format.md specifies them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...functions.documents.format import hash_of, hex_of
from ...functions.function import Function
from ...graph import ops
from ...graph.ops.properties import OP_SET, kinks_of
from ...graph.passes.fields import describe, fail, read_fields, read_list, read_text
from ..model.rule import Rule
from .vectors import check_hex, check_vectors, make_vectors

Data = Any
WITNESS = "multigrad's NumPy reference"
FIELDS = ("hash", "op_set", "conventions", "witness", "vectors")
HASH = re.compile(r"sha256:[0-9a-f]{64}")


def make_evidence(obj: Rule | Function[..., Any], document: Data) -> Data:
    """Return the evidence of a document, which is that of this object."""
    vectors, problem = make_vectors(obj, document)
    evidence = {
        "hash": hash_of(document),
        "op_set": OP_SET,
        "conventions": conventions_of(document),
        "witness": WITNESS,
        "vectors": vectors,
    }
    return {**evidence, "without": problem} if problem else evidence


def conventions_of(document: Data) -> Data:
    """Return what the ops of a document give at kinks."""
    return {
        op: {
            at: {
                "of": [_as_data(number) for number in row["of"]],
                "value": _as_data(row["value"]),
                "derivative": [_as_data(number) for number in row["derivative"]],
            }
            for at, row in places.items()
        }
        for op, places in kinks_of(_ops_of(document)).items()
    }


def _as_data(numbers: Any) -> Data:
    return [_as_data(n) for n in numbers] if isinstance(numbers, tuple) else hex_of(numbers)


def _ops_of(data: Data) -> Iterator[str]:
    """Yield the names of the ops of all nodes in a document."""
    if isinstance(data, dict):
        if isinstance(data.get("nodes"), list):
            yield from (node["op"] for node in data["nodes"])
        for item in data.values():
            yield from _ops_of(item)
    elif isinstance(data, list):
        for item in data:
            yield from _ops_of(item)


def check_evidence(data: Data, document: Mapping[str, Data], where: str = "evidence") -> None:
    """Check what a document carries; its vectors are not run.

    Raises:
        FormatError: it is damaged, or of another document.
    """
    read_evidence(data, where)
    found = hash_of({name: field for name, field in document.items() if name != "evidence"})
    if found != data["hash"]:
        fail(
            f"{where}.hash",
            "the document is not as it was saved: its content has another hash. Save it again, or "
            "take the field 'evidence' out",
        )


def read_evidence(data: Data, where: str) -> Data:
    """Return evidence whose fields have been checked.

    Raises:
        FormatError: one is damaged.
    """
    fields = read_fields(data, where, FIELDS, ("without",))
    if type(fields["hash"]) is not str or not HASH.fullmatch(fields["hash"]):
        fail(f"{where}.hash", f"expected sha256 and 64 digits, got {describe(fields['hash'])}")
    op_set = fields["op_set"]
    if type(op_set) is not int or op_set < 1:
        fail(f"{where}.op_set", f"expected an integer from 1 on, got {describe(op_set)}")
    if op_set > OP_SET:
        fail(f"{where}.op_set", f"{op_set} is newer than {OP_SET}: upgrade multigrad")
    read_text(fields["witness"], f"{where}.witness")
    read_text(fields.get("without", ""), f"{where}.without", 400, "\n")
    _check_conventions(fields["conventions"], f"{where}.conventions")
    check_vectors(fields["vectors"], f"{where}.vectors")
    return fields


def _check_conventions(data: Data, where: str) -> None:
    if type(data) is not dict:
        fail(where, f"expected an object, got {describe(data)}")
    for op, places in data.items():
        if op not in ops.OPS or type(places) is not dict:
            fail(where, f"{op!r:.60} is no op with places")
        for at, row in places.items():
            own = f"{where}.{op}.{at:.60}"
            fields = read_fields(row, own, ("of", "value", "derivative"))
            for numbers in fields.values():
                _check_numbers(numbers, own, 2)


def _check_numbers(data: Data, where: str, depth: int) -> None:
    if type(data) is list and depth:
        for item in read_list(data, where, 16):
            _check_numbers(item, where, depth - 1)
    else:
        check_hex(data, where)
