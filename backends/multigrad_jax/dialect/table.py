"""jax as a dialect: what its functions and methods mean, and which are replaced or refused.

jax has no dispatch protocol, so stand-ins are put into a copy of the rule
(`capture/copies/substitute.py`). A function that no stand-in reaches is imported by its
jaxpr. `DIALECT`, at the end, takes the tables together.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from multigrad.core import xp as xp_dialect
from multigrad.core.ir.op import FLOATS, T
from multigrad.core.trace.trace import NeedsConcrete, Value
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialect import (
    Calls,
    Classes,
    Dialect,
    Gradients,
    Habits,
    Names,
    State,
    Tensors,
)
from multigrad.engine.capture.meanings import arrays, creation
from multigrad.engine.capture.name_tables import handlers_by_name
from multigrad.engine.capture.symbols import SymbolicDType
from multigrad.engine.capture.values import methods
from multigrad.engine.capture.values.attributes import (
    INDICES,
    MEMORY,
    PARTS,
    PRIVATE,
    VALUES,
    refusals,
)
from multigrad.engine.capture.values.tracer import V

from .. import importers
from ..core.versions import PRIMALS
from . import families
from .families import ALIASES, JAX
from .indexed_updates import At
from .traced import import_function, own_trace
from .types import TYPES

Handler = Callable[..., Any]
Axes = tuple[str, ...]  # names of mapped axes


def find_other_way(function: Any) -> Handler | None:
    return own_trace(function) if function in ALIASES else None


@contextmanager
def computing_at_once() -> Iterator[None]:
    """Let jax compute at once, even while it traces, and in 64 bits.

    A constant takes the dtype of the tensor it meets, so float64 gets all digits of
    `jnp.sqrt(jnp.pi)`.
    """
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        yield


def finfo(dtype: Any) -> Any:
    return xp_dialect.finfo(dtype) if isinstance(dtype, SymbolicDType) else jnp.finfo(dtype)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    if isinstance(arg1, SymbolicDType):
        if arg1.symbol not in (T, *FLOATS) or arg2 not in (jnp.floating, jnp.inexact, jnp.number):
            raise NeedsConcrete("dtype")
        return True
    return jnp.issubdtype(arg1, arg2)


def transparent(function: Any = None, **options: Any) -> Any:
    """Return the function itself, as `jax.jit(f)` and `jax.checkpoint(f)` compute the same as f."""
    return functools.partial(transparent, **options) if function is None else function


def cond(
    pred: Any,
    true_fun: Handler,
    false_fun: Handler,
    *operands: Any,
    operand: Any = None,
    linear: Any = None,
) -> Any:
    """Call one branch by Python's truth of `pred`, which a symbolic tensor refuses."""
    operands = operands if operand is None else (operand,)
    return true_fun(*operands) if pred else false_fun(*operands)


# --- the exchange between devices: over mapped axes -----------------------------------------------
# One graph serves all shards, so functions that tell shards apart, or count them, are refused.
def names_of(axis_name: Any, axis_index_groups: Any) -> Axes:
    """Return the names of mapped axes."""
    if axis_index_groups is not None:
        raise TypeError("axis_index_groups; a mesh with an axis for the groups has an axis to name")
    names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"an axis {axis_name!r}; name the axis by a string")
    return tuple(names)


def over_each(exchange: Callable[..., Value]) -> Callable[..., Any]:
    """Return an exchange of each array of a tree, given the exchange of one array."""

    @functools.wraps(exchange)
    def call(
        x: Any, axis_name: Any, *args: Any, axis_index_groups: Any = None, **options: Any
    ) -> Any:
        names = names_of(axis_name, axis_index_groups)
        leaves, tree = jax.tree.flatten(x)
        if not all(isinstance(leaf, V) for leaf in leaves):
            raise TypeError("a number, which counts shards; take the mean over them: jax.lax.pmean")
        return jax.tree.unflatten(
            tree, [exchange(leaf, names, *args, **options) for leaf in leaves]
        )

    return call


psum, pmax = over_each(xp.all_sum), over_each(xp.all_max)


@over_each
def pmin(x: Value, names: Axes) -> Value:
    return -xp.all_max(-x, names)


@over_each
def pmean(x: Value, names: Axes) -> Value:
    # one number is exchanged to count the shards
    return xp.all_sum(x, names) / xp.all_sum(xp.ones_like(xp.sum(x)), names, of=x)


@over_each
def all_gather(x: Value, names: Axes, *, axis: int = 0, tiled: bool = False) -> Value:
    # Without tiling a new axis counts the shards.
    return xp.all_gather(x if tiled else xp.expand_dims(x, axis), names, axis)


@over_each
def psum_scatter(
    x: Value, names: Axes, *, scatter_dimension: int = 0, tiled: bool = False
) -> Value:
    part = xp.reduce_scatter(x, names, scatter_dimension)
    return part if tiled else xp.squeeze(part, scatter_dimension)


@over_each
def all_to_all(
    x: Value, names: Axes, split_axis: int, concat_axis: int, *, tiled: bool = False
) -> Value:
    if tiled:
        return xp.all_to_all(x, names, split_axis, concat_axis)
    return xp.all_to_all(xp.moveaxis(x, split_axis, concat_axis), names, concat_axis, concat_axis)


def ppermute(x: Any, axis_name: Any, perm: Any) -> Any:
    # jax's has no axis_index_groups
    return over_each(lambda leaf, names: xp.ppermute(leaf, list(perm), names))(x, axis_name)


COLLECTIVES: dict[Any, Any] = JAX.taking_the_same(
    {
        __name__: """
            lax.psum; lax.pmax; lax.pmin; lax.pmean; lax.all_gather; lax.psum_scatter;
            lax.all_to_all; lax.ppermute
        """,
        methods: "identity: lax.pcast lax.with_sharding_constraint",
    }
)


MAKING = ("arange", "array", "asarray", "empty", "full", "ones", "zeros")
CREATORS = creation.creators_of(jnp, MAKING, computing_at_once())
# Functions that captured code finds others in place of, whatever it passes to them.
HIDDEN: dict[Any, Handler] = {
    **{getattr(jnp, name): each for name, each in CREATORS.items()},
    **dict.fromkeys((jax.jit, jax.checkpoint, jax.remat, jax.named_call), transparent),
    jnp.finfo: finfo,
    jnp.issubdtype: issubdtype,
    lax.cond: cond,
    **COLLECTIVES,
}

DRAWS = (
    "which needs a key that a rule does not have. Draw with xp.randn_like(grad_out) or "
    "xp.rand_like(grad_out), and give the key to xg.use(..., key=...)"
)
DERIVATIVES = "grad value_and_grad vjp jvp jacfwd jacrev hessian linearize"
DERIVES = "but a rule is the backward pass. Write the derivative out"
TELLS_SHARDS_APART = (
    "which a graph that is one for all shards does not have. Take sums and extremes over shards "
    "(psum, pmean, pmax, pmin), hand arrays around (all_gather, psum_scatter, all_to_all, "
    "ppermute), or register the rule with native=True"
)
MAPS = "which is not captured. Write the function for whole arrays"
# Functions that raise, and why; each reason ends a sentence: "calls jax.grad, ...".
REFUSED: dict[Any, str] = {
    **{
        function: DRAWS
        for name in dir(jax.random)
        if callable(function := getattr(jax.random, name)) and not isinstance(function, type)
    },
    **{getattr(jax, name): DERIVES for name in DERIVATIVES.split()},
    **dict.fromkeys((jax.vmap, jax.pmap, jnp.vectorize, jnp.apply_along_axis), MAPS),
    **dict.fromkeys(
        (lax.axis_index, lax.axis_size, lax.pshuffle, lax.pswapaxes), TELLS_SHARDS_APART
    ),
}

# Methods that mean the same as the functions of `jax.numpy` of their names.
AS_FUNCTIONS = """
    argmax argmin argsort astype cumprod cumsum max mean min prod ptp repeat round squeeze std sum
    take var
"""
METHODS: dict[str, Handler] = {
    **handlers_by_name(
        {
            families: """
                absolute: __abs__; clip; floor_divide: __floordiv__; rounded: __round__; sort
            """,
            arrays: "np_dot: dot; ravel: ravel flatten",
        }
    ),
    **{name: ALIASES[getattr(jnp, name)] for name in AS_FUNCTIONS.split()},
}

# Attributes of `jax.Array` that no symbol answers, and why.
UNANSWERED = {
    PRIVATE: "_* __numpy_dtype__ __jax_array__ aval weak_type",
    VALUES: "argpartition choose compress nonzero",
    INDICES: "searchsorted",
    PARTS: "diagonal flat",
    MEMORY: """
        addressable_data addressable_shards byteswap committed copy_to_host_async devices
        global_shards is_deleted is_fully_addressable is_fully_replicated itemsize nbytes
        on_device_size_in_bytes sharding to_device traceback unsafe_buffer_pointer block_until_ready
        delete format layout
    """,
}

# In float32 jax takes the logarithm of a value rounded near 1: off by 4 % at 5.
LOG_OF_NEARLY_1 = 2.0**-5

TREES = [
    *(getattr(jax.tree, name) for name in vars(jax.tree) if not name.startswith("_")),
    *(each for name, each in vars(jax.tree_util).items() if name.startswith("tree_")),
]


def describe_nnx(value: Any) -> tuple[str, bool] | None:
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(value, nnx.Variable | nnx.Module):
        return None
    return "", isinstance(value, nnx.Param)


DIALECT = Dialect(
    names=Names(
        aliases=ALIASES,
        methods=METHODS,
        attributes={"at": At, "imag": xp.zeros_like},
        hidden=HIDDEN,
        companions={"equinox": importers.predicates},
        refused=REFUSED,
        shown="jax.numpy",
        trees=frozenset(TREES),
    ),
    tensors=Tensors(
        tensor=jax.Array,
        dtype=jnp.dtype,
        device="cpu",
        mutable=False,
    ),
    classes=Classes(
        refusals=refusals(UNANSWERED),
    ),
    calls=Calls(
        protocol=False,
        at_once=computing_at_once,
        import_function=import_function,
        import_route="import of its jaxpr",
        other_way=find_other_way,
        own_trace=own_trace,
    ),
    gradients=Gradients(
        wrappers={
            type(jax.jit(finfo)): "__wrapped__",
            **PRIMALS,
        },
        own_gradients=dict.fromkeys(PRIMALS, importers.with_own_gradient),
        interceptions=importers.INTERCEPTIONS,
    ),
    state=State(
        describe=describe_nnx,
    ),
    habits=Habits(
        inexact={"expm": 1e-8, "log_ndtr": LOG_OF_NEARLY_1},
        outside=("nearest", "inside"),
        selects=True,  # in float32 XLA does so
    ),
    types=TYPES,
)
