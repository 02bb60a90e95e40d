"""What Dynamo reads in place of our functions; the first that it reads loads the others' room.

in traced code       `late_code(name, module)`   calls `load`
outside the trace      load                      imports the module, whose function READ then has
in traced code       READ.<name>                 is that function
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
    from multigrad.engine.functions.function import Function

READ: Any = dynamo.Namespace()


@dynamo.assume_constant_result
def load(name: str, module: str) -> None:
    if name not in vars(READ):
        with without_modes():  # an exporter's would record tensors that modules make
            setattr(READ, name, getattr(import_module(module), name))


def late_code(name: str, module: str) -> Callable[..., Any]:
    """Return a function of READ that loads the one of this name at its first call."""

    def read(*args: Any, **kwargs: Any) -> Any:
        load(name, module)
        return getattr(READ, name)(*args, **kwargs)

    return read


OURS, CALLS, MADE = (
    "multigrad_torch.core.compile.compile",
    "multigrad_torch.compile.function_calls",
    "multigrad_torch.compile.made_activations",
)


@dynamo.at_import
def substitute() -> None:
    """Let Dynamo read our code for these functions instead of theirs, which it cannot trace."""
    if versions.COMPILES:
        for function, code in (
            (activation, late_code("made_activation", MADE)),
            (get, late_code("find_rule", MADE)),
            (own_rule_of, late_code("find_own", OURS)),
            (params.show, late_code("show_concrete", MADE)),
        ):
            torch.compiler.substitute_in_graph(function, skip_signature_check=True)(code)


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


def is_exporting() -> bool:
    """Return whether torch.export traces, or ONNX's older exporter, which runs the code eagerly."""
    if torch.jit.is_tracing():
        return torch.onnx.is_in_onnx_export()
    return versions.is_exporting()


def call_activation(
    activation: Activation, x: torch.Tensor, values: tuple[torch.Tensor, ...] = ()
) -> torch.Tensor:
    load("call_activation", OURS)
    return READ.call_activation(activation, x, values)


if versions.COMPILES:
    is_compiling = torch.compiler.is_compiling
    ACTIVATIONS = Reader(is_compiling, call_activation, reads_code=True)
    FUNCTIONS = Reader(is_compiling, late_code("call_function", CALLS), reads_code=True)
else:
    ACTIVATIONS = Reader(dynamo.is_around, dynamo.apart(apply_activation), reads_code=True)
    FUNCTIONS = Reader(dynamo.is_around, dynamo.apart(apply_function), reads_code=True)
