"""A graph run by NumPy in the dtypes of its arrays, lowered as any backend lowers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backend.discovery import load_backend
from ..graph.ir.graph import Graph
from ..trace.derived.custom_calls import drop_calls
from .emit import Emission, emit_body
from .source import compile_source


def run_reference(graph: Graph, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the outputs of a graph, given arrays, numbers and the key by its inputs' names."""
    emission = Emission(load_backend("numpy"), graph.name)
    # The name of the function that is compiled below.
    emission.taken.add("reference")
    body = emit_body(drop_calls(graph), emission)
    lines, results = body.indented(4), "".join(f"{each}, " for each in body.results)
    source = f"def reference({', '.join(body.parameters)}):\n{lines}    return ({results})\n"
    source = emission.with_definitions(source)
    function = compile_source(source, graph.name, emission.namespace)["reference"]
    with np.errstate(all="ignore"):
        return function(*[inputs[name] for name in body.parameters]) if body.results else ()
