"""From a pair of graphs to a native object: emission, compilation, attachment; the public `lower` and `source`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import GradientError, RuleTypeError, TraceError, UnsupportedOp
from ..forwards import Forward, find_forward
from ..ir import ops
from ..ir.calls import drop_calls
from ..ir.graph import Graph
from ..ir.record import NeedFact
from ..ir.residuals import Cut
from ..ir.types import UNKNOWN, is_float
from ..pair import OWN_NAMES, GraphPair
from .backend import Backend, load_backend
from .code import Code, Lowering
from .emit import Emission, compile_source, emit_body, identifier
from .input_checks import dtype_check, find_lacking, shapes_agree
from .patterns import enabled
from .prepare import Prepared

if TYPE_CHECKING:
    from ..rule import Family

Tensor = Any
RESERVED = (
    "ctx",
    "tin",
    "grad_out",
    "key",
    "residuals",
    "output",
    "keep",
    "function",
    "forward",
    "backward",
    "draw_key",
    "tangent",
    "primals",
    "tangents",
    "inputs",
    "cls",
    "args",
    "values",
    "wrap",
    "prepare",
    "cotangents",
    "type",
    "super",
    "map",
)


@dataclass(slots=True)
class Lowered:
    """The result of lowering: the native object, its source, and how to call it."""

    native: Any
    source: str
    call: Callable[..., Any]
    lowering: Lowering | None = field(default=None)


def lower_pair(
    pair: GraphPair,
    backend: Backend,
    defaults: Mapping[str, Any] | None = None,
    forward_mode: bool = False,
    fast: bool = True,
    checks: bool = False,
) -> Lowered:
    """Emit, compile and attach a pair of graphs on a backend.

    `fast=False` is for code that a compiler reads: it fuses by itself. `checks`: the code refuses the dtypes for
    which the backend lacks an op; a layer's entry has looked already.
    """
    given = pair.params
    pair = pair.without_calls().with_safe_names((*RESERVED, *backend.namespace))
    if defaults:
        named = dict(zip(given, pair.params, strict=True))
        defaults = {named.get(name, name): value for name, value in defaults.items()}
    emission = Emission(backend, pair.backward.name)
    # The template's own words must not be taken by a param or an op.
    own = _own_name(pair, backend)
    emission.taken.update(RESERVED, pair.params, (own, f"{own}_eager", f"{own}_prepare"))
    emission.taken.update(pair.inputs, pair.outputs, pair.cotangents)
    emission.namespace.update(backend.namespace)
    cut = pair.cut(backend.differentiates_residuals, keep_input=forward_mode)
    emission.taken.update(cut.residuals)
    code = fast_code = _emit(pair, cut, emission, fast=False)
    if fast and (backend.fast.patterns or backend.fast.in_place):
        fast_code = _emit(pair, cut, emission, fast=True)
    graphs = pair.forward, pair.backward
    lacking = find_lacking(f"rule {pair.backward.name!r}", backend, *graphs) if checks else {}
    if lacking:
        refusal = emission.bind("check_dtype", dtype_check(lacking))
        code, fast_code = _checked(code, refusal, pair), _checked(fast_code, refusal, pair)
    tangent = None
    if forward_mode:
        from ..ir.linearity import tangent_map

        tangent = emit_body(tangent_map(pair.backward), emission)
    check, gradient_checks = _shape_checks(pair, emission)
    refuse = ""
    if not backend.differentiates_residuals and any(is_float(cut.type(r)) for r in cut.computed):
        refusal = derivative_refusal(pair.backward.name, pair.inputs == ("tin",))
        refuse = emission.bind("refuse_derivative", refusal)
    once = ""
    if not pair.twice and backend.forbid_derivative is not None:
        refusal_of_once = second_refusal(pair.backward.name, pair.first_order)
        once = emission.bind("once", backend.forbid_derivative(refusal_of_once))
    params = (*pair.params, *(("key",) if pair.is_random else ()))
    checked = zip(pair.wrt, gradient_checks, strict=True)
    lowering = Lowering(
        pair.name, own, code, fast_code, params, cut.residuals, cut.computed,
        _defaults(params, defaults), check, refuse, tangent, pair, pair.inputs, pair.cotangents, pair.wrt,
        tuple(i for i, seed in enumerate(pair.seeds) if seed is None),
        tuple(name for name, each in checked if each), gradient_checks, len(pair.cotangents) == 1,
        once,
    )  # fmt: skip
    if lowering.draws:
        emission.namespace["draw_key"] = backend.draw_key
    source = backend.render(lowering)
    namespace = compile_source(source, pair.name, emission.namespace)
    native = backend.finish(namespace, lowering)
    return Lowered(native, source, backend.call(native, lowering), lowering)


def _own_name(pair: GraphPair, backend: Backend) -> str:
    """Return the name of the emitted object: the pair's own, unless that means something else there."""
    own = identifier(pair.name)
    taken = {*RESERVED, *backend.namespace, *pair.params, *pair.inputs}
    while own in taken or hasattr(builtins, own) or OWN_NAMES.fullmatch(own):
        own = f"own_{own}"
    return own


def _shape_checks(pair: GraphPair, emission: Emission) -> tuple[str, tuple[str, ...]]:
    """Return the name of the check with grad_out, as rules have it, and those with each input's shape."""
    none = ("",) * len(pair.wrt)
    if pair.inputs == ("tin",):
        if pair.backward.outputs[0].type.shape != UNKNOWN:
            return "", none
        return emission.bind("check_shape", shape_check(pair.backward.name)), none
    checks = []
    for name, gradient in zip(pair.wrt, pair.backward.outputs, strict=True):
        given = pair.backward.input(name) or pair.forward.input(name)
        assert given is not None
        sure = gradient is given or gradient.type.shape == given.type.shape != UNKNOWN
        follows = sure or (
            gradient.op in LIKE_SECOND and gradient.operands[LIKE_SECOND[gradient.op]] is given
        )
        check = gradient_shape_check(pair.name, name)
        checks.append("" if follows else emission.bind(f"check_{name}", check))
    return "", tuple(checks)


# Ops whose result has the shape of an operand, at this position.
LIKE_SECOND = {ops.SUM_TO: 1, ops.BROADCAST_TO: 1, ops.FULL_LIKE: 0, ops.RESHAPE_LIKE: 1}


def _emit(pair: GraphPair, cut: Cut, emission: Emission, fast: bool) -> Code:
    backend = emission.backend
    is_rule = pair.inputs == ("tin",)  # only a rule is bound to fixed values of its params
    prepares = fast and is_rule and backend.fast.constants and enabled(f"{backend.name}.constants")
    prepared = Prepared() if prepares else None
    return Code(
        emit_body(pair.forward, emission, fast),
        emit_body(cut.keep, emission, fast, prepared),
        emit_body(cut.backward, emission, fast, prepared),
        prepared,
    )


def _checked(code: Code, check: str, pair: GraphPair) -> Code:
    """Return code whose forward begins with a check of its inputs."""
    lines = tuple(f"{check}({name})" for name in pair.inputs)
    return replace(code, forward=replace(code.forward, lines=(*lines, *code.forward.lines)))


def _defaults(params: tuple[str, ...], defaults: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if defaults is None or not params:
        return {}
    return {**{name: None for name in params if name == "key"}, **defaults}


def shape_check(rule: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the check of a result whose shape capture could not tell."""

    def check_shape(grad_in: Tensor, like: Tensor) -> Tensor:
        given, expected = tuple(grad_in.shape), tuple(like.shape)
        if len(given) != len(expected) or any(
            a != b for a, b in zip(given, expected, strict=True) if a is not None and b is not None
        ):
            raise GradientError(
                f"rule {rule!r} returned shape {given} for an input of shape {expected}; "
                f"use keepdims=True where it reduces"
            )
        return grad_in

    return check_shape


def gradient_shape_check(function: str, argument: str) -> Callable[[Tensor, Any], Tensor]:
    """Return the check of a gradient against the shape of its input."""

    def check_gradient(gradient: Tensor, expected: Any) -> Tensor:
        if not shapes_agree(gradient.shape, expected):
            raise GradientError(
                f"function {function!r} returned a gradient of shape {tuple(gradient.shape)} for "
                f"argument {argument!r} of shape {tuple(expected)}; expected the same shape"
            )
        return gradient

    return check_gradient


def second_refusal(name: str, is_promised: bool = False) -> str:
    """Return what to say where a backward is differentiated that used another function's gradient, or may not be."""
    if is_promised:
        return (
            f"function {name!r} promises that nobody differentiates its backward, but a derivative of it is "
            f"taken; take the promise back (once_differentiable)"
        )
    return (
        f"the backward of {name!r} uses a function with a gradient of its own, so it cannot be differentiated "
        f"again; give it native=True, and the framework differentiates it"
    )


def derivative_refusal(name: str, is_rule: bool) -> Callable[[], None]:
    """Return what refuses to differentiate a backward whose author promised that nobody would."""
    promise, advice = "is registered with first_order=True", "register it without"
    if not is_rule:
        promise, advice = (
            "promises that nobody differentiates its backward",
            "take the promise back",
        )

    def refuse_derivative() -> None:
        raise GradientError(
            f"{'rule' if is_rule else 'function'} {name!r} {promise}, so its backward keeps numbers without "
            f"their derivative and cannot be differentiated (create_graph, torch.func); {advice}"
        )

    return refuse_derivative


def lower_family(
    family: Family,
    backend: Backend,
    forward: Forward,
    facts: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    forward_mode: bool = False,
    fast: bool = True,
    checks: bool = False,
) -> Lowered:
    """Lower a rule under a forward."""
    backward = family.graph(True, facts)
    name = f"{family.rule.name} under {forward.name}"
    pair = GraphPair(name, forward.graph(), backward, family.rule.first_order)
    return lower_pair(pair, backend, defaults, forward_mode, fast, checks)


def lower_forward(forward: Forward, backend: Backend) -> Callable[[Tensor], Tensor]:
    """Return an activation as a plain function of one backend, with the framework's own derivative."""
    emission = Emission(backend, forward.name)
    body = emit_body(forward.graph(), emission)
    source = f"def forward(tin):\n{body.indented(4)}    return {body.result}\n"
    return _wrap(compile_source(source, forward.name, emission.namespace)["forward"], backend)


def emit_rule(graph: Graph, backend: Backend) -> tuple[Callable[..., Any], str]:
    """Return a rule's graph as a plain function of one backend, and its source."""
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
    function = compile_source(source, graph.name, emission.namespace)[name]
    return _wrap(function, backend), source


def _wrap(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    return function if backend.wrap is None else backend.wrap(function)


# --- the public lower and source -----------------------------------------------------------------------


def lower(rule: Any, backend: str, *, forward: str = "Linear", forward_mode: bool = False) -> Any:
    """Return the native object: what an expert would have written for this framework.

    Args:
        rule: a name, a Rule, a function that is a rule, or a Function; None is the forward's true derivative. A
            Function is taken as it was captured at its latest call.
        backend: "torch", "jax", "tensorflow", "numpy" or a third party's.
        forward: the activation that the rule sits under.
        forward_mode: ask for an object that also supports forward mode (torch: a Function with `jvp`; jax:
            `custom_jvp`, where jax chooses what to keep); for rules that are linear in grad_out.

    Returns:
        torch: an `autograd.Function` subclass, `F.apply(x, *params)`; jax: a `custom_vjp` function; tensorflow:
        a function with a custom gradient; numpy: an object with `f(x)` and `f.vjp(x) -> (y, pullback)`. Run-time
        params follow the tensor, in alphabetical order, and default to the rule's own. A Function takes its tensors
        in order, then its numbers, and returns one output or a tuple of them.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: what each says.
    """
    return _lower(rule, backend, forward, forward_mode).native


def source(rule: Any, backend: str, *, forward: str = "Linear") -> str:
    """Return the source that is emitted for a rule under a forward, for reading and pasting.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: as `lower`.
    """
    return _lower(rule, backend, forward, False).source


def _lower(rule: Any, backend_name: str, forward: str, forward_mode: bool) -> Lowered:
    from ..functions.examples import find_variant
    from ..functions.function import Function
    from ..registry import resolve

    backend = load_backend(backend_name)
    if isinstance(rule, Function):
        return _lower_function(find_variant(rule), backend, forward, forward_mode)
    row = find_forward(forward)
    if forward_mode and not backend.forward_mode:
        raise UnsupportedOp(
            f"backend {backend.name!r} has no custom forward mode; lower without forward_mode=True"
        )
    if rule is None:
        return lower_derivative(row, backend, forward_mode, checks=True)
    spec = resolve(rule).spec()
    try:
        values = dict(zip(spec.family.runtime, spec.values, strict=True))
        return lower_family(spec.family, backend, row, {}, values, forward_mode, checks=True)
    except NeedFact as need:
        raise TraceError(
            f"rule {spec.family.rule.name!r} needs {', '.join(need.facts)} of its input in Python; "
            f"lower it through xg.activation(...), which knows the input"
        ) from need


def _lower_function(variant: Any, backend: Backend, forward: str, forward_mode: bool) -> Lowered:
    """Lower a captured Function; its tensors come first, then its numbers."""
    pair: GraphPair = variant.pair
    if forward != "Linear":
        raise RuleTypeError(
            f"function {pair.name!r} has a forward of its own; lower it without forward={forward!r}"
        )
    if forward_mode:
        raise UnsupportedOp(
            f"function {pair.name!r} has no forward mode; lower it without forward_mode=True"
        )
    return lower_pair(pair, backend, {}, checks=True)


def lower_derivative(
    forward: Forward,
    backend: Backend,
    forward_mode: bool = False,
    fast: bool = True,
    checks: bool = False,
) -> Lowered:
    """Lower a forward with its true derivative."""
    name = f"d({forward.name}) under {forward.name}"
    pair = GraphPair(name, forward.graph(), forward.derivative())
    return lower_pair(pair, backend, None, forward_mode, fast, checks)
