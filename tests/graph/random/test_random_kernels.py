"""The random draws of every backend: jax.random and published vectors are the oracles, not one
another. Values recorded from jax are in the conformance suite's `test_random.py`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from multigrad.core.backend.discovery import load_backend
from multigrad.engine import random as core

FLOAT16, BFLOAT16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
DTYPES = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)

# More than one block of NumPy's, and more than one of torch's on a CPU.
LONG, LONGER = 70_001, 1_000_001
KEY = (0, 7)
KEYS = ((0, 0), (0, 7), (0xDEADBEEF, 0xFFFFFFFF))


def draw(backend: Any, function: Any, key: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Draw like zeros of this shape and dtype, and give the draw as a NumPy array."""
    with backend.precision(dtype):
        return backend.numpy(function(key, backend.array(np.zeros(shape, dtype))))


def assert_bit_equal(actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


def count_ulps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Give the distance in units of the expected value's last place."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    return np.abs(order_bits(actual) - order_bits(expected))


def order_bits(values: np.ndarray) -> np.ndarray:
    """Number the values of a float dtype in their order, exactly."""
    bits = values.view(f"i{values.dtype.itemsize}").astype(np.int64)
    lowest = np.iinfo(f"i{values.dtype.itemsize}").min
    return np.where(bits < 0, lowest - bits, bits)


# --- the generator ---


@pytest.mark.parametrize(
    ("key", "counters", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers_of_its_authors(
    key: tuple[int, int], counters: tuple[int, int], expected: tuple[int, int]
) -> None:
    words = core.threefry2x32(key, (np.full((2, 3), counters[0]), np.full((2, 3), counters[1])))
    for word, value in zip(words, expected, strict=True):
        assert_bit_equal(word, np.full((2, 3), value, np.uint32))


@pytest.mark.needs("jax")
@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, 2**32 - 1])
def test_a_key_made_of_an_int_is_that_of_jax(seed: int) -> None:
    import jax

    assert core.key_from_int(seed) == tuple(jax.random.key_data(jax.random.key(seed)).tolist())


@pytest.mark.parametrize("seed", [-1, 2**32, 2**63])
def test_an_int_outside_the_range_of_keys_is_refused_by_its_value(seed: int) -> None:
    with pytest.raises(ValueError, match=f"from 0 to .* got {seed}"):
        core.key_from_int(seed)


@pytest.mark.parametrize("key", [7, np.int64(7), (0, 7), [0, 7], np.array([0, 7], np.uint32)])
def test_an_int_and_two_words_are_the_same_key(key: Any) -> None:
    assert core.key_pair(key) == (0, 7)


# --- keys ---


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("n", [0, 3, 2**32 - 1])
def test_fold_in_gives_the_same_words_for_ints_and_for_tensors(
    backend: Any, kernels: Any, key: tuple[int, int], n: int
) -> None:
    native = kernels.key_pair(backend.array(np.array(key, np.uint32)))
    words = np.asarray(kernels.fold_in(native, n)).tolist()
    assert tuple(words) == kernels.fold_in(key, n) == core.fold_in(key, n)
    assert core.fold_in((0, 7), 3) == (276534068, 1641862660)  # recorded from jax.random.fold_in


@pytest.mark.needs("jax")
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("n", [0, 3, 2**32 - 1])
def test_fold_in_is_that_of_jax(key: tuple[int, int], n: int) -> None:
    import jax

    folded = jax.random.fold_in(make_jax_key(key), n)
    assert core.fold_in(key, n) == tuple(jax.random.key_data(folded).tolist())


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="got -1"):
        core.fold_in(KEY, -1)


def test_a_key_tensor_that_is_not_two_integers_is_refused(backend: Any, kernels: Any) -> None:
    for wrong in (np.zeros(2, np.float32), np.zeros(3, np.int32)):
        with pytest.raises(ValueError, match="key"):
            kernels.key_pair(backend.array(wrong))


def make_jax_key(key: tuple[int, int]) -> Any:
    import jax

    return jax.random.wrap_key_data(np.array(key, np.uint32), impl="threefry2x32")


# --- uniforms ---


@pytest.mark.needs("jax")
@each_dtype
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (3, 5, 7), (LONG,), (LONGER,)])
def test_uniforms_are_those_of_jax_in_every_shape(
    backend: Any, kernels: Any, shape: tuple[int, ...], dtype: Any
) -> None:
    import jax

    for key in KEYS:
        with jax.enable_x64(dtype == FLOAT64):
            expected = np.asarray(jax.random.uniform(make_jax_key(key), shape, dtype))
        assert_bit_equal(draw(backend, kernels.uniform_like, key, shape, dtype), expected)


@pytest.mark.parametrize("function", ["uniform_like", "normal_like"])
def test_a_tensor_of_integers_is_refused(backend: Any, kernels: Any, function: str) -> None:
    with pytest.raises(TypeError, match="got int32; cast it"):
        getattr(kernels, function)(KEY, backend.array(np.zeros(3, np.int32)))


# --- normals ---


@pytest.mark.needs("jax")
def test_float32_normals_agree_with_those_of_jax_within_a_few_ulp(
    backend: Any, kernels: Any
) -> None:
    import jax

    for key in KEYS:
        expected = np.asarray(jax.random.normal(make_jax_key(key), (LONGER,)))
        drawn = draw(backend, kernels.normal_like, key, (LONGER,), FLOAT32)
        distances = count_ulps(drawn, expected)
        assert distances.max() <= 3
        assert np.median(distances) == 0


@each_dtype
def test_normals_are_the_normal_quantiles_of_uniforms(
    backend: Any, kernels: Any, dtype: Any
) -> None:
    from scipy.special import erfinv

    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    half_step = 2.0 ** (-53 if wide == FLOAT64 else -24)
    uniforms = draw(backend, kernels.uniform_like, KEY, (LONG,), wide).astype(float)
    expected = np.sqrt(2.0) * erfinv(2.0 * uniforms - 1.0 + half_step)
    drawn = draw(backend, kernels.normal_like, KEY, (LONG,), dtype).astype(float)
    # In float32 the formula loses 90 ulp in the far tails, as jax.random.normal does.
    tolerance = {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7, FLOAT32: 1e-5, FLOAT64: 2e-15}[dtype]
    np.testing.assert_allclose(drawn, expected, rtol=tolerance, atol=2.0**-24)


# --- the definition ---


def test_numpy_draws_without_loading_anything_but_numpy() -> None:
    program = (
        "import sys, numpy\n"
        "from multigrad.engine import random\n"
        "random.normal_like((0, 7), numpy.zeros(3, numpy.float32))\n"
        "heavy = {'torch', 'jax', 'tensorflow', 'keras', 'scipy', 'ml_dtypes'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.needs("torch")
def test_a_key_drawn_from_torchs_generator_is_two_words() -> None:
    words = np.array([load_backend("torch").draws.draw_key() for _ in range(64)])
    assert words.shape == (64, 2)
    assert words.min() >= 0 and 1 << 31 < words.max() <= core.WORD_MASK
