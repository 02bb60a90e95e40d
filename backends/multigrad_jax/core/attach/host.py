"""What JAX says of its tensors, their dtypes and whether they are traced, and of its processes; and
code that runs apart from the trace around it.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import jax

WIDE = ("float64", "int64", "uint64")  # dtypes that jax makes narrower by default


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return a context that keeps a dtype: jax narrows 64 bits to 32 by default."""
    return jax.enable_x64(True) if dtype in WIDE else nullcontext()


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def is_weak(value: Any) -> bool:
    return getattr(value, "weak_type", False)


def find_weak(run: Callable[..., Any], arrays: Sequence[Any]) -> Sequence[bool]:
    """Return which results of a function are weakly typed; () if jax cannot trace it."""
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=is_weak(x)) for x in arrays]
    try:
        return [*map(is_weak, jax.eval_shape(run, *structs))]
    except Exception:  # noqa: BLE001 (it is the user's code, which looks at values)
        return ()


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the tensor that it meets."""
    if isinstance(value, bool | int | float) or is_weak(value):
        return value
    return value.astype(dtype)


def mapped_axes() -> tuple[str, ...]:
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def with_axes(run: Callable[[], Any], names: tuple[str, ...], size: int = 1) -> Any:
    """Run a function under mapped axes of these names; none of its values are mapped."""
    results: list[Any] = []

    def call(_: int) -> int:
        results[:] = [run()]
        return 0

    for name in names:
        call = jax.vmap(call, in_axes=None, out_axes=None, axis_name=name, axis_size=size)
    call(0)
    return results[0]


# --- isolate: whatever is traced, mapped or transformed around it ---------------------------------
# Debug options that users set for their own errors; a proof's edge values would trip them.
STRICT = ("debug_nans", "debug_infs", "log_compiles")
UNBOUND = re.compile(r"unbound axis name: (\w+)")


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Run a function eagerly, under jax's defaults and on one shard, and return its result.

    Collectives over mapped axes run over axes of one shard. In a `shard_map` the function runs on a
    thread of its own, because jax cannot leave the axes around it. `is_random` is for frameworks
    with a generator, whose state a run would change.
    """
    names = mapped_axes()
    run = partial(run_eagerly, run)
    if not names:
        return on_one_shard(run)
    # the rules in force are context variables, and a new thread starts without them
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(context.run, on_one_shard, run, names).result()


def run_eagerly(run: Callable[[], Any]) -> Any:
    with ExitStack() as stack:
        stack.enter_context(jax.ensure_compile_time_eval())
        stack.enter_context(jax.transfer_guard("allow"))
        for name in STRICT:
            option = getattr(jax, name, None)
            if option is not None and getattr(jax.config, f"jax_{name}", False):
                stack.enter_context(option(False))
        return run()


def on_one_shard(run: Callable[[], Any], names: tuple[str, ...] = ()) -> Any:
    """Run a function under axes of size one: those named, and those that it turns out to use."""
    while True:
        try:
            return with_axes(run, names)
        except NameError as error:
            missing = UNBOUND.search(str(error))
            if missing is None or missing[1] in names:
                raise
            names = (*names, missing[1])
