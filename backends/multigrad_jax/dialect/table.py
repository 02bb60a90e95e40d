"""jax as a dialect: what its functions and methods mean, and which are replaced or refused.

jax has no dispatch protocol, so stand-ins are put into a copy of the rule
(`multigrad/capture/copies/substitute.py`). A function that no stand-in reaches is imported by its
jaxpr. `register_dialect`, at the end, takes the tables together.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.capture.dialect import (
    Calls,
    Classes,
    Dialect,
    Gradients,
    Habits,
    Names,
    State,
    Tensors,
    register_dialect,
)
from multigrad.capture.dialects import xp as xp_dialect
from multigrad.capture.meanings import creation
from multigrad.capture.name_tables import handlers_by_name
from multigrad.capture.symbols import SymbolicDType
from multigrad.capture.values.attributes import INDICES, MEMORY, PARTS, PRIVATE, VALUES, refusals
from multigrad.graph.ir.types import FLOATS, T
from multigrad.trace.trace import NeedsConcrete
from multigrad.trace.xp import all as xp

from ..importers import custom_gradients
from ..versions import PRIMALS
from . import collectives, families
from .families import ALIASES
from .indexed_updates import At
from .traced import import_function, own_trace
from .types import TYPES

Handler = Callable[..., Any]


# --- arrays and limits from symbols ---------------------------------------------------------------
@contextmanager
def computing_at_once() -> Iterator[None]:
    """Let jax compute at once, even while it traces, and in 64 bits.

    A constant takes the dtype of the tensor it meets, so float64 gets all digits of
    `jnp.sqrt(jnp.pi)`.
    """
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        yield


def at_once(function: Handler) -> Handler:
    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with computing_at_once():
            return function(*args, **kwargs)

    return computed


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


def creators() -> dict[Any, Handler]:
    """Return the stand-ins for functions that make arrays without a tensor."""
    stand_ins: dict[Any, Handler] = {
        getattr(jnp, name): creation.stand_in_for(name, at_once(getattr(jnp, name)))
        for name in ("arange", "array", "asarray", "empty", "full", "ones", "zeros")
    }
    for function in (jnp.linspace, jnp.logspace, jnp.geomspace, jnp.eye, jnp.identity, jnp.tri):
        stand_ins[function] = functools.partial(creation.with_numbers, at_once(function))
    return stand_ins


# Functions that captured code finds others in place of, whatever it passes to them.
HIDDEN: dict[Any, Handler] = {
    **creators(),
    **dict.fromkeys((jax.jit, jax.checkpoint, jax.remat, jax.named_call), transparent),
    jnp.finfo: finfo,
    jnp.issubdtype: issubdtype,
    jax.lax.cond: cond,
    **collectives.COLLECTIVES,
}

DRAWS = (
    "which needs a key that a rule does not have. Draw with xp.randn_like(grad_out) or "
    "xp.rand_like(grad_out), and give the key to xg.use(..., key=...)"
)
DERIVATIVES = "grad value_and_grad vjp jvp jacfwd jacrev hessian linearize"
DERIVES = "but a rule is the backward pass. Write the derivative out"
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
    **collectives.REFUSED,
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
                absolute: __abs__; clip; dot; floor_divide: __floordiv__; ravel: ravel flatten; sort
            """
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
    """Return `State.describe`'s answer for a variable or module of flax nnx, else None."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(value, nnx.Variable | nnx.Module):
        return None
    return "", isinstance(value, nnx.Param)


register_dialect(
    "jax",
    Dialect(
        names=Names(
            aliases=ALIASES,
            methods=METHODS,
            attributes={"at": At, "imag": xp.zeros_like},
            hidden=HIDDEN,
            companions={"equinox": custom_gradients.predicates},
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
            own_trace=own_trace,
        ),
        gradients=Gradients(
            wrappers={
                type(jax.jit(at_once)): "__wrapped__",
                **PRIMALS,
            },
            own_gradients=dict.fromkeys(PRIMALS, custom_gradients.with_own_gradient),
            interceptions=custom_gradients.INTERCEPTIONS,
        ),
        state=State(
            describe=describe_nnx,
        ),
        habits=Habits(
            inexact={"expm": 1e-8, "log_ndtr": LOG_OF_NEARLY_1}, outside=("nearest", "inside")
        ),
        types=TYPES,
    ),
)
