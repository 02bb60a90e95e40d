"""`xg.jit` on MLX, and what code that `mx.compile` keeps depends on.

`mx.compile` keeps a trace by a function's arguments alone, calls no Python afterwards and has no
guard, so that a trace which reads the rule in force is refused where it is made: `xg.jit` makes one
for each rule. Whether a trace is kept shows in an array that it depends on: MLX refuses to evaluate
its placeholder, before it computes anything.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from multigrad.backend import StaleTraceError, compilers

Tensor = Any
# Within `xg.jit` each rule has a trace of its own; within a `use` of the trace itself, too.
KEYED: contextvars.ContextVar[bool] = contextvars.ContextVar("multigrad_mlx_keyed", default=False)


def find_leaked() -> Tensor:
    """Return a placeholder of a trace that is over: MLX says of it whether one goes on."""
    found: list[Tensor] = []
    mx.eval(mx.compile(keep_in(found))(mx.array(0.0)))
    return found[0]


def keep_in(found: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def kept(x: Tensor) -> Tensor:
        found.append(x)
        return x + 1

    return kept


LEAKED = find_leaked()


def is_tracing() -> bool:
    """Return whether a transformation of MLX goes on, on this thread: an eager gradient too."""
    try:
        mx.eval(LEAKED)
    except ValueError:
        return True
    except RuntimeError:
        return False
    return False


def is_traced(x: Any) -> bool:
    """Return whether an array's values are known at run time only."""
    if not isinstance(x, mx.array) or not is_tracing():
        return False
    try:
        mx.eval(x)
    except ValueError:
        return True
    return False


def on_read(x: Tensor, activation: Any = None, scope: str = "activations") -> None:
    """Raise where a trace reads the rule in force that `mx.compile` or `mx.vmap` would keep.

    Raises:
        StaleTraceError: it does.
    """
    if x is None or KEYED.get() or not is_traced(x):
        return
    raise StaleTraceError(
        "the rule in force is read inside of mx.compile or mx.vmap, which would keep it for other "
        "rules: compile with xg.jit(fn, 'mlx'), enter the `use` inside of fn, or give the "
        "activation its own rule"
    )


def on_enter(token: str) -> Callable[[], None]:
    """Note a `use` that is entered inside of a transformation: it is part of it."""
    if not is_tracing():
        return do_nothing
    reset = KEYED.set(True)
    return lambda: KEYED.reset(reset)


def do_nothing() -> None:
    """Leave a `use` that no trace is around."""


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return mx.compile(fn), keyed by the rule in force, whose numbers are run-time arguments."""

    def compile(run: Callable[..., Any]) -> Callable[..., Any]:
        def keyed(*args: Any) -> Any:
            reset = KEYED.set(True)
            try:
                return run(*args)
            finally:
                KEYED.reset(reset)

        return mx.compile(keyed, **options)

    return compilers.key_by_rules(fn, "mlx", compile, as_number, as_key)


def as_number(value: Any) -> Tensor:
    """Return a number as an array, which takes the dtype of what it meets."""
    return value if isinstance(value, mx.array) else mx.array(value)


def as_key(key: Any) -> Tensor:
    return key if isinstance(key, mx.array) else mx.array(list(key), mx.uint32)
