"""One graph as a plain function of a backend: a rule, or an activation's forward.

No native object with a gradient of its own is around it, as `lower.py` makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backend.contract import Backend
from ..graph.ir.graph import Graph
from ..graph.ir.types import UNKNOWN
from ..graph.support.threads import build_once
from ..trace.derived.custom_calls import drop_calls
from .emit import Emission, emit_body
from .forwards import Forward
from .input_checks import shape_check
from .source import compile_source, identifier

Tensor = Any
MOST_EMITTED = 16  # functions of one rule: by backend, and by what it asks of its input
EmittedRules = dict[tuple[Any, ...], Callable[..., Any]]


def lower_forward(forward: Forward, backend: Backend) -> Callable[[Tensor], Tensor]:
    """Return an activation as a plain function of a backend, with the framework's derivative."""
    emission = Emission(backend, forward.name)
    body = emit_body(forward.graph(), emission)
    source = f"def forward(tin):\n{body.indented(4)}    return {body.result}\n"
    source = emission.with_definitions(source)
    return _wrap(compile_source(source, forward.name, emission.namespace)["forward"], backend)


def emit_rule_once(graph: Graph, backend: Backend, known: EmittedRules) -> Callable[..., Any]:
    """Return the function of `emit_rule`, from `known` if it has been emitted before."""
    key = (backend.name, graph.inputs, graph.outputs)
    return build_once(known, key, lambda: emit_rule(graph, backend)[0], MOST_EMITTED)


def emit_rule(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], str]:
    """Return a rule's graph as a plain function of one backend, and its source."""
    function, is_elementwise, source = _emit(graph, backend)
    around = backend.autodiff.around_bare
    function = function if around is None else around(function, is_elementwise)
    return _wrap(function, backend), source


def emit_bare_rule(graph: Graph, backend: Backend) -> Callable[..., Any]:
    """Return a rule's function with nothing of the backend around it, for `Autodiff.many`."""
    return _emit(graph, backend)[0]


def _emit(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], bool, str]:
    """Return the function, whether it works element by element, and its source."""
    emission = Emission(backend, graph.name)
    graph = drop_calls(graph)
    name = identifier(graph.name)
    emission.taken.add(name)  # a rule may be called as an op that it uses
    body = emit_body(graph, emission)
    result = body.result
    if graph.outputs[0].type.shape == UNKNOWN:
        check = emission.bind("check_shape", shape_check(graph.name))
        result = f"{check}({result}, grad_out)"
    source = f"def {name}({', '.join(body.parameters)}):\n{body.indented(4)}    return {result}\n"
    source = emission.with_definitions(source)
    function = compile_source(source, graph.name, emission.namespace)[name]
    return function, body.elementwise, source


def _wrap(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    return function if backend.autodiff.wrap is None else backend.autodiff.wrap(function)
