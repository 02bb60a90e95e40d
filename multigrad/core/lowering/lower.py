"""Lowering: a pair of graphs becomes the source of one backend, and the native object of it.

    FunctionGraph
        │ choose_names   names that emitted code may use
    Lowering
        │ emit_code      the code of forward, of what it keeps, and of backward
    Code, Code
        │ describe       what the code refuses, and what else `render` must know
    Emitted
        │ attach         the source, compiled, and the native object of it
    Attached

`lower_plain` runs these steps for a rule made of the core's ops; the engine's `lower_any` for all
else. Every step binds names in `Lowering.emission`, which is the only thing that changes, so the
steps run in this order. A single graph becomes a plain function, without a native object around it:
a rule, an activation's forward, or any graph for NumPy. Source is compiled once, and registered in
`linecache` for tracebacks.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import linecache
import operator
import re
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from ..backend.contract import Backend
from ..backend.emitted import (
    Attached,
    Body,
    Checks,
    Code,
    Derivative,
    Emitted,
    Names,
    Origin,
    Prepared,
    Residuals,
)
from ..ir.graph import Graph, Location
from ..ir.op import UNKNOWN
from ..passes.decisions import with_exact_decisions
from ..passes.residuals import ResidualCut
from ..support.lazy_modules import of_engine, provided
from ..support.records import record
from ..support.threads import SERIALS, build_once
from ..support.trees import Tensor
from .checks import bind_shape_check, second_refusal, shape_check
from .derivatives import is_linear, without_calls
from .emit import Emission, emit_body
from .forwards import Forward
from .function_graph import OWN_NAMES, FunctionGraph, find_aliasing

# --- emitted source as functions ------------------------------------------------------------------
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
    return _wrap(compile_body("forward", body, body.result, emission)[0], backend)


def emit_rule_once(graph: Graph, backend: Backend, known: EmittedRules) -> Callable[..., Any]:
    """Return the function of `emit_rule`, from `known` if it has been emitted before."""
    key = (backend.name, graph.inputs, graph.outputs)
    return build_once(known, key, lambda: emit_rule(graph, backend)[0], MOST_EMITTED)


def emit_rule(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], str]:
    """Return a rule's graph as a plain function of one backend, and its source."""
    function, is_elementwise, source = _emit_graph(graph, backend)
    wrapper = backend.autodiff.around_bare
    function = function if wrapper is None else wrapper(function, is_elementwise)
    return _wrap(function, backend), source


def emit_bare_rule(graph: Graph, backend: Backend) -> Callable[..., Any]:
    """Return a rule's function with nothing of the backend around it, for `Autodiff.many`."""
    return _emit_graph(graph, backend)[0]


def _emit_graph(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], bool, str]:
    """Return the function, whether it works element by element, and its source."""
    emission = Emission(backend, graph.name)
    (graph, lost), forbid = without_calls(graph), backend.autodiff.forbid_derivative
    (graph,) = with_exact_decisions([graph], backend.kernels.exact)
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
    function, source = compile_body(name, body, result, emission)
    return function, body.elementwise, source


def compile_body(name: str, body: Body, result: str, emission: Emission) -> tuple[Any, str]:
    """Return a function of this name, and its source."""
    head = f"def {name}({', '.join(body.parameters)}):\n"
    source = emission.with_definitions(f"{head}{body.indented(4)}    return {result}\n")
    namespace = compile_source(source, emission.rule, emission.namespace, emission.written)
    return namespace[name], source


def _wrap(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    return function if backend.autodiff.wrap is None else backend.autodiff.wrap(function)


# --- a pair of graphs -----------------------------------------------------------------------------
Style = Literal["fast", "plain", "compiled"]
WORDS = (
    "ctx tin grad_out key residuals history output keep function forward backward draw_key "
    "tangent primals tangents push outputs inputs cls args values wrap prepare cotangents type "
    "super map"
)
RESERVED = tuple(WORDS.split())  # what emitted code has names for


@record()
class Lowering:
    """A pair of graphs on its way to a backend: what every step reads.

    Attributes:
        graphs: with names that the emitted code may use.
        identifier: the name of the emitted object.
        style: as in `lower_graphs`.
    """

    graphs: FunctionGraph
    backend: Backend
    emission: Emission
    identifier: str
    style: Style

    @property
    def is_fast(self) -> bool:
        """Whether fast kernels are used, and the backend has some."""
        kernels = self.backend.kernels.fast
        return self.style == "fast" and bool(kernels.patterns or kernels.in_place)

    @property
    def has_prepare(self) -> bool:
        """Whether fast code has what it needs of the params computed before a call."""
        if f"{self.backend.name}.constants" in self.emission.off:
            return False
        # Not of a Function that draws: its key is another one at each call.
        is_lasting = self.graphs.is_rule or not self.graphs.is_random
        return is_lasting and bool(self.backend.kernels.fast.constants)


def lower_graphs(graphs: FunctionGraph, backend: Backend, *, style: Style = "fast") -> Attached:
    """Emit, compile and attach a pair of graphs on a backend.

    Args:
        style: "fast"; "plain" for code that a compiler reads: it fuses by itself; "compiled" where
            a compiler reads it as it is attached: then it also keeps what loops give, of which the
            compiler takes no derivative.
    """
    # Emitted code has to refuse a second derivative that there is not, or that was promised away.
    is_plain = graphs.is_plain and graphs.second_order and not graphs.first_order
    return (lower_plain if is_plain else lower_any)(graphs, backend, style=style)


@provided
def lower_any(graphs: FunctionGraph, backend: Backend, *, style: Style = "fast") -> Attached:
    """Lower a pair that is no plain rule, or has no second derivative."""
    return lower_plain(graphs, backend, style=style)


# The same with forward mode: `(graphs, backend, style) -> Attached`.
lower_dual = of_engine(__name__, "lower_dual", "forward mode")


def lower_plain(graphs: FunctionGraph, backend: Backend, *, style: Style = "fast") -> Attached:
    """Lower a rule made of the core's ops alone, under an activation."""
    dual, autodiff = None, backend.autodiff
    if autodiff.forward_mode:  # lowered when it is first asked for
        dual = functools.cache(functools.partial(lower_dual, graphs, backend, style))
    lowering = choose_names(graphs, backend, style)
    graphs = lowering.graphs
    cut = graphs.cut(autodiff.keeps_float_derivatives, watched=autodiff.watches_outputs)
    # The names of the residuals are reserved.
    lowering.emission.taken.update(cut.residuals)
    code = fast = emit_code(lowering, cut, fast=lowering.is_fast and autodiff.only_fast)
    if lowering.is_fast and not autodiff.only_fast:
        fast = emit_code(lowering, cut, fast=True)
    checks = Checks(bind_shape_check(graphs, lowering.emission), ("",) * len(graphs.wrt))
    return attach(lowering, describe(lowering, cut, code, fast, checks=checks, dual=dual))


def choose_names(graphs: FunctionGraph, backend: Backend, style: Style) -> Lowering:
    """Rename what emitted code has other names for, and reserve the names that it uses."""
    graphs = graphs.with_safe_names((*RESERVED, *backend.autodiff.namespace))
    graphs = graphs.with_exact_decisions(backend.kernels.exact)
    selects = backend.kernels.selects and graphs.selects
    emission = Emission(backend, graphs.backward.name, widens=graphs.widens, selects=selects)
    # The object's name is that of the pair, unless it means something else in emitted code.
    own_name = identifier(graphs.name)
    used_names = {*RESERVED, *backend.autodiff.namespace, *graphs.params, *graphs.inputs}
    while own_name in used_names or hasattr(builtins, own_name) or OWN_NAMES.fullmatch(own_name):
        own_name = f"own_{own_name}"
    # The template's own words must not be taken by a param or an op.
    own_helpers = (f"{own_name}_eager", f"{own_name}_prepare", f"{own_name}_custom")
    emission.taken.update(RESERVED, graphs.params, (own_name, *own_helpers))
    emission.taken.update(graphs.inputs, graphs.outputs, graphs.cotangents, graphs.tangents)
    emission.namespace.update(backend.autodiff.namespace)
    return Lowering(graphs, backend, emission, own_name, style)


def emit_code(
    lowering: Lowering, cut: ResidualCut, *, fast: bool, joined: Graph | None = None
) -> Code:
    """Emit the code of one split; `joined` is forward in one with what it keeps."""
    graphs, emission = lowering.graphs, lowering.emission
    prepared = Prepared() if fast and lowering.has_prepare else None
    return Code(
        # An activation's forward is the same under every rule, whose params it does not read.
        emit_body(graphs.forward, emission, fast, None if graphs.is_rule else prepared),
        emit_body(cut.keep, emission, fast, prepared),
        emit_body(cut.backward, emission, fast, prepared),
        prepared,
        None if joined is None else emit_body(joined, emission, fast, prepared),
    )


def describe(
    lowering: Lowering,
    cut: ResidualCut,
    code: Code,
    fast: Code,
    *,
    checks: Checks,
    dual: Callable[[], Attached] | None,
) -> Emitted:
    """Return the code of a pair with what a backend's template has to know of it."""
    graphs, backward = lowering.graphs, lowering.graphs.backward
    is_linear_map = is_linear(backward, graphs.cotangents)
    return Emitted(
        origin=Origin(
            name=graphs.name,
            is_rule=graphs.is_rule,
            compiled=lowering.style == "compiled",
            fused=graphs.fused,
            casts=graphs.casts_in(lowering.backend),
            graphs=(graphs.forward, cut.keep, cut.backward),
            input_types=tuple(map(graphs.type_of, graphs.inputs)),
            output_types=tuple([node.type for node in graphs.forward.outputs]),
            gradient_types=tuple([node.type for node in backward.outputs]),
        ),
        names=Names(
            identifier=lowering.identifier,
            params=graphs.params,
            inputs=graphs.inputs,
            outputs=graphs.outputs,
            cotangents=graphs.cotangents,
            wrt=graphs.wrt,
            tangents=graphs.tangents,
        ),
        code=code,
        fast=fast,
        residuals=Residuals(cut.residuals, cut.computed, likes=cut.likes),
        aliasing=find_aliasing(graphs),
        checks=checks,
        derivative=Derivative(
            dual=dual,
            pushes=is_linear_map or graphs.pushed is not None,
            linear=is_linear_map,
            keeps_output=graphs.keeps_output,
            undifferentiable=tuple([i for i, seed in enumerate(graphs.seeds) if seed is None]),
        ),
    )


def attach(lowering: Lowering, emitted: Emitted) -> Attached:
    """Return the native object of a pair, of which the backend writes the source."""
    autodiff, emission = lowering.backend.autodiff, lowering.emission
    source = emission.with_definitions(autodiff.render(emitted))
    name = lowering.graphs.name
    namespace = compile_source(source, name, emission.namespace, emission.written)
    native = autodiff.finish(namespace, emitted)
    return Attached(native, source, autodiff.call(native, emitted), emitted)
