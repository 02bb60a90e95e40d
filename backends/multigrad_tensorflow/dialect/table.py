"""The table of TensorFlow functions that have a meaning in ops.

TensorFlow has no protocol for symbolic values, so a rule gets stand-ins for its modules and
functions; other calls come through TensorFlow's own dispatcher, in `traced.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor, SymbolicTensor
from tensorflow.python.util import nest

from multigrad.capture.dialect import (
    Calls,
    Classes,
    Dialect,
    Gradients,
    Habits,
    Names,
    OwnTrace,
    Tensors,
    register_dialect,
)
from multigrad.capture.name_tables import AliasesAndMore, named
from multigrad.capture.symbols.symbols import SymbolicShape
from multigrad.capture.types.oracle import StandInCall, TypeOracle, run_each
from multigrad.capture.values.attributes import NUMBERS, PRIVATE, refusals

from ..importers import custom_gradient
from ..kernels import ops
from . import control, tape, traced
from .families import arrays, convolutions, elementwise, operations, quantization, shapes
from .families.shapes import TENSORFLOW
from .traced import is_symbolic

Tensor = Any
Handler = Callable[..., Any]

TAKES_SHAPES = frozenset(arrays.TAKES_SHAPES + shapes.TAKES_SHAPES)


def accept(function: Handler, handler: Handler, takes_shapes: bool) -> Handler:
    """Return a handler that gets shapes as numbers, unless it accepts open shapes."""
    if takes_shapes:
        return handler

    @functools.wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_shape, (*args, *kwargs.values()))):
            args = tuple(np.asarray(v) if is_shape(v) else v for v in args)
            kwargs = {word: np.asarray(v) if is_shape(v) else v for word, v in kwargs.items()}
            if not any(map(is_symbolic, (*args, *kwargs.values()))):
                return function(*args, **kwargs)
        return handler(*args, **kwargs)

    return call


def is_shape(value: Any) -> bool:
    return isinstance(value, SymbolicShape)


def identity(x: Tensor) -> Tensor:
    return x


def get_shape(x: Tensor) -> Any:
    return x.shape


def set_shape(x: Tensor, shape: Any) -> None:
    """Do nothing: a rule works for every shape."""


def undecorated(func: Handler | None = None, *args: Any, **options: Any) -> Any:
    return undecorated if func is None else func


HANDLERS: dict[Any, Handler] = {
    **named(ops.NAMES, tf, raw=tf.raw_ops),
    **elementwise.ALIASES,
    **arrays.ALIASES,
    **shapes.ALIASES,
    **convolutions.ALIASES,
    **quantization.ALIASES,
    **operations.ALIASES,
    **control.ALIASES,
    tf.as_dtype: identity,
    tf.gradients: tape.gradients,
}
# The private module's functions: TensorFlow Probability uses more than tf.nest has.
STRUCTURES = [each for each in vars(nest).values() if isinstance(each, FunctionType)]
ALIASES: dict[Any, Handler] = {
    **{
        function: accept(function, TENSORFLOW.bound(function, each), each in TAKES_SHAPES)
        for function, each in HANDLERS.items()
    },
    **{
        function: accept(function, handler, False)
        for family in (arrays, control, elementwise, operations, shapes)
        for function, handler in family.NAMED.items()
    },
}

BRANCHES = "which branches on a tensor. Use tf.where(condition, x, y)"
LOOPS = "which runs a function in a loop of TensorFlow's. Write it with functions of whole tensors"
PYTHON = "which hides what it computes. Call the function itself"
DIFFERENTIATES = "but a rule is the backward pass. Write the derivative out"
SEEDED = (
    "but the draws of a rule follow the key of xg.use(..., key=...). "
    "Use tf.random.normal(tf.shape(grad_out))"
)
CHECKS = "which looks at the values of a tensor. Check them outside the rule"
ASSERTIONS = [getattr(tf.debugging, n) for n in dir(tf.debugging) if n.startswith("assert_")]
REFUSED: dict[Any, str] = {
    tf.case: BRANCHES,
    tf.vectorized_map: LOOPS,
    **dict.fromkeys((tf.numpy_function, tf.py_function), PYTHON),
    tf.hessians: DIFFERENTIATES,
    **dict.fromkeys(
        (
            tf.random.stateless_normal,
            tf.random.stateless_truncated_normal,
            tf.random.stateless_uniform,
        ),
        SEEDED,
    ),
    **dict.fromkeys((tf.Assert, tf.debugging.check_numerics, *ASSERTIONS), CHECKS),
    **tape.REFUSED,
    tf.boolean_mask: "whose result has a length that nobody knows. Use tf.where(mask, tensor, 0.0)",
}

# Attributes of `tf.Tensor` that no symbol answers, and why.
GRAPHS = "which is of TensorFlow's own graphs"
UNANSWERED = {
    PRIVATE: "_* OVERLOADABLE_OPERATORS __div__ __rdiv__ __nonzero__ __tf_tracing_type__",
    GRAPHS: "consumers eval experimental_ref graph name op ref value_index",
    NUMBERS: "cpu gpu numpy",
}

PAIRED = type(tf.custom_gradient(identity))
# Ops whose float64 kernels use constants or series in float32.
SINGLE = 2.0**-23
SINGLE_INSIDE = (
    "celu", "digamma", "elu", "erf", "erfc", "gelu", "hard_sigmoid", "hard_silu", "i0e", "i1e",
    "leaky_relu", "lgamma", "log_ndtr", "ndtr", "ndtri", "polygamma", "selu",
)  # fmt: skip


def tiny(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return tf.cast(tf.fill(shape, number), dtype)


def run(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    """Run calls now, outside graphs and tapes."""
    names = [getattr(call.function, "__name__", "") for call in calls]
    others = [call for call in calls if call.function not in ALIASES and find_traced(call.function)]
    # Only recorded in a graph: kernels of convolutions and Fourier transforms end the process where
    # ranks or lengths do not fit (2.21), and a function without a handler may have an effect.
    if others or any("conv" in name or "fft" in name for name in names):
        with tf.Graph().as_default():
            return run_each(calls, tiny)
    with tf.init_scope():
        return run_each(calls, tiny)


def read(x: Any) -> tuple[str, bool] | None:
    return (x.dtype.name, False) if isinstance(x, tf.Tensor | tf.Variable) else None


# The dtype of a call is found by the call itself, on tensors of one element.
TYPES = TypeOracle(tiny, run, read, lambda: None, promotes=False)


def find_operation(kind: str) -> Handler | None:
    return operations.find_operation(kind, ALIASES)


def find_traced(function: Any) -> Handler | None:
    return traced.find_traced(function, find_operation)


def own_trace(function: Handler) -> Handler:
    return OwnTrace(traced.record, function, find_operation)


DIALECT = Dialect(
    names=Names(
        aliases=AliasesAndMore(ALIASES, operations.of_keras),
        methods={"get_shape": get_shape, "set_shape": set_shape},
        # These act without symbolic arguments too: on a shape, a dtype, a function.
        hidden={
            tf.zeros: ALIASES[tf.zeros],
            tf.ones: ALIASES[tf.ones],
            tf.function: undecorated,
            tf.recompute_grad: undecorated,
            tf.GradientTape: tape.Tape,
            **tape.HIDDEN,
        },
        refused=REFUSED,
        shown="tf",
        trees=frozenset(STRUCTURES),
    ),
    tensors=Tensors(
        tensor=tf.Tensor,
        dtype=tf.as_dtype,
        device="/device:CPU:0",
        mutable=False,
        shape_class=tf.TensorShape,
    ),
    classes=Classes(
        classes=(EagerTensor, SymbolicTensor),
        refusals=refusals(UNANSWERED),
    ),
    calls=Calls(
        protocol=False,
        at_once=tf.init_scope,
        finds=find_traced,
        other_way=find_traced,
        own_trace=own_trace,
    ),
    gradients=Gradients(
        wrappers={type(tf.function(identity)): "python_function", PAIRED: "_f"},
        paired=(PAIRED,),
        own_gradients={PAIRED: custom_gradient.with_own_gradient},
        interceptions=custom_gradient.INTERCEPTIONS,
        passes=tape.watching,
    ),
    types=TYPES,
    # Its erfinv is off by up to 82,137 ulp of float32 (2.21).
    habits=Habits(
        lists_are_tensors=True,
        inexact={**dict.fromkeys(SINGLE_INSIDE, SINGLE), "erfinv": 82_137 * SINGLE, "expm": 1e-8},
        whole="int32",
        overwritten_too=True,
    ),
)
register_dialect("tensorflow", DIALECT)
traced.Dispatcher(ALIASES).register()
