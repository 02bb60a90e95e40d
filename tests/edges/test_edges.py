"""Indices at the edge: outside, negative, repeated, none, as the library itself has it."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import PlaceError
from multigrad_conformance.under_test import pull

from . import table

CASES = 4  # of the whole table, which runs weekly
PADDED = np.array([0, 5, -1, 2])  # two ids that no segment has


@pytest.fixture(autouse=True)
def proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it: what a call gives is compared here."""
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_indexed_expressions_are_the_librarys_at_their_edges(backend: Any) -> None:
    backends = dict.fromkeys(("numpy", backend.name))
    outcome = table.run(backend.name, tuple(backends), most=CASES)
    assert outcome.faults == []
    assert outcome.counts["equal"] > 0


@pytest.mark.needs("torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
def test_indexed_expressions_are_the_same_on_every_backend(library: str) -> None:
    outcome = table.run(library, ("torch", "jax", "tensorflow"), most=CASES)
    assert outcome.faults == []


@pytest.mark.needs("jax")
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "expression",
    [
        "jnp.asarray(x)[k]",
        "jnp.asarray(x)[k, ::2]",
        "x.at[:, k].set(2.0)",
        "jnp.take(x, k, 0)",
        "jnp.sort(x)[..., -k]",
    ],
)
def test_one_index_means_everywhere_what_it_means_in_jax(expression: str, wide: bool) -> None:
    import jax

    as_written = eval(f"lambda x, k: {expression}", {"jnp": jax.numpy})
    captured = xg.function(as_written, capture=xg.Capture(native=False))
    x = np.arange(20.0, dtype=np.float64 if wide else np.float32).reshape(4, 5)
    with jax.enable_x64(wide):
        for place in (2, -1, 5, -7):
            k = np.array(place, np.int64 if wide else np.int32)
            expected, pull_expected = jax.vjp(partial(as_written, k=jax.numpy.asarray(k)), x)
            result, pull_result = xg.vjp(captured, x, k)
            np.testing.assert_array_equal(result, expected)
            weights = np.arange(1, result.size + 1.0, dtype=x.dtype).reshape(result.shape)
            np.testing.assert_array_equal(pull_result(weights)[0], pull_expected(weights)[0])


SEGMENT_SUMS = {"jax": "ops.segment_sum", "tensorflow": "math.unsorted_segment_sum"}


@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize("options", [None, {}, {"jit_compile": True}])
def test_rows_that_a_segment_sum_drops_get_no_gradient(backend: Any, options: Any) -> None:
    segment_sum = attrgetter(SEGMENT_SUMS[backend.name])(import_module(backend.name))
    run = xg.convert(lambda x, ids: segment_sum(x * x, ids, 3))
    if options is not None:
        run = xg.jit(run, backend.name, **(options if backend.name == "tensorflow" else {}))
    given = np.arange(1, 5, dtype=np.float32), PADDED.astype(np.int32)
    _, (found, _) = pull(backend, run, given, np.array([1, 10, 100], np.float32))
    np.testing.assert_array_equal(found, [2.0, 0.0, 0.0, 800.0])
    none = xg.convert(lambda x, ids: segment_sum(x * x, ids, 0), capture=xg.Capture(native=False))
    _, (found, _) = pull(backend, none, given, np.zeros(0, np.float32))
    np.testing.assert_array_equal(found, np.zeros(4))


@pytest.mark.needs("tensorflow")
def test_gather_nd_is_captured_with_each_policy_of_bad_indices() -> None:
    import tensorflow as tf

    x, pairs = tf.reshape(tf.range(6.0), [3, 2]), tf.constant([[0, 1], [2, 5]])
    strict = xg.Capture(native=False)
    picked = xg.convert(lambda x, i: tf.gather_nd(x, i), capture=strict)
    assert picked(x, pairs[:1]).numpy().tolist() == [1.0]
    with pytest.raises(PlaceError):
        picked(x, pairs)
    ignoring = xg.convert(
        lambda x, i: tf.gather_nd(x, i, bad_indices_policy="IGNORE"), capture=strict
    )
    assert ignoring(x, pairs).numpy().tolist() == [1.0, 0.0]


@pytest.mark.needs("torch")
def test_an_index_outside_is_refused_by_function_line_and_value() -> None:
    import torch

    rows = xg.convert(lambda x, ids: x.index_select(0, ids))
    for ids, value in (([0, 7], "7"), ([-1, 0], "-1")):
        with pytest.raises(PlaceError, match=rf"function '<lambda>' \(.*:\d+\): index {value} is"):
            rows(torch.ones(4, 3), torch.tensor(ids))
    pairs = xg.convert(lambda x, i, j: x[i, j])
    with pytest.raises(PlaceError):  # whose place would be that of the next row's first element
        pairs(torch.ones(4, 3), torch.tensor([1]), torch.tensor([3]))


@pytest.mark.needs("torch")
def test_an_index_of_floats_or_elsewhere_is_refused_by_name() -> None:
    import torch

    rows = xg.convert(lambda x, ids: x.index_select(0, ids), capture=xg.Capture(native=False))
    with pytest.raises(xg.TraceError, match="an index of floats, which must be integers"):
        rows(torch.ones(4, 3), torch.tensor([0.5]))
    with pytest.raises(xg.MultigradError, match="'x' on cpu and 'ids' on meta"):
        rows(torch.ones(4, 3), torch.tensor([1], device="meta"))


@pytest.mark.needs("jax")
def test_a_negative_number_of_segments_is_refused() -> None:
    import jax

    strict = xg.Capture(native=False)
    sums = xg.convert(lambda x, ids: jax.ops.segment_sum(x, ids, -1), capture=strict)
    with pytest.raises(xg.TraceError, match="segment_sum, which is not captured"):
        sums(jax.numpy.ones(4), jax.numpy.asarray(PADDED))


@pytest.mark.needs("torch")
def test_a_value_that_another_one_overwrites_gets_torchs_gradient() -> None:
    import torch

    put = xg.convert(lambda x, ids, values: x.index_copy(0, ids, values))
    values = torch.ones(3, requires_grad=True)
    put(torch.zeros(2), torch.tensor([1, 1, 0]), values).backward(torch.tensor([2.0, 3.0]))
    assert values.grad is not None
    assert values.grad.tolist() == [3.0, 3.0, 2.0]
