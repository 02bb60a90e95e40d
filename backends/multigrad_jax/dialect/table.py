"""The table of jax functions that have a meaning in ops, their stand-ins, and jax's dtype
promotion.

jax has no dispatch protocol, so stand-ins are put into a copy of the rule
(`multigrad/capture/copies/substitute.py`). A function that no stand-in reaches is imported by its
jaxpr.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

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
from multigrad.capture.meanings.parts import holds_places
from multigrad.capture.name_tables import handlers_by_name
from multigrad.capture.symbols import SymbolicDType
from multigrad.capture.types.oracle import StandInCall, TypeOracle
from multigrad.capture.values import indexing
from multigrad.capture.values.indexing import add_at, holds_array, repeats, told_outside
from multigrad.capture.values.methods import INDICES, MEMORY, PARTS, PRIVATE, VALUES, refusals
from multigrad.capture.values.tracer import V
from multigrad.graph.ir.types import FLOATS, SCALAR_SHAPE, T
from multigrad.trace.trace import NeedsConcrete, Value
from multigrad.trace.xp import all as xp

from ..importers import custom_gradients
from ..versions import PRIMALS
from . import families
from .families import ALIASES
from .traced import import_function, own_trace

Tensor = Any
Handler = Callable[..., Any]


def held(x: Any, updated: Any) -> Any:
    """Cast an updated tensor to the dtype of the original, if types are known."""
    is_same = updated.node.type.dtype == x.node.type.dtype
    return (
        updated
        if is_same or x.trace.types is None
        else x.trace.types.cast(updated, x.node.type.dtype)
    )


# --- x.at[index].set(value) -----------------------------------------------------------------------
class At:
    """`x.at`, whose index makes a Place."""

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> IndexedUpdate:
        return IndexedUpdate(self.value, index)


class IndexedUpdate:
    """`x.at[index]`, whose updates return new tensors."""

    __slots__ = ("index", "value")

    def __init__(self, value: V, index: Any) -> None:
        self.value = value
        self.index = index

    def _updated(self, compute: Handler, *values: Any, **options: Any) -> Tensor:
        return held(self.value, self._computed(compute, *values, outside=_outside(options)[1]))

    def _computed(self, compute: Handler, *values: Any, outside: str | None) -> Tensor:
        index = told_outside(self.value, self.index)
        if holds_places(index):
            sign = {xp.add: 1, xp.subtract: -1}.get(compute)
            if sign is None or len(values) != 1:
                raise TypeError(
                    "an update at symbolic places; set, add, subtract and get are known"
                )
            x: Any = self.value.trace.value(self.value.node)
            value = values[0] if sign == 1 else -values[0]
            at, part = add_at(x, index, value, outside)
            return indexing.assigned(x, at, part)
        updated = self._at_rows(compute, *values)
        if updated is not None:
            return updated
        # A value of its own: the update must not show in x.
        x = self.value.trace.value(self.value.node)
        if indexing.is_mask(self.index):
            return indexing.assigned(x, self.index, self._picked(x, compute, *values))
        if indexing.is_whole(self.index):
            return compute(x, *values)
        if holds_array(self.index) and repeats(x, self.index):
            raise TypeError("a place updated twice; write one x.at[i] after the other")
        return indexing.assigned(x, self.index, compute(x[self.index], *values))

    def _at_rows(self, compute: Handler, *values: Any) -> Tensor | None:
        """Return the tensor updated row by row, for a list of rows and scalar values; None for
        other indices.
        """
        if isinstance(self.index, Value) or not hasattr(self.index, "dtype"):
            return None
        rows = np.asarray(self.index)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            return None
        if any(isinstance(v, Value) and v.node.type.shape != SCALAR_SHAPE for v in values):
            return None
        x: Any = self.value.trace.value(self.value.node)
        # one after the other, as a row may occur twice
        for row in rows.tolist():
            x = indexing.assigned(x, row, compute(x[row], *values))
        return x

    def _picked(self, x: V, compute: Handler, *values: Any) -> Any:
        """Return `compute(x, value)` where a mask holds, for values that are scalars or picked by
        that mask.
        """
        wholes = [v.whole if isinstance(v, indexing.Picked) else v for v in values]
        masks = [v.mask.node for v in values if isinstance(v, indexing.Picked)]
        numbers = [v for v in values if not isinstance(v, indexing.Picked)]
        single = all(not isinstance(v, Value) or v.node.type.shape == SCALAR_SHAPE for v in numbers)
        if not single or any(mask is not self.index.node for mask in masks):
            raise x.trace.error(
                "updates a tensor at a mask by values that are not picked by the same mask. "
                "Use jnp.where(mask, value, tensor)"
            )
        return indexing.Picked(compute(x, *wholes), self.index)

    def set(self, values: Any, **options: Any) -> Tensor:
        outside = _outside(options)[1]
        x: Any = self.value.trace.value(self.value.node)
        if outside == "promised":
            raise TypeError("x.at[...].set in the mode 'promise_in_bounds'; leave the mode out")
        return held(x, indexing.assigned(x, self.index, values, outside))

    def _put(self, compute: Handler, values: Any, **options: Any) -> Tensor:
        return self._updated(compute, values, **options)

    add = partialmethod(_put, xp.add)
    subtract = partialmethod(_put, xp.subtract)
    multiply = mul = partialmethod(_put, xp.multiply)
    divide = partialmethod(_put, xp.divide)
    power = partialmethod(_put, xp.pow)
    min = partialmethod(_put, xp.minimum)
    max = partialmethod(_put, xp.maximum)

    def apply(self, ufunc: Handler, **options: Any) -> Tensor:
        return self._updated(ufunc, **options)

    def get(self, *, fill_value: Any = None, **options: Any) -> Tensor:
        outside = _outside(options)[0]
        fill = families.filling(self.value, fill_value) if outside == "inside" else None
        return indexing.picked(self.value, self.index, outside, fill)


# Options that promise what already holds here.
HARMLESS = ("indices_are_sorted", "mode", "unique_indices")
# By mode: how elements outside are read, and how they are written.
MODES = {
    None: (None, None),
    "promise_in_bounds": (None, "promised"),
    "fill": ("inside", "inside"),
    "drop": ("inside", "inside"),
    "clip": ("clip", "clip"),
}


def _outside(options: Any) -> tuple[str | None, str | None]:
    for name in options:
        if name not in HARMLESS:
            raise TypeError(f"x.at[...] with {name}")
    mode = options.get("mode")
    if mode not in MODES:
        raise TypeError(f"x.at[...] in the mode {mode!r}")
    return MODES[mode]


# --- arrays and limits from symbols ---------------------------------------------------------------
@contextmanager
def computing() -> Iterator[None]:
    """Let jax compute at once, even while tracing, and without rounding constants to float32.

    A constant takes the dtype of the tensor it meets: float64 gets all digits of
    `jnp.sqrt(jnp.pi)`.
    """
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        yield


def at_once(function: Handler) -> Handler:
    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with computing():
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


HIDDEN: dict[Any, Handler] = {
    **creators(),
    **dict.fromkeys((jax.jit, jax.checkpoint, jax.remat, jax.named_call), transparent),
    jnp.finfo: finfo,
    jnp.issubdtype: issubdtype,
    jax.lax.cond: cond,
    **families.HIDDEN,
}

DRAWS = (
    "which needs a key that a rule does not have. Draw with xp.randn_like(grad_out) or "
    "xp.rand_like(grad_out), and give the key to xg.use(..., key=...)"
)
DERIVATIVES = "grad value_and_grad vjp jvp jacfwd jacrev hessian linearize"
DERIVES = "but a rule is the backward pass. Write the derivative out"
MAPS = "which is not captured. Write the function for whole arrays"
REFUSED: dict[Any, str] = {
    **{
        function: DRAWS
        for name in dir(jax.random)
        if callable(function := getattr(jax.random, name)) and not isinstance(function, type)
    },
    **{getattr(jax, name): DERIVES for name in DERIVATIVES.split()},
    **dict.fromkeys((jax.vmap, jax.pmap, jnp.vectorize, jnp.apply_along_axis), MAPS),
    **families.REFUSED,
}

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


def describe(value: Any) -> tuple[str, bool] | None:
    """Return ("", whether it is a parameter) for a variable or module of flax nnx, else None."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(value, nnx.Variable | nnx.Module):
        return None
    return "", isinstance(value, nnx.Param)


# --- which dtype jax gives a call: its abstract value, and whether it is weak ---------------------
def run(calls: Sequence[StandInCall], mode: tuple[bool, Any]) -> list[Any]:
    """Return the types of calls: all traced together, or one by one if a call is invalid. Nothing
    compiles.
    """
    try:
        return _trace(calls, mode)
    except Exception:  # noqa: BLE001 (jax refuses the operands of a call: of that one is no answer)
        return [None] if len(calls) == 1 else [run([call], mode)[0] for call in calls]


def _trace(calls: Sequence[StandInCall], mode: tuple[bool, Any]) -> list[Any]:
    # A call with float64 is traced under 64 bits.
    wide = [mode[0] or _is_double(call) for call in calls]
    groups = {
        is_wide: iter(
            _trace_in([c for c, w in zip(calls, wide, strict=True) if w is is_wide], is_wide)
        )
        for is_wide in set(wide)
    }
    return [next(groups[is_wide]) for is_wide in wide]


def _is_double(call: StandInCall) -> bool:
    dtypes: list[str] = []
    call.arguments(lambda dtype, *of: dtypes.append(dtype))
    return "float64" in dtypes


def _trace_in(calls: Sequence[StandInCall], is_wide: bool) -> list[Any]:
    structs: list[Any] = []

    def note(*of: Any) -> None:
        structs.append(stand_in_tensor(*of))

    def call_all(*tensors: Any) -> list[Any]:
        rest = iter(tensors)
        return [call.run(lambda *of: next(rest)) for call in calls]

    with jax.enable_x64(is_wide), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about made-up operands
        for call in calls:
            call.arguments(note)
        return list(jax.eval_shape(call_all, *structs))


def stand_in_tensor(
    dtype: str, shape: tuple[int, ...], number: int, is_weak: bool
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=is_weak)


def dtype_of_leaf(x: Any) -> tuple[str, bool] | None:
    return (np.dtype(x.dtype).name, bool(x.weak_type)) if hasattr(x, "weak_type") else None


def mode() -> tuple[bool, Any]:
    return jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion


NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def canonical(dtype: str, mode: tuple[bool, Any]) -> str:
    # captures compute constants in 64 bits whatever the mode
    return dtype if mode[0] else NARROW.get(dtype, dtype)


# Functions that compute 16-bit floats in float32 by themselves.
WIDE = frozenset(
    {jax.nn.dot_product_attention, jnp.round, jnp.around, jnp.nanstd, jnp.nanvar, jnp.std, jnp.var}
)


# All others promote their operands first; these divide integers later, or take a condition.
AT_ONCE = frozenset({jax.nn.softmax, special.softmax, jnp.where})


TYPES = TypeOracle(
    stand_in_tensor,
    run,
    dtype_of_leaf,
    mode,
    canonical=canonical,
    is_wide=WIDE.__contains__,
    casts_first=lambda function: function not in AT_ONCE,
)


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
            at_once=computing,
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
            describe=describe,
        ),
        habits=Habits(
            inexact={"expm": 1e-8, "log_ndtr": LOG_OF_NEARLY_1}, outside=("nearest", "inside")
        ),
        types=TYPES,
    ),
)
