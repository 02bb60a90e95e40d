"""State on which Dynamo guards: the active rules and the registry's epoch as text.

Dynamo guards the strings that it reads from plain objects, so the active rules' token is mirrored
to a thread-local string and the epoch to a global one. Another rule means another graph, and coming
back is a cache hit. Tensors among the params of the rule in force are mirrored themselves; under
`xg.jit`, so are its numbers and its key.

`on_enter`, `on_tensors`, `on_register` and `on_move` are the backend's hooks, which
`multigrad/core/backend/compiler_events.py` calls. Tests: `tests/compiled/test_compiled_torch.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.compiler import is_compiling

from multigrad.core.backend.contract import Reader
from multigrad.core.rules.activation import Activation
from multigrad.core.rules.context import CURRENT, ActiveRules, RuleInForce, use
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, of_engine, provided
from multigrad.core.support.threads import make_lock
from multigrad.core.trace.active_rules import Moving, settle
from multigrad.errors import StaleTraceError, UnsupportedOp

from ..dynamo import Namespace, keep_out
from ..state import is_forward_mode_enabled, may_run_again
from ..versions import top_hooks

Tensor: TypeAlias = torch.Tensor
keep_out(use.__init__, "put `with xg.use(...)` around the compiled function, not inside it")


class Mirror(threading.local):
    """The state that traced code reads on this thread; set in `__init__`, for Dynamo's guards.

    `on_enter` and `leave` write the token and `on_tensors` the tensors, at each change of rules;
    `xg.jit` writes the token and itself for one call, and restores them.

    Attributes:
        token: names the active rules; under xg.jit it is that of the call, until a `use` inside.
        param_tensors: the tensors and cells among the params of the rule in force.
        jit: the call of xg.jit that runs, a `JitCall` (compile/jit.py); else None.
    """

    def __init__(self) -> None:
        self.token = ""
        self.param_tensors: tuple[Tensor | Cell, ...] = ()
        self.jit: Any = None


MIRROR = Mirror()
_cell_lock = make_lock()


def is_under_jit(token: str) -> bool:
    """Return whether a token that traced code has read is one of `xg.jit`."""
    jit = MIRROR.jit
    return jit is not None and token in (jit.token, jit.exact_token)


def numbers_are_inputs(token: str) -> bool:
    """Return whether the rule's numbers are inputs of compiled code, as its key always is."""
    jit = MIRROR.jit
    return jit is not None and token == jit.token != jit.exact_token


def reads_numbers(in_force: RuleInForce) -> bool:
    """Return whether the rule's Python code reads its numbers, so that a graph contains them."""
    specialization = in_force.specialization
    if specialization.rule.native is True or specialization.code.uncapturable is not None:
        return True
    return any(fact.startswith("param:") for fact in specialization.code.facts)


# The registry's epoch as text, the same on all threads.
EPOCH: Any = Namespace()
EPOCH.text = "0"


# --- events ---------------------------------------------------------------------------------------
# `torch.utils.checkpoint` runs regions again within backward; RUNNING is the one that does so now.
RUNNING: ContextVar[Any] = ContextVar("running", default=None)
CHECKPOINTED = "a rule within torch.utils.checkpoint"
# Ties each region around this call to the active rules of its first forward, and returns them.
note_regions = of_engine(__name__, "note_regions", CHECKPOINTED)
# Returns the key of a call in a region; in a second run of it, the key of its first run.
draw_in_region = of_engine(__name__, "draw_in_region", CHECKPOINTED)


@provided
def call_noted(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    """Apply an activation in a region that may be checkpointed."""
    raise UnsupportedOp(f"{CHECKPOINTED} {NEEDS_ENGINE}")


REGIONS = Reader(may_run_again, call_noted)


def on_draw(draw: Callable[[], Any]) -> Any:
    """Return the key of a call; in a second run of a region, the key of its first run."""
    if is_compiling() or (RUNNING.get() is None and not may_run_again()):
        return draw()
    return draw_in_region(draw)


def on_enter(token: str) -> Callable[[], None]:
    """Mirror the active rules' token for Dynamo; return a function that undoes it."""
    # A checkpoint may run this again: tie its region to the rules of now. The test is
    # `may_run_again`, inlined because every `use` pays for it.
    if not is_compiling() and (top_hooks(True) is not None or not is_forward_mode_enabled()):
        note_regions()
    outer_token, MIRROR.token = MIRROR.token, token
    return partial(leave, outer_token)


def leave(before: str) -> None:
    # Outside xg.jit the saved token may be stale: asyncio tasks interleave on one thread.
    active = CURRENT.get()
    MIRROR.token = active.token if MIRROR.jit is None else before
    in_force = active.activations
    if MIRROR.param_tensors or (in_force is not None and in_force.has_tensors):
        on_tensors(active)


def on_tensors(active: ActiveRules) -> None:
    MIRROR.param_tensors = tensors_in(active.activations)


def tensors_in(in_force: RuleInForce | None) -> tuple[Tensor | Cell, ...]:
    if in_force is None or not in_force.has_tensors:
        return ()
    return tuple(cell_of(value) for value in in_force.values if may_change(value))


def may_change(value: Any) -> bool:
    """Return whether a param is an input of compiled code rather than a literal."""
    return isinstance(value, torch.Tensor | Moving)


class Passed(Moving):
    """Stands for a number that each call passes: those given to an activation, or of `xg.jit`."""

    def __init__(self, number: Any) -> None:
        self.number = settle(number)

    @property
    def value(self) -> Any:
        return self.number


def as_line(numbers: Sequence[float]) -> Tensor:
    """Return numbers as an input of compiled code."""
    # With an axis: Dynamo (torch 2.13) turns 0-d float64 inputs into scalars when it retraces.
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


class Cell:
    """The present value of a moving number, for compiled code."""

    def __init__(self, moving: Moving) -> None:
        self.fill(moving.value)

    # A new value is a new tensor: a graph may keep the old one for backward.
    def fill(self, number: float) -> None:
        self.tensor = as_line([number])


# One cell per moving number, for as long as the number lives.
CELLS: weakref.WeakKeyDictionary[Moving, Cell] = weakref.WeakKeyDictionary()


def cell_of(value: Tensor | Moving) -> Tensor | Cell:
    """Return the one cell of a moving number; a tensor unchanged."""
    if not isinstance(value, Moving):
        return value
    cell = CELLS.get(value)
    if cell is None:
        cell = CELLS.setdefault(value, Cell(value))
        # `on_move` may have run before the cell was in CELLS.
        cell.fill(value.value)
    return cell


def on_move(moving: Moving) -> None:
    cell = CELLS.get(moving)
    if cell is not None:
        # The value is read under the lock, so that the latest one is written last.
        with _cell_lock:
            cell.fill(moving.value)


def is_tracing() -> bool:
    """Return whether Dynamo traces, or a call of `xg.jit` runs, which keeps its first numbers."""
    return is_compiling() or MIRROR.jit is not None


def on_register(epoch: int) -> None:
    """Invalidate compiled code: a rule's name has a new meaning."""
    EPOCH.text = str(epoch)


def check_mirror(token: str) -> None:
    """Raise StaleTraceError unless Dynamo sees the rule in force."""
    if token != CURRENT.get().token:
        raise StaleTraceError(
            f"torch.compile would keep for {token!r} what it traces under {CURRENT.get().token!r}: "
            f"the rule was put in force before torch was imported, or in another asyncio task. "
            f"Import torch first, or compile with xg.jit"
        )
