"""Calls of Functions in compiled code, `call(x0, x1, ...)` with all tensors among the arguments.

Numbers are literals of the emitted code, and the nesting of the outputs is restored by code that
Dynamo reads. A Function that cannot be captured raises NotCaptured, and compile.py decides whether
its own class or eager code runs instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from multigrad.backend.discovery import load_backend
from multigrad.capture.types.oracle import ModeOf
from multigrad.errors import MultigradError, TraceError, UnsupportedOp
from multigrad.functions.calls.arguments import flatten
from multigrad.functions.calls.capture_errors import NotCaptured
from multigrad.functions.calls.decision import COMPILED, EXPORTED, SAME, decide, form_under_autocast
from multigrad.functions.calls.recipe import Variant
from multigrad.functions.function import Function
from multigrad.graph.support.trees import optree
from multigrad.lowering.source import compile_source
from multigrad.trace.active_rules import Moving
from multigrad.trace.assertions import AUTOCAST
from multigrad.trace.lookups import Telling, is_read

from ..attach.guests import TransformedGuest, number_guest
from ..export import asks_for_operators
from .argument_descriptions import has_lengths, restore
from .calls import (
    LENGTHS,
    CompiledCall,
    MoreNeeded,
    emit_call,
    emit_operator,
    find_layout,
    find_variant,
    is_tensor,
    write_number,
)
from .keys import draw_key_argument

Tensor: TypeAlias = Any


def call_of_function(function: Function, described: Any) -> CompiledCall:
    """Return `call(*tensors)` for a Function.

    Raises:
        MoreNeeded: if `prepare` has to be told more.
        NotCaptured: the Function runs as written.
    """
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
        if not has_lengths(described):
            raise MoreNeeded(LENGTHS)
        return call_of_guest(opaque.guest_for(find_layout(function, leaves, tree), leaves))
    variant = find_variant(function, leaves, described, tree)
    refuse_uncompilable(function, variant)
    layout = variant.layout
    numbers = [leaves[i] for i in layout.indices("number")]
    # Tensors have no values while Dynamo traces, so numbers that are tensors are not checked.
    if not any(map(is_tensor, numbers)):
        recipe.arguments.check(load_backend("torch"), leaves)
    sources = list(map(write_number, numbers))
    parameters = [f"x{i}" for i in range(len(layout.tensors))]
    if asks_for_operators():
        call = emit_operator(function, variant, sources, parameters)
    else:
        key = draw_key_argument(function.draws) if variant.graphs.is_random else None
        is_uncast = ignores_autocast(function, variant)
        call = emit_call(variant, sources, key, parameters, is_uncast=is_uncast)
    is_bare = len(variant.graphs.cotangents) == 1
    return replace(call, assemble=emit_assembly(variant.outputs, variant.fixed, is_bare))


def complete_arguments(function: Function, described: Any) -> tuple[Sequence[Any], Any]:
    """Return the leaves of the arguments, with meta tensors and defaults, and their tree."""
    args, kwargs = restore(described)
    flat, nesting = flatten(args, kwargs)
    if any(isinstance(value, Moving) for value in function.defaults):
        message = f"{function.recipe.subject} has numbers that move for defaults, no constants"
        raise NotCaptured(TraceError(message))
    leaves, tree = function.completion.complete(flat, nesting)
    if sum(map(is_tensor, leaves)) > sum(map(is_tensor, flat)):
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
    # Modes do not count: Dynamo guards on them.
    if any(isinstance(fact, Telling) and not isinstance(fact, ModeOf) for fact in variant.facts):
        message = f"{recipe.subject} reads a tensor from outside at each call"
        raise NotCaptured(TraceError(message))


def ignores_autocast(function: Function, variant: Variant) -> bool:
    """Return whether autocast is on and the Function would not compute the same under it."""
    if not torch._C._is_any_autocast_enabled():
        return False
    form = form_under_autocast(function.recipe, variant, load_backend("torch"), function.native)
    return form != SAME


def reads_more(function: Function) -> bool:
    """Return whether a Function's Python code reads more than its arguments, as captured so far."""
    return any(is_read(fact) and not isinstance(fact, ModeOf) for fact in function.captures.facts)


def call_of_guest(guest: Any) -> CompiledCall:
    """Return calls of another framework's function, whose graph holds only its number."""
    number = number_guest(guest)

    def call(*tensors: Tensor) -> Any:
        return torch.ops.multigrad.run_guest.default(number, list(tensors))

    def call_in_graph(*tensors: Tensor) -> Any:
        return TransformedGuest.apply(number, *tensors)

    return CompiledCall(call, call_in_graph, assemble=emit_assembly(guest.nesting, {}, False))


# --- the nesting of outputs ----------------------------------------------------------------------


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
