"""The format: plain data, its JSON text and its head, read strictly.

A text is measured (bytes, nesting, items, digits) before it is parsed, so that no document can take
more time or memory than its size explains.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from ...errors import FormatError
from ...graph.ir.array_values import ArrayValue
from ...graph.passes.fields import MOST_INTEGER, decode_array, describe, fail, read_list

Data = Any
FORMAT, VERSION = "multigrad", 1
HEAD = ("format", "version", "kind")
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
TOKENS = re.compile(r'"[^"]*"?|[\[{\]},]')  # where no escape is left


# --- the head ------------------------------------------------------------------------------------


def seal(kind: str, fields: dict[str, Data], read: Callable[[dict[str, Data]], Any]) -> Data:
    """Return the document of these fields, of which `read` has made their object again.

    Raises:
        FormatError: there is more than a document holds.
    """
    document = {"format": FORMAT, "version": VERSION, "kind": kind, **fields}
    check_plain(document)
    read(fields)
    return document


def unseal(data: Data, kinds: tuple[str, ...]) -> tuple[str, dict[str, Data]]:
    """Return a document's kind and fields.

    Raises:
        FormatError: it is no document of this version.
    """
    check_plain(data)
    if type(data) is not dict or data.get("format") != FORMAT:
        fail("", f'this is not a multigrad document: it begins with "format": "{FORMAT}"')
    version = data.get("version")
    if type(version) is not int or version < 1:
        fail("version", f"expected {VERSION}, got {describe(version)}")
    if version > VERSION:
        newer = f"the document has version {version}, newer than {VERSION}: upgrade multigrad"
        fail("version", newer)
    kind = data.get("kind")
    if type(kind) is not str or kind not in kinds:
        fail("kind", f"expected {' or '.join(map(repr, kinds))}, got {describe(kind)}")
    return kind, {name: data[name] for name in data if name not in HEAD}


def clean(doc: str | None) -> str:
    """Return a docstring as a document has it."""
    letters = (c if c.isprintable() or c in "\n\t" else " " for c in inspect.cleandoc(doc or ""))
    return "".join(letters)[:MOST_DOC]


def decode_arrays(data: Data, where: str) -> list[ArrayValue]:
    """Return a document's constant arrays."""
    items = read_list(data, where, MOST_ARRAYS)
    return [decode_array(item, f"{where}[{i}]") for i, item in enumerate(items)]


# --- text to data --------------------------------------------------------------------------------


def parse(raw: bytes) -> Data:
    """Return the data of a JSON text, to be checked.

    Raises:
        FormatError: it is no strict JSON, or too large.
    """
    if len(raw) > MOST_BYTES:
        fail("", f"the document has more than {MOST_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fail("", f"the document is no UTF-8 text: {error}")
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
    """Check nesting and number of items before anything is built.

    Raises:
        FormatError: there is too much.
    """
    depth = items = 0
    # A backslash outside a string is an error of JSON, and nothing after it is read.
    text = text.replace("\\\\", "__").replace('\\"', "__")
    for token in TOKENS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
        elif first in "]}":
            depth -= 1
        items += first != '"'
        _check_amount(depth, items)


def _check_amount(depth: int, items: int) -> None:
    if depth > MOST_DEPTH:
        fail("", f"the document is nested more than {MOST_DEPTH} deep")
    if items > MOST_ITEMS:
        fail("", f"the document has more than {MOST_ITEMS} items")


def _object(pairs: list[tuple[str, Data]]) -> dict[str, Data]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        fail("", f"the field {twice!r:.60} stands twice in one object")
    return made


def _number(kind: type, digits: str) -> Any:
    if len(digits) > MOST_DIGITS:
        fail("", f"a number has more than {MOST_DIGITS} digits")
    return kind(digits)


def _constant(name: str) -> NoReturn:
    fail("", f'{name} is no JSON: write {{"float": "nan"}}, "inf" or "-inf"')


def check_plain(data: Data) -> None:
    """Check that data are what JSON holds, and not too much; they need not come from a text.

    Raises:
        FormatError: they are not.
    """
    pending: list[tuple[int, Iterator[Data]]] = [(0, iter((data,)))]
    items = 0
    while pending:
        depth, rest = pending[-1]
        for item in rest:
            items += 1
            _check_amount(depth, items)
            if type(item) is dict:
                for name in item:
                    if type(name) is not str or len(name) > MOST_CHARACTERS:
                        fail("", "the names of an object's fields are strings")
                pending.append((depth + 1, iter(tuple(item.values()))))
                break
            if type(item) is list:
                pending.append((depth + 1, iter(tuple(item))))
                break
            _check_leaf(item)
        else:
            pending.pop()


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


# --- data to text --------------------------------------------------------------------------------


def format_document(data: Data) -> str:
    """Return data as JSON text: the same for the same data, one node a line."""
    return f"{_format(data, '', False)}\n"


def _format(data: Data, indent: str, is_row: bool) -> str:
    line = json.dumps(data, ensure_ascii=False, allow_nan=False)
    is_container = isinstance(data, dict | list)
    if not is_container or not data or is_row or len(indent) + len(line) <= WIDTH:
        return line
    if isinstance(data, dict) and data.keys() in ON_A_LINE:
        return line
    inner = f"{indent}  "
    if isinstance(data, dict):
        lines = [
            f"{json.dumps(name, ensure_ascii=False)}: {_format_field(name, value, inner)}"
            for name, value in data.items()
        ]
        opening, closing = "{", "}"
    else:
        lines = [_format(item, inner, False) for item in data]
        opening, closing = "[", "]"
    return "\n".join([opening, *_separated(lines, inner), f"{indent}{closing}"])


def _format_field(name: str, value: Data, indent: str) -> str:
    if name not in ROWS or not isinstance(value, list) or not value:
        return _format(value, indent, False)
    inner = f"{indent}  "
    lines = [_format(item, inner, True) for item in value]
    return "\n".join(["[", *_separated(lines, inner), f"{indent}]"])


def _separated(lines: list[str], indent: str) -> list[str]:
    last = len(lines) - 1
    return [f"{indent}{line}{',' if i < last else ''}" for i, line in enumerate(lines)]
