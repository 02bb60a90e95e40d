"""A call in compiled code: the class that a Function is lowered to, with its numbers as literals.

A number that has changed between calls is a tensor without axes, and an input after the tensors.
For `xg.function(...)` of a tensor, a number and a random draw that is

    def call(x0):
        y0 = Native.apply(x0.clone(), 0.5, draw_key())
        return y0

Here are the captured variant, the code, and calls of Functions; `activation_calls.py` has those of
activations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from multigrad.backend.discovery import load_backend
from multigrad.capture.user_code.reads import Reads
from multigrad.capture.values.oracle import ModeOf
from multigrad.errors import MultigradError, TraceError, UnsupportedOp
from multigrad.functions.calls.arguments import Layout, flatten
from multigrad.functions.calls.capture_errors import NotCaptured
from multigrad.functions.calls.decision import COMPILED, EXPORTED, SAME, decide, form_under_autocast
from multigrad.functions.calls.facts import first_tensor, gather_facts, places_of
from multigrad.functions.calls.recipe import Variant
from multigrad.functions.captures import capture
from multigrad.functions.function import Function
from multigrad.functions.saving import as_operator
from multigrad.graph.ir.types import T
from multigrad.graph.support.threads import SERIALS
from multigrad.graph.support.trees import optree
from multigrad.lowering.lower import lower_graphs
from multigrad.lowering.source import compile_source
from multigrad.trace.active_rules import Moving
from multigrad.trace.limits import AUTOCAST
from multigrad.trace.lookups import Telling, is_read
from multigrad.trace.trace import NeedsConcrete

from ..attach.guests import GUESTS, TransformedGuest
from ..attach.render import copied_outputs
from ..export import asks_for_operators, note_sized, register
from ..kernels import exact
from .answers import Answered, CompiledCall, More
from .arguments import OpenNumber, draw_key_argument, new_numbers, restore, shapes_in

Tensor: TypeAlias = torch.Tensor
# --- the captured variant ------------------------------------------------------------------------


def find_variant(
    function: Function, leaves: Sequence[Any], described: Any, tree: Any = None
) -> Variant:
    """Return the captured variant; raise Answered, or NotCaptured if it runs as written."""
    recipe, layout = function.recipe, find_layout(function, leaves, tree)
    while True:
        fact_names = function.captures.facts
        places = [*places_of(fact_names, layout, first_tensor(layout))]
        sized = {i for _, kind, i in places if kind == "shape"}
        if any(kind == "param" and i is not None and is_open(leaves[i]) for _, kind, i in places):
            raise Answered(More(values=True))
        tensors = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
        require_lengths(recipe.subject, described, [n for n, i in enumerate(tensors) if i in sized])
        facts = gather_facts(recipe.subject, fact_names, layout, leaves)
        try:
            return function.captures.for_facts(layout, facts, leaves)
        # The capture has noted a new fact that it needs; gather it and try again.
        except NeedsConcrete:
            continue


def known_variants(function: Function, described: Any) -> list[Variant]:
    """Return the captured variants, or one for tensors as described, to see what it leaves out."""
    variants, recipe = [*function.captures.variants.values()], function.recipe
    if variants or recipe.opaque is not None:
        return variants
    leaves, tree = complete_arguments(function, described)
    layout, needed = find_layout(function, leaves, tree), function.captures.facts
    while True:
        try:
            facts = gather_facts(recipe.subject, needed, layout, leaves)
            return [capture(recipe, layout, facts, leaves)]
        except NeedsConcrete as need:
            if needed.issuperset(need.facts):
                return []
            needed = needed.union(need.facts)
        except (NotCaptured, TraceError):
            return []


def require_lengths(subject: str, described: Any, positions: Iterable[int]) -> None:
    """Raise Answered unless the lengths of these tensors, of those described, are known."""
    shapes, asked = shapes_in(described), {*positions}
    if any(n in asked and isinstance(shape, int) for n, shape in enumerate(shapes)):
        note_sized(subject)
        raise Answered(More(lengths=tuple(n in asked for n in range(len(shapes)))))


def find_layout(function: Function, leaves: Sequence[Any], tree: Any) -> Layout:
    tree = tree or flatten(tuple(leaves), {})[1]
    leaves = [1.0 if is_open(leaf) else leaf for leaf in leaves]
    return function.recipe.lay_out(function.parameters, leaves, tree)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def is_open(value: Any) -> bool:
    return isinstance(value, OpenNumber)


# --- its code ------------------------------------------------------------------------------------


def write_number(number: Any) -> str:
    """Return the source of a number; inf and nan have no literal in Python."""
    number = float(number)
    return repr(number) if math.isfinite(number) else f"float({str(number)!r})"


def emit_call(
    variant: Variant,
    number_sources: Sequence[str],
    key: tuple[str, dict[str, Any]] | None,
    parameters: Sequence[str],
    *,
    is_uncast: bool = False,
    like: str = "",
) -> CompiledCall:
    """Return calls of the lowered class.

    The class gets copies of the inputs that it keeps, and keeps or returns those of outputs: a
    compiler does not notice (torch 2.13) that a caller writes into a tensor that an
    `autograd.Function` has kept, so backward would read the new values. Inductor leaves the
    copies out if nobody writes.

    Args:
        number_sources: the source of each number among the arguments.
        key: that of random code, which is the last argument: its source, and what this names.
        parameters: those of the calls, tensors first.
        is_uncast: whether the call ignores the autocast around it.
        like: the parameter whose dtype the outputs take, where a number that is a tensor without
            axes could widen them; "": none could.
    """
    backend = load_backend("torch")
    kernels = replace(backend.kernels, exact=exact.IN_COMPILED)
    exact_backend = backend.with_groups(kernels=kernels)
    lowering = lower_graphs(variant.graphs, exact_backend, style="compiled")
    native, emitted = lowering.native, lowering.emitted
    assert emitted is not None
    residuals = {*emitted.residuals.names, *emitted.residuals.histories}.difference(
        emitted.residuals.likes
    )

    def copied(name: str, source: str) -> str:
        return f"{source}.clone()" if name in residuals and not variant.updates else source

    arguments = [copied(*pair) for pair in zip(variant.graphs.inputs, parameters, strict=False)]
    arguments += number_sources
    names: dict[str, Any] = {}
    if key is not None:
        key_source, names = key
        arguments.append(key_source)
    outputs = emitted.names.outputs
    results = [f"y{i}" for i in range(len(outputs))]

    def emit(own: Collection[str]) -> str:
        pairs = zip(outputs, results, strict=True)
        returned = [y if name in own else copied(name, y) for name, y in pairs]
        if like:
            nodes = zip(returned, variant.graphs.forward.outputs, strict=True)
            returned = [f"{y}.to({like}.dtype)" if node.type.dtype == T else y for y, node in nodes]
        return f"""def call({", ".join(parameters)}):
    {", ".join(results)} = {"apply" if is_uncast else "Native.apply"}({", ".join(arguments)})
    return {", ".join(returned)}
"""

    if is_uncast:
        # Backward, too, is compiled under the autocast around forward.
        for each in {native, native.eager}:
            each.backward = staticmethod(without_autocast(each.backward))
    # `native.eager` is the class for calls outside transforms, which copies outputs itself: of one
    # that leaves the graph as a copy, torch would compute again what backward reads.
    plain, in_graph = (
        compile_call(
            emit(own),
            native.__name__,
            {"Native": each, "apply": without_autocast(each.apply), **names},
        )
        for each, own in ((native.eager, copied_outputs(emitted)), (native, ()))
    )
    return CompiledCall(plain, in_graph)


def emit_operator(
    function: Function, variant: Variant, number_sources: Sequence[str], parameters: Sequence[str]
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


def compile_call(source: str, name: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function `call` of a source, under a name of its own that begins with `name`."""
    call = compile_source(source, name, dict(names))["call"]
    # A graph's code names a callee by module and qualified name, which must be unique.
    call.__module__ = __name__
    call.__qualname__ = call.__name__ = f"{name}_{next(new_numbers)}"
    return call


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in its arguments' dtypes, whatever autocast is around it."""

    def run(*args: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args)

    return run


# --- calls of Functions ---------------------------------------------------------------------------


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
        require_lengths(recipe.subject, described, range(len(shapes_in(described))))
        return call_of_guest(opaque.guest_for(find_layout(function, leaves, tree), leaves))
    variant = find_variant(function, leaves, described, tree)
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
