"""`use`: the context manager that puts a rule in force.

The active rules are one immutable object in a ContextVar. Forward reads it and keeps what it needs,
so a backward that runs later, or on another thread, uses the rule that was in force at forward.
Each loaded backend mirrors the active rules' token to where its compiler looks.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeAlias, TypeVar, get_args

from ...errors import MultigradError, RuleTypeError, RuleValueError, suggest
from ..backend.compiler_events import Leave, enter_rules, hook_params, leave_rules, show_tensors
from ..support.lazy_modules import late_value, missing_name_error, provided
from ..support.params import Axes, Fused, Key, Over, Residuals, read_params
from ..support.threads import set_within
from ..support.tracebacks import door
from ..trace.active_rules import (
    CHECKED,
    CURRENT,
    EMPTY,
    ActiveRules,
    compare,
    name_rank,
    note_for_ranks,
)
from .registry import unknown_keyword_error, with_choices
from .resolution import activate, apply_now
from .rule import Rule
from .rule_in_force import RuleInForce, tokens_of
from .rule_names import get

if TYPE_CHECKING:
    from ...engine.trace.random_keys import Counter, key_token, normalize_key

__all__ = [
    "CURRENT",
    "EMPTY",
    "SCOPES",
    "ActiveRules",
    "Counter",
    "RuleInForce",
    "apply_now",
    "check_scope",
    "current",
    "key_token",
    "normalize_key",
    "use",
]  # fmt: skip

OF_KEYS = ("Counter", "key_token", "normalize_key")


def __getattr__(name: str) -> Any:
    if name not in OF_KEYS:
        raise missing_name_error(__name__, name, globals())
    if name == "key_token":
        warnings.warn(
            "'key_token' is deprecated since multigrad 1.0 and will be removed in 2.0: compare "
            "`token` of a rule in force, which contains the key",
            DeprecationWarning,
            stacklevel=2,
        )
    return late_value(f"multigrad.engine.trace.random_keys:{name}")()


Scope: TypeAlias = Literal["activations", "params", "all"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


class _Default(str):
    """A default, to be told from the same word given by a caller."""


ALL: Any = _Default("all")
_AnyFunction = TypeVar("_AnyFunction", bound=Callable[..., Any])


_activate = door(activate)


class use:
    """Put a rule in force, as a context manager or a decorator.

    Examples:
        >>> x = np.array([-1.5, -0.2, 0.3, 2.0])
        >>> act = xg.activation("Heaviside")  # a step: its true derivative is zero
        >>> with xg.use("rectangular", params={"a": -1.0, "b": 1.0}):
        ...     y, pull = xg.vjp(act, x)
        >>> pull(np.ones(4))[0]  # the rule of its forward, also after the block
        array([0., 1., 1., 0.])
        >>> @xg.use("noise", {"sigma": 0.1}, key=7)
        ... def draw():
        ...     return xg.apply_to_gradients(np.zeros(2))
        >>> bool((draw() == draw()).all())  # under a key each call draws the same
        True

    The innermost `use` whose scope covers a place wins there; a rule given to a layer itself wins
    over all. Where no scope is given, a rule that an outer `use` put in force by naming "params"
    stays: a surrogate gradient put in force inside a training step does not turn off the
    clipping around it. `scope="all"` replaces both. A `scope` that names "params" acts by itself in
    torch, Keras on torch included: each forward attaches hooks to the module's trainable parameters
    (`multigrad.hook.remove_param_hooks` takes them off). `scope="all"` alone acts on parameters
    where `multigrad.hook.attach_param_hooks` was called. In other frameworks neither can: there
    `xg.apply_to_gradients`, `multigrad.keras.apply_to_gradients` and `multigrad.optax.apply_rule`
    are the way. Around the `yield` of a generator the rule stays in force for the caller until the
    generator goes on: meant in a `contextlib.contextmanager` and in a fixture of pytest; in a
    generator that is iterated over, a warning names the line.

    Args:
        rule: a name, a Rule or a function `(ctx, grad_out, tin, **params)`.
        params: values for the rule's params.
        scope: "activations", "params", "all", or a tuple of them. Default: "all", except for
            scopes that an outer `use` named.
        key: makes random rules reproducible, the same in every framework: an int as for
            `jax.random.key`, a jax key, or two uint32. The n-th application, counted in forward
            from 0 at each entry, draws from `fold_in(key, n)`. One key gives every example of a
            `vmap` and every shard of a `shard_map` the same draws: fold the index in first, as in
            `jax.random.fold_in(key, jax.lax.axis_index("i"))`, or say `over`: then each shard draws
            its part of what the entire array would draw.
        over: which array a tensor is a part of, if it is split over devices: "global",
            "shard" or a partition spec; see `Rule.over`. None: the framework's own meaning.
        axis_name: the mesh axes or the group that its first axis is split over.
        fused: whether it runs as one compiled kernel; see `xg.activation`.
        residuals: what forward keeps for the rule: "auto", "input", "mask", "packed",
            "recompute" or "time"; see `Function.keeping`.

    Raises:
        RuleError: the rule is unknown, or a param is (also a TypeError), or the scope (also a
            ValueError).
    """

    def __init__(
        self,
        rule: str | Rule | Callable[..., Any],
        params: Mapping[str, object] | None = None,
        scope: Scope | Iterable[Scope] = ALL,
        *,
        key: Key | None = None,
        over: Over | None = None,
        axis_name: Axes | None = None,
        fused: Fused = "auto",
        residuals: Residuals | None = None,
        **others: Never,
    ) -> None:
        if others:
            raise unknown_keyword_error(type(self), "use", rule, others)
        if isinstance(rule, type):
            get(rule)  # refused here; a name is looked up where it is entered
        is_plain = over is None and axis_name is None and residuals is None and fused == "auto"
        self.rule = rule if is_plain else with_choices(rule, over, axis_name, residuals, fused)
        self.params = {} if params is None else read_params(params)
        self.scope = ("all",) if scope is ALL else check_scope(scope)
        self.key = key
        self._given_scope: Any = scope if scope is ALL else self.scope

    def __repr__(self) -> str:
        words = [repr(getattr(self.rule, "name", self.rule))]
        words += [f"params={self.params!r}"] if self.params else []
        scope = self.scope[0] if len(self.scope) == 1 else self.scope
        words += [] if self._given_scope is ALL else [f"scope={scope!r}"]
        words += [] if self.key is None else [f"key={self.key!r}"]
        return f"use({', '.join(words)})"

    def __enter__(self) -> Self:
        frame = sys._getframe(1)
        if frame.f_code.co_flags & GENERATORS:
            warn_of_yield(self, frame)
        # Resolved on entry: a name that changes later means the same rule here.
        active = _activate(self.rule, self.params, self.key)
        previous = CURRENT.get()
        # With the default scope, and no `use` for params around it, the rule is in force for all.
        if self._given_scope is not ALL or previous.hooks_params:
            active = self._put_over(previous, active.activations)
        outer, exits = _innermost.get(), enter_rules(active.token)
        try:
            if "params" in self.scope:
                exits.append(hook_params())
            _innermost.set(_Entry(self, previous, exits, outer))
            CURRENT.set(active)
            rule = active.activations
            if rule is not None and rule.has_tensors:
                show_tensors(active)
            if CHECKED:
                note_for_ranks("use", active)
        except BaseException:  # `__exit__` does not run for an entry that failed
            _innermost.set(outer)
            CURRENT.set(previous)
            leave_rules(exits)
            raise
        return self

    def _put_over(self, previous: ActiveRules, in_force: RuleInForce | None) -> ActiveRules:
        for_all = "all" in self.scope
        covers_activations = for_all or "activations" in self.scope
        for_activations = in_force if covers_activations else previous.activations
        names_here = "params" in self.scope
        # A rule that an outer `use` named for params stays, unless this one names params or was
        # given scope="all".
        keeps_outer = not names_here and (
            not for_all or (self._given_scope is ALL and previous.names_params)
        )
        for_params = previous.params if keeps_outer else in_force
        hooks_params = names_here or previous.hooks_params
        names_params = previous.names_params if keeps_outer else names_here
        token = tokens_of(for_activations, for_params)
        return ActiveRules(for_activations, for_params, token, hooks_params, names_params)

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> Literal[False]:
        entry, inner = _innermost.get(), None
        # It may not be the innermost: a suspended generator leaves late.
        while entry is not None and entry.use is not self:
            entry, inner = entry.outer, entry
        if entry is None:
            raise MultigradError(
                f"use({self.rule!r}) is left in another task or thread than it entered"
            )
        if inner is None:
            _innermost.set(entry.outer)
            CURRENT.set(entry.before)
        # A suspended generator is closed while a later `use` is in force, which stays in force.
        else:
            inner.before, inner.outer = entry.before, entry.outer
        leave_rules(entry.exits)  # after CURRENT is set: they follow it
        if error is not None:
            name_rank(error)
        elif CHECKED and inner is None and entry.outer is None:
            compare("the end of a use")
        return False

    def __call__(self, function: _AnyFunction) -> _AnyFunction:
        """Return `function` run with the rule in force; draws count from 0 at each call.

        Raises:
            RuleTypeError: it is a generator function, which runs in pieces, or a class, whose
                methods run later.
        """
        if inspect.isclass(function) or not callable(function) or is_generator(function):
            raise undecorated(function)
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
    """A `use` that was entered, the rules before it, and the entry around it in the same task."""

    use: use
    before: ActiveRules
    exits: list[Leave]
    outer: _Entry | None


# Not in the `use` object, which threads and tasks may share.
_innermost: contextvars.ContextVar[_Entry | None] = contextvars.ContextVar(
    "multigrad_entries", default=None
)


# Python gives generators no context of their own.
GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def is_generator(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


@provided
def undecorated(given: Any) -> RuleTypeError:
    """Return the error for what `use` cannot decorate: where it runs, no rule would be in force."""
    return RuleTypeError(f"use decorates a function that runs in one piece, got {given!r:.60}")


@provided
def warn_of_yield(entered: use, frame: FrameType) -> None:
    """Warn if a generator gives its rule to the code that iterates over it."""


def check_scope(scope: str | Iterable[str]) -> tuple[str, ...]:
    """Return the scope as a tuple of known words.

    Examples:
        >>> from multigrad.context import check_scope
        >>> check_scope("params")
        ('params',)
        >>> check_scope("parms")
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleValueError: no scope 'parms'; did you mean 'params'? (scopes: ...
    """
    words = tuple(scope) if isinstance(scope, Iterable) and not isinstance(scope, str) else (scope,)
    for word in words:
        if word not in SCOPES:
            raise RuleValueError(
                f"no scope {word!r}{suggest(str(word), SCOPES)} (scopes: {', '.join(SCOPES)})"
            )
    if not words:
        raise RuleValueError(f"the scope is empty (scopes: {', '.join(SCOPES)})")
    return words


def current() -> ActiveRules:
    """Return the active rules.

    Examples:
        >>> from multigrad.context import current
        >>> with xg.use("triangular"):
        ...     current().activations.specialization.rule
        <Rule triangular(width=1.0)>
    """
    return CURRENT.get()


@contextmanager
def in_force(active: ActiveRules) -> Iterator[None]:
    """Put these active rules in force again, as where code runs a second time."""
    exits = enter_rules(active.token)
    try:
        with set_within(CURRENT, active):
            yield
    finally:
        leave_rules(exits)
