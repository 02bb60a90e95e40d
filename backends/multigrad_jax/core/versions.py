"""Names of jax that differ between releases, in one form for all supported releases.

docs/versions.md lists these.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import jax
import jax._src.config
import jax._src.core
import jax._src.distributed
import jax._src.lax.lax
import jax._src.traceback_util
import jax.numpy as jnp

import multigrad
from multigrad.core.support.tracebacks import shows_all

distributed: Any = jax._src.distributed
lax: Any = jax._src.lax.lax

# Not jax.extend.core, which imports Pallas (0.10): 18 ms at each first gradient.
core: Any = jax._src.core


def kinds_of_traces() -> list[str]:
    """Return the classes of the traces around the code that runs now, from the inside out."""
    with core.take_current_trace() as trace:
        pass
    kinds = []
    while trace is not None:
        kinds.append(type(trace).__name__)
        trace = getattr(trace, "parent_trace", None)
    return kinds


# Set by jax.ensure_compile_time_eval, and part of the keys of jax's traces.
folding_constants: Any = jax._src.config.eager_constant_folding

# JAX shows where an op was called by a traceback of its own, without these folders.
if not shows_all():
    for file in (__file__, multigrad.__file__):
        jax._src.traceback_util.register_exclusion(os.path.dirname(file) + os.sep)


# From jax 0.10.2 on, jax.custom_vjp returns this other class if JAX_CUSTOM_VJP3 is set.
try:
    CUSTOM_VJP3: Any = importlib.import_module("jax._src.hijax").custom_vjp3
except (ImportError, AttributeError):
    CUSTOM_VJP3 = None
VJP_KINDS: tuple[type, ...] = tuple(kind for kind in (jax.custom_vjp, CUSTOM_VJP3) if kind)
# The attributes that hold the decorated function.
PRIMALS = {kind: "f" if kind is CUSTOM_VJP3 else "fun" for kind in (*VJP_KINDS, jax.custom_jvp)}


def custom_vjp_of_values(function: Callable[..., Any]) -> Any:
    """Return a `jax.custom_vjp` of the old class, which runs on values and may have closures."""
    # with JAX_CUSTOM_VJP3 its own __new__ returns the other class, which traces the function again
    instance = object.__new__(jax.custom_vjp)
    instance.__init__(function)
    return instance


def weaken(x: Any) -> Any:
    """Return an array with a weak type, which no public function gives to values."""
    return lax._convert_element_type(x, weak_type=True)


def primal_of(function: Any) -> Callable[..., Any]:
    """Return the function that computes a custom function's primal."""
    return getattr(function, PRIMALS[type(function)])


def static_of(function: Any) -> tuple[int, ...]:
    """Return the positions of a custom function's arguments without a derivative."""
    is_new = type(function) is CUSTOM_VJP3
    return tuple(function.static_argnums if is_new else function.nondiff_argnums)


def traced_of(equation: Any) -> Any:
    # only equations of the new class have it; their primal is no jaxpr yet
    primal = equation.params.get("_prim")
    if primal is None:
        return None

    def compute(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(primal.expand(*jax.tree.unflatten(primal.in_tree, leaves)))

    structs = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars)
    return jax.make_jaxpr(compute)(*structs)


def takes_symbolic_zeros(function: Any) -> bool:
    """Return whether the rules of a `jax.custom_vjp` function take symbolic zeros."""
    is_new = type(function) is CUSTOM_VJP3
    return bool(function.symz if is_new else function.symbolic_zeros)


def set_everywhere(context: Any, value: str) -> None:
    """Set a user context on all threads; before jax 0.10.2 only its inner object can."""
    (context if hasattr(context, "set_global") else context._obj).set_global(value)


def axes_of_shard_map(params: dict[str, Any]) -> frozenset[str]:
    """Return the axes that a shard_map makes manual; the param was renamed in jax 0.10.2."""
    return frozenset(params.get("newly_manual_axes", params.get("manual_axes", ())))


def floor_divide_by_zero(a: Any, b: Any) -> Any:
    """Return the quotient, where floats divided by zero are infinite instead of NaN."""
    result = jnp.floor_divide(a, b)
    is_float = jnp.issubdtype(result.dtype, jnp.floating)
    return jnp.where(b == 0, a / b, result) if is_float else result


# From jax 0.10.2 on, its own does the same.
IS_MENDED = jax.__version_info__ >= (0, 10, 2)
floor_divide: Any = jnp.floor_divide if IS_MENDED else floor_divide_by_zero
