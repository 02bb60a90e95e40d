"""Proofs that are shipped: of the library's own rules and estimators, made before a release.

`shipped.txt` holds the digest of each file of the library, and by function the digests of the
graphs that were proven to be what it does. Such a graph need not be proven again. One of code that
was changed, or recorded with helpers that were replaced, has another digest, and is proven like
anybody's. `tools/write_proofs.py` writes the file; a test holds it against the library.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from types import CodeType, MappingProxyType

from ...ir.graph import Graph, format_graph
from ..calls.recipe import Recipe, Variant
from .settings import ALL, how_much

PACKAGE = Path(__file__).parents[3]
FILE = Path(__file__).with_name("shipped.txt")
FOLDERS = ("core/rules/library", "estimators")


def is_shipped(recipe: Recipe, variant: Variant) -> bool:
    """Return whether graphs are the library's own, and were proven before the release."""
    code = own_code(recipe)
    if code is None or how_much() == ALL:
        return False
    return digest_of(variant) in _proven_in(code.co_filename).get(code.co_name, ())


def own_code(recipe: Recipe) -> CodeType | None:
    """Return the code of a rule or an estimator of the library, None of anything else."""
    code = getattr(recipe.functions[0], "__code__", None) if len(recipe.functions) == 1 else None
    return code if code is not None and is_of_library(code) else None


def is_of_library(code: CodeType) -> bool:
    return code.co_filename.startswith(_FOLDERS)


def digest_of(variant: Variant) -> str:
    """Return the digest of all that a proof is about: the graphs, and the facts they hold under."""
    graphs = variant.graphs
    pair = (graphs.forward, graphs.backward, *([graphs.pushed] if graphs.pushed else []))
    texts = [format_graph(Graph("", each.inputs, each.outputs)) for each in pair]
    names = (graphs.inputs, graphs.cotangents, graphs.wrt, graphs.undifferentiable)
    texts.append(repr((*names, graphs.second_order, sorted(variant.facts.items()))))
    return digest("\n".join(texts))


def digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def digest_of_file(path: Path) -> str:
    return digest(path.read_text("utf-8"))  # whose lines end alike on every system


@functools.cache
def _proven_in(file: str) -> Mapping[str, list[str]]:
    """Return the digests that are proven for a file of the library, by function; none if the file
    was changed.
    """
    path = Path(file)
    rows = read_rows(FILE.read_text("utf-8"))
    source, proven = rows.get(path.relative_to(PACKAGE).as_posix(), ("", {}))
    return MappingProxyType(proven if source == digest_of_file(path) else {})


def read_rows(text: str) -> dict[str, tuple[str, dict[str, list[str]]]]:
    """Return by file the digest of its text, and by function those of its graphs."""
    rows: dict[str, tuple[str, dict[str, list[str]]]] = {}
    proven: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, *digests = line.split()
        if line.startswith(" "):
            proven[name] = digests
        else:
            rows[name] = (digests[0], proven := {})
    return rows


def write_rows(rows: Mapping[str, tuple[str, Mapping[str, list[str]]]]) -> str:
    """Return the text from which `read_rows` reads these."""

    def lines() -> Iterator[str]:
        for name, (source, proven) in sorted(rows.items()):
            yield f"{name} {source}"
            for function, digests in sorted(proven.items()):
                yield f"  {function} {' '.join(sorted(digests))}"

    return "".join(f"{line}\n" for line in lines())


_FOLDERS = tuple(str(PACKAGE / each) for each in FOLDERS)
