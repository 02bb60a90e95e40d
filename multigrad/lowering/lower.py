"""From a pair of graphs to a native object: emission, compilation, attachment."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..backend.contract import Backend
from ..backend.emitted import Attached, Body, Code, Emitted, Prepared
from ..errors import GradientError
from ..graph import ops
from ..graph.ir.graph import Graph, Node, walk
from ..graph.ir.types import BOOL, UNKNOWN, is_float
from ..graph.ops.results import OWNING
from ..graph.passes.residuals import Cut
from ..graph.support.threads import build_once
from ..trace.derived.calls import drop_calls
from ..trace.derived.derivatives import is_linear
from .emit import Emission, compile_source, emit_body, identifier
from .forwards import Forward
from .function_graph import OWN_NAMES, FunctionGraph
from .input_checks import dtype_check, find_lacking, gradient_shape_check, shape_check

Tensor = Any
WORDS = (
    "ctx tin grad_out key residuals history output keep function forward backward draw_key "
    "tangent primals tangents push outputs inputs cls args values wrap prepare cotangents type "
    "super map"
)
RESERVED = tuple(WORDS.split())  # what emitted code has names for


def lower_graphs(
    graphs: FunctionGraph,
    backend: Backend,
    defaults: Mapping[str, Any] | None = None,
    forward_mode: bool = False,
    fast: bool = True,
    checks: bool = False,
    compiled: bool = False,
) -> Attached:
    """Emit, compile and attach a pair of graphs on a backend.

    `fast=False` is for code that a compiler reads: it fuses by itself. `compiled`: one reads it as
    it is attached, and keeps what loops give, of which it takes no derivative. `checks`: the code
    refuses the dtypes for which the backend lacks an op, and a tensor that asks for a gradient in
    the place of a Function's number; an entry has looked already.
    """
    fast = fast and not compiled
    forward_mode = forward_mode or (graphs.is_pushed_first and backend.autodiff.transposes)
    given, dual = graphs.params, None
    if backend.autodiff.forward_mode and not forward_mode:
        dual = functools.cache(
            functools.partial(
                lower_graphs, graphs, backend, defaults, forward_mode=True, fast=fast, checks=checks
            )
        )
    graphs = graphs.without_calls().with_safe_names((*RESERVED, *backend.autodiff.namespace))
    if defaults:
        named = dict(zip(given, graphs.params, strict=True))
        defaults = {named.get(name, name): value for name, value in defaults.items()}
    emission = Emission(backend, graphs.backward.name)
    # The template's own words must not be taken by a param or an op.
    own = _own_name(graphs, backend)
    beside = (f"{own}_eager", f"{own}_prepare", f"{own}_custom")
    emission.taken.update(RESERVED, graphs.params, (own, *beside))
    emission.taken.update(graphs.inputs, graphs.outputs, graphs.cotangents, graphs.tangents)
    emission.namespace.update(backend.autodiff.namespace)
    floats = backend.autodiff.keeps_float_derivatives
    # A tangent map of the author's own reads what it likes; one that is transposed, what is kept.
    keep_input = forward_mode and (graphs.pushed is not None or not backend.autodiff.transposes)
    fast = fast and bool(backend.kernels.fast.patterns or backend.kernels.fast.in_place)
    chosen = graphs.residuals in ("input", "recompute")
    wide = None if keep_input or chosen else _with_histories(graphs, backend, fast, compiled)
    watched = backend.autodiff.watches_outputs
    whole = None if wide is None else (wide, wide.cut(floats, watched=watched, loops=True))
    if whole is None or not floats:
        keep_input = keep_input or whole is not None
        packs = backend.kernels.bits is not None
        cut = graphs.cut(floats, keep_input=keep_input, watched=watched, packs=packs)
    else:
        cut = whole[1]
    emission.taken.update(cut.residuals)
    histories: tuple[str, ...] = ()
    if whole is not None:
        emission.taken.update(whole[1].residuals)
        histories = tuple([r for r in whole[1].residuals if r not in cut.residuals])
    anywhere = whole if floats else None
    code = fast_code = _emit(graphs, cut, emission, fast and backend.autodiff.only_fast, anywhere)
    if (fast or (compiled and whole is not None)) and not backend.autodiff.only_fast:
        fast_code = _emit(graphs, cut, emission, fast, whole)
    noun = "rule" if graphs.is_rule else "function"
    lacking = (
        find_lacking(f"{noun} {graphs.backward.name!r}", backend, graphs.forward, graphs.backward)
        if checks
        else {}
    )
    if lacking:
        check_dtype = emission.bind("check_dtype", dtype_check(lacking))
        code = _checked(code, check_dtype, graphs)
        fast_code = _checked(fast_code, check_dtype, graphs)
    tangent = None
    if forward_mode:
        tangent = emit_body(graphs.tangent_map(cut.backward), emission)
    check, gradient_checks = _shape_checks(graphs, emission)
    refuse = ""
    if not backend.autodiff.keeps_float_derivatives and any(
        is_float(cut.type(r)) for r in cut.computed
    ):
        refusal = derivative_refusal(graphs.backward.name, graphs.is_rule)
        refuse = emission.bind("refuse_derivative", refusal)
    refuse_second_order = ""
    if not graphs.second_order and backend.autodiff.forbid_derivative is not None:
        refusal_of_once = second_refusal(graphs.backward.name, graphs.first_order)
        refuse_second_order = emission.bind(
            "once", backend.autodiff.forbid_derivative(refusal_of_once)
        )
        if tangent is not None:
            read = [r for r in cut.residuals if r in tangent.reads and is_float(cut.type(r))]
            once = [f"{name} = {refuse_second_order}({name})" for name in read]
            tangent = replace(tangent, lines=(*once, *tangent.lines))
    linear = is_linear(graphs.backward, graphs.cotangents)
    params = (*graphs.params, *(("key",) if graphs.is_random else ()))
    passed, shared = _find_shared(graphs)
    checked = zip(graphs.wrt, gradient_checks, strict=True)
    emitted = Emitted(
        name=graphs.name,
        identifier=own,
        code=code,
        fast=fast_code,
        params=params,
        residuals=cut.residuals,
        computed=cut.computed,
        histories=histories,
        likes=cut.likes if whole is None else _likes(cut, whole[1]),
        defaults=_defaults(params, defaults),
        check=check,
        refuse=refuse,
        tangent=tangent,
        tangents=graphs.tangents,
        dual=dual,
        inputs=graphs.inputs,
        outputs=graphs.outputs,
        cotangents=graphs.cotangents,
        wrt=graphs.wrt,
        undifferentiable=tuple(i for i, seed in enumerate(graphs.seeds) if seed is None),
        shapes=tuple(name for name, each in checked if each),
        gradient_checks=gradient_checks,
        passed=passed,
        viewed=graphs.viewed,
        shared=shared,
        views=tuple(i for i, n in enumerate(graphs.forward.outputs) if n.op.result not in OWNING),
        single=len(graphs.cotangents) == 1,
        refuse_second_order=refuse_second_order,
        linear=linear,
        pushes=linear or graphs.pushed is not None,
        keeps_output=graphs.keeps_output,
        is_rule=graphs.is_rule,
        compiled=compiled,
        refusals=_refusals(graphs, given, emission) if checks else {},
        input_types=tuple(graphs.type_of(name) for name in graphs.inputs),
        output_types=tuple(node.type for node in graphs.forward.outputs),
        gradient_types=tuple(node.type for node in graphs.backward.outputs),
        graphs=(graphs.forward, cut.keep, cut.backward) if whole is None else None,
        fused=graphs.fused,
    )
    if emitted.draws:
        emission.namespace["draw_key"] = backend.draws.draw_key
    source = emission.whole(backend.autodiff.render(emitted))
    namespace = compile_source(source, graphs.name, emission.namespace)
    native = backend.autodiff.finish(namespace, emitted)
    return Attached(native, source, backend.autodiff.call(native, emitted), emitted)


# Ops that return their operand itself where there is nothing to do.
PASSING = (ops.CAST, ops.SUM_TO, ops.BROADCAST_TO, ops.ALL_SUM, ops.ALL_MAX)


def _passed(node: Node) -> Node:
    # A cast to or from bool always makes another tensor.
    while node.op in PASSING and (node.operands[0].type.dtype == BOOL) == (node.type.dtype == BOOL):
        node = node.operands[0]
    return node


def _owner(node: Node) -> Node:
    # Views share memory, too.
    while (passed := _passed(node)) is not node or node.op.view:
        node = passed if passed is not node else node.operands[0]
    return node


def _find_shared(graphs: FunctionGraph) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # `passed`: outputs that may be an input itself; `shared`: those that may be one tensor with an
    # earlier output, or with an input that they are to be a copy of.
    found = list(map(_passed, graphs.forward.outputs))
    passed = [i for i, node in enumerate(found) if node.op is ops.INPUT]
    shared = [
        i
        for i, node in enumerate(found)
        if node in found[:i] or (i in graphs.copied and _owner(node).op is ops.INPUT)
    ]
    return tuple(passed), tuple(shared)


def _own_name(graphs: FunctionGraph, backend: Backend) -> str:
    # That of the pair, unless it means something else in emitted code.
    own = identifier(graphs.name)
    taken = {*RESERVED, *backend.autodiff.namespace, *graphs.params, *graphs.inputs}
    while own in taken or hasattr(builtins, own) or OWN_NAMES.fullmatch(own):
        own = f"own_{own}"
    return own


def _shape_checks(graphs: FunctionGraph, emission: Emission) -> tuple[str, tuple[str, ...]]:
    # A rule's result must have the shape of grad_out, a gradient that of its input.
    none = ("",) * len(graphs.wrt)
    if graphs.is_rule:
        if graphs.backward.outputs[0].type.shape != UNKNOWN:
            return "", none
        return emission.bind("check_shape", shape_check(graphs.backward.name)), none
    checks = []
    for name, gradient in zip(graphs.wrt, graphs.backward.outputs, strict=True):
        given = graphs.backward.input(name) or graphs.forward.input(name)
        assert given is not None
        sure = gradient is given or gradient.type.shape == given.type.shape != UNKNOWN
        like = gradient.op.shaped_like
        follows = sure or (like is not None and gradient.operands[like] is given)
        check = gradient_shape_check(graphs.name, name)
        checks.append("" if follows else emission.bind(f"check_{name}", check))
    return "", tuple(checks)


def _likes(cut: Cut, whole: Cut) -> tuple[str, ...]:
    # Read by both codes only for their shape and dtype.
    read = {r for each in (cut, whole) for r in each.residuals if r not in each.likes}
    return tuple([r for r in dict.fromkeys((*cut.residuals, *whole.residuals)) if r not in read])


def _with_histories(
    graphs: FunctionGraph, backend: Backend, fast: bool, compiled: bool
) -> FunctionGraph | None:
    # Of use if the derivative of a residual is that of its ops, or none is taken. The pair
    # itself, where fast code also keeps what cost forward much.
    autodiff = backend.autodiff
    if not autodiff.joins_loops:
        return None
    serves = fast or compiled
    if autodiff.keeps_float_derivatives:
        serves = not graphs.keeps_output and (graphs.is_once or graphs.is_derivative)
    if fast and graphs.cut_besides(autodiff.keeps_float_derivatives) is not None:
        return graphs
    return graphs.with_histories() if serves else None


def _emit(
    graphs: FunctionGraph,
    cut: Cut,
    emission: Emission,
    fast: bool,
    whole: tuple[FunctionGraph, Cut] | None = None,
) -> Code:
    backend = emission.backend
    prepares = (
        fast
        and (graphs.is_rule or not graphs.is_random)  # a Function's key is another one at each call
        and backend.kernels.fast.constants
        and f"{backend.name}.constants" not in emission.off
    )
    prepared = Prepared() if prepares else None
    keep, joined, wide = cut.keep, None, graphs
    # The pair and the cut that keep the results of loops.
    if whole is not None:
        wide, cut = whole
    joins = fast and backend.autodiff.joins_loops and not graphs.is_rule
    if whole is not None or (joins and shares_scales(graphs, cut)):
        keep = Graph("keep", keep.inputs, ())
        results = (*wide.forward.outputs, *cut.keep.outputs)
        inputs = dict.fromkeys((*wide.forward.inputs, *cut.keep.inputs))
        read = [node for node in inputs if node.attr("name") not in wide.outputs]
        joined = Graph("forward", tuple(read), results, wide.forward.locations)
    return Code(
        # An activation's forward is the same under every rule, whose params it does not read.
        emit_body(graphs.forward, emission, fast, None if graphs.is_rule else prepared),
        emit_body(keep, emission, fast, prepared),
        emit_body(cut.backward, emission, fast, prepared),
        prepared,
        None if joined is None else emit_body(joined, emission, fast, prepared),
    )


def shares_scales(graphs: FunctionGraph, cut: Cut) -> bool:
    """Return whether forward and what it keeps share work on the smaller tensors only."""
    # Such as a scale. A value computed of all tensors is better computed again than kept.
    given = [node for node in graphs.forward.inputs if node.type.kind == "tensor"]
    shared = {*graphs.forward.nodes}.intersection(cut.keep.nodes).difference(given)
    shared = {node for node in shared if node.type.kind == "tensor"}
    apart = not any(_find_shared(graphs)) and not graphs.viewed
    apart = apart and not any(cut.keep.reads(name) for name in graphs.outputs)
    return bool(shared) and apart and not any({*given} <= {*walk([n])} for n in shared)


def _checked(code: Code, check: str, graphs: FunctionGraph) -> Code:
    lines = tuple(f"{check}({name})" for name in graphs.inputs)

    def begun(body: Body) -> Body:
        return replace(body, lines=(*lines, *body.lines))

    whole = None if code.whole is None else begun(code.whole)
    return replace(code, forward=begun(code.forward), whole=whole)


def _defaults(params: tuple[str, ...], defaults: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if defaults is None or not params:
        return {}
    return {**{name: None for name in params if name == "key"}, **defaults}


def _refusals(graphs: FunctionGraph, given: Sequence[str], emission: Emission) -> dict[str, str]:
    # By number of a Function, a function that refuses a tensor that needs a gradient; by input
    # without a derivative, one that refuses that. A rule's params reach no output. `given` are the
    # params as their author knows them.
    autodiff = emission.backend.autodiff
    refuse, forbid = autodiff.refuse_gradient, autodiff.forbid_derivative
    if graphs.is_rule or refuse is None or forbid is None:
        return {}
    checks = {
        name: refuse(number_refusal(graphs.name, known))
        for name, known in zip(graphs.params, given, strict=True)
    }
    checks.update({name: forbid(message) for name, message in graphs.refused.items()})
    return {name: emission.bind(f"refuse_{name}", check) for name, check in checks.items()}


def number_refusal(function: str, param: str) -> str:
    """Return an error message for a tensor that needs a gradient but was captured as a number."""
    return (
        f"function {function!r} was lowered after a call with a number for {param!r}, so a tensor "
        "there gets no gradient: give a number, or call the function with a tensor there and lower "
        "it again"
    )


def second_refusal(name: str, is_promised: bool = False) -> str:
    """Return the error message for the second derivative of a backward that has none."""
    if is_promised:
        return (
            f"function {name!r} promises that nobody differentiates its backward, but a derivative "
            "of it is taken; take the promise back (once_differentiable)"
        )
    return (
        f"the backward of {name!r} uses a function with a gradient of its own, or asks whether "
        "autograd records, so it cannot be differentiated again; give it native=True, and the "
        "framework differentiates it"
    )


def derivative_refusal(name: str, is_rule: bool) -> Callable[[], None]:
    """Return a function that refuses the derivative of a backward promised to have none."""
    promise, advice = "is registered with first_order=True", "register it without"
    if not is_rule:
        promise, advice = (
            "promises that nobody differentiates its backward",
            "take the promise back",
        )

    def refuse_derivative() -> None:
        raise GradientError(
            f"{'rule' if is_rule else 'function'} {name!r} {promise}, so its backward keeps "
            "numbers without their derivative and cannot be differentiated (create_graph, "
            f"torch.func); {advice}"
        )

    return refuse_derivative


def lower_forward(forward: Forward, backend: Backend) -> Callable[[Tensor], Tensor]:
    """Return an activation as a plain function of a backend, with the framework's derivative."""
    emission = Emission(backend, forward.name)
    body = emit_body(forward.graph(), emission)
    source = f"def forward(tin):\n{body.indented(4)}    return {body.result}\n"
    source = emission.whole(source)
    return _wrap(compile_source(source, forward.name, emission.namespace)["forward"], backend)


def emit_rule(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], str]:
    """Return a rule's graph as a plain function of one backend, and its source."""
    function, is_elementwise, source = _emit_plain(graph, backend)
    around = backend.autodiff.around_bare
    function = function if around is None else around(function, is_elementwise)
    return _wrap(function, backend), source


def emit_many(graph: Graph, backend: Backend) -> Callable[..., Any]:
    """Return a rule's bare function, for `Autodiff.many`."""
    return _emit_plain(graph, backend)[0]


def _emit_plain(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], bool, str]:
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
    source = emission.whole(source)
    function = compile_source(source, graph.name, emission.namespace)[name]
    return function, body.elementwise, source


MOST_EMITTED = 16  # functions of one rule: by backend, and by what it asks of its input
EmittedRules = dict[tuple[Any, ...], Callable[..., Any]]


def emit_rule_once(graph: Graph, backend: Backend, known: EmittedRules) -> Callable[..., Any]:
    key = (backend.name, graph.inputs, graph.outputs)
    return build_once(known, key, lambda: emit_rule(graph, backend)[0], MOST_EMITTED)


def _wrap(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    return function if backend.autodiff.wrap is None else backend.autodiff.wrap(function)
