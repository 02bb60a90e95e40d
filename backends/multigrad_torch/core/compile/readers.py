"""What Dynamo reads in place of our functions; the first that it reads loads the others' room.

in traced code       a function here     calls `load`
outside the trace      load              imports `compile.py`, whose functions READ then has
in traced code       READ.<its name>     is that of `compile.py`
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from multigrad.core.backend.contract import Reader
from multigrad.core.rules.activation import Activation, activation, own_rule_of
from multigrad.core.rules.registry import get
from multigrad.core.support import params

from .. import dynamo, versions
from ..state import without_modes

if TYPE_CHECKING:
    from multigrad.core.functions.function import FunctionBase
    from multigrad.core.rules.context import RuleInForce
    from multigrad.engine.functions.function import Function

READ: Any = dynamo.Namespace()
MADE = "multigrad_torch.compile.made_activations"


@dynamo.assume_constant_result
def load(name: str, module: str = "multigrad_torch.core.compile.compile") -> None:
    if name not in vars(READ):
        with without_modes():  # an exporter's would record tensors that modules make
            vars(READ).update(import_module(module).READ)


def call_activation(
    activation: Activation, x: torch.Tensor, values: tuple[Any, ...] = ()
) -> torch.Tensor:
    load("call_activation")
    return READ.call_activation(activation, x, values)


def call_function(function: FunctionBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    load("call_function", "multigrad_torch.compile.function_calls")
    return READ.call_function(function, args, kwargs)


def made_activation(forward: Any, rule: Any = None, params: Any = None, **options: Any) -> Any:
    load("activation", MADE)
    return READ.activation(forward, rule, params, **options)


def find_rule(rule: Any) -> Any:
    load("find_rule", MADE)
    return READ.find_rule(rule)


def find_own(activation: Activation) -> RuleInForce | None:
    load("find_own")
    return READ.find_own(activation)


def show_concrete(value: Any) -> str:
    load("show", MADE)
    return READ.show(value)


@dynamo.at_import
def substitute() -> None:
    """Let Dynamo read our code for these functions instead of theirs, which it cannot trace."""
    if versions.COMPILES:
        torch.compiler.substitute_in_graph(activation, skip_signature_check=True)(made_activation)
        torch.compiler.substitute_in_graph(get)(find_rule)
        torch.compiler.substitute_in_graph(own_rule_of)(find_own)
        torch.compiler.substitute_in_graph(params.show)(show_concrete)


# --- between graphs -------------------------------------------------------------------------------
@dynamo.disable
def apply_activation(
    activation: Activation, x: torch.Tensor, values: tuple[torch.Tensor, ...] = ()
) -> torch.Tensor:
    return activation.call_with(x, values) if values else activation.apply(x)


@dynamo.disable
def apply_function(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_exported = versions.COMPILES and torch.compiler.is_exporting()
    # Not on detached arguments: the code may write to them.
    with torch.no_grad() if is_exported else nullcontext():
        return function.call_eagerly(args, kwargs)


def between_graphs(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `apply` for an old Dynamo, which calls it between its graphs, with a warning."""

    def call(*args: Any) -> Any:
        dynamo.warn_apart()
        return apply(*args)

    return call


def is_exporting() -> bool:
    """Return whether torch.export traces, or ONNX's older exporter, which runs the code eagerly."""
    if torch.jit.is_tracing():
        return torch.onnx.is_in_onnx_export()
    return versions.is_exporting()


if versions.COMPILES:
    ACTIVATIONS = Reader(torch.compiler.is_compiling, call_activation, reads_code=True)
    FUNCTIONS = Reader(torch.compiler.is_compiling, call_function, reads_code=True)
else:
    ACTIVATIONS = Reader(dynamo.is_around, between_graphs(apply_activation), reads_code=True)
    FUNCTIONS = Reader(dynamo.is_around, between_graphs(apply_function), reads_code=True)
