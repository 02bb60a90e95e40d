"""The format of documents: plain data, its JSON text and head, and the hash of its meaning.

The forms that rules and Functions are saved in are here, too; docs/format.md is the specification.
A text is measured (bytes, nesting, items, digits) before it is parsed, so that no document can take
more time or memory than its size explains.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from ....core.ir.graph import ArrayValue
from ....core.support.pickles import own_version
from ....errors import FormatError
from ...passes.serialize import MOST_INTEGER, decode_array, describe, fail, read_list
from .versions import VERSION, as_version_1, from_version_1

Data = Any
FORMAT = "multigrad"
HEAD = ("format", "version", "kind")
# The limits of documents, which are checked before anything is built.
MOST_DOC = 20_000
MOST_ARRAYS = 1024
MOST_BYTES = 16 << 20
MOST_DEPTH = 48
MOST_ITEMS = 500_000
MOST_DIGITS = 60
MOST_CHARACTERS = 1 << 20  # of one string
WIDTH = 100
ROWS = ("nodes", "inputs", "params")  # their items stand on a line each
ON_A_LINE = ({"dtype", "shape", "values"}, {"of", "value", "derivative"})  # of evidence
dump = partial(json.dumps, ensure_ascii=False, allow_nan=False)
HEX = re.compile(r"-?0x[01](\.[0-9a-f]{1,13})?p[+-]\d{1,4}|nan|-?inf")
TOKENS = re.compile(r'"[^"]*"?|[\[{\]},]')  # where no escape is left


def seal(kind: str, fields: dict[str, Data], read: Callable[[dict[str, Data]], Any]) -> Data:
    """Return the document of these fields, once `read` has made their object of them.

    A document that could not be read again is never returned: there is a `FormatError`.
    """
    document = {"format": FORMAT, "version": VERSION, "kind": kind, **fields}
    check_plain(document)
    read(fields)
    return document


def unseal(data: Data, kinds: tuple[str, ...]) -> tuple[str, dict[str, Data]]:
    check_plain(data)
    if type(data) is not dict or data.get("format") != FORMAT:
        fail("", f'this is not a multigrad document: it begins with "format": "{FORMAT}"')
    check_version(data.get("version"), "version", "the document has version", VERSION)
    kind = data.get("kind")
    if type(kind) is not str or kind not in kinds:
        fail("kind", f"expected {' or '.join(map(repr, kinds))}, got {describe(kind)}")
    fields = {name: data[name] for name in data if name not in HEAD}
    if kind == "rule" and data["version"] == 1:
        fields = from_version_1(fields)
    return kind, fields


def check_version(version: Data, where: str, subject: str, known: int) -> None:
    """Raise a FormatError if what a file was written for is newer than what is known here."""
    # `type() is`, not isinstance: True is an int too.
    if type(version) is not int or version < 1:
        fail(where, f"expected {known}, got {describe(version)}")
    if version > known:
        reads = f"newer than {known}, which multigrad {own_version()} reads"
        fail(where, f"{subject} {version}, {reads}: upgrade multigrad")


def clean(doc: str | None) -> str:
    letters = (c if c.isprintable() or c in "\n\t" else " " for c in inspect.cleandoc(doc or ""))
    return "".join(letters)[:MOST_DOC]


def decode_arrays(data: Data, where: str) -> list[ArrayValue]:
    items = read_list(data, where, MOST_ARRAYS)
    return [decode_array(item, f"{where}[{i}]") for i, item in enumerate(items)]


def parse(raw: bytes) -> Data:
    if len(raw) > MOST_BYTES:
        fail("", f"the document has more than {MOST_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fail("", f"this is no multigrad document, which is JSON in UTF-8: {error}")
    measure(text)
    try:
        data = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=partial(_number, int),
            parse_float=partial(_number, float),
            parse_constant=_constant,
        )
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        fail("", f"the document is no JSON: {error}")
    return data


def measure(text: str) -> None:
    """Check nesting and number of items before anything is built."""
    depth = items = 0
    # A backslash outside a string is an error of JSON, and nothing after it is read.
    text = text.replace("\\\\", "__").replace('\\"', "__")
    for token in TOKENS.finditer(text):
        character = text[token.start()]
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        items += character != '"'
        _check_amount(depth, items)


def _check_amount(depth: int, items: int) -> None:
    if depth > MOST_DEPTH:
        fail("", f"the document is nested more than {MOST_DEPTH} deep")
    if items > MOST_ITEMS:
        fail("", f"the document has more than {MOST_ITEMS} items")


def _object(pairs: list[tuple[str, Data]]) -> dict[str, Data]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        fail("", f"the field {duplicate!r:.60} stands twice in one object")
    return fields


def _number(kind: type, digits: str) -> Any:
    if len(digits) > MOST_DIGITS:
        fail("", f"a number has more than {MOST_DIGITS} digits")
    return kind(digits)


def _constant(name: str) -> NoReturn:
    fail("", f'{name} is no JSON: write {{"float": "nan"}}, "inf" or "-inf"')


def check_plain(data: Data) -> None:
    """Check that data are what JSON holds, and not too much; they need not come from a text."""
    items = itertools.count(1)

    def check(item: Data, depth: int) -> None:
        _check_amount(depth, next(items))  # which also ends what holds itself
        if type(item) is dict:
            for name, inner in item.items():
                if type(name) is not str or len(name) > MOST_CHARACTERS:
                    fail("", "the names of an object's fields are strings")
                check(inner, depth + 1)
        elif type(item) is list:
            for inner in item:
                check(inner, depth + 1)
        else:
            _check_leaf(item)

    check(data, 0)


def _check_leaf(item: Data) -> None:
    if type(item) is str:
        if len(item) > MOST_CHARACTERS:
            fail("", f"a string has more than {MOST_CHARACTERS} characters")
    elif type(item) is int:
        if abs(item) >= MOST_INTEGER:
            fail("", "an integer has more than 64 bits")
    elif type(item) is float:
        if not math.isfinite(item):
            fail("", f"a number is too large for a float64, or written as {item}")
    elif item is not None and type(item) is not bool:
        fail("", f"a {type(item).__name__} is no plain data: expected what JSON holds")


def format_document(data: Data) -> str:
    """Return data as JSON text: the same for the same data, one node a line."""
    return f"{_format(data, '')}\n"


def _format(data: Data, indent: str, is_long: bool = False) -> str:
    # On one line if it fits; the items of what `is_long` stand on a line each in any case.
    line = dump(data)
    is_dict, inner = isinstance(data, dict), f"{indent}  "
    fits = not is_long and len(indent) + len(line) <= WIDTH
    if not data or not isinstance(data, dict | list) or fits:
        return line
    if isinstance(data, dict) and data.keys() in ON_A_LINE:
        return line
    lines = []
    for item in data:
        if not is_dict:
            lines.append(dump(item) if is_long else _format(item, inner))
            continue
        value = data[item]
        text = _format(value, inner, is_long=item in ROWS and isinstance(value, list))
        lines.append(f"{dump(item)}: {text}")
    opening, closing = "{}" if is_dict else "[]"
    body = ",\n".join(f"{inner}{each}" for each in lines)
    return f"{opening}\n{body}\n{indent}{closing}"


# What people read, by the field that holds it: nodes, parts, or the whole document.
LEFT_OUT = {"nodes": ("at",), "parts": ("doc",), "": ("doc", "evidence")}


def hash_of(document: Mapping[str, Data]) -> str:
    return digest(_meaning(as_version_1(document)))


def digest(data: Data) -> str:
    return f"sha256:{hashlib.sha256(canonical(data)).hexdigest()}"


def canonical(data: Data) -> bytes:
    # JSON in ASCII without spaces, sorted by names, each float as `{"float": hex}`.
    text = json.dumps(_plain(data), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode("ascii")


def hex_of(number: float) -> str:
    """Return a float as C prints it by %a: 0x1.8p+0; nan, inf or -inf."""
    return re.sub(r"\.?0*p", "p", float(number).hex())


def check_numbers(data: Data, where: str, depth: int = 0) -> None:
    """Raise a FormatError unless data is a hex float, or lists of such, so many deep at most."""
    if type(data) is list and depth:
        for item in data:
            check_numbers(item, where, depth - 1)
    elif type(data) is not str or not HEX.fullmatch(data):
        fail(where, f"expected a hex float, got {describe(data)}")


def _plain(data: Data) -> Data:
    if isinstance(data, dict):
        return {name: _plain(item) for name, item in data.items()}
    if isinstance(data, list):
        return [_plain(item) for item in data]
    return {"float": hex_of(data)} if isinstance(data, float) else data


def _meaning(data: Data, field: str = "") -> Data:
    # Where a node was written, and what people read of a document or of its parts, mean nothing.
    if isinstance(data, list):
        return [_meaning(item, field) for item in data]
    if not isinstance(data, dict):
        return data
    left_out = LEFT_OUT.get(field, ())
    return {name: _meaning(item, name) for name, item in data.items() if name not in left_out}
