"""Save and load: rules and Functions as JSON documents, data only.

A document holds graphs, never source: it is read in another process, without the source, on any backend.
Reading checks everything and raises FormatError for what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .documents import Path, check_plain, read_file, write_file
from .functions.documents import decode_function, encode_function
from .functions.function import Function
from .ir.serialize import describe, fail
from .rule import Rule
from .rule_documents import decode_rule, encode_rule

__all__ = ["document_of", "from_dict", "load", "save"]

Data = Any
FORMAT, VERSION = "multigrad", 1
HEAD = ("format", "version", "kind")
READERS = {"rule": decode_rule, "function": decode_function}


def save(obj: Any, path: Path) -> None:
    """Write a rule or a Function to a JSON file: all of it, or nothing.

    Example:
        >>> xg.save("triangular", "triangular.json")
        >>> rule = xg.load("triangular.json")  # in another process, on another framework

    Args:
        obj: a rule (its name, a Rule or a function), or a Function as `xg.custom_gradient` makes it.
        path: the file; one that is there is replaced when the new one is complete.

    Raises:
        TraceError: it cannot be captured, so there is no graph to save.
        FormatError: it has more than a document holds.
        OSError: the file cannot be written.
    """
    from .registry import resolve

    write_file(path, document_of(obj if isinstance(obj, Function) else resolve(obj)))


def load(path: Path) -> Any:
    """Return the rule or the Function in a file. Its content is data: nothing in it is executed.

    What is loaded works everywhere. A rule is not registered: `xg.register("name")(xg.load(path))`.

    Raises:
        FormatError: the file is no document of this version, damaged or too large.
        OSError: the file cannot be read.
    """
    return _decode(read_file(path))


def from_dict(data: Mapping[str, Data]) -> Any:
    """Return the rule or the Function of which `obj.to_dict()` gave these data.

    Raises:
        FormatError: they are no document of this version, or damaged.
    """
    check_plain(data)
    return _decode(data)


def document_of(obj: Rule | Function) -> dict[str, Data]:
    """Return a rule or a Function as plain data.

    Raises:
        TraceError: it cannot be captured.
        FormatError: it has more than a document holds.
    """
    is_rule = isinstance(obj, Rule)
    fields = encode_rule(obj) if is_rule else encode_function(obj)
    kind = "rule" if is_rule else "function"
    document = {"format": FORMAT, "version": VERSION, "kind": kind, **fields}
    from_dict(document)  # what is saved can be loaded
    return document


def _decode(data: Data) -> Any:
    if type(data) is not dict or data.get("format") != FORMAT:
        fail("", f'this is no multigrad document: it begins with "format": "{FORMAT}"')
    version = data.get("version")
    if type(version) is not int or version < 1:
        fail("version", f"expected {VERSION}, got {describe(version)}")
    if version > VERSION:
        fail(
            "version",
            f"the document has version {version}, newer than {VERSION}: upgrade multigrad",
        )
    kind = data.get("kind")
    read = READERS.get(kind) if type(kind) is str else None
    if read is None:
        fail("kind", f"expected {' or '.join(map(repr, READERS))}, got {describe(kind)}")
    return read({name: data[name] for name in data if name not in HEAD})
