"""What differs between releases of jax: each name in one form, for all releases that are supported.

docs/versions.md says which these are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax._src.config
import jax._src.core
import jax._src.distributed
import jax._src.lax.lax
import jax.numpy as jnp
from jax.scipy import special

distributed: Any = jax._src.distributed
lax: Any = jax._src.lax.lax

# As jax.extend.core, which is imported with Pallas (0.10), for 18 ms of each first gradient.
core: Any = jax._src.core
take_current_trace: Any = core.take_current_trace

# Set by jax.ensure_compile_time_eval, and part of what jax looks up traces by.
folding_constants: Any = jax._src.config.eager_constant_folding


# What jax.custom_vjp makes: from jax 0.10.2 on another object where JAX_CUSTOM_VJP3 is set.
try:
    CUSTOM_VJP3: Any = importlib.import_module("jax._src.hijax").custom_vjp3
except (ImportError, AttributeError):
    CUSTOM_VJP3 = None
VJP_KINDS: tuple[type, ...] = tuple(kind for kind in (jax.custom_vjp, CUSTOM_VJP3) if kind)
# The attributes that hold the decorated function.
PRIMALS = {kind: "f" if kind is CUSTOM_VJP3 else "fun" for kind in (*VJP_KINDS, jax.custom_jvp)}


def custom_vjp_of_values(function: Callable[..., Any]) -> Any:
    """Return a `jax.custom_vjp` function that runs on values where they are at hand, and may close
    over others: what JAX_CUSTOM_VJP3 makes traces it once more.
    """
    made = object.__new__(jax.custom_vjp)
    made.__init__(function)
    return made


def weaken(x: Any) -> Any:
    """Return an array as one whose dtype gives way, which no public function makes of values."""
    return lax._convert_element_type(x, weak_type=True)


def primal_of(function: Any) -> Callable[..., Any]:
    """Return the function that computes a custom function's primal without differentiation."""
    return getattr(function, PRIMALS[type(function)])


def static_of(function: Any) -> tuple[int, ...]:
    """Return the positions of a custom function's arguments that have no derivative."""
    is_new = type(function) is CUSTOM_VJP3
    return tuple(function.static_argnums if is_new else function.nondiff_argnums)


def traced_of(equation: Any) -> Any:
    """Return the jaxpr of what a custom function computes whose call is an equation of the new
    kind, perhaps mapped; None: it is another equation.
    """
    called = equation.params.get("_prim")
    if called is None:
        return None

    def compute(*flat: Any) -> list[Any]:
        return jax.tree.leaves(called.expand(*jax.tree.unflatten(called.in_tree, flat)))

    given = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars)
    return jax.make_jaxpr(compute)(*given)


def takes_symbolic_zeros(function: Any) -> bool:
    """Return whether the rules of a `jax.custom_vjp` function ask for symbolic zeros."""
    is_new = type(function) is CUSTOM_VJP3
    return bool(function.symz if is_new else function.symbolic_zeros)


def set_everywhere(context: Any, value: str) -> None:
    """Set a user context on all threads; before jax 0.10.2 the object within does that."""
    (context if hasattr(context, "set_global") else context._obj).set_global(value)


def axes_of_shard_map(params: dict[str, Any]) -> frozenset[str]:
    """Return the axes that a shard_map makes manual; before jax 0.10.2 they have another name."""
    return frozenset(params.get("newly_manual_axes", params.get("manual_axes", ())))


def floor_divide_by_zero(a: Any, b: Any) -> Any:
    """Floats are not NaN, but infinite, where they are divided by zero."""
    result = jnp.floor_divide(a, b)
    is_float = jnp.issubdtype(result.dtype, jnp.floating)
    return jnp.where(b == 0, a / b, result) if is_float else result


def xlogy_of_nan(x: Any, y: Any) -> Any:
    """NaN is not dropped where x is 0."""
    return jnp.where(jnp.isnan(y), y, special.xlogy(x, y))


# What the two above mend.
MENDED = jax.__version_info__ >= (0, 10, 2)
floor_divide: Any = jnp.floor_divide if MENDED else floor_divide_by_zero
xlogy: Any = special.xlogy if MENDED else xlogy_of_nan
