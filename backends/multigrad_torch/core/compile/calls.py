"""Calls in compiled code: the class that a Function is lowered to, with its numbers as literals.

Traced code is told a call, or another answer, by its name in CALLS, as Dynamo passes only constants
from outside the trace: `getattr(CALLS, prepare(...))`.

A number that has changed between calls is a tensor without axes, and an input after the tensors.
For `xg.function(...)` of a tensor, a number and a random draw that is

    def call(x0):
        y0 = Native.apply(x0.clone(), 0.5, draw_key())
        return y0

An activation is the Function of its rule, `call(tin, application, *inputs)`. What is not a literal
of the emitted code is an input:

    under xg.jit    the numbers in one tensor, the key, the start of the count of applications;
                    `application` is the number of this call within it
    then, if the call passes values (`call_with`)  these values
          else, as the `CompiledCall` says         the tensors among the rule's params, or none

`call_activation` (compile.py) passes them. Under xg.jit a rule takes its numbers from the first of
them if its token says so (`numbers_are_inputs`); otherwise they are literals.
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
from multigrad.core.functions.capture_errors import NotCaptured
from multigrad.core.functions.facts import first_tensor, gather_facts, places_of
from multigrad.core.functions.function import FunctionBase
from multigrad.core.functions.recipe import Variant
from multigrad.core.ir.op import T
from multigrad.core.lowering.lower import compile_source, lower_graphs
from multigrad.core.rules.activation import Activation, without_rule
from multigrad.core.rules.activation_function import forward_on, put_under
from multigrad.core.rules.context import RuleInForce
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.core.trace.active_rules import Moving, settle
from multigrad.core.trace.trace import NeedsConcrete
from multigrad.errors import MultigradError, UnsupportedOp

from ..attach import host
from ..attach.render import copied_outputs
from ..dynamo import Namespace, allow_in_graph
from ..kernels import exact
from .dynamo_guards import is_under_jit, may_change, numbers_are_inputs, reads_numbers, tensors_in

Tensor: TypeAlias = torch.Tensor
KeyArgument: TypeAlias = tuple[str, dict[str, Any]]  # its source, and the objects that this names
PARAMETERS = ("tin", "application", "*inputs")
# The inputs that xg.jit adds, and how many they are.
JIT_NUMBERS, JIT_KEY, JIT_START, JIT_INPUTS = "inputs[0]", "inputs[1]", "inputs[2]", 3


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
        takes_tensors: whether an activation takes the tensors among the params of the rule in force
            (`MIRROR.param_tensors`), after its input.
        own_tensors: those of its own rule, which it takes instead.
        assemble: restores the nesting of a Function's outputs.
    """

    plain: Callable[..., Any]
    in_graph: Callable[..., Any]
    is_operator: bool = False
    counts_applications: bool = False
    takes_tensors: bool = False
    own_tensors: tuple[Any, ...] = ()
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
        rules: the active rules, and the registry's epoch.
        rule_numbers: under `xg.jit`, the numbers of the rule in force.
        values: the numbers among the arguments that Dynamo leaves open.
        watch: what this function returns, which reads what the code reads besides its arguments.
    """

    lengths: tuple[bool, ...] = ()
    rules: bool = False
    rule_numbers: bool = False
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
    recipe, layout = function.recipe, find_layout(function, leaves, tree)
    while True:
        fact_names = function.captures.facts
        places = [*places_of(fact_names, layout, first_tensor(layout))]
        sized = {i for _, kind, i in places if kind == "shape"}
        if any(kind == "param" and i is not None and is_open(leaves[i]) for _, kind, i in places):
            raise Answered(More(values=True))
        tensors = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
        require_lengths(recipe.subject, shapes, [n for n, i in enumerate(tensors) if i in sized])
        facts = gather_facts(recipe.subject, fact_names, layout, leaves)
        try:
            return function.captures.for_facts(layout, facts, leaves)
        # The capture has noted a new fact that it needs; gather it and try again.
        except NeedsConcrete:
            continue


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
    """Return `call(tin, application, *inputs)` for an activation under the rule in force; raise
    Answered to be told more.

    Args:
        facts: of the input.
        count: how many values the call passes.
    """
    x, shape = stand_in(*facts), facts[1]
    forward = activation.forward
    if in_force is None and forward.differentiable:
        return call_plain(without_rule(forward, load_backend("torch"), x))
    if torch.compiler.is_exporting():
        operator = operator_of_activation(activation, in_force, x, shape, bool(count))
        if operator is not None:
            return operator
    if in_force is None:
        return emit_call(
            find_variant(put_under(None, forward), (x,), [shape]), [], None, PARAMETERS
        )
    if torch.compiler.is_exporting():
        # A program has only ATen ops. No gradient is better than silently the forward's own.
        return call_plain(forward_on(load_backend("torch"), forward), passes_gradient=False)
    params = TracedRuleParams(
        in_force.values,
        count,
        is_under_jit(token),
        # An activation's own rule is not the one whose numbers xg.jit passes.
        numbers_are_inputs(token) and activation.rule is None,
    )
    return call_under_rule(activation, in_force, x, shape, params)


@dataclass(frozen=True, slots=True)
class TracedRuleParams:
    """The params of a rule in force, and which of them are inputs of a call.

    Attributes:
        values: the params, as they are now.
        passed: how many values the call passes instead, all of them inputs; 0: none.
        is_under_jit: whether the first inputs are those of xg.jit.
        numbers_are_inputs: whether one of these holds the numbers.
    """

    values: tuple[Any, ...]
    passed: int
    is_under_jit: bool
    numbers_are_inputs: bool

    @property
    def first(self) -> int:
        return JIT_INPUTS if self.is_under_jit else 0

    def write_sources(self) -> list[str]:
        if self.passed:
            return [f"inputs[{self.first + i}]" for i in range(self.passed)]
        if self.numbers_are_inputs:
            return [f"{JIT_NUMBERS}[{i}]" for i in range(len(self.values))]
        inputs = (f"inputs[{i}]" for i in itertools.count(self.first))
        return [next(inputs) if may_change(v) else write_number(v) for v in self.values]

    def for_capture(self) -> tuple[Any, ...]:
        """Return params for the rule's Python code: meta tensors for inputs, which have no values.

        A moving number, too, is one: its value may not be looked at.
        """
        if self.passed:
            return tuple(torch.empty((), device="meta") for _ in range(self.passed))
        return tuple(
            torch.empty((), device="meta") if isinstance(value, Moving) else value
            for value in self.values
        )


def call_under_rule(
    activation: Activation,
    in_force: RuleInForce,
    x: Tensor,
    shape: Any,
    params: TracedRuleParams,
) -> CompiledCall:
    """Return calls of the Function of a rule, captured for inputs like x or as it is written."""
    function = put_under(in_force.specialization, activation.forward)
    function.recipe.arguments.check(load_backend("torch"), (None, *map(settle, params.values)))
    variant = None  # it runs as written
    if function.native is not True:
        try:
            variant = find_variant(function, (x, *params.for_capture()), [shape])
        except NotCaptured as error:
            function.recipe.give_up(error.error)
    if params.numbers_are_inputs and reads_numbers(in_force):
        raise Answered(More(rule_numbers=True))
    if variant is None and any(isinstance(value, Moving) for value in params.values):
        raise MultigradError(
            f"{in_force.specialization.subject} runs as written, on numbers, under one that moves"
        )
    if variant is None:
        call = call_as_written(function, in_force, params)
    else:
        if params.passed:
            activation.check_values(in_force)
        call = call_as_captured(variant, in_force, params)
    own_tensors = tensors_in(in_force)
    if not own_tensors or params.passed or params.numbers_are_inputs:
        return call
    if activation.rule is None:
        return replace(call, takes_tensors=True)
    return replace(call, own_tensors=own_tensors)


def call_as_captured(
    variant: Variant, in_force: RuleInForce, params: TracedRuleParams
) -> CompiledCall:
    key, counts_applications = None, False
    if variant.graphs.is_random:
        key, counts_applications = key_of_application(in_force, params.is_under_jit)
    call = emit_call(variant, params.write_sources(), key, PARAMETERS)
    return replace(call, counts_applications=counts_applications)


@provided
def key_of_application(in_force: RuleInForce, is_under_jit: bool) -> tuple[KeyArgument, bool]:
    """Return the key of an activation's call, and whether it folds the call's number into one."""
    raise UnsupportedOp(f"{in_force.specialization.subject} in compiled code {NEEDS_ENGINE}")


@provided
def call_as_written(
    function: FunctionBase, in_force: RuleInForce, params: TracedRuleParams
) -> CompiledCall:
    """Return calls of a rule's Function that is not captured."""
    raise UnsupportedOp(f"{function.recipe.title} as it is written {NEEDS_ENGINE}")


@provided
def operator_of_activation(
    activation: Activation, in_force: RuleInForce | None, x: Tensor, shape: Any, takes_values: bool
) -> CompiledCall | None:
    """Return an activation's operator in an exported program; None if none is asked for."""
    return None


def call_plain(function: Callable[[Tensor], Tensor], passes_gradient: bool = True) -> CompiledCall:
    """Return calls of a function of the input alone."""

    def call(tin: Tensor, application: int, *inputs: Tensor) -> Tensor:
        return function(tin if passes_gradient else tin.detach())

    def call_in_graph(tin: Tensor, application: int, *inputs: Tensor) -> Tensor:
        return call(tin, application)

    return CompiledCall(call, call_in_graph)
