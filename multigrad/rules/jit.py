"""`xg.jit`: the framework's compiler, keyed by the rule in force.

The rest serves the backends: the rules in force are cut into what compiled code fixes and what it
takes as hidden arguments: numbers (those that move among them), the key, and the count of earlier
applications.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

from ..backend.contract import Backend
from ..backend.discovery import backend_of, load_backend
from ..errors import BackendNotFound, MultigradError
from ..graph.support.class_bases import dataclass
from ..graph.support.params import P, R
from ..graph.support.threads import SERIALS
from ..trace.active_rules import FREE, Counter, KeySource
from ..trace.moving_numbers import Moving
from .context import ActiveRules, RuleInForce
from .model.rule_in_force import value_token


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


# --- the rules in force, cut in two ---------------------------------------------------------------


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
    same = active.params is active.activations
    first, second = rules = active.activations, None if same else active.params
    return Cut(active, rules, (_looked_at(first), _looked_at(second)))


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
    both = cut.active.params is cut.active.activations
    taken = "".join([f" {each.serial}" for each in moving])
    return f"{words[0]} | {'=' if both else words[1]} ~{epoch}{taken}"


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
    both = cut.active.params is cut.active.activations
    # A new token for each trace, so that nothing cached for another one is used.
    token = f"<traced {next(SERIALS)}>"
    return replace(cut.active, activations=first, params=first if both else second, token=token)


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


def call_cut(active: ActiveRules, call: Callable[[Cut], Any]) -> Any:
    while True:
        tried = cut(active)
        try:
            return call(tried)
        except Exception:
            # Tracing found a number that Python code looks at: it is fixed now, so try again.
            if cut(active) == tried:
                raise
