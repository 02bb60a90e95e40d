"""Calls in compiled code: the class that a Function is lowered to, with its numbers as literals.

Traced code is told a call, or another answer, by its name in CALLS, as Dynamo passes only constants
from outside the trace: `getattr(CALLS, prepare(...))`.

A number that has changed between calls is a tensor without axes, and an input after the tensors.
For `xg.function(...)` of a tensor, a number and a random draw that is

    def call(x0):
        y0 = Native.apply(x0.clone(), 0.5, draw_key())
        return y0

An activation is the Function of its rule, `call(tin, *inputs)`. What is not a literal of the
emitted code is an input, which `call_activation` (compile.py) passes:

    the params of the rule that may change   the values that the call passes (`call_with`), else
                                             what `CompiledCall.params` returns
    under xg.jit, of a random rule           the key, the start of the count of applications, and
                                             the number of this one within the call of xg.jit
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.functions.arguments import Layout, flatten
from multigrad.core.functions.facts import first_tensor, gather_facts, leaf_of_each
from multigrad.core.functions.function import FunctionBase
from multigrad.core.functions.recipe import NotCaptured, Variant
from multigrad.core.ir.op import T
from multigrad.core.lowering.lower import compile_source, lower_graphs
from multigrad.core.rules.activation import Activation, without_rule
from multigrad.core.rules.activation_function import forward_on, put_under
from multigrad.core.rules.context import RuleInForce
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.core.trace.active_rules import Moving, settle
from multigrad.errors import MultigradError, UnsupportedOp

from ..attach import host
from ..attach.render import copied_outputs
from ..dynamo import Namespace, allow_in_graph
from ..kernels import exact
from .dynamo_guards import (
    MIRROR,
    Passed,
    is_under_jit,
    may_change,
    numbers_are_inputs,
    reads_numbers,
    tensors_in,
)

Tensor: TypeAlias = torch.Tensor
KeyArgument: TypeAlias = tuple[str, dict[str, Any]]  # its source, and the objects that this names
PARAMETERS = ("tin", "*inputs")
new_numbers = itertools.count()  # of applications and of names: no two are equal


# --- answers: names in CALLS are given in `keep` alone --------------------------------------------
MOST_ANSWERS = 4096  # then all are forgotten


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """A call in compiled code.

    Attributes:
        plain: returns the outputs, as the class returns them.
        in_graph: the same, under torch.func transforms.
        is_operator: whether it is an operator of torch with its own gradient, for an export.
        counts_applications: whether it folds its number among the applications of one `xg.jit` call
            into a key that is an input.
        params: returns the params that an activation takes after its input; None: it takes those
            that the call passes, or none.
        assemble: restores the nesting of a Function's outputs.
    """

    plain: Callable[..., Any]
    in_graph: Callable[..., Any]
    is_operator: bool = False
    counts_applications: bool = False
    params: Callable[[], tuple[Any, ...]] | None = None
    assemble: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        allow_in_graph(self.in_graph)


@dataclass(frozen=True, slots=True)
class Refused:
    """No call: eager code runs after a graph break, and raises the reason again."""

    reason: str


@dataclass(frozen=True, slots=True)
class More:
    """`prepare` has to be told more, on which Dynamo then guards.

    Attributes:
        lengths: for each tensor, whether its lengths are needed, besides its rank.
        rules: the active rules with all their numbers, and the registry's epoch.
        values: the numbers among the arguments that Dynamo leaves open.
        watch: what this function returns, which reads what the code reads besides its arguments.
    """

    lengths: tuple[bool, ...] = ()
    rules: bool = False
    values: bool = False
    watch: Callable[[], tuple[Any, ...]] | None = None


# Names of answers, by everything that an answer depends on: what a key leaves out is silently
# shared.
NAMES: dict[object, str] = {}
CALLS = Namespace()


class Answered(Exception):
    """Raised where the answer is known before a call is made."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.answer = answer


def keep(answer: object, key: object = None) -> str:
    """Return the name in CALLS of an answer, by its key or by what it says."""
    if len(NAMES) >= MOST_ANSWERS:
        # Both together: a name without its answer would be an AttributeError in traced code.
        NAMES.clear()
        vars(CALLS).clear()
    name = NAMES.setdefault(key or answer, f"{type(answer).__name__}_{next(new_numbers)}")
    setattr(CALLS, name, answer)
    return name


# --- arguments -----------------------------------------------------------------------------------
def make_concrete(n: Any) -> Any:
    """Return a number itself: Dynamo makes a symbol of one that has changed between calls."""
    return torch.fx.experimental.symbolic_shapes.guard_scalar(n)


def stand_in(dtype: torch.dtype, shape: Any, requires_grad: bool, device_type: str) -> Tensor:
    """Return a tensor without values for one of which `facts_of` told these."""
    lengths = (1,) * shape if isinstance(shape, int) else shape
    tensor = torch.empty(lengths, dtype=dtype, device="meta", requires_grad=requires_grad)
    setattr(tensor, host.STANDS_ON, device_type)
    return tensor


class OpenNumber:
    """Stands for a number that is not known: an input of the graph."""


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def is_open(value: Any) -> bool:
    return isinstance(value, OpenNumber)


# --- the captured variant ------------------------------------------------------------------------
def find_variant(
    function: FunctionBase, leaves: Sequence[Any], shapes: Sequence[Any], tree: Any = None
) -> Variant:
    """Return the captured variant; raise Answered, or NotCaptured if it runs as written.

    Args:
        shapes: of each tensor that was described, its rank, or its lengths.
    """
    subject, layout = function.recipe.subject, find_layout(function, leaves, tree)
    tensors = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]

    def tell(needed: frozenset[str]) -> dict[str, Any]:
        places = [*leaf_of_each(needed, layout, first_tensor(layout))]
        sized = {i for _, kind, i in places if kind == "shape"}
        if any(kind == "param" and i is not None and is_open(leaves[i]) for _, kind, i in places):
            raise Answered(More(values=True))
        require_lengths(subject, shapes, [n for n, i in enumerate(tensors) if i in sized])
        return gather_facts(subject, needed, layout, leaves)

    return function.captures.for_answers(layout, tell, leaves)[0]


def require_lengths(subject: str, shapes: Sequence[Any], positions: Iterable[int]) -> None:
    """Raise Answered unless the lengths of these tensors, of those described, are known."""
    asked = {*positions}
    if any(n in asked and isinstance(shape, int) for n, shape in enumerate(shapes)):
        note_lengths(subject)
        raise Answered(More(lengths=tuple(n in asked for n in range(len(shapes)))))


@provided
def note_lengths(subject: str) -> None:
    """Note whose lengths are fixed, for an export that asks for operators."""


def find_layout(function: FunctionBase, leaves: Sequence[Any], tree: Any) -> Layout:
    tree = tree or flatten(tuple(leaves), {})[1]
    leaves = [1.0 if is_open(leaf) else leaf for leaf in leaves]
    return function.recipe.lay_out(function.parameters, leaves, tree)


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


# --- calls of activations -------------------------------------------------------------------------
def call_of_activation(
    activation: Activation,
    in_force: RuleInForce | None,
    facts: tuple[Any, ...],
    count: int,
    token: str,
) -> CompiledCall:
    """Return `call(tin, *inputs)` for an activation under the rule in force; raise Answered to be
    told more.

    Args:
        facts: of the input.
        count: how many values the call passes.
    """
    x, shape = stand_in(*facts), facts[1]
    forward = activation.forward
    if in_force is None and forward.differentiable:
        return call_plain(without_rule(forward, load_backend("torch"), x))
    if in_force is not None and count:
        activation.check_values(in_force)
        in_force = with_passed_numbers(in_force)
    if torch.compiler.is_exporting():
        operator = operator_of_activation(activation, in_force, x, shape)
        if operator is not None:
            return operator
    if in_force is None:
        return emit_call(
            find_variant(put_under(None, forward), (x,), [shape]), [], None, PARAMETERS
        )
    if torch.compiler.is_exporting():
        # A program has only ATen ops. No gradient is better than silently the forward's own.
        return call_plain(forward_on(load_backend("torch"), forward), passes_gradient=False)
    return call_under_rule(activation, in_force, x, shape, token)


def with_passed_numbers(in_force: RuleInForce) -> RuleInForce:
    """Return a rule in force whose numbers are inputs of the call."""
    return in_force.with_values(tuple(map(Passed, in_force.values)), in_force.own_token)


def numbers_of_jit() -> tuple[Any, ...]:
    return MIRROR.jit.numbers.unbind()


def tensors_of_rule() -> tuple[Any, ...]:
    return MIRROR.param_tensors


def call_under_rule(
    activation: Activation, in_force: RuleInForce, x: Tensor, shape: Any, token: str
) -> CompiledCall:
    """Return calls of the Function of a rule, captured for inputs like x or as it is written."""
    values, specialization = in_force.values, in_force.specialization
    function = put_under(specialization, activation.forward)
    function.recipe.arguments.check(load_backend("torch"), (None, *map(settle, values)))
    variant = None  # it runs as written
    if function.native is not True:
        # A meta tensor for a moving number, whose value may not be looked at.
        numbers = [torch.empty((), device="meta") if isinstance(v, Moving) else v for v in values]
        try:
            variant = find_variant(function, (x, *numbers), [shape])
        except NotCaptured as error:
            function.recipe.give_up(error.error)
    params: Callable[[], tuple[Any, ...]] | None = tensors_of_rule
    # An activation's own rule is not the one whose numbers xg.jit passes.
    if activation.rule is not None:
        own_tensors = tensors_in(in_force)
        params = None if any(map(is_passed, values)) else lambda: own_tensors
    elif numbers_are_inputs(token):
        if reads_numbers(in_force):
            raise Answered(More(rules=True))
        in_force, params = with_passed_numbers(in_force), numbers_of_jit
    if variant is not None:
        call = call_as_captured(variant, in_force, token)
    elif any(isinstance(value, Moving) and not is_passed(value) for value in values):
        raise MultigradError(
            f"{specialization.subject} runs as written, on numbers, under one that moves"
        )
    else:
        call = call_as_written(function, in_force)
    return replace(call, params=params) if in_force.has_tensors else call


def is_passed(value: Any) -> bool:
    return isinstance(value, Passed)


def call_as_captured(variant: Variant, in_force: RuleInForce, token: str) -> CompiledCall:
    key, counts_applications = None, False
    if variant.graphs.is_random:
        key, counts_applications = key_of_application(in_force, is_under_jit(token))
    inputs = (f"inputs[{i}]" for i in itertools.count())
    sources = [next(inputs) if may_change(v) else write_number(v) for v in in_force.values]
    call = emit_call(variant, sources, key, PARAMETERS)
    return replace(call, counts_applications=counts_applications)


@provided
def key_of_application(in_force: RuleInForce, is_under_jit: bool) -> tuple[KeyArgument, bool]:
    """Return the key of an activation's call, and whether it folds the call's number into one."""
    raise UnsupportedOp(f"{in_force.specialization.subject} in compiled code {NEEDS_ENGINE}")


@provided
def call_as_written(function: FunctionBase, in_force: RuleInForce) -> CompiledCall:
    """Return calls of a rule's Function that is not captured."""
    raise UnsupportedOp(f"{function.recipe.title} as it is written {NEEDS_ENGINE}")


@provided
def operator_of_activation(
    activation: Activation, in_force: RuleInForce | None, x: Tensor, shape: Any
) -> CompiledCall | None:
    """Return an activation's operator in an exported program; None if none is asked for."""
    return None


def call_plain(function: Callable[[Tensor], Tensor], passes_gradient: bool = True) -> CompiledCall:
    """Return calls of a function of the input alone."""

    def call(tin: Tensor, *inputs: Tensor) -> Tensor:
        return function(tin if passes_gradient else tin.detach())

    def call_in_graph(tin: Tensor, *inputs: Tensor) -> Tensor:
        return call(tin)

    return CompiledCall(call, call_in_graph)
