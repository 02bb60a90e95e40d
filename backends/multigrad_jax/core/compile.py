"""Keys of jax's caches by the active rules; `jit.py` has `xg.jit`.

A user context of jax is part of every cache key, those of eager ops included. If it held the rules'
token, each new rule would retrace everything. So all rules share one value until a trace that jax
keeps reads the rule in force. From then on that value belongs to these rules alone, and the others
share a new one: a changed number costs a trace only where one read it.

    with use("a"): jit(f)(x)        f reads no rule: FRAME is "frames 0", which no rule owns
    with use("b"): jit(f)(x)        the same: f is not traced again
    with use("a"): jit(g)(x)        g reads the rule: "frames 0" is a's from now on
    with use("b"): jit(g)(x)        FRAME is "frames 1": g is traced again, and "frames 1" is b's

FRAME is per thread. A name that changes its meaning (`override=True`) changes a second context, and
a changed number that a trace has read a third, on all threads.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from multigrad.core.rules.activation import Activation
from multigrad.core.rules.context import CURRENT
from multigrad.core.support.threads import SERIALS, make_lock
from multigrad.core.trace.active_rules import Moving, NumberRead
from multigrad.core.trace.lookups import NAME, RULE_IN_FORCE, Lookup, is_collecting, look_up, note
from multigrad.errors import StaleTraceError

from .versions import kinds_of_traces, set_everywhere

Tensor: TypeAlias = jax.Array
# --- what is in the keys of jax's caches, and what they depend on ---------------------------------
# All are made here, as the backend loads: a new one is in the key of what jax has compiled, too,
# which would be compiled again.
# The rules in force; "" for none.
FRAME = jax.make_user_context("")
# Changes whenever all compiled code is to be traced again; set on all threads.
EPOCH = jax.make_user_context("0")
# The changing numbers that kept traces have read; set on all threads, as any thread may step.
MOVED = jax.make_user_context("")
# What reads a jaxpr: a trace with our equations (`importers.py`) is never reused elsewhere.
APART = jax.make_user_context("")
MOST_OWNED = 4096  # tokens with a value of their own; then the oldest is forgotten
MOST_TRACED_NUMBERS = 8  # traces for values of one number, before a warning names xg.jit
UNOWNED: list[str] = []  # values of threads that have ended, which no token owns
_moving = make_lock()  # for KEPT.moving and MOVED, which must change together


class TraceDependencies:
    """What the traces that jax keeps depend on; `on_read` and `on_depend` add to it.

    Attributes:
        owned: the value of FRAME for each token that one of them has read.
        names: the names that they looked up.
        moving: the changing numbers that they hold as constants, with the values that were traced.
    """

    def __init__(self) -> None:
        self.owned: OrderedDict[str, str] = OrderedDict()
        self.names: set[Lookup] = set()
        self.moving: weakref.WeakKeyDictionary[Moving, set[float]] = weakref.WeakKeyDictionary()


class Shared:
    """One thread's value of FRAME for all rules that no kept trace has read.

    Threads never share one. It is None once it belongs to one token; then the thread takes another
    (`value_of`).
    """

    def __init__(self) -> None:
        try:
            self.value: str | None = UNOWNED.pop()
        except IndexError:
            self.value = f"frames {next(SERIALS)}"

    def __del__(self, unowned: list[str] = UNOWNED) -> None:  # the module may be gone by then
        if self.value is not None:
            unowned.append(self.value)


class ShownToken(threading.local):
    """This thread's state; `show` and `value_of` write it.

    Attributes:
        token: the active rules', for which FRAME has its value.
        shared: the value for all tokens that own none.
    """

    def __init__(self) -> None:
        self.token = ""
        self.shared: Shared | None = None


class EnteredUse(NamedTuple):
    """A `use` block that was entered.

    Attributes:
        serial: by which `leave` finds it.
        token: that of its rules.
        value: that of FRAME within it.
    """

    serial: int
    token: str
    value: str


KEPT = TraceDependencies()
SHOWN = ShownToken()
# From the outside in.
ENTERED: contextvars.ContextVar[tuple[EnteredUse, ...]] = contextvars.ContextVar(
    "multigrad_jax_entered", default=()
)


# --- a `use` is entered and left ------------------------------------------------------------------
def on_enter(token: str) -> Callable[[], None]:
    """Set the cache key of jax for rules that come into force, and return how they are left."""
    serial, value = next(SERIALS), value_of(token)
    ENTERED.set((*ENTERED.get(), EnteredUse(serial, token, value)))
    show(token, value)
    return functools.partial(leave, serial)


def leave(serial: int) -> None:
    """Restore the key of the rules that are in force once a `use` is left."""
    token = CURRENT.get().token  # not a saved one: asyncio tasks interleave
    entries = [entry for entry in ENTERED.get() if entry.serial != serial]
    position = max((i for i, entry in enumerate(entries) if entry.token == token), default=None)
    value = "" if position is None else entries[position].value
    # a kept trace may have taken the value for other rules meanwhile
    shared = SHOWN.shared
    if position is None or value not in (KEPT.owned.get(token), shared and shared.value):
        value = value_of(token)
        if position is not None:
            entries[position] = entries[position]._replace(value=value)
    ENTERED.set(tuple(entries))
    show(token, value)


def show(token: str, value: str) -> None:
    SHOWN.token = token
    # never exited: the next `show` on this thread replaces it
    FRAME(value).__enter__()


def value_of(token: str) -> str:
    """Return the context value of a token: its own, or the one that all rules share.

    In a kept trace each `use` has a value of its own, so that it reuses nothing traced for other
    rules.
    """
    if token == "":
        return ""
    owned = KEPT.owned.get(token)
    if owned is not None:
        return owned
    if is_tracing_kept():
        return keep_for(token, f"frames {next(SERIALS)}")
    if SHOWN.shared is None or SHOWN.shared.value is None:
        SHOWN.shared = Shared()
    assert SHOWN.shared.value is not None
    return SHOWN.shared.value


def keep_for(token: str, value: str) -> str:
    KEPT.owned[token] = value
    if len(KEPT.owned) > MOST_OWNED:
        # Traces under its value are never found again, which is safe.
        KEPT.owned.popitem(last=False)
    return value


def on_register(epoch: int) -> None:
    """Invalidate compiled code on all threads if a name that a kept trace looked up changed."""
    # a copy: other threads may add names meanwhile
    stale = [lookup for lookup in tuple(KEPT.names) if lookup.superseded]
    if stale:
        KEPT.names.difference_update(stale)
        on_replace()


def on_replace() -> None:
    """Invalidate all compiled code on all threads: a value that it holds as a constant changed."""
    set_everywhere(EPOCH, str(next(SERIALS)))


def on_depend(holder: Any) -> None:
    """Note that a kept trace looked up a name, or holds the value of a changing number."""
    if isinstance(holder, Lookup):
        if is_collecting():  # a capture that reads a jaxpr
            note({NAME + holder.name: holder.number})
        if holder not in KEPT.names and is_tracing_kept():
            KEPT.names.add(holder)
    elif isinstance(holder, NumberRead) and is_tracing_kept():
        with _moving:
            numbers = KEPT.moving.setdefault(holder.moving, set())
            is_many = len(numbers) == MOST_TRACED_NUMBERS - 1 and holder.number not in numbers
            numbers.add(holder.number)
        if is_many:
            warnings.warn(
                f"jax.jit has been traced for {MOST_TRACED_NUMBERS} values of one number, that of "
                f"{holder.moving.where()}, and traces for each further one. xg.jit makes one trace "
                "for all",
                UserWarning,
                stacklevel=2,
            )


def on_move(moving: Moving) -> None:
    """Change the key of jax's caches on all threads if a kept trace holds this number."""
    if moving in KEPT.moving:
        with _moving:  # the last context set must show the last values
            values = sorted((each.serial, each.value) for each in tuple(KEPT.moving))
            set_everywhere(MOVED, repr(values))


def on_read(x: Tensor, activation: Activation | None = None, scope: str = "activations") -> None:
    """Note that a trace which jax keeps reads the rule in force.

    Raises:
        StaleTraceError: the trace would be kept under another rule's key, as `use` was entered
            before jax was imported, or in another task or thread.
    """
    if scope == "activations" and isinstance(x, jax.core.Tracer) and is_collecting():
        look_up(RULE_IN_FORCE)  # a capture that reads a jaxpr
    token, shared = CURRENT.get().token, SHOWN.shared
    is_shared = shared is not None and shared.value == FRAME.value
    if (SHOWN.token == token and not is_shared) or not is_tracing_kept():
        return
    if SHOWN.token != token:
        raise StaleTraceError(
            f"a jax trace under {token!r} would be kept for {SHOWN.token!r}: the rule was put in "
            "force before jax was imported, or by another asyncio task or thread. Import jax "
            "first, or compile with xg.jit"
        )
    assert shared is not None
    # the value belongs to one token from now on
    value, shared.value = shared.value, None
    keep_for(token, value or FRAME.value)


def is_tracing_kept() -> bool:
    """Return whether code is traced into a jaxpr now, which jax keeps; an eager `grad` is none."""
    return "DynamicJaxprTrace" in kinds_of_traces()
