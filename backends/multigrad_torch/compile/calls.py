"""Calls in compiled code: the class that a Function is lowered to, with its numbers as literals.

Dynamo would make inputs of Python floats, so a call is emitted for each set of numbers. An
activation is its rule's Function. Under `xg.jit` the rule's numbers are inputs; tensors are inputs
always.

`prepare` (compile.py) calls this module outside the trace, with descriptions of the arguments. A
`Question` makes it ask the traced code for more and call again.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

import torch

from multigrad.backend.discovery import load_backend
from multigrad.capture.types.oracle import ModeOf
from multigrad.errors import MultigradError, TraceError, UnsupportedOp
from multigrad.functions.calls.arguments import Layout, flatten
from multigrad.functions.calls.decision import COMPILED, EXPORTED, SAME, decide, form_under_autocast
from multigrad.functions.calls.facts import gather_facts
from multigrad.functions.calls.recipe import Variant
from multigrad.functions.function import Function
from multigrad.functions.record import NotCaptured
from multigrad.functions.saving import as_operator
from multigrad.graph.support.class_bases import dataclass
from multigrad.graph.support.trees import optree
from multigrad.lowering.emit import compile_source
from multigrad.lowering.lower import lower_graphs
from multigrad.rules.activation import Activation, without_rule
from multigrad.rules.context import RuleInForce
from multigrad.rules.model.activation_function import forward_on, put_under
from multigrad.trace.active_rules import KeySource
from multigrad.trace.assertions import AUTOCAST
from multigrad.trace.lookups import Telling, is_read
from multigrad.trace.moving_numbers import Moving, settle
from multigrad.trace.trace import NeedsConcrete

from ..attach.host import TransformedGuest, number_guest
from ..dialect import introspection
from ..dynamo import at_import
from ..export import asks_for_operators, register
from ..kernels import random
from ..versions import custom_op
from .dynamo_guards import JIT, JIT_NUMBERS_AS_INPUTS, may_change, tensors_in

serial = itertools.count()


@dataclass(slots=True)
class Compilation:
    """The serials of a keyed rule's applications in one compilation, which Dynamo may restart."""

    context: Any  # torch._guards.CompileContext
    counter: Any
    attempt: int = -1
    position: int = 0
    serials: list[int] = field(default_factory=list)

    def spare(self) -> list[int]:
        """Take the serials that the last attempt did not use: their code went to a new frame."""
        used = self.position if self.context.attempt == self.attempt else 0
        spare, self.serials = self.serials[used:], self.serials[:used]
        return spare


# The last compilations only: Dynamo tells nobody when one is done.
_compilations: deque[Compilation] = deque(maxlen=8)


def number_application(counter: Any) -> int:
    """Return an application's serial number: new, or that of the same one in an earlier attempt."""
    context = torch._guards.CompileContext.try_get()
    if context is None:
        return next(serial)
    for compilation in _compilations:
        if compilation.context is context and compilation.counter is counter:
            break
    else:
        compilation = Compilation(context, counter)
        compilation.serials += [n for c in _compilations if c.counter is counter for n in c.spare()]
        _compilations.append(compilation)
    if compilation.attempt != context.attempt:
        compilation.attempt, compilation.position = context.attempt, 0
    if compilation.position == len(compilation.serials):
        compilation.serials.append(next(serial))
    compilation.position += 1
    return compilation.serials[compilation.position - 1]


Tensor: TypeAlias = Any
# Words in a call's name: it counts as an application under a hidden key; it takes tensors that are
# params of the activation's own rule; or of the rule in force.
DRAWS, OWN, FRAMED = "draws", "own", "framed"
OPERATOR = "operator"  # in a call's name: an operator of torch with its own gradient
# Questions of `prepare`: the lengths of tensors, what is in force, its numbers.
LENGTHS, READS, NUMBERS = "lengths?", "reads?", "numbers?"
# The parameters of an activation's call: its input, the application's number, the rule's inputs.
ACTIVATION_PARAMETERS = ("tin", "n", "*hidden")
JIT_INPUTS = 3  # of `hidden`, which xg.jit adds


class Question(Exception):
    """Raised where `prepare` has to be told more; the text is one of the above."""


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """A call in compiled code.

    Attributes:
        plain: returns the outputs, as the class returns them.
        in_graph: the same, under torch.func transforms.
        kind: the words among DRAWS, OWN and FRAMED that apply, or OPERATOR.
        assemble: restores the nesting of the outputs.
        tensors: those of OWN.
    """

    plain: Callable[..., Any]
    in_graph: Callable[..., Any]
    kind: str = "call"
    assemble: Callable[..., Any] | None = None
    tensors: tuple[Tensor, ...] = ()


# --- activations ---------------------------------------------------------------------------------
# `call_activation` (compile.py) passes as `hidden` what is not a literal of the call:
#
#   called with values (`count`)                   these values
#   the rule in force has tensors (FRAMED)         `MIRROR.tensors`
#   the activation's own rule has tensors (OWN)    `CompiledCall.tensors`
#   any other call                                 nothing
#   under xg.jit (the token begins with            numbers in one tensor, key, start of the count;
#     JIT or JIT_NUMBERS_AS_INPUTS)              then one of the above
#
# Under JIT_NUMBERS_AS_INPUTS the rule in force takes its numbers from `hidden[0]`; otherwise they
# are literals.


def call_of_activation(
    activation: Activation, in_force: RuleInForce | None, described: Any, token: str
) -> CompiledCall:
    """Return `f(tin, n, *hidden)` for an activation under the rule in force.

    Raises:
        Question: if `prepare` has to be told more.
    """
    backend, forward = load_backend("torch"), activation.forward
    x, count = restore(described)
    if in_force is None:
        return _call_without_rule(activation, x, described)
    if asks_for_operators():
        return operator_of_activation(activation, in_force, x, count, described)
    if torch.compiler.is_exporting():
        # An exported program has only ATen ops. No gradient is better than silently the forward's
        # own.
        return call_plain(forward_on(backend, forward), passes_gradient=False)
    values, function = in_force.values, put_under(in_force.specialization, forward)
    function.recipe.arguments.check(backend, (None, *map(settle, values)))
    is_jitted = token.startswith((JIT, JIT_NUMBERS_AS_INPUTS))
    hides_numbers = token.startswith(JIT_NUMBERS_AS_INPUTS) and activation.rule is None
    tensors, first, kind = tensors_in(in_force), JIT_INPUTS if is_jitted else 0, "call"
    if tensors and not count and not hides_numbers:
        kind = FRAMED if activation.rule is None else OWN
    # Inputs of the graph have no values, so the rule's Python code gets meta tensors.
    meta = (torch.empty((), device="meta"),) * count or tuple(map(as_input, values))
    variant = None
    try:
        if function.native is not True:
            variant = find_variant(function, (x, *meta), described)
    except NotCaptured as error:
        function.recipe.give_up(error.error)
    if hides_numbers and has_static_numbers(in_force):
        raise Question(NUMBERS)
    if variant is None and any(isinstance(value, Moving) for value in values):
        raise MultigradError(
            f"{in_force.specialization.subject} runs as written, on numbers, under one that moves"
        )
    if variant is None:  # the rule runs as written
        places = slice(first, first + (count or len(tensors)))
        return call_as_written(function, in_force, places, kind)
    if count:
        activation.check_values(in_force)
    words = _sources_of_values(values, count, first, hides_numbers)
    if not variant.graphs.is_random:
        names = {}
    elif is_jitted and in_force.counter is not None:
        names, kind = {"fold_in_from": torch.ops.multigrad.fold_in_from.default}, f"{DRAWS}-{kind}"
        words.append("fold_in_from(hidden[1], hidden[2], n)")
    else:
        names = draw(in_force.draws, words)
    call = emit_call(variant, words, names, ACTIVATION_PARAMETERS)
    return replace(call, kind=kind, tensors=tensors)


def _call_without_rule(activation: Activation, x: Tensor, described: Any) -> CompiledCall:
    forward = activation.forward
    if forward.differentiable:
        return call_plain(without_rule(forward, load_backend("torch"), x))
    function = put_under(None, forward)
    variant = find_variant(function, (x,), described)
    if asks_for_operators():
        return emit_operator(function, variant, [], ACTIVATION_PARAMETERS)
    return emit_call(variant, [], {}, ACTIVATION_PARAMETERS)


def _sources_of_values(
    values: Sequence[Any], count: int, first: int, hides_numbers: bool
) -> list[str]:
    # Of each param the source: a place in `hidden`, where they begin at `first`, or a literal.
    if count:
        return [f"hidden[{first + i}]" for i in range(count)]
    if hides_numbers:
        return [f"hidden[0][{i}]" for i in range(len(values))]
    hidden = (f"hidden[{i}]" for i in itertools.count(first))
    return [next(hidden) if may_change(value) else write(value) for value in values]


def operator_of_activation(
    activation: Activation, in_force: RuleInForce, x: Tensor, count: int, described: Any
) -> CompiledCall:
    """Return an activation's operator under the rule in force, with its numbers as literals."""
    function = put_under(in_force.specialization, activation.forward)
    values = tuple(map(settle, in_force.values))
    if count or any(map(is_tensor, values)):
        raise UnsupportedOp(
            f"{function.recipe.title} takes a tensor for a param, of which an exported operator "
            "has numbers: give it a number"
        )
    if function.native is True:
        raise UnsupportedOp(
            f"{function.recipe.title} runs as written, and an exported operator is a graph: leave "
            "native=True out, so that it is captured"
        )
    function.recipe.arguments.check(load_backend("torch"), (x, *values))
    variant = find_variant(function, (x, *values), described)
    return emit_operator(function, variant, list(map(write, values)), ACTIVATION_PARAMETERS)


def as_input(value: Any) -> Any:
    """Return a meta tensor for a moving number, whose value may not be looked at."""
    return torch.empty((), device="meta") if isinstance(value, Moving) else value


def has_static_numbers(in_force: RuleInForce) -> bool:
    """Return whether the rule's Python code reads its numbers, so that a graph contains them."""
    specialization = in_force.specialization
    if specialization.rule.native is True or specialization.code.uncapturable is not None:
        return True
    return any(fact.startswith("param:") for fact in specialization.code.facts)


def call_as_written(
    function: Function, in_force: RuleInForce, places: slice, kind: str
) -> CompiledCall:
    """Return calls of a rule that runs as written; `places` are those of its params in `hidden`."""
    backend, fixed = load_backend("torch"), in_force.values
    every = places.stop - places.start == len(fixed)

    def call(tin: Tensor, n: int, *hidden: Tensor) -> Tensor:
        tensors = iter(hidden[places])
        values = [next(tensors) if every or may_change(value) else value for value in fixed]
        return function.entries.on(backend, (tin, *values)).run((tin, *values), in_force.draws)

    # Dynamo (torch 2.13) reads plain functions and tensors, so `call` is a closure, no object.
    return CompiledCall(call, call, kind, tensors=tensors_in(in_force))


def call_plain(function: Callable[[Tensor], Tensor], passes_gradient: bool = True) -> CompiledCall:
    """Return calls of a function of the input alone."""

    def call(tin: Tensor, n: int, *hidden: Tensor) -> Tensor:
        return function(tin if passes_gradient else tin.detach())

    def call_in_graph(tin: Tensor, n: int, *hidden: Tensor) -> Tensor:
        return call(tin, n)

    return CompiledCall(call, call_in_graph)


def fold_in_from(key: torch.Tensor, start: torch.Tensor, n: int) -> torch.Tensor:
    return random.fold_in_words(key, int(start) + n)


def describe_folded_key(key: Tensor, start: Tensor, n: int) -> Tensor:
    return torch.empty_like(key)


@at_import
def register_operator() -> None:
    schema = "(Tensor key, Tensor start, SymInt n) -> Tensor"
    folded = custom_op("multigrad::fold_in_from", schema)(fold_in_from)
    folded.register_fake(describe_folded_key)


# --- Functions -----------------------------------------------------------------------------------


def call_of_function(function: Function, described: Any) -> CompiledCall:
    """Return `f(*tensors)` for a Function.

    Raises:
        Question: if `prepare` has to be told more.
    """
    opaque = function.recipe.opaque
    if function.native is True and opaque is None:
        raise MultigradError(f"function {function.name!r} runs as written")
    args, kwargs = restore(described)
    flat, nesting = flatten(args, kwargs)
    if any(isinstance(value, Moving) for value in function.defaults):
        message = f"{function.recipe.subject} has numbers that move for defaults, no constants"
        raise NotCaptured(TraceError(message))
    leaves, tree = function.completion.complete(flat, nesting)
    if sum(map(is_tensor, leaves)) > sum(map(is_tensor, flat)):
        message = f"{function.recipe.subject} has tensors for defaults, no inputs of the graph"
        raise NotCaptured(TraceError(message))
    if opaque is not None and asks_for_operators():
        raise UnsupportedOp(
            f"{function.recipe.subject} runs on NumPy's arrays, so no exported program holds it: "
            "export what comes before and after it"
        )
    if opaque is not None:
        if not has_lengths(described):
            raise Question(LENGTHS)
        return call_of_guest(opaque.guest_for(find_layout(function, leaves, tree), leaves))
    variant = find_variant(function, leaves, described, tree)
    recipe, native, torchs = function.recipe, function.native, load_backend("torch")
    door = EXPORTED if asks_for_operators() else COMPILED
    _, reason, kinds = decide(door, recipe, variant, torchs, native)
    if reason and not (function.is_keyed and kinds == {AUTOCAST}):
        raise NotCaptured(TraceError(f"{recipe.subject}: {reason}"), kinds)
    if any(map(is_read_by_graph, variant.facts)):
        message = f"{recipe.subject} reads a tensor from outside at each call"
        raise NotCaptured(TraceError(message))
    is_cast = torch._C._is_any_autocast_enabled()
    is_uncast = is_cast and form_under_autocast(recipe, variant, torchs, native) != SAME
    layout = variant.layout
    numbers = [leaves[i] for i in layout.indices("number")]
    # Tensors have no values while Dynamo traces, so numbers that are tensors are not checked.
    if not any(map(is_tensor, numbers)):
        function.recipe.arguments.check(load_backend("torch"), leaves)
    words = [write(number) for number in numbers]
    parameters = [f"x{i}" for i in range(len(layout.tensors))]
    if asks_for_operators():
        call = emit_operator(function, variant, words, parameters)
        return replace(call, assemble=emit_outputs(variant))
    names = draw(function.draws, words) if variant.graphs.is_random else {}
    call = emit_call(variant, words, names, parameters, is_uncast=is_uncast)
    return replace(call, assemble=emit_outputs(variant))


def emit_outputs(variant: Variant) -> Callable[..., Any]:
    return emit_assembly(variant.outputs, variant.fixed, len(variant.graphs.cotangents) == 1)


def call_of_guest(guest: Any) -> CompiledCall:
    number = number_guest(guest)

    def call(*tensors: Tensor) -> Any:
        return torch.ops.multigrad.run_guest.default(number, list(tensors))

    def call_in_graph(*tensors: Tensor) -> Any:
        return TransformedGuest.apply(number, *tensors)

    return CompiledCall(call, call_in_graph, assemble=emit_assembly(guest.nesting, {}, False))


def reads(function: Function) -> bool:
    """Return whether a Function's Python code reads more than its arguments."""
    return any(is_read(fact) and not isinstance(fact, ModeOf) for fact in function.captures.facts)


def is_read_by_graph(fact: str) -> bool:
    """Return whether a fact concerns more than a call; modes, which Dynamo guards, do not count."""
    return isinstance(fact, Telling) and not isinstance(fact, ModeOf)


def emit_assembly(nesting: Any, fixed: Mapping[int, Any], is_bare: bool) -> Callable[..., Any]:
    """Return a function that restores the nesting of outputs, in code that Dynamo can read.

    Args:
        fixed: outputs that are not tensors, by position.
        is_bare: whether there is a single tensor, passed without a tuple.
    """
    names: dict[str, Any] = {}
    count = nesting.num_leaves
    rest = iter(["outputs"] if is_bare else [f"outputs[{i}]" for i in range(count)])
    words = [repr(fixed[i]) if i in fixed else next(rest) for i in range(count)]
    text = _write(optree.tree_unflatten(nesting, words), names)
    source = f"def assemble(outputs):\n    return {text}\n"
    return compile_source(source, "outputs", names)["assemble"]


def _write(outputs: Any, names: dict[str, Any]) -> str:
    if isinstance(outputs, str):  # each leaf is the source of a value
        return outputs
    if isinstance(outputs, dict):
        inner = ", ".join(f"{name!r}: {_write(each, names)}" for name, each in outputs.items())
        return f"{{{inner}}}"
    inner = ", ".join(_write(each, names) for each in outputs)
    if isinstance(outputs, list):
        return f"[{inner}]"
    if type(outputs) is tuple:
        return f"({inner},)" if inner else "()"
    names[type(outputs).__name__] = type(outputs)
    return f"{type(outputs).__name__}({inner})"


# --- both ----------------------------------------------------------------------------------------


def restore(described: Any) -> Any:
    """Return arguments like those described, with meta tensors, which have no values."""
    kind, *rest = described
    if kind == "tensor":
        dtype, shape, requires_grad, device_type = rest
        shape = (1,) * shape if isinstance(shape, int) else shape
        tensor = torch.empty(shape, dtype=dtype, device="meta", requires_grad=requires_grad)
        return introspection.stand_on(tensor, device_type)
    if kind == "value":
        return rest[0]
    if kind == "dict":
        return dict(zip(rest[0], map(restore, rest[1]), strict=True))
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(map(restore, rest[0]))
    raise MultigradError(f"compiled code takes no {kind} of tensors")


def find_variant(
    function: Function, leaves: Sequence[Any], described: Any, tree: Any = None
) -> Variant:
    """Return the captured variant of a Function for arguments.

    Raises:
        Question: its Python code reads the lengths of tensors, which are not known.
        NotCaptured: it runs as written.
    """
    recipe, layout = function.recipe, find_layout(function, leaves, tree)
    while True:
        needed = function.captures.facts
        if any(fact.startswith("shape") for fact in needed) and not has_lengths(described):
            raise Question(LENGTHS)
        facts = gather_facts(recipe.subject, needed, layout, leaves)
        try:
            return function.captures.for_facts(layout, facts, leaves)
        # The capture has noted a new fact that it needs; gather it and try again.
        except NeedsConcrete:
            continue


def find_layout(function: Function, leaves: Sequence[Any], tree: Any) -> Layout:
    tree = tree or flatten(tuple(leaves), {})[1]
    return function.recipe.lay_out(function.parameters, leaves, tree)


def has_lengths(described: Any) -> bool:
    if isinstance(described, tuple):
        if described and described[0] == "tensor":
            return isinstance(described[2], tuple)
        return all(map(has_lengths, described))
    return True


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def write(number: Any) -> str:
    """Return the source of a number; inf and nan have no literal in Python."""
    number = float(number)
    return repr(number) if math.isfinite(number) else f"float({str(number)!r})"


def draw(draws: KeySource, words: list[str]) -> dict[str, Any]:
    """Add the source of a key to `words`; return the names that it uses."""
    if draws.counter is None:
        words.append("draw_key()")
        return {"draw_key": random.draw_key}
    key = draws.next_key(load_backend("torch"))
    words.append(repr(key) if isinstance(key, tuple) else "key")
    return {"key": key}


def emit_call(
    variant: Variant,
    words: Sequence[str],
    names: dict[str, Any],
    parameters: Sequence[str],
    *,
    is_uncast: bool = False,
) -> CompiledCall:
    """Return calls of the lowered class.

    The class gets and returns copies of the tensors that it keeps: a compiler does not notice
    (torch 2.13) that a caller writes into a tensor that an `autograd.Function` has kept, so
    backward would read the new values. Inductor leaves the copies out if nobody writes.

    Args:
        parameters: those of the calls, tensors first.
        is_uncast: whether the call ignores the autocast around it.
    """
    attached = lower_graphs(variant.graphs, load_backend("torch"), style="compiled")
    native, emitted = attached.native, attached.emitted
    assert emitted is not None
    residuals = {*emitted.residuals.names, *emitted.residuals.histories}.difference(
        emitted.residuals.likes
    )

    def own(name: str, word: str) -> str:
        return f"{word}.clone()" if name in residuals and not variant.updates else word

    tensors = [own(*pair) for pair in zip(variant.graphs.inputs, parameters, strict=False)]
    arguments = ", ".join([*tensors, *words])
    results = [f"y{i}" for i in range(len(emitted.names.outputs))]
    left, right = map(", ".join, (results, map(own, emitted.names.outputs, results)))
    if is_uncast:
        # Backward, too, is compiled under the autocast around forward.
        for each in {native, native.eager}:
            each.backward = staticmethod(uncast(each.backward))
    source = f"""def call({", ".join(parameters)}):
    {left} = {"apply" if is_uncast else "Native.apply"}({arguments})
    return {right}
"""
    namespaces = [
        {"Native": each, "apply": uncast(each.apply), **names} for each in (native.eager, native)
    ]
    plain, in_graph = _named_calls(source, native.__name__, namespaces)
    return CompiledCall(plain, in_graph)


def uncast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in its arguments' dtypes, whatever autocast is around it."""

    def run(*args: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args)

    return run


def _named_calls(
    source: str, name: str, namespaces: Sequence[Mapping[str, Any]]
) -> list[Callable[..., Any]]:
    calls = []
    for names in namespaces:
        call = compile_source(source, name, dict(names))["call"]
        # A graph's code names a callee by module and qualified name, which must be unique.
        call.__module__ = __name__
        call.__qualname__ = call.__name__ = f"{name}_{next(serial)}"
        calls.append(call)
    return calls


def emit_operator(
    function: Function, variant: Variant, words: Sequence[str], parameters: Sequence[str]
) -> CompiledCall:
    """Return calls of torch's operator for a variant; `words` is the source of its numbers."""
    operator = as_operator(function, variant)
    registered = register(operator)
    arguments = ", ".join([*parameters[: len(variant.layout.tensors)], *words])
    source = f"def call({', '.join(parameters)}):\n    return operator({arguments})\n"
    plain, in_graph = _named_calls(source, operator.name, [{"operator": registered}] * 2)
    return CompiledCall(plain, in_graph, OPERATOR)
