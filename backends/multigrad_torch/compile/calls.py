"""A call in compiled code: the class that a Function is lowered to, with its numbers as literals.

Dynamo would make inputs of Python floats, so a call is emitted for each set of numbers, and only
tensors are its inputs. For `xg.function(...)` of a tensor, a number and a random draw that is

    def call(x0):
        y0 = Native.apply(x0.clone(), 0.5, draw_key())
        return y0.clone()

`activation_calls.py` and `function_calls.py` make calls, both with what is here: the record of a
call, what tells `prepare` (compile.py) that it has to ask for more, the captured variant, the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import torch

from multigrad.backend.discovery import load_backend
from multigrad.functions.calls.arguments import Layout, flatten
from multigrad.functions.calls.facts import gather_facts
from multigrad.functions.calls.recipe import Variant
from multigrad.functions.function import Function
from multigrad.functions.saving import as_operator
from multigrad.graph.support.class_bases import dataclass
from multigrad.lowering.lower import lower_graphs
from multigrad.lowering.source import compile_source
from multigrad.trace.trace import NeedsConcrete

from ..export import register
from .argument_descriptions import has_lengths
from .keys import KeyArgument, new_numbers

Tensor: TypeAlias = Any
# What `prepare` answers if it needs more: the lengths of tensors; what is in force; its numbers.
LENGTHS, READS, NUMBERS = "lengths?", "reads?", "numbers?"


class MoreNeeded(Exception):
    """Raised where a call depends on more than is described; the text is one of the above."""


class ParamTensors(Enum):
    """Which tensors an activation's call takes after its input, for params of a rule."""

    NONE = ""
    IN_FORCE = "framed"  # those of the rule in force: `MIRROR.param_tensors`
    OWN = "own"  # those of the activation's own rule: `CompiledCall.own_tensors`


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """A call in compiled code.

    Attributes:
        plain: returns the outputs, as the class returns them.
        in_graph: the same, under torch.func transforms.
        is_operator: whether it is an operator of torch with its own gradient, for an export.
        counts_applications: whether it folds its number among the applications of one `xg.jit` call
            into a key that is an input.
        param_tensors: which tensors an activation takes besides its input.
        own_tensors: those of `ParamTensors.OWN`.
        assemble: restores the nesting of a Function's outputs.
    """

    plain: Callable[..., Any]
    in_graph: Callable[..., Any]
    is_operator: bool = False
    counts_applications: bool = False
    param_tensors: ParamTensors = ParamTensors.NONE
    own_tensors: tuple[Tensor, ...] = ()
    assemble: Callable[..., Any] | None = None


# --- the captured variant ------------------------------------------------------------------------


def find_variant(
    function: Function, leaves: Sequence[Any], described: Any, tree: Any = None
) -> Variant:
    """Return the captured variant of a Function for arguments.

    Raises:
        MoreNeeded: its Python code reads the lengths of tensors, which are not known.
        NotCaptured: it runs as written.
    """
    recipe, layout = function.recipe, find_layout(function, leaves, tree)
    while True:
        needed = function.captures.facts
        if any(fact.startswith("shape") for fact in needed) and not has_lengths(described):
            raise MoreNeeded(LENGTHS)
        facts = gather_facts(recipe.subject, needed, layout, leaves)
        try:
            return function.captures.for_facts(layout, facts, leaves)
        # The capture has noted a new fact that it needs; gather it and try again.
        except NeedsConcrete:
            continue


def find_layout(function: Function, leaves: Sequence[Any], tree: Any) -> Layout:
    tree = tree or flatten(tuple(leaves), {})[1]
    return function.recipe.lay_out(function.parameters, leaves, tree)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


# --- its code ------------------------------------------------------------------------------------


def write_number(number: Any) -> str:
    """Return the source of a number; inf and nan have no literal in Python."""
    number = float(number)
    return repr(number) if math.isfinite(number) else f"float({str(number)!r})"


def emit_call(
    variant: Variant,
    number_sources: Sequence[str],
    key: KeyArgument | None,
    parameters: Sequence[str],
    *,
    is_uncast: bool = False,
) -> CompiledCall:
    """Return calls of the lowered class.

    The class gets and returns copies of the tensors that it keeps: a compiler does not notice
    (torch 2.13) that a caller writes into a tensor that an `autograd.Function` has kept, so
    backward would read the new values. Inductor leaves the copies out if nobody writes.

    Args:
        number_sources: the source of each number among the arguments.
        key: that of random code, which is the last argument.
        parameters: those of the calls, tensors first.
        is_uncast: whether the call ignores the autocast around it.
    """
    attached = lower_graphs(variant.graphs, load_backend("torch"), style="compiled")
    native, emitted = attached.native, attached.emitted
    assert emitted is not None
    residuals = {*emitted.residuals.names, *emitted.residuals.histories}.difference(
        emitted.residuals.likes
    )

    def copied(name: str, source: str) -> str:
        return f"{source}.clone()" if name in residuals and not variant.updates else source

    arguments = [copied(*pair) for pair in zip(variant.graphs.inputs, parameters, strict=False)]
    arguments += number_sources
    if key is not None:
        arguments.append(key.source)
    outputs = emitted.names.outputs
    results = [f"y{i}" for i in range(len(outputs))]
    if is_uncast:
        # Backward, too, is compiled under the autocast around forward.
        for each in {native, native.eager}:
            each.backward = staticmethod(without_autocast(each.backward))
    source = f"""def call({", ".join(parameters)}):
    {", ".join(results)} = {"apply" if is_uncast else "Native.apply"}({", ".join(arguments)})
    return {", ".join(map(copied, outputs, results))}
"""
    names = {} if key is None else key.names
    # `native.eager` is the class for calls outside transforms.
    plain, in_graph = (
        compile_call(
            source,
            native.__name__,
            {"Native": each, "apply": without_autocast(each.apply), **names},
        )
        for each in (native.eager, native)
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
