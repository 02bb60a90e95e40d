"""`Operator`: a captured Function as an operator of a framework, whose name holds its hash.

So a program that calls it never meets another gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...errors import UnsupportedOp
from ...graph.passes.serialize import fail, read_fields
from ...lowering.emit import identifier
from ...lowering.function_graph import FunctionGraph
from ..calls.recipe import Variant
from ..documents.format import format_document, hash_of, seal, unseal
from .document import decode_function, encode_variant

Data = Any
Function = Any  # of function.py
OPERATORS_FILE = "multigrad.json"  # among the files of a program
DIGITS = 12  # of the hash, in a name


class Operator(NamedTuple):
    """What a framework registers.

    Attributes:
        name: of the operator, the same wherever its graphs are.
        document: the Function in this form, as data.
        graphs: what the document holds, named as the operator is.
    """

    name: str
    document: Data
    graphs: FunctionGraph


def as_operator(function: Function, variant: Variant) -> Operator:
    """Return a Function's captured form as an operator.

    Raises:
        UnsupportedOp: it draws random numbers.
        TraceError, FormatError: no document holds it.
    """
    if variant.graphs.is_random:
        raise UnsupportedOp(
            f"{function.recipe.subject} draws random numbers, which an exported operator does not: "
            "export one that draws none, or train it where multigrad is"
        )
    return read_operator(encode_variant(function, variant))


def read_operator(document: Data) -> Operator:
    """Return the operator of a document.

    Raises:
        FormatError: it is no document of a Function in one form, or damaged.
    """
    _, fields = unseal(document, ("function",))
    (form, *_) = decode_function(fields).forms
    graphs = form.layout.graphs
    # Docstrings and places in sources are no part of the meaning.
    digest = hash_of(document).partition(":")[2][:DIGITS]
    return Operator(f"{identifier(graphs.name)}_{digest}", document, graphs)


def write_operators(operators: Iterable[Operator]) -> str:
    documents = {operator.name: operator.document for operator in operators}
    return format_document(seal("operators", {"operators": documents}, dict))


def read_operators(data: Data) -> list[Operator]:
    """Return the operators of a file's data.

    Raises:
        FormatError: they are damaged, or one has another name than its graphs give it.
    """
    _, fields = unseal(data, ("operators",))
    read_fields(fields, "", ("operators",))
    documents = fields["operators"]
    if type(documents) is not dict:
        fail("operators", "expected an object")
    found = []
    for name, document in documents.items():
        operator = read_operator(document)
        if operator.name != name:
            fail(
                f"operators.{name}",
                f"its graphs are those of {operator.name!r}: the file was changed since, or is of "
                "another version. Export the model again",
            )
        found.append(operator)
    return found
