"""`xg.jit`: the framework's compiler, keyed by the rule in force.

The rest is for authors of backends, as `from multigrad.backend import compilers`: the rules in
force are cut into what compiled code fixes and what it takes as hidden arguments: numbers (those
that move among them), the key, and the count of earlier applications.

`key_by_rules` is all of it for a framework whose compiler takes a function of trees of arrays and
gives one. `key_runs` keeps the code of a compiler that needs more, which a class of `Run` compiles.
Where a compiler reads Python code, the classes are those whose calls it is to leave alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, overload

from ...core.backend.contract import Backend
from ...core.backend.discovery import backend_of, load_backend
from ...core.rules import registry
from ...core.rules.activation import Activation
from ...core.rules.context import CURRENT, ActiveRules, RuleInForce, in_force
from ...core.rules.rule_in_force import value_token
from ...core.support.params import P, R
from ...core.support.threads import SERIALS
from ...core.trace.active_rules import FREE, KeySource, Moving
from ...core.trace.lookups import read
from ...errors import BackendNotFound, MultigradError
from ..functions.function import Function
from ..trace.moving_numbers import alive, all_at_present, jit_tracing
from ..trace.random_keys import Counter

__all__ = [
    "CURRENT",
    "Activation",
    "ActiveRules",
    "Cut",
    "Function",
    "Run",
    "jit",
    "key_by_rules",
    "key_runs",
]
Call = Callable[..., Any]
MOST_HELD = 8  # traces of one function that is traced again for each held number


@overload
def jit(fn: Callable[P, R], framework: str | None = None, **options: Any) -> Callable[P, R]: ...
@overload
def jit(
    fn: None = None, framework: str | None = None, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(
    fn: Callable[P, R] | None = None, framework: str | None = None, **options: Any
) -> Callable[..., Any]:
    """Compile a function with `jax.jit`, `torch.compile` or `tf.function`; a changed rule retraces.

    Numeric params of the rule in force are hidden run-time arguments, so a changed number does not
    retrace; so is the current value of a schedule (`xg.schedule`), including those in a layer's own
    rule.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> act = xg.activation("Heaviside")
        >>> @xg.jit
        ... def slope(x):
        ...     return jax.grad(lambda x: act(x).sum())(x)
        >>> x = jnp.array([0.0, 0.25])
        >>> with xg.use("triangular", params={"width": 0.5}):
        ...     print(slope(x))
        [1.  0.5]
        >>> with xg.use("rectangular"):  # traced again: never the code of another rule
        ...     print(slope(x))
        [1. 1.]

    Args:
        fn: the function; without it, a decorator is returned.
        framework: "torch", "jax" or "tensorflow"; by default that of the first tensor among the
            arguments.
        **options: passed to the framework's compiler (`backend="aot_eager"`, `static_argnums=...`,
            `jit_compile=True`).

    Raises:
        BackendNotFound: the framework is unknown, or no argument is a tensor.
    """
    if fn is None:
        return functools.partial(jit, framework=framework, **options)
    if not callable(fn):
        raise MultigradError(f"jit needs a function, got {type(fn).__name__}")
    # By framework: one function may get tensors of several.
    compiled: dict[str, Callable[..., Any]] = {}
    if framework is not None:
        backend = load_backend(framework)
        compiled[backend.name] = _compile(backend, fn, options)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        name = framework
        if name is None:
            backend = _owner(fn, (args, kwargs))
            name = backend.name
            if name not in compiled:
                compiled[name] = _compile(backend, fn, options)
        return compiled[name](*args, **kwargs)

    return call


def _compile(
    backend: Backend, fn: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    if backend.compiler.jit is None:
        raise BackendNotFound(f"backend {backend.name!r} has no compiler; call the function itself")
    return backend.compiler.jit(fn, options)


def _owner(fn: Callable[..., Any], arguments: Any) -> Backend:
    backend = _find_owner(arguments)
    # Registered nestings, which `_find_owner` does not know.
    if backend is None:
        import optree

        backend = _find_owner(optree.tree_leaves(arguments))
    if backend is None:
        name = getattr(fn, "__name__", "the function")
        raise BackendNotFound(
            f"xg.jit cannot tell the framework of {name!r}: no argument is a tensor. Say it: "
            "xg.jit(fn, framework='jax')"
        )
    return backend


def _find_owner(value: Any) -> Backend | None:
    # The common containers by hand: Dynamo, which reads this in nested calls, cannot read optree.
    if isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            backend = _find_owner(inner)
            if backend is not None:
                return backend
        return None
    try:
        backend = backend_of(value)
    except BackendNotFound:
        return None
    return backend if backend.compiler.jit is not None else None


@dataclass(frozen=True, slots=True)
class Hidden:
    """What of a rule in force compiled code takes as arguments."""

    values: tuple[Any, ...] = ()
    key: Any = None
    count: Any = None  # the number of the next application


@dataclass(frozen=True, slots=True)
class Cut:
    """The active rules, one for both scopes once, and the params that are fixed in compiled code.

    Those are the params whose numbers the rule's Python code looks at.
    """

    active: ActiveRules
    rules: tuple[RuleInForce | None, RuleInForce | None]
    looked_at: tuple[frozenset[str], frozenset[str]]


def cut(active: ActiveRules) -> Cut:
    # One rule for both scopes is cut once, or its applications would count twice.
    is_same = active.params is active.activations
    activation_rule, param_rule = rules = active.activations, None if is_same else active.params
    return Cut(active, rules, (_looked_at(activation_rule), _looked_at(param_rule)))


def _looked_at(in_force: RuleInForce | None) -> frozenset[str]:
    if in_force is None:
        return frozenset()
    specialization = in_force.specialization
    # Native code, and code that is not captured, may look at every number.
    if specialization.rule.native is True or specialization.code.uncapturable is not None:
        return frozenset(specialization.runtime)
    # Facts named param:NAME are numbers that the rule's Python code looks at.
    facts = (fact.partition(":") for fact in specialization.code.facts)
    return frozenset(name for kind, _, name in facts if kind == "param")


def fixed(cut: Cut, epoch: int | str, moving: tuple[Moving, ...]) -> str:
    """Return a text of all that compiled code fixes.

    Args:
        moving: the changing numbers that are arguments too.
    """
    words = [_fixed(rule, names) for rule, names in zip(cut.rules, cut.looked_at, strict=True)]
    is_same = cut.active.params is cut.active.activations
    serials = "".join([f" {each.serial}" for each in moving])
    return f"{words[0]} | {'=' if is_same else words[1]} ~{epoch}{serials}"


def _fixed(in_force: RuleInForce | None, looked_at: frozenset[str]) -> str:
    if in_force is None:
        return "-"
    specialization = in_force.specialization
    pairs = in_force.numbers.items()
    words = [f"{name}={value_token(v)}" if name in looked_at else name for name, v in pairs]
    return f"{specialization.id}({','.join(words)}){'' if in_force.counter is None else '@'}"


def hide(cut: Cut) -> tuple[Hidden, Hidden]:
    first, second = (_hide(rule, n) for rule, n in zip(cut.rules, cut.looked_at, strict=True))
    return first, second


def _hide(in_force: RuleInForce | None, looked_at: frozenset[str]) -> Hidden:
    if in_force is None:
        return Hidden()
    pairs = in_force.numbers.items()
    values = tuple(value for name, value in pairs if name not in looked_at)
    if in_force.counter is None:
        return Hidden(values)
    return Hidden(values, in_force.key, in_force.counter.count)


def reveal(cut: Cut, hidden: tuple[Hidden, Hidden]) -> ActiveRules:
    """Return the rules for a trace: what was hidden is put back, as the arguments of the trace."""
    first, second = map(_reveal, cut.rules, cut.looked_at, hidden)
    is_same = cut.active.params is cut.active.activations
    # A new token for each trace, so that nothing cached for another one is used.
    token = f"<traced {next(SERIALS)}>"
    return replace(cut.active, activations=first, params=first if is_same else second, token=token)


def _reveal(
    in_force: RuleInForce | None, looked_at: frozenset[str], hidden: Hidden
) -> RuleInForce | None:
    if in_force is None:
        return None
    values = iter(hidden.values)
    pairs = in_force.numbers.items()
    merged = tuple(value if name in looked_at else next(values) for name, value in pairs)
    counter = in_force.counter
    draws = FREE if counter is None else KeySource(hidden.key, Counter(hidden.count))
    token = f"<traced {next(SERIALS)}>"
    return RuleInForce(in_force.specialization, merged, token, draws)


def count_applied(traced: ActiveRules) -> tuple[int, int]:
    counters = [rule.counter if rule else None for rule in cut(traced).rules]
    first, second = (0 if counter is None else counter.number for counter in counters)
    return first, second


def advance(cut: Cut, applied: tuple[int, int]) -> None:
    """Advance the counters of the active rules as if compiled code had run eagerly."""
    for rule, number in zip(cut.rules, applied, strict=True):
        if rule is not None and rule.counter is not None:
            rule.counter.advance(number)


# --- compiled code, kept by the rules in force ----------------------------------------------------
class Run:
    """A function that is compiled under one rule; lives as long as the function.

    Attributes:
        rules: the rules that it is compiled under.
        moving: the numbers that move which are its arguments.
        word: what stands for the numbers that its traces hold.
        met: numbers that move besides, which its last traces have met.
        held: those that graphs in these traces hold.
    """

    def in_force(self, active: ActiveRules) -> AbstractContextManager[Any]:
        return in_force(active)

    def __init__(self, fn: Call, rules: Cut, moving: tuple[Moving, ...], word: str) -> None:
        self.fn = fn
        self.rules, self.moving, self.word = rules, moving, word
        self.met: list[Moving] = []
        self.held: list[Moving] = []

    def hidden(
        self,
        rules: Cut,
        backend: Backend,
        as_number: Callable[[Any], Any],
        as_key: Callable[[Any], Any],
    ) -> tuple[list[Any], list[Any]]:
        """Return the hidden arguments of compiled code, converted for its compiler: for each rule
        its numbers, its key and its count, as lists; and the numbers that move.
        """
        parts = [
            (
                [as_number(value) for value in part.values],
                [] if part.key is None else [as_key(part.key)],
                [] if part.count is None else [as_number(part.count)],
            )
            for part in hide(rules)
        ]
        return parts, [as_number(read(each, backend)) for each in self.moving]

    def trace(self, hidden: Any, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
        """Return the result in a trace, and how often each rule was applied, as `call` does."""
        parts, numbers = hidden
        first, second = (
            Hidden(tuple(values), *(key or [None]), *(count or [None]))
            for values, key, count in parts
        )
        active = reveal(self.rules, (first, second))
        with self.in_force(active), jit_tracing(self.moving, numbers) as jit_trace:
            result = self.fn(*args, **kwargs)
        self.met += jit_trace.met
        self.held += jit_trace.held
        return result, count_applied(active)

    def call(self, rules: Cut, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
        raise NotImplementedError


class NumbersRead:
    """The moving numbers that a function compiled by `xg.jit` reads by itself.

    From its second call on they are its arguments, except those that a captured graph holds.
    """

    def __init__(self) -> None:
        self._met: tuple[weakref.ref[Moving], ...] = ()
        self._held: tuple[weakref.ref[Moving], ...] = ()

    def arguments(self) -> tuple[Moving, ...]:
        return tuple(alive(self._met))

    def add(self, met: Iterable[Moving], held: Iterable[Moving]) -> None:
        self._met = _add(self._met, met)
        self._held = _add(self._held, held)

    def held_text(self) -> str:
        """Return the numbers that traces hold, as text; each trace is valid for one text."""
        return "".join([f" {each.serial}={each.value!r}" for each in alive(self._held)])


def _add(references: tuple[weakref.ref[Moving], ...], numbers: Iterable[Moving]) -> Any:
    by_serial = {each.serial: each for each in (*alive(references), *numbers)}
    return tuple(weakref.ref(by_serial[serial]) for serial in sorted(by_serial))


def key_runs(
    fn: Call,
    name: str,
    make: Callable[[Cut, tuple[Moving, ...], str], Run],
    epoch: Callable[[], int | str] = registry.epoch,
    on_hold: Callable[[], None] | None = None,
) -> Call:
    """Return a function that is compiled once for each rule.

    Args:
        name: the backend's.
        make: `(rules, moving, word)` -> what is compiled for them.
        epoch: what changes where a name changes its meaning.
        on_hold: is told where traces hold more numbers than before.
    """
    compiled: dict[str, Run] = {}
    numbers = NumbersRead()
    backend = load_backend(name)

    def call_once(rules: Cut, args: Any, kwargs: Any) -> Any:
        moving = numbers.arguments()
        key = fixed(rules, epoch(), moving) + (held_text := numbers.held_text())
        run = compiled.get(key)
        if run is None:
            # Code that holds numbers as constants is soon useless: the oldest goes first.
            if held_text and len(compiled) >= MOST_HELD:
                compiled.pop(next(iter(compiled)), None)
            run = compiled[key] = make(rules, moving, held_text)
        result, applications = run.call(rules, args, kwargs)
        advance(rules, applications)
        if run.met or run.held:  # this trace has numbers as they were: the next one takes them
            numbers.add(run.met, run.held)
            run.held.clear()
            if run.met or numbers.held_text() != held_text:
                compiled.pop(key, None)
            if on_hold is not None and numbers.held_text() != held_text:
                on_hold()
        return result

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        present = all_at_present(CURRENT.get(), backend)
        while True:
            attempt = cut(present)
            try:
                return call_once(attempt, args, kwargs)
            except Exception:
                # Tracing found a number that Python code looks at: it is fixed now, so try again.
                if cut(present) == attempt:
                    raise

    return call


def key_by_rules(
    fn: Call,
    name: str,
    compile: Callable[[Call], Call],
    as_number: Callable[[Any], Any],
    as_key: Callable[[Any], Any],
) -> Call:
    """Return a function that is compiled once for each rule.

    Args:
        name: the backend's.
        compile: the framework's compiler, of `run(hidden, args, kwargs) -> (result, applied)`,
            where `applied` are two numbers that its trace counted.
        as_number: a number as the compiler takes arguments.
        as_key: the same for a key.
    """
    backend = load_backend(name)

    class Keyed(Run):
        def __init__(self, rules: Cut, moving: tuple[Moving, ...], word: str) -> None:
            super().__init__(fn, rules, moving, word)
            self.run = compile(self.traced)

        def traced(self, hidden: Any, args: Any, kwargs: Any) -> Any:
            result, applications = self.trace(hidden, args, kwargs)
            return result, list(applications)

        def call(self, rules: Cut, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
            hidden = self.hidden(rules, backend, as_number, as_key)
            with in_force(ActiveRules(token="xg.jit")):
                result, applications = self.run(hidden, args, kwargs)
            return result, (int(applications[0]), int(applications[1]))

    return key_runs(fn, name, Keyed)
