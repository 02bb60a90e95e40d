"""Code that runs for a proof: at once, whatever is traced, mapped or transformed around it."""

from __future__ import annotations

import contextvars
import functools
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import jax

from ..distributed import manual_axes

# What people turn on to find their own errors says nothing about a proof's edge values.
STRICT = ("debug_nans", "debug_infs", "log_compiles")
UNBOUND = re.compile(r"unbound axis name: (\w+)")


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return what a function returns, computed at once under jax's defaults, on one shard.

    What it exchanges over mapped axes is exchanged over axes of one shard. In a `shard_map` it runs
    on a thread of its own: jax has no way out of the axes around it.
    """
    names = manual_axes.mapped()
    run = functools.partial(run_at_once, run)
    if names:
        return on_own_thread(lambda: on_one_shard(run, names))
    return on_one_shard(run)


def run_at_once(run: Callable[[], Any]) -> Any:
    with ExitStack() as stack:
        stack.enter_context(jax.ensure_compile_time_eval())
        stack.enter_context(jax.transfer_guard("allow"))
        for name in STRICT:
            option = getattr(jax, name, None)
            if option is not None and getattr(jax.config, f"jax_{name}", False):
                stack.enter_context(option(False))
        return run()


def on_one_shard(run: Callable[[], Any], names: tuple[str, ...] = ()) -> Any:
    """Run a function where axes of one shard have these names, and those that it asks for."""
    while True:
        try:
            return with_axes(run, names)
        except NameError as error:
            missing = UNBOUND.search(str(error))
            if missing is None or missing[1] in names:
                raise
            names = (*names, missing[1])


def with_axes(run: Callable[[], Any], names: tuple[str, ...], size: int = 1) -> Any:
    """Run a function mapped over axes of these names; it meets no value that is mapped."""
    found: list[Any] = []

    def mapped(_: int) -> int:
        found[:] = [run()]
        return 0

    for name in names:
        mapped = jax.vmap(mapped, in_axes=None, out_axes=None, axis_name=name, axis_size=size)
    mapped(0)
    return found[0]


def on_own_thread(run: Callable[[], Any]) -> Any:
    """Run a function where nothing of jax is around it."""
    found: list[Any] = []
    context = contextvars.copy_context()

    def target() -> None:
        try:
            found.extend((context.run(run), None))
        except BaseException as error:
            found.extend((None, error))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    result, error = found
    if error is not None:
        raise error
    return result
