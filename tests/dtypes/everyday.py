"""Everyday expressions of each library, as people write them, in eight dtypes.

Each is captured and compared with the library itself: dtype, shape and value. Floats that become
integers stay within these, as what lies beyond is left to the processor.
"""

from __future__ import annotations

import linecache
import random
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ops.numerics import as_numpy_dtype
from multigrad.engine.capture.dialect import find_dialect

DTYPES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
LARGE = {
    "uint8": [200, 130, 3], "int32": [2**24 + 1, 7, 40001], "int64": [2**53 + 1, 2**24 + 3, 9],
    "float16": [300.5, 260.0, 2000.0], "bfloat16": [3e4, 256.0, 300.0],
    "float32": [3e7, 16777216.0, 1e-8], "float64": [3e7, 3.141592653589793, 1e-300],
}  # fmt: skip
EDGES = {
    "uint8": [255, 1, 128], "int32": [-(2**31), 2**31 - 1, -5], "int64": [-(2**63), 2**63 - 1, -7],
}  # fmt: skip
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}

# What several libraries have under one name, in NumPy's words: all of them, all but TensorFlow, and
# those whose tensors mix with numbers and have methods.
EVERYWHERE = """\
x * 2
x / 2
x // 2
x % 3
x ** 2
-x
x + x
x > 1
x == 0
np.where(x > 1, x, 0)
np.where(x > 1, 1, 0)
np.where(x > 1, 1., 0.)
np.exp(x)
np.sqrt(x)
np.sign(x)
np.round(x)
np.ones_like(x) * 3
np.square(x)
np.stack([x, x * 2])
np.argmax(x)
np.floor(x)
"""

LIKE_NUMPY = """\
np.where(x > 1, x, 0.)
np.outer(x, x)
np.log1p(x)
np.dot(x, x)
np.any(x > 1)
np.isnan(x)
np.true_divide(x, 3)
np.count_nonzero(x)
"""

WITH_METHODS = """\
x * 2.5
2 - x
x ** 0.5
abs(x)
(x > 0) * x
(x > 0) * 2
x.sum()
x + np.zeros(3)
x + np.arange(3)
np.fmod(x, 2)
np.full_like(x, 2) + 1
np.zeros_like(x, dtype=np.float32) + x
np.remainder(x, 2)
~(x > 1)
(x > 1) & (x < 3)
np.full((3,), 1.5) + x
x.mean()
"""

TORCH = (
    (EVERYWHERE + LIKE_NUMPY + WITH_METHODS).replace("np.", "torch.")
    + """\
x * x
x.sum(dtype=torch.float32)
x.sum(dim=0)
x.float().mean()
x.prod()
x.max()
x.amax(dim=0)
x.cumsum(0)
x.cumsum(0, dtype=torch.float64)
x + torch.ones(3, dtype=torch.float64)
x * torch.tensor(2.5)
x * torch.tensor([1., 2., 3.])
x * torch.tensor(math.pi, dtype=torch.float64)
x.float() * 2
x.double() / 3
x.half() * 2
x.to(torch.int64) * 2
x.to(torch.bool)
torch.sigmoid(x)
torch.relu(x)
torch.maximum(x, torch.zeros(3, dtype=x.dtype))
torch.clamp(x, 0, 2)
torch.clamp(x, -1.5, 1.5)
torch.softmax(x, 0, dtype=torch.float32)
torch.softmax(x, 0)
torch.div(x, 2, rounding_mode="trunc")
torch.div(x, 2, rounding_mode="floor")
torch.fmod(x, True)
torch.fmod(x, torch.full((3,), 3, dtype=torch.uint8))
torch.isclose(x, x.flip(0))
torch.logical_and(x, torch.tensor(2))
torch.pow(x, 3)
torch.atan2(x, x)
torch.linalg.norm(x.float())
torch.cat([x, torch.zeros(3)])
torch.tril(x.outer(x))
torch.mm(x[:, None], x[None, :])
torch.sort(x).values
torch.logical_not(x)
torch.std(x.float())
torch.nn.functional.softplus(x.float(), beta=100)
torch.addcmul(x, x, x, value=2)
torch.lerp(x, x * 2, 0.5)
x.clone().fill_(1) + x
x.bool().float()
x.bool().sum()
x.new_tensor([1., 2., 3.]) + x
x - x.mean(dtype=torch.float32)
x / x.abs().max()
x @ x
1 - x.long()
1.5 * x.long()
x.clamp(min=0)
torch.nn.functional.relu(x)
torch.nn.functional.one_hot(x.long().clamp(0, 3), 4) * x[:, None]
"""
)

# What NumPy has and, where np is jnp, JAX.
ARRAYS = (
    EVERYWHERE
    + LIKE_NUMPY
    + WITH_METHODS
    + """\
np.sum(x, axis=0)
np.mean(x)
np.prod(x)
np.max(x)
np.cumsum(x)
np.cumsum(x, dtype=np.float64)
x + np.ones(3, dtype=np.float32)
x * np.float32(2.5)
x * np.asarray(2.5)
x * np.array([1., 2., 3.])
x.astype(np.float32) * 2
x.astype(np.float64) / 3
x.astype(np.float16) * 2
x.astype(np.int64) * 2
x.astype(bool)
np.maximum(x, 0)
np.clip(x, 0, 2)
np.clip(x, -1.5, 1.5)
np.round(x, 1)
np.fmod(2, x)
np.isclose(x, x[::-1])
np.floor_divide(x, 2)
np.power(x, 3)
np.power(x, 2.)
np.linalg.norm(x.astype(np.float32))
np.concatenate([x, np.zeros(3)])
np.matmul(x[:, None], x[None, :])
np.einsum('i,i->', x, x)
np.vdot(x, x)
np.sort(x)
np.std(x)
np.var(x, dtype=np.float32)
x - np.mean(x)
x / np.abs(x).max()
np.take(x, np.array([0, 2]))
np.linspace(0., 1., 3) * x
"""
)

JAX = (
    ARRAYS.replace("np.", "jnp.")
    + """\
jnp.sum(x, dtype=jnp.float32)
jnp.mean(x, dtype=jnp.float32)
x * np.pi
x * np.float32(2)
jax.nn.sigmoid(x)
jax.nn.relu(x)
jax.nn.softmax(x)
jnp.logical_and(x, jnp.asarray(2))
(x * 2) ** jnp.asarray(3)
jnp.dot(x, x, preferred_element_type=jnp.float32)
lax.mul(x, x)
lax.add(x, x)
lax.div(x, x + jnp.asarray(1, x.dtype))
lax.convert_element_type(x, jnp.float32) * 3
jnp.nanstd(x)
jax.nn.one_hot(jnp.array([0, 1, 2]), 3) * x
x.at[0].set(5)
x.dot(x)
"""
)

NUMPY = (
    ARRAYS
    + """\
x.sum(dtype=np.float32)
x.mean(dtype=np.float32)
x * np.float64(2.5)
x * np.pi
np.maximum(x, 0.)
np.logical_and(x, 2)
np.average(x, weights=x)
np.nan_to_num(x)
np.sqrt(np.float32(2)) * x
x @ x
np.tanh(x)
"""
)

TF = (
    EVERYWHERE.replace("np.", "tf.")
    + """\
x * x
tf.cast(x > 0, x.dtype) * x
tf.cast(x, tf.float32) * 2
tf.cast(x, tf.float64) / 3
tf.cast(x, tf.int64) * 2
tf.cast(x, tf.bool)
tf.where(x > 1, x, tf.zeros_like(x))
tf.reduce_sum(x)
tf.reduce_mean(x)
tf.reduce_prod(x)
tf.reduce_max(x)
tf.math.cumsum(x)
tf.sqrt(tf.constant(2., x.dtype)) * x
tf.exp(tf.constant(1., x.dtype)) * x
tf.constant(3.14159265358979, x.dtype) * x
tf.constant([1., 2., 3.], x.dtype) * x
tf.linspace(tf.constant(0., x.dtype), tf.constant(1., x.dtype), 3) * x
tf.abs(x)
tf.maximum(x, tf.zeros_like(x))
tf.clip_by_value(x, 0, 2)
tf.nn.relu(x)
tf.nn.softmax(x)
tf.zeros_like(x, dtype=tf.float32) + 1.
tf.fill([3], 1.5) * tf.cast(x, tf.float32)
tf.sort(x)
tf.math.divide_no_nan(x, x)
tf.math.floordiv(x, 2)
tf.math.mod(x, 2)
tf.truediv(x, 2)
tf.math.count_nonzero(x)
tf.math.reduce_std(x)
tf.concat([x, x], 0)
tf.tensordot(x, x, 1)
tf.linalg.matmul(x[:, None], x[None, :])
tf.one_hot(tf.cast(x, tf.int32), 4)
tf.logical_not(x > 1)
tf.pow(x, 3)
tf.math.is_nan(x)
tf.reduce_any(x > 1)
tf.math.log1p(x)
tf.math.softplus(x)
tf.cast(x, tf.float16) * 2
x * tf.constant(2, x.dtype)
x - tf.reduce_mean(x)
tf.ones(3) * tf.cast(x, tf.float32)
tf.zeros(3, x.dtype) + x
"""
)

KERAS = (
    (EVERYWHERE + LIKE_NUMPY).replace("np.", "ops.")
    + """\
ops.sum(x)
ops.mean(x)
ops.prod(x)
ops.cumsum(x)
ops.max(x)
ops.maximum(x, 0)
ops.clip(x, 0, 2)
ops.relu(x)
ops.softmax(x)
ops.cast(x, "float32") * 2
ops.cast(x, "int64") * 2
ops.zeros(3) + ops.cast(x, "float32")
ops.add(x, ops.zeros(3))
ops.multiply(x, ops.convert_to_tensor(2.5))
ops.multiply(x, ops.convert_to_tensor(3.14159265358979, dtype=x.dtype))
ops.zeros_like(x, dtype="float32")
ops.sort(x)
ops.divide(x, 2)
ops.floor_divide(x, 2)
ops.mod(x, 2)
ops.power(x, 2)
ops.add(x, 1.5)
ops.multiply(x, 2)
ops.subtract(1, x)
ops.stack([x, x])
ops.concatenate([x, ops.zeros(3)])
ops.matmul(x[:, None], x[None, :])
ops.std(x)
ops.var(x)
ops.one_hot(ops.cast(x, "int32"), 4)
ops.logical_not(x > 1)
ops.softplus(x)
ops.abs(x)
ops.full((3,), 1.5) * ops.cast(x, "float32")
ops.linspace(0., 1., 3) * ops.cast(x, "float32")
ops.arange(3) + ops.cast(x, "int32")
ops.log_softmax(x)
ops.minimum(x, 1.5)
ops.nan_to_num(x)
"""
)

EXPRESSIONS = {"torch": TORCH, "jax": JAX, "numpy": NUMPY, "tensorflow": TF, "keras": KERAS}
# Keras computes these of integers as float32, and its means of float64 too, on torch; JAX wraps
# unsigned integers around before it takes exponentials.
FAULTS_OF_LIBRARIES = {
    "keras": ("ops.round(x)", "ops.dot(x, x)", "ops.mean(x)"),
    "jax": ("jax.nn.softmax(x)",),
}


@dataclass
class Outcome:
    """What came of the expressions of one library."""

    counts: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def namespace(library: str) -> dict[str, Any]:
    """Return what the expressions of a library refer to."""
    import math

    names: dict[str, Any] = {"np": np, "math": math}
    if library == "torch":
        import torch

        names["torch"] = torch
    elif library == "jax":
        import jax
        from jax import lax, numpy

        names |= {"jax": jax, "jnp": numpy, "lax": lax}
    elif library == "tensorflow":
        import tensorflow

        names["tf"] = tensorflow
    elif library == "keras":
        import keras

        names |= {"keras": keras, "ops": keras.ops}
    return names


def function_of(expression: str, names: dict[str, Any]) -> types.FunctionType:
    """Return a function of x, as if it stood in a file."""
    file, source = f"<everyday {expression}>", f"def f(x):\n    return {expression}\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = dict(names)
    exec(compile(source, file, "exec"), scope)  # noqa: S102 (the expressions stand above)
    return scope["f"]


def samples() -> Iterator[tuple[str, Any]]:
    for dtype in DTYPES:
        small = [True, False, True] if dtype == "bool" else [3, 1, 2]
        small = [1.5, -0.75, 2.25] if "float" in dtype else small
        for numbers in (small, LARGE.get(dtype), EDGES.get(dtype)):
            if numbers is not None:
                yield dtype, np.array(numbers, as_numpy_dtype(dtype))


def differ(got: Any, want: Any) -> str:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
    if want.dtype.name not in EPS:
        return "" if np.array_equal(got, want) else f"{got.tolist()} for {want.tolist()}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= 8 * EPS[want.dtype.name] * np.abs(b) + 1e-300
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | near
    return "" if np.all(same) else f"{a.tolist()} for {b.tolist()}"


def run(library: str, share: float = 1.0, seed: int = 0) -> Outcome:
    """Compare the expressions of a library, or a share of the cases."""
    outcome, names, chooser = Outcome(), namespace(library), random.Random(seed)
    dialect = find_dialect(library)
    runs_on = None if dialect is None else dialect.state.runs_on
    tensors = load_backend(library if runs_on is None else runs_on()).tensors
    skipped = FAULTS_OF_LIBRARIES.get(library, ())
    for expression in EXPRESSIONS[library].strip().splitlines():
        function = function_of(expression, names)
        for dtype, array in samples():
            if expression in skipped or chooser.random() >= share:
                continue
            try:
                with np.errstate(all="ignore"):
                    want = np.asarray(tensors.to_numpy(function(tensors.from_numpy(array))))
            except Exception:
                outcome.counts["the library refuses"] += 1
                continue
            captured = xg.function(function, lambda g, x: None, native=False)
            try:
                with np.errstate(all="ignore"):
                    got = np.asarray(tensors.to_numpy(captured(tensors.from_numpy(array))))
            except Exception as error:
                outcome.counts["refused"] += 1
                outcome.refused.append(f"{expression} of {dtype}: {error}")
                continue
            reason = differ(got, want)
            outcome.counts["differ" if reason else "equal"] += 1
            if reason:
                outcome.differing.append(f"{expression} of {dtype}: {reason}")
    return outcome
