"""Hooks on parameters that attach by themselves, at each forward inside of a `use` that names the
scope "params": torch then calls `attach_at_forward` before every module.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from multigrad.graph.support.threads import make_lock
from multigrad.rules.context import CURRENT

from .. import dynamo, versions
from .module_forwards import forwards_of
from .param_hooks import hook_tree

_lock = make_lock()
COMPILED_MODULE = r"Using `torch.compile\(module\)` when there are global hooks on modules"


class _Active:
    """How many `use` that name the scope "params" are entered now, on all threads."""

    number = 0
    hooks = ExitStack()  # and what runs eagerly where compiled code would call none


class _Outermost(threading.local):
    """The outermost module that is called now on this thread, and all below it."""

    module: Any = None
    below: Any = frozenset()


_OUTERMOST = _Outermost()


@contextmanager
def hook_params() -> Iterator[None]:
    """Let hooks attach by themselves; the frame says on which thread, and in which task."""
    with _lock:
        if _Active.number == 0:
            expect_compiled_modules()
            with ExitStack() as stack:
                if not versions.CALLS_HOOKS:
                    stack.enter_context(dynamo.force_eager())
                before = register_module_forward_pre_hook(attach_at_forward)
                stack.callback(before.remove)
                after = register_module_forward_hook(attach_after_forward, always_call=True)
                stack.callback(after.remove)
                _Active.hooks = stack.pop_all()
        _Active.number += 1
    try:
        yield
    finally:
        with _lock:
            _Active.number -= 1
            if _Active.number == 0:
                _Active.hooks.close()


def expect_compiled_modules() -> None:
    """Silence torch's warning that our hook is called for a compiled module too: it should be."""
    # Each change of the filters lets Python repeat warnings that it has shown, so there is at most
    # one.
    known = (getattr(message, "pattern", None) for _, message, *_ in warnings.filters)
    if COMPILED_MODULE not in known:
        warnings.filterwarnings("ignore", COMPILED_MODULE, UserWarning)


@dynamo.disable
def attach_at_forward(module: nn.Module, inputs: Any) -> None:
    """Hook all parameters below the outermost module before its forward, if the frame says so."""
    if not CURRENT.get().hooks_params or module in _OUTERMOST.below:
        return
    hook_tree(module, None, [])
    forwards = forwards_of(module)
    forwards.mark(module)
    forwards.note()  # too late for the module to call its new hook in this forward
    _OUTERMOST.module = weakref.ref(module)
    _OUTERMOST.below = weakref.WeakSet(module.modules())


@dynamo.disable
def attach_after_forward(module: nn.Module, inputs: Any, outputs: Any) -> None:
    """Hook what the forward of the outermost module has made; it gave None where it has failed."""
    if _OUTERMOST.module is None or _OUTERMOST.module() is not module:
        return
    _OUTERMOST.module, _OUTERMOST.below = None, frozenset()
    if outputs is not None and CURRENT.get().hooks_params:
        hook_tree(module, None, [])
