"""Parameters that are sharded over processes: whose gradients a hook can reach, and how.

`fully_shard` runs forward and backward on gathered parameters, and adds the reduced gradient to the
sharded one itself. FullyShardedDataParallel flattens several parameters into one, of whose gradient
each process has a slice that ends anywhere: no rule for one parameter can act there.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import torch
from torch import nn

from multigrad.errors import GradientError

from .. import versions

Tensor: TypeAlias = Any
# What torch (2.13) puts into modules in the place of the sharded parameter.
STAND_INS = ("_unsharded_param", "_sharded_post_forward_param")


def owners() -> dict[int, Tensor]:
    """Return the sharded parameters of `fully_shard`, by the identity of all that stands for them
    in modules.
    """
    if "torch.distributed.fsdp" not in sys.modules:
        return {}
    found = {}
    for group in versions.find_groups():
        for each in group.fsdp_params:
            found[id(each.sharded_param)] = each.sharded_param
            for name in STAND_INS:
                found[id(getattr(each, name, None))] = each.sharded_param
    found.pop(id(None), None)
    return found


def refuse(module: nn.Module) -> None:
    """Raise for a module whose parameters get no gradients that rules could act on."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and (isinstance(module, fsdp.FullyShardedDataParallel) or is_flat(module)):
        raise GradientError(
            "the rule of scope 'params' cannot act on the parameters of a "
            "FullyShardedDataParallel, which computes the gradient of a flat one in their place. "
            "Shard by torch.distributed.fsdp.fully_shard instead, or apply the rule before "
            "optimizer.step(): xg.apply_to_gradients(grads, rule) acts on each process's slice "
            "alone"
        )


def is_flat(module: nn.Module) -> bool:
    """Return whether a FullyShardedDataParallel around a module has flattened its parameters."""
    if not getattr(module, "_is_fsdp_managed_module", False):
        return False
    if not module._fsdp_use_orig_params:
        return True
    # The original parameters are marked; within forward, views of the flat one stand for them.
    views = (v for v in vars(module).values() if isinstance(v, torch.Tensor))
    marked = (hasattr(p, "_fsdp_flattened") for p in module._parameters.values())
    return any(marked) or any(view.grad_fn is not None for view in views)
