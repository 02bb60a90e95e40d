"""The groups of torch's `Backend` that the core does not need; each function's module loads as
it is called.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from multigrad.core.support.lazy_modules import late_function, late_value
from multigrad.engine.backend.features import Exports, Group, Imports, Interop, Models, Ranks

from .core.attach.host import is_traced


def read_number(x: torch.Tensor) -> Any:
    """Return the number in a 0-d tensor if no device has to be waited for, otherwise the tensor."""
    if is_traced(x) or x.device.type != "cpu" or torch._C._is_tracing():
        return x
    return x.item()


def is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def find_ranks() -> Group | None:
    """Return the ranks of the default process group; None without one, or for one rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return ranks_of(distributed)


ranks_of = late_function("multigrad_torch.distributed:ranks_of")
INTEROP = Interop(
    lend=late_function("multigrad_torch.attach.guests:lend"),
    borrow=late_function("multigrad_torch.attach.guests:borrow"),
    outside=torch.no_grad(),  # so that autograd records nothing
    bridge=late_function("multigrad_torch.attach.guests:bridge"),
)
IMPORTS = Imports(
    dialect=late_value("multigrad_torch.dialect.table:DIALECT"),
    import_function=late_function("multigrad_torch.importers.custom_gradients:import_function"),
    operators=late_function("multigrad_torch.importers.custom_gradients:operators"),
    find_operator=late_function("multigrad_torch.importers.custom_gradients:find_operator"),
    hook_params=late_function("multigrad_torch.hooks.param_hooks:hook_params"),
)
MODELS = Models(
    is_model=is_model,
    attach=late_function("multigrad_torch.models.attach:attach_rules"),
    quantize=late_function("multigrad_torch.models.quantize:quantize_module"),
    kept=late_function("multigrad_torch.models.layer_memory:kept_by_layers"),
    kept_by_call=late_function("multigrad_torch.models.layer_memory:kept_by_call"),
    override=late_function("multigrad_torch.models.override:override_calls"),
    is_operation=late_function("multigrad_torch.models.override:is_operation"),
)
EXPORTS = Exports(
    programs={".pt2": late_function("multigrad_torch.export:write_program")},
    functions={".onnx": late_function("multigrad_torch.export:write_onnx")},
    register=late_function("multigrad_torch.export:register"),
)
RANKS = Ranks(group=find_ranks)
