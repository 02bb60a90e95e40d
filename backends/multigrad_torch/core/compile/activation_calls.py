"""Calls of activations in compiled code, `call(tin, application, *inputs)`, under a rule.

An activation is the Function of its rule. What is not a literal of the emitted code is an input:

    under xg.jit    the numbers in one tensor, the key, the start of the count of applications;
                    `application` is the number of this call within it
    then, if the call passes values (`call_with`)  these values
          else, as the `CompiledCall` says         the tensors among the rule's params, or none

`call_activation` (compile.py) passes them. Under xg.jit a rule takes its numbers from the first of
them if its token says so (`numbers_are_inputs`); otherwise they are literals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.functions.capture_errors import NotCaptured
from multigrad.core.functions.function import Function
from multigrad.core.functions.recipe import Variant
from multigrad.core.rules.activation import Activation, without_rule
from multigrad.core.rules.activation_function import forward_on, put_under
from multigrad.core.rules.context import RuleInForce
from multigrad.core.trace.active_rules import Moving, settle
from multigrad.errors import MultigradError, UnsupportedOp

from .answers import Answered, CompiledCall, More, asks_for_operators
from .arguments import draw_key_argument, fold_key_argument, restore
from .calls import emit_call, emit_operator, find_variant, is_tensor, write_number
from .dynamo_guards import is_under_jit, may_change, numbers_are_inputs, tensors_in
from .jit import reads_numbers

Tensor: TypeAlias = torch.Tensor
PARAMETERS = ("tin", "application", "*inputs")
# The inputs that xg.jit adds, and how many they are.
JIT_NUMBERS, JIT_KEY, JIT_START, JIT_INPUTS = "inputs[0]", "inputs[1]", "inputs[2]", 3


def call_of_activation(
    activation: Activation, in_force: RuleInForce | None, described: Any, token: str
) -> CompiledCall:
    """Return `call(tin, application, *inputs)` for an activation under the rule in force; raise
    Answered to be told more. `described` are the input and how many values the call passes.
    """
    x, count = restore(described)
    if in_force is None:
        return call_without_rule(activation, x, described)
    if asks_for_operators():
        return operator_of_activation(activation, in_force, x, count, described)
    if torch.compiler.is_exporting():
        # A program has only ATen ops. No gradient is better than silently the forward's own.
        forward = forward_on(load_backend("torch"), activation.forward)
        return call_plain(forward, passes_gradient=False)
    params = TracedRuleParams(
        in_force.values,
        count,
        is_under_jit(token),
        # An activation's own rule is not the one whose numbers xg.jit passes.
        numbers_are_inputs(token) and activation.rule is None,
    )
    return call_under_rule(activation, in_force, x, described, params)


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
    described: Any,
    params: TracedRuleParams,
) -> CompiledCall:
    """Return calls of the Function of a rule, captured for inputs like x or as it is written."""
    function = put_under(in_force.specialization, activation.forward)
    function.recipe.arguments.check(load_backend("torch"), (None, *map(settle, params.values)))
    variant = None  # it runs as written
    if function.native is not True:
        try:
            variant = find_variant(function, (x, *params.for_capture()), described)
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
    counts_applications = False
    key = None
    if variant.graphs.is_random:
        counts_applications = params.is_under_jit and in_force.counter is not None
        if counts_applications:
            key = fold_key_argument(JIT_KEY, JIT_START, "application")
        else:
            key = draw_key_argument(in_force.draws)
    call = emit_call(variant, params.write_sources(), key, PARAMETERS)
    return replace(call, counts_applications=counts_applications)


def call_as_written(
    function: Function, in_force: RuleInForce, params: TracedRuleParams
) -> CompiledCall:
    backend, param_values = load_backend("torch"), params.values
    count = params.passed or len(tensors_in(in_force))
    input_slice = slice(params.first, params.first + count)
    all_are_inputs = count == len(param_values)

    def call(tin: Tensor, application: int, *inputs: Tensor) -> Tensor:
        tensors = iter(inputs[input_slice])
        values = [next(tensors) if all_are_inputs or may_change(v) else v for v in param_values]
        return function.entries.on(backend, (tin, *values)).run((tin, *values), in_force.draws)

    # Dynamo (torch 2.13) reads plain functions and tensors, so `call` is a closure, no object.
    return CompiledCall(call, call)


# --- without a rule, and for exports -------------------------------------------------------------


def call_without_rule(activation: Activation, x: Tensor, described: Any) -> CompiledCall:
    """Return calls of the forward with torch's own gradient, or as a Function if it has none."""
    forward = activation.forward
    if forward.differentiable:
        return call_plain(without_rule(forward, load_backend("torch"), x))
    function = put_under(None, forward)
    variant = find_variant(function, (x,), described)
    if asks_for_operators():
        return emit_operator(function, variant, [], PARAMETERS)
    return emit_call(variant, [], None, PARAMETERS)


def call_plain(function: Callable[[Tensor], Tensor], passes_gradient: bool = True) -> CompiledCall:
    """Return calls of a function of the input alone."""

    def call(tin: Tensor, application: int, *inputs: Tensor) -> Tensor:
        return function(tin if passes_gradient else tin.detach())

    def call_in_graph(tin: Tensor, application: int, *inputs: Tensor) -> Tensor:
        return call(tin, application)

    return CompiledCall(call, call_in_graph)


def operator_of_activation(
    activation: Activation, in_force: RuleInForce, x: Tensor, passed: int, described: Any
) -> CompiledCall:
    """Return an activation's operator under the rule in force, with its numbers as literals."""
    function = put_under(in_force.specialization, activation.forward)
    values = tuple(map(settle, in_force.values))
    if passed or any(map(is_tensor, values)):
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
    return emit_operator(function, variant, list(map(write_number, values)), PARAMETERS)
