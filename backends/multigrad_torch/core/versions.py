"""Differences between releases of torch, in one form; docs/versions.md lists the releases."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from traceback import walk_stack
from typing import Any

import torch
import torch.utils.checkpoint

from multigrad.errors import MultigradError

RELEASE = tuple(map(int, re.findall(r"[0-9]+", torch.__version__)[:2]))
# Whether Dynamo may read our code; before, compiled code calls it between its graphs.
COMPILES = RELEASE >= (2, 12)
# The module of DTensors, which is private before torch 2.5.
DTENSORS = "torch.distributed.tensor" if RELEASE >= (2, 5) else "torch.distributed._tensor"
# Whether an exporter traces. In releases without this name Dynamo reads none of our code, so there
# `is_compiling` is true only of exporters.
is_exporting: Callable[[], bool] = getattr(
    torch.compiler, "is_exporting", torch.compiler.is_compiling
)


class _Held(threading.local):
    """The hooks that are entered on this thread, which this torch cannot list."""

    def __init__(self) -> None:
        self.hooks: list[tuple[Any, Any]] = []


def _watch_hooks() -> Callable[[bool], Any]:
    # torch up to 2.6 cannot tell its innermost hooks, so entering them is watched.
    autograd, record = torch._C._autograd, _Held()
    # Hooks that were entered before this patch are unknown, so a checkpoint may not be running now.
    if any(f.f_globals is vars(torch.utils.checkpoint) for f, _ in walk_stack(sys._getframe())):
        raise MultigradError(
            f"with torch {torch.__version__} multigrad cannot be loaded inside "
            "torch.utils.checkpoint: call xg.backends() before the model runs"
        )
    push_own = autograd._push_saved_tensors_default_hooks
    pop_own = autograd._pop_saved_tensors_default_hooks

    def push(pack: Any, unpack: Any) -> None:
        push_own(pack, unpack)
        record.hooks.append((pack, unpack))

    def pop() -> None:
        pop_own()
        if record.hooks:  # hooks that were entered earlier are not on the list
            record.hooks.pop()

    def top(ignores_tracing: bool) -> Any:
        return record.hooks[-1] if record.hooks else None

    # torch looks these up in its module at each call, so replacing them there is enough.
    autograd._push_saved_tensors_default_hooks = push
    autograd._pop_saved_tensors_default_hooks = pop
    return top


# Whether the backward that runs may run again (torch 2.5); without it each may.
keeps_graph: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)
# In torch 2.6 there is no such name yet.
top_hooks: Callable[[bool], Any] = (
    torch._C._autograd._top_saved_tensors_default_hooks
    if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    else _watch_hooks()
)
