"""`use`: which rule is in force where.

One immutable frame in a ContextVar. Forward reads it and keeps what it needs, so a backward that runs later, or on
another thread, uses the rule that was in force at forward. Each loaded backend mirrors the frame's token to
where its compiler looks.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from .capture.signature import read_params
from .errors import MultigradError, RuleError, RuleTypeError, RuleValueError, suggest
from .frame import CURRENT, EMPTY, Application, Frame, key_token
from .lowering.backend import hook_params, mirror_frame, show_frame
from .random import key_from_int
from .registry import resolve
from .rule import Rule
from .threads import make_lock

__all__ = [
    "CURRENT", "EMPTY", "SCOPES", "Application", "Counter", "Frame", "apply_now", "check_scope", "current", "key_token",
    "normalize_key", "use",
]  # fmt: skip

SCOPES = ("activations", "params", "all")


class _Default(str):
    """A word that nobody gave, to be told from the same word given."""


ALL = _Default("all")
_AnyFunction = TypeVar("_AnyFunction", bound=Callable[..., Any])
_serials = itertools.count()
_counting = make_lock()


class Counter:
    """Counts the applications of a rule at forward, from 0; safe between threads.

    `serial` tells counters apart, also from those that are gone.
    """

    __slots__ = ("count", "serial")

    def __init__(self) -> None:
        self.count: Any = 0
        self.serial = next(_serials)

    def __next__(self) -> Any:
        with _counting:
            n, self.count = self.count, self.count + 1
        return n

    def advance(self, number: int) -> None:
        """Skip applications that compiled code has made."""
        with _counting:
            self.count += number


class use:
    """Put a rule in force, as a context manager or a decorator.

    Example:
        >>> with xg.use("rectangular", params={"a": -1.0, "b": 1.0}, scope="activations"):
        ...     y = act(x)

    The innermost `use` whose scope covers a place wins there; a rule given to a layer itself wins over all. Where no
    scope is given, a rule that an outer `use` put in force by naming "params" stays: a surrogate gradient put in
    force inside of a training step does not turn off the clipping around it. `scope="all"` replaces both.
    A `scope` that names "params" acts by itself in torch, Keras on torch included: each forward attaches hooks to the
    module's trainable parameters (`multigrad.hook.remove_param_hooks` takes them off). `scope="all"` alone acts on
    parameters where `multigrad.hook.attach_param_hooks` was called. In other frameworks neither can: there
    `xg.apply_to_gradients`, `multigrad.keras.apply_to_gradients` and `multigrad.optax.apply_rule` are the way.
    Around the `yield` of a generator the rule stays in force for the caller until the generator goes on.

    Args:
        rule: a name, a Rule or a function `(ctx, grad_out, tin, **params)`.
        params: values for the rule's params.
        scope: "activations", "params", "all", or a tuple of them. Default: "all", save for what an outer `use` named.
        key: makes random rules reproducible, the same in every framework: an int as for
            `jax.random.key`, a jax key, or two uint32. The n-th application, counted at forward from 0 at
            each entry, draws from `fold_in(key, n)`. One key gives every example of a `vmap` and every shard of a
            `shard_map` the same draws: fold the index in first, as in `jax.random.fold_in(key, jax.lax.axis_index("i"))`.

    Raises:
        RuleError: the rule is unknown, or a param is (also a TypeError), or the scope (also a ValueError).
    """

    def __init__(
        self,
        rule: str | Rule | Callable[..., Any],
        params: Mapping[str, Any] | None = None,
        scope: str | Iterable[str] = ALL,
        *,
        key: Any = None,
    ) -> None:
        self.rule = rule
        self.params = read_params(params)
        self.scope = check_scope(scope)
        self.key = key
        self._given_scope = scope if scope is ALL else self.scope

    def __enter__(self) -> Self:
        application = apply_now(self.rule, self.params, self.key)
        before = CURRENT.get()
        both = "all" in self.scope
        acts = application if both or "activations" in self.scope else before.activations
        names_params = "params" in self.scope
        stays = not names_params and (
            not both or (self._given_scope is ALL and before.names_params)
        )
        pars = before.params if stays else application
        hooked = names_params or before.hooks_params
        named = before.names_params if stays else names_params
        frame = Frame(acts, pars, _frame_token(acts, pars), hooked, named)
        with ExitStack() as stack:
            mirror_frame(stack, frame.token)
            if names_params:
                hook_params(stack)
            _ENTRIES.set(_Entry(self, before, stack.pop_all(), _ENTRIES.get()))
        CURRENT.set(frame)
        if acts is not None and any(type(value) is not float for value in acts.spec.values):
            show_frame(frame)
        return self

    def __exit__(self, *exc_info: object) -> Literal[False]:
        entry, inner = _ENTRIES.get(), None
        while entry is not None and entry.use is not self:
            entry, inner = entry.outer, entry
        if entry is None:
            raise MultigradError(
                f"use({self.rule!r}) is left in another task or thread than it entered"
            )
        if inner is None:
            _ENTRIES.set(entry.outer)
            CURRENT.set(entry.before)
        else:  # a generator that was suspended in it is closed under a later `use`, which stays in force
            inner.before, inner.outer = entry.before, entry.outer
        entry.mirrors.close()  # after CURRENT is set: they follow it
        return False

    def __call__(self, function: _AnyFunction) -> _AnyFunction:
        """Return `function` run with the rule in force; draws count from 0 at each call.

        Raises:
            RuleTypeError: it is a generator function, which runs in pieces.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise RuleTypeError(
                f"use cannot decorate the generator function {function.__name__!r}: between its steps "
                f"the rule would be in force for the caller. Put `with xg.use(...)` inside of it around the "
                f"work between two yields: around a `yield` it would be in force for the caller too"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with use(self.rule, self.params, self._given_scope, key=self.key):
                    return await function(*args, **kwargs)

            return call_async  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with use(self.rule, self.params, self._given_scope, key=self.key):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


@dataclass(slots=True, eq=False)
class _Entry:
    """A `use` that was entered, the frame before it, and the entry around it in the same task."""

    use: use
    before: Frame
    mirrors: ExitStack
    outer: _Entry | None


# Not in the `use` object, which threads and tasks may share.
_ENTRIES: contextvars.ContextVar[_Entry | None] = contextvars.ContextVar(
    "multigrad_entries", default=None
)


def check_scope(scope: str | Iterable[str]) -> tuple[str, ...]:
    """Return the scope as a tuple of known words."""
    words = tuple(scope) if isinstance(scope, Iterable) and not isinstance(scope, str) else (scope,)
    for word in words:
        if word not in SCOPES:
            raise RuleValueError(
                f"no scope {word!r}{suggest(str(word), SCOPES)} (scopes: {', '.join(SCOPES)})"
            )
    if not words:
        raise RuleValueError(f"the scope is empty (scopes: {', '.join(SCOPES)})")
    return words


def apply_now(rule: Any, params: Mapping[str, Any] | None, key: Any = None) -> Application:
    """Resolve a rule by today's registry and return it ready to be applied."""
    if rule is None:
        raise RuleError("use needs a rule: a name, a Rule or a function, got None")
    spec = resolve(rule).spec(params)
    if key is None:
        return Application(spec)
    return Application(spec, normalize_key(key), Counter())


def normalize_key(key: Any) -> Any:
    """Return two Python ints for an int or two uint32; a backend's own key object is left to it."""
    if isinstance(key, bool):
        raise RuleValueError(f"key must be an int, a jax key or two uint32, got {key!r}")
    if isinstance(key, int):
        return key_from_int(key)
    from .lowering.backend import key_pair

    return key_pair(key)


def _frame_token(acts: Application | None, pars: Application | None) -> str:
    words = [app.spec.token + key_token(app) if app else "-" for app in (acts, pars)]
    return " | ".join(words)


def current() -> Frame:
    """Return the frame now in force."""
    return CURRENT.get()
