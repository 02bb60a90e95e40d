"""Events of which all compilers are told, and hooks on parameters while rules act on them.

`Compiler` says what each event means. The lists `IS_TRACING` and `ON_*` serve the events of each
call; the rare ones go over `loaded()`, or over `in_use()`, which first loads the backends of
frameworks that were imported meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from .contract import Backend
from .discovery import AWAITED, in_use, load_imported, loaded, tell_loaded

Leave = Callable[[], None]
# Callbacks of the loaded compilers. They are called at every `use` and every change of a number, so
# they are kept as flat lists. Only loading a backend changes them: Dynamo, which traces this code,
# guards on them.
IS_TRACING: list[Callable[[], bool]] = []
ON_ENTER: list[Callable[[str], Leave]] = []
ON_DEPEND: list[Callable[[Any], None]] = []
ON_MOVE: list[Callable[[Any], None]] = []


@tell_loaded
def listen(backends: Sequence[Backend]) -> None:
    """Let the compilers of the loaded backends hear of all events, and no others."""
    compilers = [backend.compiler for backend in backends]
    IS_TRACING[:] = [each.is_tracing for each in compilers if each.is_tracing is not None]
    ON_ENTER[:] = [each.on_enter for each in compilers if each.on_enter is not None]
    ON_DEPEND[:] = [each.on_depend for each in compilers if each.on_depend is not None]
    ON_MOVE[:] = [each.on_move for each in compilers if each.on_move is not None]


def enter_rules(token: str) -> list[Leave]:
    """Tell all compilers in use the active rules' token; return what to call when these end."""
    leaves: list[Leave] = []
    try:
        # A framework that was imported meanwhile has a compiler to be told, too.
        if not sys.modules.keys().isdisjoint(AWAITED[0]):
            load_imported()
        for on_enter in ON_ENTER:
            leaves.append(on_enter(token))  # one by one: those that were told, if one raises
    except BaseException:
        leave_rules(leaves)
        raise
    return leaves


def leave_rules(leaves: list[Leave]) -> None:
    """Tell all compilers that rules have ended, the last that was told first."""
    try:
        while leaves:
            leaves.pop()()
    except BaseException:
        leave_rules(leaves)  # one that fails is in the way of no other
        raise


def show_tensors(active: Any) -> None:
    """Show active rules, one of which has tensors for params, to all compilers in use."""
    for backend in in_use():
        if backend.compiler.on_tensors is not None:
            backend.compiler.on_tensors(active)


def hook_params() -> Leave:
    """Make rules act on parameters' gradients, if frameworks can, until the result is called."""
    with ExitStack() as stack:
        for backend in in_use():
            if backend.imports.hook_params is not None:
                stack.enter_context(backend.imports.hook_params())
        return stack.pop_all().close


def tell_read() -> None:
    """Tell all loaded compilers that code reads the active rules."""
    for backend in loaded():
        if backend.compiler.on_read is not None:
            backend.compiler.on_read(None, None)


def tell_depend(held: Any) -> None:
    """Tell all loaded compilers that code depends on what a layer holds, or on a name."""
    for on_depend in ON_DEPEND:
        on_depend(held)


def tell_registered(epoch: int) -> None:
    """Tell all loaded compilers that the registry of rules has changed, and its new epoch."""
    for backend in loaded():
        if backend.compiler.on_register is not None:
            backend.compiler.on_register(epoch)


def is_tracing() -> bool:
    """Return whether a loaded compiler traces what runs now, to run its trace again later."""
    for is_tracing_here in IS_TRACING:  # noqa: SIM110  (a loop, which Dynamo reads)
        if is_tracing_here():
            return True
    return False
