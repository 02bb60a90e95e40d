"""By a placed key a shard draws its part of what the whole array draws: cut, that is the oracle."""

from __future__ import annotations

import importlib
import itertools
import math
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import multigrad as xg
from multigrad.engine import random as core

from .test_random_kernels import DTYPES, KEY, assert_bit_equal, count_ulps, draw, each_dtype

DRAWS = (core.uniform, core.normal)


def place_part(shape: tuple[int, ...], cut: tuple[slice, ...]) -> Any:
    """The key of a part, and its shape."""
    ranges = [range(length)[along] for length, along in zip(shape, cut, strict=True)]
    key = core.place(KEY, [each.start for each in ranges], shape)
    return key, tuple(len(each) for each in ranges)


@st.composite
def parts(draw: Any) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """A whole shape of one to three axes, some of them longer than a block, and a part of it."""
    longest = draw(st.sampled_from([3, 40, 100_000]))
    shape = [draw(st.integers(0, longest))]
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), draw(st.integers(0, 7)))
    bounds = [sorted(draw(st.tuples(*[st.integers(0, length)] * 2))) for length in shape]
    whole = [draw(st.booleans()) for _ in shape]
    cut = [slice(None) if all_ else slice(*b) for all_, b in zip(whole, bounds, strict=True)]
    return tuple(shape), tuple(cut)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(part=parts(), dtype=st.sampled_from(DTYPES))
def test_a_part_of_any_array_is_cut_out_of_the_whole_draw(part: Any, dtype: Any) -> None:
    shape, cut = part
    key, own = place_part(shape, cut)
    for function in DRAWS:
        whole = function(KEY, shape, dtype)
        assert_bit_equal(function(key, own, dtype), np.ascontiguousarray(whole[cut]))


@each_dtype
def test_all_parts_side_by_side_are_the_whole_draw(dtype: Any) -> None:
    shape = (7, 11, 5)
    for axis, bounds in ((0, (0, 3, 3, 7)), (1, (0, 4, 8, 11)), (2, (0, 1, 2, 5))):
        drawn = []
        for start, stop in itertools.pairwise(bounds):
            cut = tuple(slice(start, stop) if i == axis else slice(None) for i in range(3))
            key, own = place_part(shape, cut)
            drawn.append(core.normal(key, own, dtype))
        assert_bit_equal(np.concatenate(drawn, axis), core.normal(KEY, shape, dtype))


def uniforms_of(counters: list[int]) -> np.ndarray:
    """Float32 uniforms by the generator itself."""
    high, low = (np.array([c >> s & core.WORD_MASK for c in counters]) for s in (32, 0))
    x, y = core.threefry2x32(KEY, (high, low))
    return ((x ^ y) >> 9).astype(np.float32) * np.float32(2.0**-23)


@pytest.mark.parametrize("start", [2**32 - 5, 2**32, 3 * 2**32 - 1, 2**40 + 7, 2**63])
def test_counters_go_on_above_32_bits(start: int) -> None:
    drawn = core.uniform(core.PlacedKey(KEY, start, (2**64,)), (10,), np.float32)
    assert_bit_equal(drawn, uniforms_of([start + i for i in range(10)]))


def test_rows_of_a_part_lie_on_both_sides_of_32_bits() -> None:
    whole, starts, shape = (6, 2**30 + 1), (2, 2**30 - 2), (3, 3)
    drawn = core.uniform(core.place(KEY, starts, whole), shape, np.float32)
    counters = [(2 + i) * whole[1] + starts[1] + j for i in range(3) for j in range(3)]
    assert min(counters) < 2**32 < max(counters)
    assert_bit_equal(drawn, uniforms_of(counters).reshape(shape))


def test_a_key_derived_from_a_placed_one_is_in_the_same_place() -> None:
    placed = core.place(KEY, (2, 0), (6, 4))
    folded = core.fold_in(placed, 3)
    assert folded == core.place(core.fold_in(KEY, 3), (2, 0), (6, 4))


def test_a_key_placed_for_an_array_of_other_axes_is_refused() -> None:
    placed = core.place(KEY, (2, 0), (6, 4))
    with pytest.raises(ValueError, match=r"of shape \(6, 4\) cannot draw for one of 1 axes"):
        core.uniform(placed, (8,), np.float32)


def test_a_part_takes_memory_of_its_own_size_alone() -> None:
    shape = (2**20, 2**20)
    key = core.place(KEY, (2**19, 2**19), shape)
    assert math.prod(shape) > 2**39
    assert core.uniform(key, (2, 3), np.float32).shape == (2, 3)


# --- the backends ---


# The whole shape, and what a shard has of it.
CUTS = {
    "rows": ((7, 6), (slice(2, 5), slice(None))),
    "columns": ((7, 6), (slice(None), slice(4, 6))),
    "block": ((5, 4, 6), (slice(1, 3), slice(None), slice(2, 5))),
    "one row": ((4, 70_001), (slice(3, 4), slice(1, None))),
    "many rows": ((70_001, 4), (slice(None), slice(1, 2))),
    "nothing": ((4, 3), (slice(4, 4), slice(None))),
    "all": ((4, 3), (slice(None), slice(None))),
    "a number": ((), ()),
}


CASES = [*((cut, DTYPES[2]) for cut in CUTS), *(("block", dtype) for dtype in DTYPES)]


@pytest.mark.parametrize(("cut", "dtype"), dict.fromkeys(CASES), ids=str)
def test_every_backend_draws_the_part_that_numpy_cuts_out(
    backend: Any, kernels: Any, cut: str, dtype: Any
) -> None:
    whole, slices = CUTS[cut]
    placed, own = place_part(whole, slices)
    like = np.zeros(own, dtype)
    expected = np.ascontiguousarray(core.uniform(KEY, whole, dtype)[slices]).reshape(own)
    assert_bit_equal(draw(backend, kernels.uniform_like, placed, own, dtype), expected)
    normals = np.ascontiguousarray(core.normal(KEY, whole, dtype)[slices]).reshape(own)
    drawn = draw(backend, kernels.normal_like, placed, own, dtype)
    assert count_ulps(drawn, normals).max(initial=0) <= (3 if like.itemsize >= 4 else 1)


@pytest.mark.parametrize("start", [2**32 - 5, 3 * 2**32 - 1, 2**40 + 7])
def test_counters_of_every_backend_go_on_above_32_bits(
    backend: Any, kernels: Any, start: int
) -> None:
    placed = core.PlacedKey(KEY, start, (2**62,))
    drawn = draw(backend, kernels.uniform_like, placed, (10,), np.dtype(np.float32))
    assert_bit_equal(drawn, uniforms_of([start + i for i in range(10)]))
    placed = core.PlacedKey(KEY, start, (2**20, 2**30 + 3, 2))
    drawn = draw(backend, kernels.uniform_like, placed, (3, 2, 2), np.dtype(np.float32))
    steps = [(i * (2**30 + 3) + j) * 2 + k for i in range(3) for j in range(2) for k in range(2)]
    assert_bit_equal(drawn, uniforms_of([start + n for n in steps]).reshape(3, 2, 2))


def test_a_placed_key_of_words_in_a_tensor_draws_the_same(backend: Any, kernels: Any) -> None:
    placed = core.place(KEY, (2, 1), (6, 4))
    words = kernels.key_pair(backend.array(np.array(KEY, np.uint32)))
    native = kernels.fold_in(placed._replace(key=words), 3)
    expected = core.uniform(core.fold_in(KEY, 3), (6, 4), np.float32)[2:4, 1:3]
    for key in (kernels.fold_in(placed, 3), native):
        drawn = draw(backend, kernels.uniform_like, key, (2, 2), np.dtype(np.float32))
        assert_bit_equal(drawn, np.ascontiguousarray(expected))


@pytest.mark.parametrize("rank", [1, 3])
def test_every_backend_refuses_a_key_that_was_placed_for_other_axes(
    backend: Any, kernels: Any, rank: int
) -> None:
    placed = core.place(KEY, (2, 0), (6, 4))
    with pytest.raises(ValueError, match=f"cannot draw for one of {rank} axes"):
        draw(backend, kernels.uniform_like, placed, (2,) * rank, np.dtype(np.float32))


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
def test_a_file_of_its_own_for_draws_of_parts_is_refused(backend: Any) -> None:
    placed = xg.get("full_jam").over("global")
    if backend.name == "numpy":  # an array is whole there
        assert "place_key" in xg.source(placed, "numpy", standalone=True)
        return
    with pytest.raises(xg.UnsupportedOp, match="without over= or axis_name="):
        xg.source(placed, backend.name, standalone=True)


@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_map_over_keys_draws_the_part_of_each(backend: Any, kernels: Any, compiled: bool) -> None:
    keys = [core.fold_in(KEY, n) for n in range(3)]
    x = backend.array(np.zeros((2, 3), np.float32))

    def drawn(words: Any) -> Any:
        return kernels.normal_like(core.place(words, (2, 1), (6, 4)), x)

    words = np.stack(
        [np.array(key, np.int64 if backend.name == "torch" else np.uint32) for key in keys]
    )
    if backend.name == "jax":
        jax = importlib.import_module("jax")
        mapped = jax.vmap(drawn)
        mapped = jax.jit(mapped) if compiled else mapped
    else:
        torch = importlib.import_module("torch")
        mapped = torch.func.vmap(drawn)
        mapped = torch.compile(mapped, backend="aot_eager") if compiled else mapped
    expected = np.stack([core.normal(key, (6, 4), np.float32)[2:4, 1:] for key in keys])
    assert count_ulps(backend.numpy(mapped(backend.array(words))), expected).max() <= 3


# A key gives the same draws for the whole array however TensorFlow's replicas share it; on torch
# and jax, see `ranks/torch_alone.py` and `ranks/jax_devices.py`.


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


@pytest.mark.needs("tensorflow")
def test_each_replica_of_tensorflow_draws_its_part() -> None:
    run("""
        import numpy as np
        import tensorflow as tf

        import multigrad as xg
        from multigrad.engine import random as core

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        act = xg.activation("Linear")
        whole = core.uniform(core.fold_in((0, 7), 0), (7, 12), np.float32)

        def draw(x):
            with xg.use("full_jam", key=7, over="global"):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = act(x)
            return tape.gradient(y, x)

        def on_replicas(draw):
            return lambda values: strategy.run(draw, args=(values,))

        def of_unknown_length(x):
            return draw(tf.boolean_mask(x, x[:, 0] < 1))

        def parts(rows):
            def of(context):
                first = context.replica_id_in_sync_group == 0
                return tf.zeros([rows if first else 7 - rows, 12])

            return strategy.experimental_distribute_values_from_function(of)

        cases = (
            (on_replicas(draw), 4),
            (tf.function(on_replicas(draw)), 4),
            (tf.function(on_replicas(of_unknown_length)), 5),
        )
        for f, rows in cases:
            drawn = np.concatenate(strategy.experimental_local_results(f(parts(rows))))
            np.testing.assert_array_equal(drawn, whole)

        def halves(context):
            return tf.zeros([3, 12])

        values = strategy.experimental_distribute_values_from_function(halves)
        compiled = tf.function(on_replicas(tf.function(draw, jit_compile=True)))
        drawn = np.concatenate(strategy.experimental_local_results(compiled(values)))
        np.testing.assert_array_equal(drawn, whole[:6])
        graph = tf.function(on_replicas(draw)).get_concrete_function(values).graph
        names = {op.type for op in graph.get_operations()}
        assert not any("Collective" in name or "Nccl" in name for name in names), names
    """)
