"""Emitted source as functions: compiled once, and registered in `linecache` for tracebacks.

One graph becomes a plain function here: a rule, an activation's forward, or any graph for NumPy.
No native object with a gradient of its own is around it, as `lower.py` makes one.
"""

from __future__ import annotations

import functools
import keyword
import linecache
import operator
import re
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..backend.contract import Backend
from ..backend.discovery import load_backend
from ..backend.emitted import Body
from ..ir.graph import Graph, Location
from ..ir.types import UNKNOWN
from ..passes.decisions import with_exact_decisions
from ..support.tensors import Tensor
from ..support.threads import SERIALS, build_once
from ..trace.derived.custom_calls import drop_calls, gradients_lost
from .checks import second_refusal, shape_check
from .emit import Emission, emit_body
from .forwards import Forward

MOST_EMITTED = 16  # functions of one rule: by backend, and by what it asks of its input
EmittedRules = dict[tuple[Any, ...], Callable[..., Any]]


def compile_source(
    source: str,
    name: str,
    namespace: dict[str, Any],
    written: Mapping[str, tuple[Location, ...]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Execute emitted source once, visible to tracebacks, and return its namespace.

    `written` is that of `Emission`: a traceback shows it next to the line.
    """
    filename = f"<multigrad rule {name} {next(SERIALS)}>"
    # The source is ours, emitted from a verified graph; rules loaded from elsewhere are graphs, not
    # code.
    exec(compile(source, filename, "exec"), namespace)  # noqa: S102
    lines, owner = _Lines(source.splitlines(keepends=True)), _Owner()
    lines.written = written
    # No line of Python runs when it dies: an interrupt met there would be printed and lost.
    lines.owner = weakref.ref(owner, functools.partial(linecache.cache.pop, filename))
    linecache.cache[filename] = (len(source), None, lines, filename)
    namespace["__source__"] = owner
    return namespace


class _Owner:
    """What emitted code holds: while it lives, tracebacks show the source."""


class _Lines(list[str]):
    """The lines of a source; they hold the weak reference that removes them.

    A line that is asked for alone, as a traceback does, tells which of the user's it is: an error
    may leave emitted code through a framework's own, where we cannot add to it.
    """

    owner: weakref.ref[_Owner]
    written: Mapping[str, tuple[Location, ...]]

    def __getitem__(self, index: Any) -> Any:
        line = super().__getitem__(index)
        places = sorted(self.places(line), key=place_of) if isinstance(line, str) else ()
        shown = [f'File "{at.file}", line {at.line}: {at.text}'.rstrip(": ") for at in places]
        return f"{line.rstrip()}  # your code: {'; '.join(shown)}\n" if shown else line

    def places(self, line: str, part: str = "") -> tuple[Location, ...]:
        """Return where the user wrote what a line computes, or that part of it which raised."""
        if part in self.written:
            return self.written[part][:1]
        found: list[Location] = []
        for text in sorted(filter(line.__contains__, self.written), key=len, reverse=True):
            rest = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "", line)
            found += self.written[text] if rest != line else ()
            line = rest  # what a longer text has is not looked for again
        return tuple(dict.fromkeys(found))


place_of = operator.attrgetter("file", "line")


def identifier(name: str) -> str:
    """Return a Python identifier close to a rule's name."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "rule"
    return f"rule_{word}" if word[0].isdigit() or keyword.iskeyword(word) else word


def lower_forward(forward: Forward, backend: Backend) -> Callable[[Tensor], Tensor]:
    """Return an activation as a plain function of a backend, with the framework's derivative."""
    emission = Emission(backend, forward.name)
    (graph,) = with_exact_decisions([forward.graph()], backend.kernels.exact)
    body = emit_body(graph, emission)
    return _wrap(_compile("forward", body, body.result, emission)[0], backend)


def emit_rule_once(graph: Graph, backend: Backend, known: EmittedRules) -> Callable[..., Any]:
    """Return the function of `emit_rule`, from `known` if it has been emitted before."""
    key = (backend.name, graph.inputs, graph.outputs)
    return build_once(known, key, lambda: emit_rule(graph, backend)[0], MOST_EMITTED)


def emit_rule(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], str]:
    """Return a rule's graph as a plain function of one backend, and its source."""
    function, is_elementwise, source = _emit(graph, backend)
    wrapper = backend.autodiff.around_bare
    function = function if wrapper is None else wrapper(function, is_elementwise)
    return _wrap(function, backend), source


def emit_bare_rule(graph: Graph, backend: Backend) -> Callable[..., Any]:
    """Return a rule's function with nothing of the backend around it, for `Autodiff.many`."""
    return _emit(graph, backend)[0]


def _emit(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], bool, str]:
    """Return the function, whether it works element by element, and its source."""
    emission = Emission(backend, graph.name)
    lost, forbid = gradients_lost(graph), backend.autodiff.forbid_derivative
    (graph,) = with_exact_decisions([drop_calls(graph)], backend.kernels.exact)
    name = identifier(graph.name)
    emission.taken.add(name)  # a rule may be called as an op that it uses
    body = emit_body(graph, emission)
    result = body.result
    if graph.outputs[0].type.shape == UNKNOWN:
        check = emission.bind("check_shape", shape_check(graph.name))
        result = f"{check}({result}, grad_out)"
    if lost and forbid is not None:
        once = emission.bind("once", forbid(second_refusal(graph.name, False, lost)))
        result = f"{once}({result})"
    function, source = _compile(name, body, result, emission)
    return function, body.elementwise, source


def _compile(name: str, body: Body, result: str, emission: Emission) -> tuple[Any, str]:
    """Return a function of this name, and its source."""
    head = f"def {name}({', '.join(body.parameters)}):\n"
    source = emission.with_definitions(f"{head}{body.indented(4)}    return {result}\n")
    namespace = compile_source(source, emission.rule, emission.namespace, emission.written)
    return namespace[name], source


def _wrap(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    return function if backend.autodiff.wrap is None else backend.autodiff.wrap(function)


def run_reference(graph: Graph, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the outputs of a graph on NumPy, in the dtypes of its arrays.

    `inputs` are arrays, numbers and the key by the names of the graph's inputs.
    """
    emission = Emission(load_backend("numpy"), graph.name)
    # The name of the function that is compiled below.
    emission.taken.add("reference")
    body = emit_body(drop_calls(graph), emission)
    results = "".join(f"{each}, " for each in body.results)
    function, _ = _compile("reference", body, f"({results})", emission)
    with np.errstate(all="ignore"):
        return function(*[inputs[name] for name in body.parameters]) if body.results else ()
