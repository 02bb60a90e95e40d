"""Rules on models, alike in eager code and in code that Dynamo traces.

Traced code cannot raise errors, so what raises runs eagerly after a graph break; and it holds
constants only, so it names a rule, or a mode of rules, by a key.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

import torch

from multigrad.core.support.threads import SERIALS
from multigrad.errors import RuleValueError

from ..core import dynamo
from ..core.state import transforms_active
from ..core.versions import is_exporting

Tensor: TypeAlias = torch.Tensor
stack_length = torch._C._len_torch_function_stack
is_compiling = torch.compiler.is_compiling


@dynamo.disable
def raise_now(message: str) -> None:
    raise RuleValueError(message)


def refuse(message: str) -> None:
    """Raise an error, also from traced code."""
    if is_compiling():
        torch._dynamo.graph_break(msg=message)
    raise_now(message)


def may_have_gradient(x: Tensor) -> bool:
    """Return whether a derivative with respect to x may be taken."""
    if transforms_active() or (x.requires_grad and torch.is_grad_enabled()):
        return True
    if is_compiling():
        return is_exporting()  # an exported program may be differentiated later
    return torch.autograd.forward_ad._current_level >= 0


def refuse_symbols(operation: str, x: Any) -> None:
    """Raise an error for the symbols with which torch.fx traces."""
    if isinstance(x, torch.fx.Proxy):
        raise RuleValueError(
            f"torch.fx traces operation {operation!r}, and its graph would hold no rule: trace the "
            "model first, and attach to the GraphModule"
        )


def version_of(x: Tensor) -> int:
    """Return how often a tensor was written to; 0 in compiled code, which cannot tell."""
    return 0 if is_compiling() else x._version


# Rules and modes by their keys.
KEYED: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def key_of(acting: Any) -> str:
    """Return a new key of a rule or a mode, by which traced code finds it."""
    key = f"acting_{next(SERIALS)}"
    KEYED[key] = acting
    return key
