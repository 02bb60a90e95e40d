"""`xg.jit`: the framework's compiler, keyed by the rule in force.

What follows `jit` serves the backends: the rules in force are cut into what is fixed in compiled code and what is
hidden among its arguments: the numbers, the key, and how many applications were made before.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .context import Application, Frame
from .errors import BackendNotFound, MultigradError
from .lowering.backend import Backend, backend_of, load_backend
from .rule import Spec, value_token

_serial = itertools.count()


def jit(
    fn: Callable[..., Any] | None = None, framework: str | None = None, **options: Any
) -> Callable[..., Any]:
    """Compile a function with `jax.jit`, `torch.compile` or `tf.function`; a changed rule retraces.

    Numeric params of the rule in force are hidden run-time arguments, so a changed number does not retrace.

    Example:
        >>> step = xg.jit(step)
        >>> with xg.use("triangular", params={"width": 0.5}):
        ...     step(weights, batch)

    Args:
        fn: the function; without it, a decorator is returned.
        framework: "torch", "jax" or "tensorflow"; by default that of the first tensor among the arguments.
        **options: handed to the framework's compiler (`backend="aot_eager"`, `static_argnums=...`,
            `jit_compile=True`).

    Raises:
        BackendNotFound: the framework is unknown, or no argument is a tensor.
    """
    if fn is None:
        return functools.partial(jit, framework=framework, **options)
    if not callable(fn):
        raise MultigradError(f"jit needs a function, got {type(fn).__name__}")
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
    if backend.jit is None:
        raise BackendNotFound(f"backend {backend.name!r} has no compiler; call the function itself")
    return backend.jit(fn, options)


def _owner(fn: Callable[..., Any], arguments: Any) -> Backend:
    """Return the backend of the first tensor among the arguments."""
    backend = _find_owner(arguments)
    if backend is None:
        import optree

        backend = _find_owner(optree.tree_leaves(arguments))
    if backend is None:
        name = getattr(fn, "__name__", "the function")
        raise BackendNotFound(
            f"xg.jit cannot tell the framework of {name!r}: no argument is a tensor. "
            f"Say it: xg.jit(fn, framework='jax')"
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
    return backend if backend.jit is not None else None


# --- the rules in force, cut in two ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hidden:
    """What of a rule in force compiled code takes as arguments."""

    values: tuple[Any, ...] = ()
    key: Any = None
    count: Any = None  # the number of the next application


@dataclass(frozen=True, slots=True)
class Cut:
    """A frame's rules, one for both scopes once, and the params that are fixed in compiled code.

    Those are the params whose numbers the rule's Python code looks at.
    """

    frame: Frame
    rules: tuple[Application | None, Application | None]
    looked_at: tuple[frozenset[str], frozenset[str]]


def cut(frame: Frame) -> Cut:
    """Return how a frame is cut, by what is known of its rules now."""
    same = frame.params is frame.activations
    first, second = rules = frame.activations, None if same else frame.params
    return Cut(frame, rules, (_looked_at(first), _looked_at(second)))


def _looked_at(application: Application | None) -> frozenset[str]:
    if application is None:
        return frozenset()
    family = application.spec.family
    if family.rule.native is True or family.uncapturable is not None:
        return frozenset(family.runtime)
    prefix = "param:"
    return frozenset(f.removeprefix(prefix) for f in family.facts if f.startswith(prefix))


def fixed(cut: Cut, epoch: int | str) -> str:
    """Return as text what is fixed in compiled code."""
    words = [_fixed(rule, names) for rule, names in zip(cut.rules, cut.looked_at, strict=True)]
    both = cut.frame.params is cut.frame.activations
    return f"{words[0]} | {'=' if both else words[1]} ~{epoch}"


def _fixed(application: Application | None, looked_at: frozenset[str]) -> str:
    if application is None:
        return "-"
    family = application.spec.family
    pairs = zip(family.runtime, application.spec.values, strict=True)
    words = [f"{name}={value_token(v)}" if name in looked_at else name for name, v in pairs]
    return f"{family.id}({','.join(words)}){'' if application.counter is None else '@'}"


def hide(cut: Cut) -> tuple[Hidden, Hidden]:
    """Return what is not fixed, for each rule."""
    first, second = (_hide(rule, n) for rule, n in zip(cut.rules, cut.looked_at, strict=True))
    return first, second


def _hide(application: Application | None, looked_at: frozenset[str]) -> Hidden:
    if application is None:
        return Hidden()
    pairs = zip(application.spec.family.runtime, application.spec.values, strict=True)
    values = tuple(value for name, value in pairs if name not in looked_at)
    if application.counter is None:
        return Hidden(values)
    return Hidden(values, application.key, application.counter.count)


def reveal(cut: Cut, hidden: tuple[Hidden, Hidden]) -> Frame:
    """Return the frame for a trace: what was hidden is put back, as the arguments of the trace."""
    first, second = map(_reveal, cut.rules, cut.looked_at, hidden)
    both = cut.frame.params is cut.frame.activations
    token = f"<traced {next(_serial)}>"
    return replace(cut.frame, activations=first, params=first if both else second, token=token)


def _reveal(
    application: Application | None, looked_at: frozenset[str], hidden: Hidden
) -> Application | None:
    if application is None:
        return None
    values = iter(hidden.values)
    pairs = zip(application.spec.family.runtime, application.spec.values, strict=True)
    merged = tuple(value if name in looked_at else next(values) for name, value in pairs)
    spec = Spec(application.spec.family, merged, f"<traced {next(_serial)}>")
    if application.counter is None:
        return Application(spec)
    return Application(spec, hidden.key, TracedCounter(hidden.count))


class TracedCounter:
    """Counts applications from a number that is known at run time only."""

    def __init__(self, start: Any) -> None:
        self.start = start
        self.number = 0  # applications so far

    @property
    def count(self) -> Any:
        """The number of the next application."""
        return self.start + self.number

    def __next__(self) -> Any:
        n, self.number = self.count, self.number + 1
        return n

    def advance(self, number: int) -> None:
        """Skip applications that compiled code inside this one has made."""
        self.number += number


def count_applied(traced: Frame) -> tuple[int, int]:
    """Return how many applications each rule of a frame for a trace has made."""
    counters = [rule.counter if rule else None for rule in cut(traced).rules]
    first, second = (0 if counter is None else counter.number for counter in counters)
    return first, second


def advance(cut: Cut, applied: tuple[int, int]) -> None:
    """Let the counters of a frame stand where they would, had compiled code been eager."""
    for rule, number in zip(cut.rules, applied, strict=True):
        if rule is not None and rule.counter is not None:
            rule.counter.advance(number)


def call_cut(frame: Frame, call: Callable[[Cut], Any]) -> Any:
    """Call with the frame cut; once more where tracing shows that more must be fixed."""
    while True:
        tried = cut(frame)
        try:
            return call(tried)
        except Exception:
            if cut(frame) == tried:
                raise
