"""TensorFlow's dialect: which function of `tf` means which op.

TensorFlow has no protocol for symbolic values, so a rule gets stand-ins for its modules and
functions; what these do not reach comes through TensorFlow's own dispatcher, in `dispatch.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor, SymbolicTensor
from tensorflow.python.util import nest

from multigrad.capture.dialect import Dialect, Habits, register_dialect
from multigrad.capture.names import AliasesAndMore, named
from multigrad.capture.symbols import SymbolicShape

from . import (
    attributes,
    capture_arrays,
    capture_control,
    capture_convolutions,
    capture_elementwise,
    capture_linalg,
    capture_parts,
    capture_places,
    capture_quantization,
    capture_replicas,
    capture_shapes,
    capture_tape,
    dispatch,
    importer,
    ops,
)
from .dispatch import is_symbolic
from .library_types import TYPES

Tensor = Any
Handler = Callable[..., Any]

# What labels or places a node of TensorFlow's own graph has no meaning in a rule.
LABELS = ("name", "layout")
TAKES_SHAPES = frozenset(capture_arrays.TAKES_SHAPES + capture_shapes.TAKES_SHAPES)


def accept(function: Handler, handler: Handler) -> Handler:
    """Return a handler called by a TensorFlow function's own parameter names and defaults."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature_of(function).bind(*args, **kwargs)
        given.apply_defaults()
        values = {word: v for word, v in given.arguments.items() if word not in LABELS}
        if handler not in TAKES_SHAPES and any(map(is_shape, values.values())):
            values = {word: np.asarray(v) if is_shape(v) else v for word, v in values.items()}
            if not any(map(is_symbolic, values.values())):
                return function(**values)
        return handler(*values.values())

    call.__name__ = handler.__name__
    call.__doc__ = handler.__doc__
    return call


def is_shape(value: Any) -> bool:
    return isinstance(value, SymbolicShape)


@functools.cache
def signature_of(function: Handler) -> inspect.Signature:
    """Return the signature of a TensorFlow function, read once."""
    return inspect.signature(function)


def identity(x: Tensor) -> Tensor:
    return x


def get_shape(x: Tensor) -> Any:
    return x.shape


def set_shape(x: Tensor, shape: Any) -> None:
    """It tells TensorFlow's graph what it cannot know; a rule works on every shape."""


def as_dtype(type_value: Any) -> Any:
    return type_value


def undecorated(func: Handler | None = None, *args: Any, **options: Any) -> Any:
    """`tf.function` and its like in a rule: the Python function itself."""
    return undecorated if func is None else func


HANDLERS: dict[Any, Handler] = {
    **named(ops.NAMES, tf, raw=tf.raw_ops),
    **capture_elementwise.ALIASES,
    **capture_arrays.ALIASES,
    **capture_places.ALIASES,
    **capture_quantization.ALIASES,
    **capture_shapes.ALIASES,
    **capture_convolutions.ALIASES,
    **capture_parts.ALIASES,
    **capture_linalg.ALIASES,
    **capture_control.ALIASES,
    tf.as_dtype: as_dtype,
    tf.gradients: capture_tape.gradients,
}
# TensorFlow Probability takes the private module's, of which tf.nest's are some.
STRUCTURES = [each for each in vars(nest).values() if isinstance(each, FunctionType)]
ALIASES: dict[Any, Handler] = {
    **{function: accept(function, handler) for function, handler in HANDLERS.items()},
    tf.einsum: capture_arrays.einsum,
    **capture_parts.SPREAD,
}

BRANCHES = "which branches on a tensor. Use tf.where(condition, x, y)"
LOOPS = "which runs a function in a loop of TensorFlow's. Write it with functions of whole tensors"
PYTHON = "which hides what it computes. Call the function itself"
DIFFERENTIATES = "but a rule is the backward pass. Write the derivative out"
SEEDED = (
    "but the draws of a rule follow the key of xg.use(..., key=...). "
    "Use tf.random.normal(tf.shape(grad_out))"
)
CHECKS = "which looks at the values of a tensor. Check them outside of the rule"
ASSERTIONS = [getattr(tf.debugging, n) for n in dir(tf.debugging) if n.startswith("assert_")]
REFUSED: dict[Any, str] = {
    tf.case: BRANCHES,
    **dict.fromkeys((tf.foldl, tf.foldr, tf.map_fn, tf.scan, tf.vectorized_map), LOOPS),
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
    **capture_replicas.REFUSED,
    tf.boolean_mask: "whose result has a length that nobody knows. Use tf.where(mask, tensor, 0.0)",
}

PAIRED = type(tf.custom_gradient(identity))
# Ops whose kernels hold numbers and series in float32, in float64 too.
SINGLE = 2.0**-23
SINGLE_INSIDE = (
    "celu", "digamma", "elu", "erf", "erfc", "gelu", "hard_sigmoid", "hard_silu", "i0e", "i1e",
    "leaky_relu", "lgamma", "log_ndtr", "ndtr", "ndtri", "polygamma", "selu",
)  # fmt: skip

DIALECT = Dialect(
    AliasesAndMore(ALIASES, capture_parts.of_keras),
    tf.Tensor,
    tf.as_dtype,
    "/device:CPU:0",
    classes=(EagerTensor, SymbolicTensor),
    methods={"get_shape": get_shape, "set_shape": set_shape},
    # These also act where no symbol is among the arguments: a shape, a dtype, a function.
    hidden={
        tf.zeros: ALIASES[tf.zeros],
        tf.ones: ALIASES[tf.ones],
        tf.function: undecorated,
        tf.recompute_grad: undecorated,
        tf.GradientTape: capture_tape.Tape,
        **capture_replicas.HIDDEN,
    },
    mutable=False,
    protocol=False,
    refused=REFUSED,
    at_once=tf.init_scope,
    shape_class=tf.TensorShape,
    shown="tf",
    types=TYPES,
    # Its erfinv is off by up to 82,137 ulp of float32 (2.21).
    habits=Habits(
        inexact={**dict.fromkeys(SINGLE_INSIDE, SINGLE), "erfinv": 82_137 * SINGLE}, whole="int32"
    ),
    wrappers={type(tf.function(identity)): "python_function", PAIRED: "_f"},
    paired=(PAIRED,),
    refusals=attributes.REFUSALS,
    own_gradients={PAIRED: importer.with_own_gradient},
    interceptions=importer.INTERCEPTIONS,
    trees=frozenset(STRUCTURES),
    passes=capture_tape.watching,
)
register_dialect("tensorflow", DIALECT)
dispatch.register(ALIASES)
