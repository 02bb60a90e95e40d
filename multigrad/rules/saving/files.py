"""Save and load: rules and Functions as JSON files, data only.

A file holds graphs, never source: it is read in another process, without the source, on any
backend. Reading checks everything and raises FormatError for what is wrong. A file is written whole
or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import FormatError
from ...functions.documents.format import MOST_BYTES, format_document, parse, unseal
from ...functions.documents.rules import decode_rule
from ...functions.function import Function, restore
from ...functions.recipes.document import decode_function
from ...graph.support.files import write_whole
from ..model.rule import Rule
from ..registry import resolve
from .evidence import check_evidence, make_evidence

__all__ = ["from_dict", "load", "save"]

Data = Any
Path = str | os.PathLike[str]


def save(obj: str | Rule | Function[..., Any] | Callable[..., Any], path: Path) -> None:
    """Write a rule or a Function to a JSON file: all of it, or nothing.

    The file carries evidence: the hash of its content, what its ops give at kinks, and inputs with
    the results that NumPy's reference gives for them.

    Examples:
        >>> xg.save(xg.get("triangular").with_params(width=2.0), "triangular.json")
        >>> rule = xg.load("triangular.json")  # in another process, on another framework
        >>> rule(None, np.ones(2), np.array([0.0, 1.0]))
        array([1. , 0.5])

    Args:
        obj: a rule (its name, a Rule or a function), or a Function as `xg.custom_gradient` makes.
        path: the file; one that is there is replaced when the new one is complete.

    Raises:
        TraceError: it cannot be captured, so there is no graph to save.
        FormatError: it has more than a document holds.
        OSError: the file cannot be written.
    """
    obj = getattr(obj, "captured_form", obj)  # of what `override` returned
    document = (obj if isinstance(obj, Function) else resolve(obj)).to_dict()
    # Evidence of the loaded object, because the source may do more than its graph.
    write_file(path, {**document, "evidence": make_evidence(from_dict(document), document)})


def load(path: Path) -> Rule | Function[..., Any]:
    """Return the rule or the Function in a file. Its content is data: nothing in it is executed.

    The result works in every framework. A rule is not registered:
    `xg.register("name")(xg.load(path))`.

    Examples:
        >>> xg.save("rectangular", "rule.json")
        >>> rule = xg.register("loaded")(xg.load("rule.json"))
        >>> xg.get("loaded")(None, np.ones(2), np.array([0.0, 9.0]))
        array([1., 0.])

    Raises:
        FormatError: the file is no document of this version, damaged or too large.
        OSError: the file cannot be read.
    """
    return from_dict(read_file(path))


def from_dict(data: Mapping[str, Data]) -> Rule | Function[..., Any]:
    """Return the rule or the Function from the data that `obj.to_dict()` returned.

    Examples:
        >>> data = xg.get("rectangular").to_dict()
        >>> data["format"], data["version"]
        ('multigrad', 1)
        >>> xg.from_dict(data)(None, np.ones(2), np.array([0.0, 9.0]))
        array([1., 0.])

    Raises:
        FormatError: they are no document of this version, or damaged.
    """
    kind, fields = unseal(data, ("rule", "function"))
    evidence = fields.pop("evidence", None)
    found = decode_rule(Rule, fields) if kind == "rule" else restore(decode_function(fields))
    if evidence is not None:
        check_evidence(evidence, data)
    return found


# --- files ---------------------------------------------------------------------------------------


def read_file(path: Path) -> Data:
    """Return the data in a file.

    Raises:
        FormatError: it is no document of plain data, or too large.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        # One byte more than allowed, so that `parse` notices a larger file.
        return parse(file.read(MOST_BYTES + 1))


def write_file(path: Path, data: Data) -> None:
    """Write data as JSON, all of it or nothing: until that is complete, an old file stays as it is.

    Raises:
        FormatError: it is larger than what is read again.
        OSError: the file cannot be written.
    """
    raw = format_document(data).encode("utf-8")
    if len(raw) > MOST_BYTES:
        raise FormatError(
            f"the document has {len(raw)} bytes, of which at most {MOST_BYTES} are read"
        )
    # A folder or a device must not be replaced.
    if os.path.exists(path) and not os.path.isfile(path):
        raise IsADirectoryError(f"{path!r} is no regular file: choose another path")
    write_whole(path, raw)
