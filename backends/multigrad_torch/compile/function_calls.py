"""Calls of Functions in compiled code: what Dynamo traces instead, and how it is found.

A Function is captured and lowered for the call's arguments (`call_of_function`); what its code
reads besides them is watched (`watches.py`); or Dynamo reads the class that it was made of.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.functions.arguments import flatten
from multigrad.core.functions.facts import gather_facts
from multigrad.core.functions.function import FunctionBase, by_identifier
from multigrad.core.functions.recipe import NotCaptured, Variant
from multigrad.core.lowering.lower import compile_source
from multigrad.core.rules.activation import Activation
from multigrad.core.rules.activation_function import put_under
from multigrad.core.rules.context import RuleInForce
from multigrad.core.support.threads import SERIALS
from multigrad.core.support.trees import optree
from multigrad.core.trace.active_rules import Moving, settle
from multigrad.core.trace.lookups import Telling, is_read
from multigrad.core.trace.source import AUTOCAST, MISSING, TWICE
from multigrad.core.trace.trace import NeedsConcrete, Value
from multigrad.engine.capture.user_code.reads import Reads
from multigrad.engine.capture.values.oracle import ModeOf
from multigrad.engine.functions.decision import (
    COMPILED,
    EXPORTED,
    SAME,
    decide,
    form_under_autocast,
)
from multigrad.engine.functions.function import Function, as_function, uncaptured
from multigrad.engine.functions.saving import as_operator
from multigrad.errors import MultigradError, TraceError, UnsupportedOp

from ..attach.guests import GUESTS, TransformedGuest
from ..core import dynamo
from ..core.compile.calls import (
    CALLS,
    NAMES,
    PARAMETERS,
    Answered,
    CompiledCall,
    More,
    Refused,
    compile_call,
    emit_call,
    find_layout,
    find_variant,
    is_open,
    is_tensor,
    keep,
    require_lengths,
    write_number,
)
from ..core.compile.compile import (
    DUALS_REFUSED,
    answer_of,
    exact_token,
    is_dual,
    is_fixed,
    is_partial,
    keep_placements,
    run,
    warn_of_graphs,
)
from ..core.compile.dynamo_guards import EPOCH, Passed, may_change
from ..core.compile.readers import apply_function
from ..export import NOTES, asks_for_operators, register
from .arguments import describe, has_keywords, is_object, restore, shapes_in
from .drawn_keys import draw_key_argument, number_application
from .watches import reads_of, watches

Tensor: TypeAlias = torch.Tensor
# In a class Dynamo (torch 2.13) gives zeros for missing cotangents, and takes no tensor twice.
MISREAD = frozenset((MISSING, TWICE))


@dataclass(frozen=True, slots=True)
class OwnClass:
    """A Function's own class, which Dynamo reads.

    Attributes:
        takes_copies: whether it takes and gives copies of tensors.
    """

    cls: type[torch.autograd.Function]
    takes_copies: bool = False


# --- what Dynamo traces --------------------------------------------------------------------------


def call_function(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Function in traced code, instead of `Function.__call__`."""
    if not torch.compiler.is_dynamo_compiling() and any(
        isinstance(leaf, Value) for leaf in optree.tree_leaves((args, kwargs))
    ):
        # Called in a capture that `prepare` began: its values are symbols of ours.
        return function.call_eagerly(args, kwargs)
    if any(map(is_object, args)) and not kwargs:
        call, tensors, numbers = getattr(CALLS, class_for_objects(function.identifier)), [], []
    else:
        call, tensors, numbers = ask(function.identifier, (args, kwargs))
    if isinstance(call, OwnClass):
        return apply_class(call, args)
    if isinstance(call, Refused):
        torch._dynamo.graph_break(msg=call.reason)
        return apply_function(function, args, kwargs)
    if torch.compiler.is_exporting() and not call.is_operator:
        # A program has only ATen ops. No gradient is better than silently the forward's own.
        tensors = [tensor.detach() for tensor in tensors]
    if any(map(is_partial, tensors)):
        torch._dynamo.graph_break(msg="a partial DTensor")
        return apply_function(function, args, kwargs)
    tensors = [keep_placements(x) for x in tensors]
    return call.assemble(run(call, *tensors, *numbers))


def ask(identifier: str, arguments: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
    """Return the answer of `prepare`, and of the arguments the tensors and the open numbers."""
    if is_dual():
        return DUALS_REFUSED, [], []
    lengths: tuple[bool, ...] = ()
    reads_rules, has_values, watched = False, False, ()
    while True:
        tensors: list[Tensor] = []
        numbers: list[Tensor] = []
        token, epoch = None, ""
        described = describe(arguments, tensors, lengths, None if has_values else numbers)
        # Dynamo guards on each string that is read here, so only what `prepare` asks for is read.
        if reads_rules:
            token, epoch = exact_token(), EPOCH.text
        answer = getattr(CALLS, prepare(identifier, described, token, epoch, watched))
        if not isinstance(answer, More):
            return answer, tensors, numbers
        if answer.lengths:
            lengths = answer.lengths
            asked = [x for x, is_asked in zip(tensors, lengths, strict=True) if is_asked]
            if not all(is_fixed(n) for x in asked for n in x.shape):
                name = class_for_open(identifier, describe(arguments, [], None))
                if name:
                    return getattr(CALLS, name), tensors, []
        elif answer.rules:
            reads_rules = True
        elif answer.values:
            has_values = True
        elif answer.watch is not None:
            watched = answer.watch()


def apply_class(own: OwnClass, args: tuple[Any, ...]) -> Any:
    is_exported = torch.compiler.is_exporting()
    if not (is_exported or own.takes_copies):
        return own.cls.apply(*args)
    # As in `emit_call`: a compiler does not notice later writes. A program has no gradient.
    copy = torch.Tensor.detach if is_exported else torch.Tensor.clone
    outputs = own.cls.apply(*[copy(x) if isinstance(x, torch.Tensor) else x for x in args])
    if is_exported:
        return outputs  # with the attributes that the class has set
    if isinstance(outputs, tuple):
        return tuple([copy(y) if isinstance(y, torch.Tensor) else y for y in outputs])
    return copy(outputs)


# --- outside the trace ---------------------------------------------------------------------------


@dynamo.assume_constant_result
def prepare(
    identifier: str, described: Any, token: str | None, epoch: str, watched: tuple[Any, ...]
) -> str:
    """Return the name in CALLS of the call for arguments like these, or of another answer.

    Args:
        identifier: a Function's.
        described: its arguments, as `describe` returns them.
        token: that of the active rules; None as long as it is taken to read only its arguments.
        epoch: the registry's; "" for as long.
        watched: what else it reads, on which Dynamo guards now; () as long as nothing is known.
    """
    function = as_function(by_identifier[identifier])
    is_watched = bool(watched)
    find = partial(find_function, function, described, token or "", epoch, is_watched=is_watched)
    return answer_of(find, token)


def find_function(
    function: Function, described: Any, token: str, epoch: str, is_watched: bool
) -> str:
    """Return the name of a Function's call; raise Answered if `prepare` has to be told more."""
    try:
        return find_call(function, described, token, epoch, is_watched)
    except NotCaptured as error:
        own = None
        if MISREAD.isdisjoint(error.kinds):
            own = own_class(function, has_keywords(described))
        if own is None:
            raise
        return keep(own)


def find_call(function: Function, described: Any, token: str, epoch: str, is_watched: bool) -> str:
    """Return the name of a captured Function's call; raise Answered to be told more."""
    if not epoch and reads_more(function):
        raise Answered(More(rules=True))
    modes = (torch.get_default_dtype(), torch._C._is_any_autocast_enabled())
    arguments = (described, repr(described), modes)  # 1, 1.0, True are equal
    watched = require_watch(function, is_watched, described)
    key = (function.identifier, arguments, token, epoch, asks_for_operators(), watched)
    if function.is_keyed:
        key = (*key, number_application(function.draws.counter))
    if key in NAMES:
        return NAMES[key]
    call = call_of_function(function, described)
    read = [fact[6:] for fact in sorted(function.captures.facts) if fact.startswith("param:")]
    if read:
        warn_of_graphs(f"{', '.join(read)} on which {function.recipe.subject} branches", "")
    # Again: the capture may have found that the code reads more than its arguments.
    if not epoch and reads_more(function):
        raise Answered(More(rules=True))
    require_watch(function, is_watched, described)
    return keep(call, key)


def require_watch(function: Function | None, is_watched: bool, described: Any = None) -> Any:
    """Return a key of what a Function reads besides its arguments; raise Answered unless Dynamo
    guards on that. A class that Dynamo reads by itself has these guards.
    """
    reads = () if function is None else reads_of(function)
    if function is not None and reads and not is_watched:
        # Described is what a Function is called with; an activation is no class.
        if described is not None and may_read_class(function, described):
            own = own_class(function, has_keywords(described))
            if own:
                raise Answered(own)
        key = (watches, *[(each, len(each.finds), each.meaning()) for each in reads])
        if key not in NAMES:
            calls = [call for each in reads for call in watches(function.recipe.subject, each)]
            keep(More(watch=all_of(calls)), key)
        raise Answered(getattr(CALLS, NAMES[key]))
    return tuple(each.meaning() for each in reads)


def all_of(watches: Sequence[Callable[[], Any]]) -> Callable[[], tuple[Any, ...]]:
    def watch() -> tuple[Any, ...]:
        return describe([each() for each in watches], [], ())

    return watch


@dynamo.assume_constant_result
def class_for_objects(identifier: str) -> str:
    function = as_function(by_identifier[identifier])
    refusal = Refused(f"{function.recipe.subject} is given an object, which no compiled call is")
    return keep(own_class(function) or refusal)


@dynamo.assume_constant_result
def class_for_open(identifier: str, described: Any) -> str:
    """Return the name of a class for lengths that Dynamo leaves open; "" if they are to be fixed.

    The graph of a Function that asks for lengths is for these alone, but Dynamo, or an exporter,
    can read its class for all.
    """
    function = by_identifier[identifier]
    if not isinstance(function, Function) or torch._C._is_any_autocast_enabled():
        return ""
    if not may_read_class(function, described) and not torch.compiler.is_exporting():
        return ""
    own = own_class(function, has_keywords(described), takes_copies=True)
    return keep(own) if own else ""


def may_read_class(function: Function, described: Any) -> bool:
    variants = known_variants(function, described)
    return bool(variants) and all(MISREAD.isdisjoint(each.omissions) for each in variants)


def own_class(
    function: Function, has_keywords: bool = False, takes_copies: bool = False
) -> OwnClass | None:
    """Return a Function's own class, None if Dynamo may not read it.

    A Function that is not captured runs unchanged in eager code, and so it may in compiled code,
    except under torch.func transforms: there Dynamo (torch 2.13) differentiates the forward
    instead.
    """
    if torch._C._are_functorch_transforms_active():
        return None
    cls, copies = function.recipe.origin, function.recipe.options.copies
    is_plain = function.native is not False and not function.is_keyed and not has_keywords
    is_class = isinstance(cls, type) and issubclass(cls, torch.autograd.Function)
    if not (is_class and is_plain) or copies or asks_for_operators():
        return None
    return OwnClass(cls, takes_copies)


# --- the captured variant, and its call -----------------------------------------------------------


def known_variants(function: Function, described: Any) -> list[Variant]:
    """Return the captured variants, or one for tensors as described, to see what it leaves out."""
    variants, recipe = [*function.captures.variants.values()], function.recipe
    if variants or recipe.opaque is not None:
        return variants
    leaves, tree = complete_arguments(function, described)
    layout = find_layout(function, leaves, tree)

    def tell(needed: frozenset[str]) -> dict[str, Any]:
        return gather_facts(recipe.subject, needed, layout, leaves)

    try:
        return [uncaptured(function).captures.for_answers(layout, tell, leaves)[0]]
    except (NeedsConcrete, NotCaptured, TraceError):
        return []


def call_of_function(function: Function, described: Any) -> CompiledCall:
    """Return `call(*tensors)`; raise Answered, or NotCaptured if the Function runs as written."""
    recipe, opaque = function.recipe, function.recipe.opaque
    if function.native is True and opaque is None:
        raise MultigradError(f"function {function.name!r} runs as written")
    leaves, tree = complete_arguments(function, described)
    if opaque is not None:
        if asks_for_operators():
            raise UnsupportedOp(
                f"{recipe.subject} runs on NumPy's arrays, so no exported program holds it: "
                "export what comes before and after it"
            )
        shapes = shapes_in(described)
        require_lengths(recipe.subject, shapes, range(len(shapes)))
        return call_of_guest(opaque.guest_for(find_layout(function, leaves, tree), leaves))
    variant = find_variant(function, leaves, shapes_in(described), tree)
    refuse_uncompilable(function, variant)
    layout = variant.layout
    numbers = [leaves[i] for i in layout.indices("number")]
    # Tensors have no values while Dynamo traces, so numbers that are tensors are not checked.
    if not any(is_tensor(number) or is_open(number) for number in numbers):
        recipe.arguments.check(load_backend("torch"), leaves)
    inputs = (f"n{i}" for i in itertools.count())
    sources = [next(inputs) if is_open(number) else write_number(number) for number in numbers]
    parameters = [f"x{i}" for i in range(len(layout.tensors))]
    parameters += [f"n{i}" for i in range(sum(map(is_open, numbers)))]
    if asks_for_operators():
        call = emit_operator(function, variant, sources, parameters)
    else:
        key = draw_key_argument(function.draws) if variant.graphs.is_random else None
        # Autocast is on, and the Function would not compute the same under it.
        is_uncast = (
            torch._C._is_any_autocast_enabled()
            and form_under_autocast(recipe, variant, load_backend("torch"), function.native) != SAME
        )
        floats = [x for x, leaf in zip(parameters, layout.tensors, strict=False) if leaf.is_float]
        like = floats[0] if floats and any(map(is_open, numbers)) else ""
        call = emit_call(variant, sources, key, parameters, is_uncast=is_uncast, like=like)
    is_bare = len(variant.graphs.cotangents) == 1
    return replace(call, assemble=emit_assembly(variant.outputs, variant.fixed, is_bare))


def complete_arguments(function: Function, described: Any) -> tuple[Sequence[Any], Any]:
    """Return the leaves of the arguments, with meta tensors and defaults, and their tree."""
    args, kwargs = restore(described)
    given_leaves, given_tree = flatten(args, kwargs)
    if any(isinstance(value, Moving) for value in function.defaults):
        message = f"{function.recipe.subject} has numbers that move for defaults, no constants"
        raise NotCaptured(TraceError(message))
    leaves, tree = function.completion.complete(given_leaves, given_tree)
    if sum(map(is_tensor, leaves)) > sum(map(is_tensor, given_leaves)):
        message = f"{function.recipe.subject} has tensors for defaults, no inputs of the graph"
        raise NotCaptured(TraceError(message))
    return leaves, tree


def refuse_uncompilable(function: Function, variant: Variant) -> None:
    """Raise NotCaptured if compiled code would not compute what the Function computes."""
    recipe = function.recipe
    door = EXPORTED if asks_for_operators() else COMPILED
    _, reason, kinds = decide(door, recipe, variant, load_backend("torch"), function.native)
    if reason and not (function.is_keyed and kinds == {AUTOCAST}):
        raise NotCaptured(TraceError(f"{recipe.subject}: {reason}"), kinds)
    if any(isinstance(fact, Telling) and not is_guarded(fact) for fact in variant.facts):
        message = f"{recipe.subject} reads a tensor from outside at each call"
        raise NotCaptured(TraceError(message))


def reads_more(function: Function) -> bool:
    """Return whether a Function's Python code reads more than its arguments, as captured so far."""
    return any(is_read(fact) and not is_guarded(fact) for fact in function.captures.facts)


def is_guarded(fact: str) -> bool:
    """Return whether Dynamo guards on a fact: on modes by itself, on what is read by `watch`."""
    return isinstance(fact, ModeOf | Reads)


def call_of_guest(guest: Any) -> CompiledCall:
    """Return calls of another framework's function, whose graph holds only its number."""
    number = next(SERIALS)  # two threads may number guests at once
    GUESTS[number] = guest

    def call(*tensors: Tensor) -> Any:
        return TransformedGuest.apply(number, *tensors)

    return CompiledCall(call, call, assemble=emit_assembly(guest.nesting, {}, False))


def emit_assembly(nesting: Any, fixed: Mapping[int, Any], is_bare: bool) -> Callable[..., Any]:
    """Return a function that restores the nesting of outputs, in code that Dynamo can read.

    Args:
        fixed: outputs that are not tensors, by position.
        is_bare: whether there is a single tensor, passed without a tuple.
    """
    classes: dict[str, Any] = {}
    count = nesting.num_leaves
    tensors = iter(["outputs"] if is_bare else [f"outputs[{i}]" for i in range(count)])
    leaves = [repr(fixed[i]) if i in fixed else next(tensors) for i in range(count)]
    text = _write_outputs(optree.tree_unflatten(nesting, leaves), classes)
    source = f"def assemble(outputs):\n    return {text}\n"
    return compile_source(source, "outputs", classes)["assemble"]


def _write_outputs(outputs: Any, classes: dict[str, Any]) -> str:
    # Fills `classes` with those of named tuples, by the names that the text gives them.
    if isinstance(outputs, str):  # each leaf is the source of a value
        return outputs
    if isinstance(outputs, dict):
        items = (f"{name!r}: {_write_outputs(each, classes)}" for name, each in outputs.items())
        return f"{{{', '.join(items)}}}"
    inner = ", ".join(_write_outputs(each, classes) for each in outputs)
    if isinstance(outputs, list):
        return f"[{inner}]"
    if type(outputs) is tuple:
        return f"({inner},)" if inner else "()"
    classes[type(outputs).__name__] = type(outputs)
    return f"{type(outputs).__name__}({inner})"


def emit_operator(
    function: FunctionBase,
    variant: Variant,
    number_sources: Sequence[str],
    parameters: Sequence[str],
) -> CompiledCall:
    """Return calls of torch's operator for a variant, with its numbers as literals."""
    operator = as_operator(function, variant)
    names = {"operator": register(operator)}
    arguments = [*parameters[: len(variant.layout.tensors)], *number_sources]
    source = f"""def call({", ".join(parameters)}):
    return operator({", ".join(arguments)})
"""
    plain, in_graph = (compile_call(source, operator.name, names) for _ in range(2))
    return CompiledCall(plain, in_graph, is_operator=True)


# --- activations that are no captured calls -------------------------------------------------------
def call_as_written(function: Function, in_force: RuleInForce) -> CompiledCall:
    backend, param_values = load_backend("torch"), in_force.values

    def call(tin: Tensor, *inputs: Tensor) -> Tensor:
        tensors = iter(inputs)
        values = [next(tensors) if may_change(v) else v for v in param_values]
        return function.entries.on(backend, (tin, *values)).run((tin, *values), in_force.draws)

    # Dynamo (torch 2.13) reads plain functions and tensors, so `call` is a closure, no object.
    return CompiledCall(call, call)


def operator_of_activation(
    activation: Activation, in_force: RuleInForce | None, x: Tensor, shape: Any
) -> CompiledCall | None:
    """Return an activation's operator under the rule in force, with its numbers as literals."""
    if not asks_for_operators():
        return None
    function = put_under(in_force and in_force.specialization, activation.forward)
    if in_force is None:
        return emit_operator(function, find_variant(function, (x,), [shape]), [], PARAMETERS)
    values = tuple(map(settle, in_force.values))
    if any(isinstance(value, Tensor | Passed) for value in (*in_force.values, *values)):
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
    variant = find_variant(function, (x, *values), [shape])
    return emit_operator(function, variant, list(map(write_number, values)), PARAMETERS)


# --- exports that ask for operators --------------------------------------------------------------
def kind_of_export() -> Any:
    return torch.compiler.is_exporting(), asks_for_operators()


def note_refused(error: Exception) -> None:
    notes = NOTES.get()
    if notes is not None:
        notes.errors.append(error)


def note_lengths(subject: str) -> None:
    notes = NOTES.get()
    if notes is not None:  # the operator is for these lengths alone
        notes.sized.add(subject)
