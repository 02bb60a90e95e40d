"""jax.jit: the mirror of the active rules as a user context, which keys jax's caches, and `xg.jit`.

The context is part of every key, those of eager ops included, so the rules' token is not shown as
it is: all rules share one value until a trace that jax keeps reads the rule in force. That value is
then these rules' own for ever, and the others share a new one. So a changed number costs a trace
where it was read by one, and nothing elsewhere. The context is per thread; a name that changes its
meaning (`override=True`) is mirrored to a second, global one.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import jax

from multigrad.backend import compilers
from multigrad.backend.finding.discovery import load_backend
from multigrad.errors import StaleTraceError
from multigrad.graph.support.threads import make_lock
from multigrad.rules.context import CURRENT, ActiveRules
from multigrad.rules.in_force.activation import Activation
from multigrad.trace.scope.lookups import NAME, RULE_IN_FORCE, Lookup, is_collecting, look_up, note
from multigrad.trace.scope.schedule_values import Moving, NumberRead

from ..kernels import random
from ..versions import set_everywhere, take_current_trace

Tensor: TypeAlias = Any
FRAME = jax.make_user_context("")
EPOCH = jax.make_user_context("0")
# The numbers that move as kept traces have read them; global as the epoch, as any thread may step.
MOVED = jax.make_user_context("")
MOST_OWNED = 4096
OWNED: OrderedDict[str, str] = OrderedDict()  # what is shown for a token that a kept trace has read
FREE: list[str] = []  # what threads that have ended showed, and nobody owns
READ: set[Lookup] = set()  # names that kept traces looked up
# The numbers that move which they hold, with the values that were traced.
MOVING: weakref.WeakKeyDictionary[Moving, set[float]] = weakref.WeakKeyDictionary()
MANY = 8  # traces for as many values of one number: there is a better way, which is said once
_moving = make_lock()
_serials = itertools.count(1)
_epochs = itertools.count(1)


class Shared:
    """What one thread shows for all rules that no kept trace has read: the value is that of no
    other thread.
    """

    def __init__(self) -> None:
        try:
            self.value: str | None = FREE.pop()
        except IndexError:
            self.value = f"frames {next(_serials)}"

    def own(self) -> str | None:
        """Give the value away."""
        value, self.value = self.value, None
        return value

    def __del__(self, free: list[str] = FREE) -> None:  # the module may be gone by then
        if self.value is not None:
            free.append(self.value)


class Shown(threading.local):
    """What this thread shows to jax: the active rules' token, and the value that stands for it."""

    def __init__(self) -> None:
        self.token = ""
        self.shared: Shared | None = None


SHOWN = Shown()
Entry = tuple[int, str, str]  # of one `use`: a number, its token, and what is shown for it
ENTERED: contextvars.ContextVar[tuple[Entry, ...]] = contextvars.ContextVar(
    "multigrad_jax_entered", default=()
)


def on_enter(token: str) -> Callable[[], None]:
    """Key jax's caches by active rules, as far as anything kept in them depends on it."""
    own, value = next(_serials), value_of(token)
    ENTERED.set((*ENTERED.get(), (own, token, value)))
    show(token, value)
    return functools.partial(leave, own)


def leave(own: int) -> None:
    """Show the active rules that are in force once a `use` is left, with what was shown for them,
    if that still stands for it.
    """
    token = CURRENT.get().token  # not a saved one: asyncio tasks interleave
    entries = [entry for entry in ENTERED.get() if entry[0] != own]
    position = max((i for i, entry in enumerate(entries) if entry[1] == token), default=None)
    value = "" if position is None else entries[position][2]
    if position is None or value not in (OWNED.get(token), SHOWN.shared and SHOWN.shared.value):
        value = value_of(token)
        if position is not None:
            entries[position] = (*entries[position][:2], value)
    ENTERED.set(tuple(entries))
    show(token, value)


def show(token: str, value: str) -> None:
    SHOWN.token = token
    FRAME(value).__enter__()


def value_of(token: str) -> str:
    """Return the value to show for a token: its own, or the one that all rules share.

    In a trace that is kept, each `use` has its own value, so that it takes nothing from the rules
    around the trace.
    """
    if token == "":
        return ""
    owned = OWNED.get(token)
    if owned is not None:
        return owned
    if is_kept():
        return keep_for(token, f"frames {next(_serials)}")
    if SHOWN.shared is None or SHOWN.shared.value is None:
        SHOWN.shared = Shared()
    assert SHOWN.shared.value is not None
    return SHOWN.shared.value


def keep_for(token: str, value: str) -> str:
    """Let a value stand for one token only, from now on."""
    OWNED[token] = value
    if len(OWNED) > MOST_OWNED:
        OWNED.popitem(last=False)  # what is kept under its value is never found again
    return value


def on_register(epoch: int) -> None:
    """Invalidate compiled code on all threads where a name changed its meaning that a kept trace
    looked up.
    """
    stale = [lookup for lookup in tuple(READ) if lookup.superseded]
    if stale:
        READ.difference_update(stale)
        on_replace()


def on_replace() -> None:
    """Invalidate compiled code on all threads: something that it holds as fixed was changed."""
    set_everywhere(EPOCH, str(next(_epochs)))


def on_depend(holder: Any) -> None:
    """Note that a kept trace looked a name up, or holds what stood for a number that moves."""
    if isinstance(holder, Lookup):
        if is_collecting():  # a capture that reads a jaxpr
            note({NAME + holder.name: holder.number})
        if holder not in READ and is_kept():
            READ.add(holder)
    elif isinstance(holder, NumberRead) and is_kept():
        with _moving:
            traced = MOVING.setdefault(holder.moving, set())
            is_many = len(traced) == MANY - 1 and holder.number not in traced
            traced.add(holder.number)
        if is_many:
            warnings.warn(
                f"jax.jit has been traced for {MANY} values of one number, that of "
                f"{holder.moving.where()}, and traces for each further one. xg.jit makes one trace "
                "for all",
                UserWarning,
                stacklevel=2,
            )


def on_move(moving: Moving) -> None:
    """Key jax's caches on all threads by a number that kept traces hold."""
    if moving in MOVING:
        with _moving:  # what is shown last must be what stands there last
            values = sorted((each.serial, each.value) for each in tuple(MOVING))
            set_everywhere(MOVED, repr(values))


def on_read(x: Tensor, activation: Activation | None = None, scope: str = "activations") -> None:
    """Note that a trace which jax keeps reads the rule in force; raise where it would be kept for
    other rules.

    Raises:
        StaleTraceError: `use` was entered before jax was imported, or in another task or thread.
    """
    if scope == "activations" and isinstance(x, jax.core.Tracer) and is_collecting():
        look_up(RULE_IN_FORCE)  # a capture that reads a jaxpr
    token, shared = CURRENT.get().token, SHOWN.shared
    is_shared = shared is not None and shared.value == FRAME.value
    if (SHOWN.token == token and not is_shared) or not is_kept():
        return
    if SHOWN.token != token:
        raise StaleTraceError(
            f"a jax trace under {token!r} would be kept for {SHOWN.token!r}: the rule was put in "
            "force before jax was imported, or by another asyncio task or thread. Import jax "
            "first, or compile with xg.jit"
        )
    assert shared is not None
    keep_for(token, shared.own() or FRAME.value)


def is_kept() -> bool:
    """Return whether code is traced into a jaxpr now, as it is not under an eager `grad`."""
    with take_current_trace() as trace:
        pass
    while trace is not None:
        if type(trace).__name__ == "DynamicJaxprTrace":
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


# --- xg.jit ---------------------------------------------------------------------------------------


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return jax.jit(fn), keyed by the rule in force, whose numbers are run-time arguments."""
    make = functools.partial(_Compiled, fn, options)
    return compilers.key_runs(fn, "jax", make, epoch, on_hold=on_replace)


def epoch() -> str:
    return EPOCH.value


class _Compiled(compilers.Run):
    """jax.jit of the function under one rule."""

    def __init__(
        self, fn: Callable[..., Any], options: dict[str, Any], rules: Any, moving: Any, word: str
    ) -> None:
        super().__init__(fn, rules, moving, word)

        def run(*args: Any, multigrad_hidden: Any, **kwargs: Any) -> Any:
            first, second, numbers = multigrad_hidden
            hidden = (compilers.Hidden(*first), compilers.Hidden(*second))
            result, applied = self.trace(hidden, numbers, args, kwargs)
            return _Counted(result, _Applied(applied))

        run.__signature__ = _add_hidden(fn)  # type: ignore[attr-defined]
        if "out_shardings" in options:
            nothing = _Applied((0, 0))
            options = {**options, "out_shardings": _Counted(options["out_shardings"], nothing)}
        self.run = jax.jit(run, **options)

    def in_force(self, active: ActiveRules) -> AbstractContextManager[None]:
        return _in_force(active)

    def call(self, rules: Any, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
        first, second = (
            (each.values, None if each.key is None else random.key_words(each.key), each.count)
            for each in compilers.hide(rules)
        )
        hidden = (first, second, tuple(self.numbers(load_backend("jax"))))
        on_read(None)  # in a trace around this one, what is hidden here may be constant
        with FRAME("xg.jit"), MOVED(self.word):
            counted = self.run(*args, multigrad_hidden=hidden, **kwargs)
        return counted.result, counted.applied


class _Applied(tuple[int, int]):
    """How many applications a run makes; equal to any other: it takes no part in cache keys."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Applied)

    def __hash__(self) -> int:
        return 0


@jax.tree_util.register_pytree_node_class
class _Counted:
    """A result, and what its trace counted: a number that belongs to the trace, not to the run."""

    def __init__(self, result: Any, applied: _Applied) -> None:
        self.result = result
        self.applied = applied

    def tree_flatten(self) -> tuple[tuple[Any], _Applied]:
        return (self.result,), self.applied

    @classmethod
    def tree_unflatten(cls, applied: _Applied, children: tuple[Any]) -> _Counted:
        return cls(children[0], applied)


def _add_hidden(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the signature by which jax finds static arguments, the hidden one at its place."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        kinds = {"args": inspect.Parameter.VAR_POSITIONAL, "kwargs": inspect.Parameter.VAR_KEYWORD}
        parameters = [inspect.Parameter(name, kind) for name, kind in kinds.items()]
    end = len(parameters) - any(p.kind is p.VAR_KEYWORD for p in parameters)
    hidden = inspect.Parameter("multigrad_hidden", inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature([*parameters[:end], hidden, *parameters[end:]])


@contextmanager
def _in_force(active: ActiveRules) -> Iterator[None]:
    value, before = value_of(active.token), SHOWN.token
    entered = ENTERED.set((*ENTERED.get(), (next(_serials), active.token, value)))
    reset = CURRENT.set(active)
    SHOWN.token = active.token
    try:
        with FRAME(value):  # jax goes on with the one around it
            yield
    finally:
        SHOWN.token = before
        CURRENT.reset(reset)
        ENTERED.reset(entered)
