"""TensorFlow's shapes, tensors made from shapes, and draws, in ops; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py` fills
in the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.capture.meanings import arrays, creation
from multigrad.capture.name_tables import Library
from multigrad.capture.symbols.symbols import SymbolicDType, SymbolicShape
from multigrad.trace.axes import known_shape
from multigrad.trace.trace import NeedsConcrete, Value
from multigrad.trace.xp import all as xp

Tensor = Any
Handler = Callable[..., Any]


class Shape(SymbolicShape):
    """The result of `tf.shape(x)`; to TensorFlow's own functions a tensor, which fixes it."""

    __slots__ = ()

    def _known(self) -> tuple[int, ...]:
        known = known_shape(self.value)
        return super()._known() if known is None else known

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(self._known(), np.int32)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        return tf.constant(self._known(), dtype or tf.int32)


def size(input: Any, out_type: Any) -> Any:
    return len(input) if isinstance(input, SymbolicShape) else xp.size(input)


def rank(input: Tensor) -> int:
    return input.ndim


# Parameters that are attributes of an op, which TensorFlow takes as tensors or arrays too.
STATIC = "axes axis multiples repeats shift"


def static(given: Any) -> Any:
    """Return integers as Python's, from a tensor or an array too."""
    if isinstance(given, tf.Tensor | tf.TensorShape):
        return given.numpy().tolist() if isinstance(given, tf.Tensor) else given.as_list()
    return given.tolist() if isinstance(given, np.ndarray | np.integer) else given


TENSORFLOW = Library(tf, values={**dict.fromkeys(STATIC.split(), static), "keepdims": bool})


def reshape(tensor: Tensor, shape: Any) -> Tensor:
    lengths = static(shape)
    return arrays.reshape(tensor, *(lengths if isinstance(lengths, list | tuple) else [lengths]))


def broadcast_to(input: Tensor, shape: Any) -> Tensor:
    lengths = static(shape)
    return arrays.expand(input, *(lengths if isinstance(lengths, list | tuple) else [lengths]))


def squeeze(input: Tensor, axis: Any) -> Tensor:
    return xp.squeeze(input, None if axis == [] else axis)


def transpose(a: Tensor, perm: Any) -> Tensor:
    return xp.permute_dims(a, static(perm))


def stack(values: Sequence[Any], axis: int) -> Any:
    # lengths of a shape stay a list of numbers
    if all(
        isinstance(v, int) or (isinstance(v, Value) and v.node.type.kind == "scalar")
        for v in values
    ):
        return list(values)
    return xp.stack(values, axis)


def slice_of(input_: Tensor, begin: Any, size: Any) -> Tensor:
    starts, lengths = static(begin), static(size)
    return xp.getitem(
        input_,
        tuple(
            slice(start, None if n == -1 else start + n)
            for start, n in zip(starts, lengths, strict=True)
        ),
    )


def band_part(input: Tensor, num_lower: Any, num_upper: Any) -> Tensor:
    """Return a band around the diagonal; a negative width keeps that side whole."""
    lower, upper = index(static(num_lower)), index(static(num_upper))
    band = input if lower < 0 else xp.triu(input, -lower)
    return band if upper < 0 else xp.tril(band, upper)


def bias_add(value: Tensor, bias: Any, data_format: Any) -> Tensor:
    if str(data_format).startswith("NC") and data_format != "N...C":
        raise TypeError(f"bias_add in data format {data_format!r}; add a bias of the right shape")
    return value + bias


# --- made from a shape -------------------------------------------------------------------------
def zeros(shape: Any, dtype: Any) -> Tensor:
    return made(creation.zeros, tf.zeros, shape, dtype)


def ones(shape: Any, dtype: Any) -> Tensor:
    return made(creation.ones, tf.ones, shape, dtype)


def made(make: Handler, function: Handler, shape: Any, dtype: Any) -> Tensor:
    """Return a tensor like the one whose shape is given, or TensorFlow's own for known lengths."""
    if isinstance(shape, SymbolicShape):
        return make(shape.value, dtype)
    return function(lengths_of(shape), known_dtype(dtype))


def known_dtype(dtype: Any) -> Any:
    """Return a dtype for a constant tensor, which must match the tensors that it meets."""
    if isinstance(dtype, SymbolicDType):
        raise NeedsConcrete("dtype")
    return dtype


def fill(dims: Any, value: Any) -> Tensor:
    if isinstance(dims, SymbolicShape):
        return xp.full_like(dims.value, value)
    lengths = lengths_of(dims)
    return xp.broadcast_to(value, lengths) if isinstance(value, Value) else tf.fill(lengths, value)


def lengths_of(shape: Any) -> Any:
    """Return a shape of numbers, which fixes symbolic lengths."""
    given = static(shape)
    return tuple(map(index, given)) if isinstance(given, list | tuple) else index(given)


def range_of(start: Any, limit: Any, delta: Any, dtype: Any) -> Any:
    # a constant, so symbolic lengths are fixed
    return tf.range(*(creation.length(n) for n in (start, limit, delta)), dtype=known_dtype(dtype))


def eye(num_rows: Any, num_columns: Any, batch_shape: Any, dtype: Any) -> Any:
    columns = None if num_columns is None else creation.length(num_columns)
    return tf.eye(creation.length(num_rows), columns, batch_shape, known_dtype(dtype))


def linspace(start: Any, stop: Any, num: Any, axis: int) -> Any:
    if isinstance(start, Value) or isinstance(stop, Value):
        raise TypeError("linspace from or to a tensor; of numbers it is known")
    return tf.linspace(start, stop, creation.length(num), axis=axis)


def normal(shape: Any, mean: Any, stddev: Any, dtype: Any, seed: Any) -> Tensor:
    draw = xp.randn_like(drawn_like(shape, seed))
    return draw if (mean, stddev) == (0.0, 1.0) else mean + stddev * draw


def uniform(shape: Any, minval: Any, maxval: Any, dtype: Any, seed: Any) -> Tensor:
    if not isinstance(dtype, SymbolicDType) and tf.as_dtype(dtype).is_integer:
        raise TypeError("a uniform draw of integers; floor a draw of floats")
    draw = xp.rand_like(drawn_like(shape, seed))
    high = 1 if maxval is None else maxval
    return draw if (minval, high) == (0, 1) else minval + (high - minval) * draw


def drawn_like(shape: Any, seed: Any) -> Tensor:
    """Return the tensor whose shape and dtype a draw takes."""
    if seed is not None:
        raise TypeError("a draw with a seed; draws follow the key of xg.use(..., key=...)")
    if not isinstance(shape, SymbolicShape):
        raise TypeError("a draw of another shape than a tensor's; use tf.shape(grad_out)")
    return shape.value


# These accept an open shape; all others fix the shape in the capture.
TAKES_SHAPES = (broadcast_to, fill, normal, ones, reshape, size, uniform, zeros)
NAMED = TENSORFLOW.called(
    {
        __name__: "Shape: shape(out_type=)",
        xp: """
            matrix_transpose: linalg.matrix_transpose linalg.adjoint; flip: reverse; roll; tile;
            repeat; concatenate: concat; expand_dims
        """,
    }
)
ALIASES: dict[Any, Handler] = TENSORFLOW.taking_the_same(
    {
        __name__: """
                size; rank; reshape; broadcast_to; squeeze; transpose; stack;
                slice_of: slice; linalg.band_part; nn.bias_add; zeros; ones;
                fill; range_of: range; eye; linspace; random.normal; random.uniform
            """,
    }
)
