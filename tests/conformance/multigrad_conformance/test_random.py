"""The random draws of a backend: those of `jax.random` bit for bit, by values recorded from jax
0.10.2, and NumPy's.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.engine import random as core
from multigrad.engine.trace.random_keys import read_key

from .oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, fold_in, uniform

KEY = (0, 7)
KEYS = ((0, 0), (0, 7), (0xDEADBEEF, 0xFFFFFFFF))
LONG = 70_001  # more than one block of NumPy's
# jax.random.uniform(jax.random.key(7), (70001,), dtype): the first three, and the CRC-32 of all
# bytes.
RECORDED = {
    FLOAT16: ((0.16015625, 0.4921875, 0.162109375), 0xEC91B27A),
    BFLOAT16: ((0.0390625, 0.0, 0.6640625), 0x21A0362F),
    FLOAT32: ((0.6740899085998535, 0.9746168851852417, 0.3028435707092285), 0x195F412A),
    FLOAT64: ((0.8441069450823528, 0.04541258512665647, 0.22498462569285382), 0x9B7190DD),
}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def draw(backend: Any, op: ops.Op, key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """What the op's kernel draws, like zeros of this shape and dtype."""
    with backend.precision(dtype):
        return backend.numpy(
            backend.row.kernels.rows[op](key, backend.array(np.zeros(shape, dtype)))
        )


def native_key(backend: Any, key: tuple[int, int]) -> Any:
    return read_key(backend.row, backend.array(np.array(key, np.uint32)))


def order_bits(values: Any) -> Any:
    """Number the values of a float dtype in their order, exactly."""
    bits = values.view(f"i{values.dtype.itemsize}").astype(np.int64)
    lowest = np.iinfo(f"i{values.dtype.itemsize}").min
    return np.where(bits < 0, lowest - bits, bits)


@each_dtype
def test_uniforms_are_those_recorded_from_jax(backend: Any, dtype: Any) -> None:
    first, checksum = RECORDED[dtype]
    drawn = draw(backend, ops.UNIFORM_LIKE, KEY, (LONG,), dtype)
    assert tuple(drawn[:3].astype(float).tolist()) == first
    assert zlib.crc32(drawn.tobytes()) == checksum


@each_dtype
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (3, 4, 5)], ids=str)
def test_uniforms_of_every_shape_are_those_of_the_algorithm(
    backend: Any, dtype: Any, shape: tuple[int, ...]
) -> None:
    for key in KEYS:
        drawn = draw(backend, ops.UNIFORM_LIKE, key, shape, dtype)
        expected = uniform(key, drawn.size, dtype).astype(dtype).reshape(shape)
        assert (drawn.dtype, drawn.shape) == (dtype, shape)
        assert drawn.tobytes() == expected.tobytes()


@each_dtype
def test_normals_agree_with_those_of_numpy_within_three_ulp(backend: Any, dtype: Any) -> None:
    drawn = draw(backend, ops.NORMAL_LIKE, KEY, (LONG,), dtype)
    expected = core.normal_like(KEY, np.zeros(LONG, dtype))
    assert (drawn.dtype, drawn.shape) == (expected.dtype, expected.shape)
    apart = np.abs(order_bits(drawn) - order_bits(expected))
    assert apart.max() <= 3
    assert np.median(apart) == 0


@each_dtype
def test_a_key_tensor_draws_what_its_two_ints_draw(backend: Any, dtype: Any) -> None:
    for op in (ops.UNIFORM_LIKE, ops.NORMAL_LIKE):
        drawn = draw(backend, op, native_key(backend, KEYS[2]), (5, 7), dtype)
        assert drawn.tobytes() == draw(backend, op, KEYS[2], (5, 7), dtype).tobytes()


@pytest.mark.parametrize("n", [0, 3, 2**32 - 1])
def test_fold_in_gives_the_words_of_the_algorithm(backend: Any, n: int) -> None:
    for key in KEYS:
        assert tuple(int(word) for word in backend.row.draws.fold_in(key, n)) == fold_in(key, n)


def test_rules_draw_by_the_key_of_use_and_the_count_of_applications(backend: Any) -> None:
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    act = xg.activation("ReLU")
    with xg.use("full_jam", key=7):
        for n in range(3):
            _, pullback = xg.vjp(act, backend.array(x))
            (gradient,) = pullback(backend.array(np.ones_like(x)))
            expected = uniform(fold_in(KEY, n), x.size, FLOAT32).reshape(x.shape)
            np.testing.assert_array_equal(backend.numpy(gradient), expected)


def test_without_a_key_every_application_draws_anew_or_says_what_to_pass(backend: Any) -> None:
    x = np.ones(50, np.float32)

    def jammed() -> Any:
        with xg.use("full_jam"):
            _, pullback = xg.vjp(xg.activation("ReLU"), backend.array(x))
        return backend.numpy(pullback(backend.array(x))[0])

    try:
        backend.row.draws.draw_key()
    except xg.RuleError as error:  # a framework without a generator of its own
        assert "key=" in str(error)
        return
    assert not np.array_equal(jammed(), jammed())
