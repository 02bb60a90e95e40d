"""A decision falls the same everywhere: what is rounded, compared, cast or made an index has the
bits of IEEE 754, in eager and in compiled code. All numbers are read out of code that ran.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from ..harness.arrays import as_numpy

Array: TypeAlias = np.ndarray[Any, Any]
Way: TypeAlias = Callable[..., Sequence[Array]]

STEP = np.float32(0.19471888)


def near(ties: Array, count: int = 8) -> Array:
    """Return float32 numbers, and those next to them on both sides."""
    above = below = ties.astype(np.float32)
    rows = [above]
    for _ in range(count):
        above, below = np.nextafter(above, np.float32(np.inf)), np.nextafter(below, -np.float32(9e9))
        rows += [above, below]
    return np.concatenate(rows)


X = near((np.arange(-120, 120) + 0.5) * float(STEP))  # x / STEP is near a tie
V = near((np.arange(1, 241) / 16.0) ** 2)  # so are 16 roots of v
Y = (np.random.default_rng(0).standard_normal(X.size) * 3).astype(np.float32)
Z = (np.round(X / STEP) + np.float32(0.5) - X * Y).astype(np.float32)  # so is x * y + z


def decisions(x: Any, y: Any, z: Any, v: Any, step: Any) -> dict[str, Any]:
    """What NumPy computes op by op, and a compiler otherwise."""
    return {
        # XLA, graphs of TensorFlow: a product with the reciprocal
        "round, tensor": np.round(x / step),
        "round, number": np.round(x / 0.19471888),
        "floor": np.floor(x / 3.0),
        "floor_divide": x // step,
        "remainder": x % step,
        "compare": np.where(x / step > 1.5, 1.0, 0.0),
        "to int": (x / step).astype(np.int32) * 1.0,
        "largest": np.round(x / (np.max(np.abs(x)) / 127.0)),
        "quotients": np.floor(x / y / step),
        "quotient below": np.floor(x / (y / step)),
        # LLVM: rounded once
        "multiply and add": np.round(x * y + z),
        "subtract from": np.floor(z - x * y),
        "two products": np.sign(x * step + y * step),
        "square": np.floor(np.square(x) - z * 100.0),
        "through where": np.round(np.where(x > 0, x * y, z) + z),
        "through reshape": np.round(np.reshape(np.reshape(x, (-1, 2)) * 0.37, (-1,)) + z),
        "index": np.argmax(np.stack([x * y + z, np.round(x * y + z)]), axis=0) * 1.0,
        # regrouped constants
        "magic number": np.floor((x + 12582912.0) - 12582912.0),
        "sums": np.floor((x + 1.1 + 2.3) * 100.0),
        "factors": np.floor(x * 3.1 * 2.3 * 10.0),
        "there and back": np.floor(x / 3.0 * 3.0 * 50.0),
        # MKL's roots (torch), approximate ones, a number over a tensor (torch: two roundings)
        "root": np.where(np.sqrt(v) >= np.round(np.sqrt(v) * 16.0) / 16.0, 1.0, 0.0),
        "over root": np.floor(y / np.sqrt(v) * 64.0),
        "one over root": np.floor(1.0 / np.sqrt(v) * 4096.0),
        "number over": np.floor(3.3 / v * 1000.0),
        "reciprocal": np.floor(np.reciprocal(v) * 4096.0),
        "powers": np.floor(x**2 * 7.0) + np.floor(v**0.5 * 16.0),
    }


def decisions_in_16_bits(x: Any, y: Any, z: Any, step: Any) -> dict[str, Any]:
    """Casts to 16 bits and back, and arithmetic in 16 bits, which compilers keep in float32."""
    brief, half = xp.cast(x, xp.bfloat16), xp.cast(x, xp.float16)
    return {
        "cast and back": xp.cast(xp.cast(x * y, xp.bfloat16), xp.float32) * z,
        "cast of a quotient": xp.floor(xp.cast(xp.cast(x / step, xp.float16), xp.float32) * 16.0),
        "product": xp.floor(xp.cast(brief * xp.cast(y, xp.bfloat16), xp.float32) * z),
        "round": xp.cast(xp.round(brief / xp.cast(step, xp.bfloat16)), xp.float32),
        "compare": xp.where(half * xp.cast(y, xp.float16) > xp.cast(z, xp.float16), 1.0, x),
    }


def oracle_in_16_bits(x: Array, y: Array, z: Array, step: Array) -> dict[str, Array]:
    single, bfloat16 = np.float32, ml_dtypes.bfloat16
    brief, half = x.astype(bfloat16), x.astype(np.float16)
    ratio = brief / np.asarray(step).astype(bfloat16)
    return {
        "cast and back": (x * y).astype(bfloat16).astype(single) * z,
        "cast of a quotient": np.floor((x / step).astype(np.float16).astype(single) * single(16)),
        "product": np.floor((brief * y.astype(bfloat16)).astype(single) * z),
        "round": np.round(ratio.astype(single)).astype(bfloat16).astype(single),
        "compare": np.where(half * y.astype(np.float16) > z.astype(np.float16), single(1), x),
    }


def ways_of(backend: Any) -> Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return by name how a function of tensors is run."""
    ways: dict[str, Any] = {"eager": lambda f: f}
    if backend.name == "jax":
        import jax

        def scanned(f: Callable[..., Any]) -> Callable[..., Any]:
            return jax.jit(lambda *given: jax.lax.scan(lambda c, _: (c, f(*given)), 0, None, 1)[1])

        def pulled(f: Callable[..., Any]) -> Callable[..., Any]:
            return jax.jit(lambda *given: jax.vjp(f, *given)[0])

        def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
            # each step is one example's alone, or that of all
            return jax.jit(lambda *given: jax.vmap(lambda *rows: f(*rows, given[-1]))(*given[:-1]))

        ways |= {"jit": jax.jit, "vmap": mapped, "scan": scanned, "vjp": pulled}
    if backend.name == "tensorflow":
        import tensorflow as tf

        ways |= {"function": tf.function, "XLA": lambda f: tf.function(f, jit_compile=True)}
    if backend.name == "torch" and shutil.which("g++"):
        import torch

        ways["inductor"] = lambda f: torch.compile(f, fullgraph=True)
    return ways
