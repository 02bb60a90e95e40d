"""From a pair of graphs to a native object: emission, compilation, attachment."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from ..backend.contract import Backend
from ..backend.emitted import (
    Aliasing,
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
from ..errors import GradientError
from ..graph import ops
from ..graph.ir.graph import Graph, Node, walk
from ..graph.ir.types import BOOL, UNKNOWN, is_float
from ..graph.ops.results import OWNING
from ..graph.passes.residuals import ResidualCut
from ..graph.support.class_bases import dataclass
from ..graph.support.threads import build_once
from ..trace.derived.derivatives import drop_calls, is_linear
from .emit import Emission, compile_source, emit_body, identifier
from .forwards import Forward
from .function_graph import OWN_NAMES, FunctionGraph
from .input_checks import dtype_check, find_lacking, gradient_shape_check, shape_check

Tensor = Any
Style = Literal["fast", "plain", "compiled"]
WORDS = (
    "ctx tin grad_out key residuals history output keep function forward backward draw_key "
    "tangent primals tangents push outputs inputs cls args values wrap prepare cotangents type "
    "super map"
)
RESERVED = tuple(WORDS.split())  # what emitted code has names for


@dataclass(frozen=True, slots=True, eq=False)
class Lowering:
    """A pair of graphs on its way to a backend: what every step reads.

    Attributes:
        graphs: without calls, with names that the emitted code may use.
        backend: for which it is lowered.
        emission: the names bound so far.
        identifier: the name of the emitted object.
        author_params: the params under their author's names.
        style: see `lower_graphs`.
        forward_mode: whether the object pushes tangents itself.
        checks: see `lower_graphs`.
    """

    graphs: FunctionGraph
    backend: Backend
    emission: Emission
    identifier: str
    author_params: tuple[str, ...]
    style: Style
    forward_mode: bool
    checks: bool

    @property
    def is_fast(self) -> bool:
        """Whether fast kernels are used, and the backend has some."""
        kernels = self.backend.kernels.fast
        return self.style == "fast" and bool(kernels.patterns or kernels.in_place)

    @property
    def is_compiled(self) -> bool:
        return self.style == "compiled"


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Where backward is split.

    Attributes:
        anywhere: the split of code that may be differentiated.
        wide: the pair and the split of fast code that keeps more: what loops give, or what cost
            forward much; None where it keeps the same.
        keeps_floats: whether a float kept by forward keeps its derivative.
    """

    anywhere: ResidualCut
    wide: tuple[FunctionGraph, ResidualCut] | None
    keeps_floats: bool

    @property
    def histories(self) -> tuple[str, ...]:
        """The residuals that fast code keeps in addition."""
        known = self.anywhere.residuals
        return (
            () if self.wide is None else tuple(r for r in self.wide[1].residuals if r not in known)
        )

    @property
    def likes(self) -> tuple[str, ...]:
        """The residuals of which no code of backward reads more than the shape and dtype."""
        if self.wide is None:
            return self.anywhere.likes
        cuts = (self.anywhere, self.wide[1])
        read = {r for each in cuts for r in each.residuals if r not in each.likes}
        names = dict.fromkeys(r for each in cuts for r in each.residuals)
        return tuple(name for name in names if name not in read)


def lower_graphs(
    graphs: FunctionGraph,
    backend: Backend,
    defaults: Mapping[str, Any] | None = None,
    *,
    style: Style = "fast",
    forward_mode: bool = False,
    checks: bool = False,
) -> Attached:
    """Emit, compile and attach a pair of graphs on a backend.

    Args:
        defaults: values for params, where people call the object.
        style: "fast"; "plain" for code that a compiler reads: it fuses by itself; "compiled" where
            a compiler reads it as it is attached: then it also keeps what loops give, of which the
            compiler takes no derivative.
        forward_mode: whether the object pushes tangents itself.
        checks: the code refuses the dtypes for which the backend lacks an op, and a tensor that
            asks for a gradient where a Function takes a number; an entry has looked already.
    """
    forward_mode = forward_mode or (graphs.is_pushed_first and backend.autodiff.transposes)
    dual = None
    if backend.autodiff.forward_mode and not forward_mode:
        again = functools.partial(lower_graphs, graphs, backend, defaults, checks=checks)
        dual_style: Style = "fast" if style == "fast" else "plain"
        dual = functools.cache(functools.partial(again, style=dual_style, forward_mode=True))
    lowering = _start(graphs, backend, style, forward_mode, checks)
    cuts = _cut(lowering)
    code, fast = _emit_codes(lowering, cuts)
    tangent = None
    if forward_mode:
        tangent = emit_body(lowering.graphs.tangent_map(cuts.anywhere.backward), lowering.emission)
    bound_checks = _bind_checks(lowering, cuts.anywhere)
    tangent = _forbid_second(tangent, bound_checks, cuts.anywhere)
    emitted = Emitted(
        origin=_origin(lowering, cuts),
        names=_names(lowering, defaults),
        code=code,
        fast=fast,
        residuals=_residuals(lowering, cuts, bound_checks),
        aliasing=_aliasing(lowering.graphs),
        checks=bound_checks,
        derivative=_derivative(lowering.graphs, dual, tangent),
    )
    return _attach(lowering, emitted)


def _start(
    graphs: FunctionGraph, backend: Backend, style: Style, forward_mode: bool, checks: bool
) -> Lowering:
    """Rename what emitted code has other names for, and reserve the names that it uses."""
    params = graphs.params
    graphs = graphs.without_calls().with_safe_names((*RESERVED, *backend.autodiff.namespace))
    emission = Emission(backend, graphs.backward.name)
    # The template's own words must not be taken by a param or an op.
    own = _own_name(graphs, backend)
    beside = (f"{own}_eager", f"{own}_prepare", f"{own}_custom")
    emission.taken.update(RESERVED, graphs.params, (own, *beside))
    emission.taken.update(graphs.inputs, graphs.outputs, graphs.cotangents, graphs.tangents)
    emission.namespace.update(backend.autodiff.namespace)
    return Lowering(
        graphs=graphs,
        backend=backend,
        emission=emission,
        identifier=own,
        author_params=params,
        style=style,
        forward_mode=forward_mode,
        checks=checks,
    )


def _cut(lowering: Lowering) -> Cuts:
    """Split backward at what forward keeps for it."""
    graphs, autodiff = lowering.graphs, lowering.backend.autodiff
    floats, watched = autodiff.keeps_float_derivatives, autodiff.watches_outputs
    # A tangent map of the author's own may read anything; one that is transposed, only what is
    # kept.
    keep_input = lowering.forward_mode and (graphs.pushed is not None or not autodiff.transposes)
    wide = None
    if not keep_input and graphs.residuals not in ("input", "recompute"):
        pair = _with_histories(lowering)
        wide = pair and (pair, pair.cut_after_loops(floats, watched=watched))
    if wide is not None and floats:
        cut = wide[1]
    elif keep_input or wide is not None:
        cut = graphs.cut_at_inputs()
    else:
        packs = lowering.backend.kernels.bits is not None
        cut = graphs.cut(floats, watched=watched, packs=packs)
    cuts = Cuts(cut, wide, floats)
    lowering.emission.taken.update(cut.residuals, cuts.histories)
    return cuts


def _emit_codes(lowering: Lowering, cuts: Cuts) -> tuple[Code, Code]:
    """Emit the code that may run anywhere and the fast code, with checks of dtypes if asked for."""
    only_fast = lowering.backend.autodiff.only_fast
    joined = cuts.wide if cuts.keeps_floats else None
    code = fast = _emit(lowering, cuts.anywhere, lowering.is_fast and only_fast, joined)
    is_other = lowering.is_fast or (lowering.is_compiled and cuts.wide is not None)
    if is_other and not only_fast:
        fast = _emit(lowering, cuts.anywhere, lowering.is_fast, cuts.wide)
    return _check_dtypes(lowering, code, fast) if lowering.checks else (code, fast)


def _check_dtypes(lowering: Lowering, code: Code, fast: Code) -> tuple[Code, Code]:
    """Let code begin with a check of its inputs' dtypes, where the backend lacks an op for some."""
    graphs, noun = lowering.graphs, "rule" if lowering.graphs.is_rule else "function"
    subject = f"{noun} {graphs.backward.name!r}"
    lacking = find_lacking(subject, lowering.backend, graphs.forward, graphs.backward)
    if not lacking:
        return code, fast
    check = lowering.emission.bind("check_dtype", dtype_check(lacking))
    return _checked(code, check, graphs), _checked(fast, check, graphs)


def _bind_checks(lowering: Lowering, cut: ResidualCut) -> Checks:
    """Bind the functions by which the code refuses a call or a derivative."""
    graphs, emission, autodiff = lowering.graphs, lowering.emission, lowering.backend.autodiff
    shape, gradients = _shape_checks(graphs, emission)
    derivative = second = ""
    if not autodiff.keeps_float_derivatives and any(is_float(cut.type(r)) for r in cut.computed):
        refusal = derivative_refusal(graphs.backward.name, graphs.is_rule)
        derivative = emission.bind("refuse_derivative", refusal)
    if not graphs.second_order and autodiff.forbid_derivative is not None:
        message = second_refusal(graphs.backward.name, graphs.first_order)
        second = emission.bind("once", autodiff.forbid_derivative(message))
    arguments = _refusals(lowering) if lowering.checks else {}
    return Checks(shape, gradients, derivative, second, arguments)


def _forbid_second(tangent: Body | None, checks: Checks, cut: ResidualCut) -> Body | None:
    """Return the code of the tangents such that the residuals it reads refuse a derivative, where
    gradients do.
    """
    if tangent is None or not checks.second_derivative:
        return tangent
    read = [r for r in cut.residuals if r in tangent.reads and is_float(cut.type(r))]
    once = [f"{name} = {checks.second_derivative}({name})" for name in read]
    return replace(tangent, lines=(*once, *tangent.lines))


def _origin(lowering: Lowering, cuts: Cuts) -> Origin:
    graphs, cut = lowering.graphs, cuts.anywhere
    return Origin(
        name=graphs.name,
        is_rule=graphs.is_rule,
        compiled=lowering.is_compiled,
        fused=graphs.fused,
        graphs=(graphs.forward, cut.keep, cut.backward) if cuts.wide is None else None,
        input_types=tuple(map(graphs.type_of, graphs.inputs)),
        output_types=tuple([node.type for node in graphs.forward.outputs]),
        gradient_types=tuple([node.type for node in graphs.backward.outputs]),
    )


def _names(lowering: Lowering, defaults: Mapping[str, Any] | None) -> Names:
    graphs = lowering.graphs
    params = (*graphs.params, *(("key",) if graphs.is_random else ()))
    known: dict[str, Any] = {}
    if defaults is not None and params:
        renamed = dict(zip(lowering.author_params, graphs.params, strict=True))
        known = {"key": None} if graphs.is_random else {}
        known |= {renamed.get(name, name): value for name, value in defaults.items()}
    return Names(
        identifier=lowering.identifier,
        params=params,
        defaults=known,
        inputs=graphs.inputs,
        outputs=graphs.outputs,
        cotangents=graphs.cotangents,
        wrt=graphs.wrt,
        tangents=graphs.tangents,
    )


def _residuals(lowering: Lowering, cuts: Cuts, checks: Checks) -> Residuals:
    checked = zip(lowering.graphs.wrt, checks.gradients, strict=True)
    return Residuals(
        names=cuts.anywhere.residuals,
        computed=cuts.anywhere.computed,
        histories=cuts.histories,
        likes=cuts.likes,
        shapes=tuple(name for name, check in checked if check),
    )


def _aliasing(graphs: FunctionGraph) -> Aliasing:
    passed, shared = _find_shared(graphs)
    views = tuple(i for i, n in enumerate(graphs.forward.outputs) if n.op.result not in OWNING)
    return Aliasing(passed, graphs.viewed, shared, views)


def _derivative(
    graphs: FunctionGraph, dual: Callable[[], Attached] | None, tangent: Body | None
) -> Derivative:
    linear = is_linear(graphs.backward, graphs.cotangents)
    return Derivative(
        tangent=tangent,
        dual=dual,
        pushes=linear or graphs.pushed is not None,
        linear=linear,
        keeps_output=graphs.keeps_output,
        undifferentiable=tuple(i for i, seed in enumerate(graphs.seeds) if seed is None),
    )


def _attach(lowering: Lowering, emitted: Emitted) -> Attached:
    """Render and compile the source, and make the native object of what it defines."""
    backend, emission = lowering.backend, lowering.emission
    if emitted.draws:
        emission.namespace["draw_key"] = backend.draws.draw_key
    source = emission.whole(backend.autodiff.render(emitted))
    namespace = compile_source(source, lowering.graphs.name, emission.namespace)
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


def _with_histories(lowering: Lowering) -> FunctionGraph | None:
    # Of use if the derivative of a residual is that of its ops, or none is taken. The pair
    # itself, where fast code also keeps what cost forward much.
    graphs, autodiff = lowering.graphs, lowering.backend.autodiff
    if not autodiff.joins_loops:
        return None
    serves = lowering.is_fast or lowering.is_compiled
    if autodiff.keeps_float_derivatives:
        serves = not graphs.keeps_output and (graphs.is_once or graphs.is_derivative)
    if lowering.is_fast and graphs.cut_besides(autodiff.keeps_float_derivatives) is not None:
        return graphs
    return graphs.with_histories() if serves else None


def _emit(
    lowering: Lowering,
    cut: ResidualCut,
    fast: bool,
    whole: tuple[FunctionGraph, ResidualCut] | None,
) -> Code:
    graphs, emission, backend = lowering.graphs, lowering.emission, lowering.backend
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


def shares_scales(graphs: FunctionGraph, cut: ResidualCut) -> bool:
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


def _refusals(lowering: Lowering) -> dict[str, str]:
    # By number of a Function, a function that refuses a tensor that needs a gradient; by input
    # without a derivative, one that refuses that. A rule's params reach no output.
    graphs, emission, autodiff = lowering.graphs, lowering.emission, lowering.backend.autodiff
    refuse, forbid = autodiff.refuse_gradient, autodiff.forbid_derivative
    if graphs.is_rule or refuse is None or forbid is None:
        return {}
    checks = {
        name: refuse(number_refusal(graphs.name, known))
        for name, known in zip(graphs.params, lowering.author_params, strict=True)
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
