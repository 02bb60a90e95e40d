"""Documents: plain data and its JSON text, read strictly and written at once or not at all.

A text is measured (bytes, nesting, items, digits) before it is parsed, so that no document can take more time or
memory than its size explains.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import uuid
from collections.abc import Iterator
from typing import Any, NoReturn

from .errors import FormatError
from .ir.serialize import MOST_INTEGER, describe, fail

Data = Any
Path = str | os.PathLike[str]
MOST_BYTES = 16 << 20
MOST_DEPTH = 48
MOST_ITEMS = 500_000
MOST_DIGITS = 60
MOST_CHARACTERS = 1 << 20  # of one string
WIDTH = 100
ROWS = ("nodes", "inputs", "params")  # their items stand on a line each
TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{\]},]', re.DOTALL)


# --- text to data --------------------------------------------------------------------------------


def read_file(path: Path) -> Data:
    """Return the data in a file.

    Raises:
        FormatError: it is no document of plain data, or too large.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        return parse(file.read(MOST_BYTES + 1))


def parse(raw: bytes) -> Data:
    """Return the data of a JSON text.

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
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float,
            parse_constant=_constant,
        )  # fmt: skip
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        fail("", f"the document is no JSON: {error}")
    check_plain(data)
    return data


def measure(text: str) -> None:
    """Check nesting and number of items before anything is built.

    Raises:
        FormatError: there is too much.
    """
    depth = items = 0
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


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        fail("", f"a number has more than {MOST_DIGITS} digits")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > MOST_DIGITS:
        fail("", f"a number has more than {MOST_DIGITS} digits")
    return float(digits)


def _constant(name: str) -> NoReturn:
    fail("", f'{name} is no JSON: write {{"float": "nan"}}, "inf" or "-inf"')


def check_plain(data: Data) -> None:
    """Check that data are what JSON holds, and not too much; they may come from anywhere but a text.

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


# --- files ---------------------------------------------------------------------------------------


def write_file(path: Path, data: Data) -> None:
    """Write data as JSON, all of it or nothing: a file that is there stays as it is until the new one is complete.

    Raises:
        FormatError: it is larger than what is read again.
        OSError: the file cannot be written.
    """
    raw = format_document(data).encode("utf-8")
    if len(raw) > MOST_BYTES:
        raise FormatError(
            f"the document has {len(raw)} bytes, of which at most {MOST_BYTES} are read"
        )
    target = os.path.realpath(os.fspath(path))  # a link stays a link
    mode = _mode(target)
    temporary = os.path.join(os.path.dirname(target), f".{uuid.uuid4().hex}.tmp")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
    )
    try:
        with open(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _mode(target: str) -> int | None:
    """Return the permissions of the file that is there, if any.

    Raises:
        OSError: what is there is no file, but a device, say.
    """
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise IsADirectoryError(f"{target!r} is no regular file: choose another path")
    return stat.S_IMODE(mode)


__all__ = ["check_plain", "describe", "format_document", "parse", "read_file", "write_file"]
