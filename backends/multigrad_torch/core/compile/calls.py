"""A call in compiled code: the class that a Function is lowered to, with its numbers as literals.

A number that has changed between calls is a tensor without axes, and an input after the tensors.
For `xg.function(...)` of a tensor, a number and a random draw that is

    def call(x0):
        y0 = Native.apply(x0.clone(), 0.5, draw_key())
        return y0

Here are the captured variant and the code; `activation_calls.py` and `function_calls.py` have the
calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.functions.arguments import Layout, flatten
from multigrad.core.functions.facts import first_tensor, gather_facts, places_of
from multigrad.core.functions.function import Function
from multigrad.core.functions.recipe import Variant
from multigrad.core.ir.op import T
from multigrad.core.lowering.lower import compile_source, lower_graphs
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.core.trace.trace import NeedsConcrete
from multigrad.errors import UnsupportedOp

from ..attach.render import copied_outputs
from ..kernels import exact
from .answers import Answered, CompiledCall, More, note_sized
from .arguments import OpenNumber, new_numbers, shapes_in

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


@provided
def emit_operator(
    function: Function, variant: Variant, number_sources: Sequence[str], parameters: Sequence[str]
) -> CompiledCall:
    """Return calls of torch's operator for a variant, with its numbers as literals."""
    raise UnsupportedOp(f"{function.recipe.subject} in an exported program {NEEDS_ENGINE}")


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
