"""Estimators beside functions of TensorFlow, torch and vector-quantize-pytorch of the same name.
Those of brevitas and larq stand beside the rules of their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.own_library import OWN

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.peers, pytest.mark.needs("torch", "tensorflow")]

E = xg.estimators
generator = np.random.default_rng(4)
X = generator.standard_normal((6, 4)).astype(np.float32) * 2
# On clips and on both zeros; ties of rounding are the peers' own affair, but for `round`.
X.flat[:8] = [0.0, -0.0, 1.0, -1.0, 0.05, -0.05, 2.5, -2.5]
G = generator.standard_normal(X.shape).astype(np.float32)
STEPS = np.array([0.37, 0.53, 1.1, 0.21], np.float32)


def pulled(library: str, function: Callable[..., Any], *tensors: Any) -> list[Any]:
    """The output and the gradients of all tensors."""
    y, pull = OWN[library](function, *tensors)
    return [y, *pull(G)]


def assert_equal_numbers(mine: list[Any], other: list[Any], rtol: float = 2e-6) -> None:
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


# --- Keras, TensorFlow and torch -----------------------------------------------------------------


@pytest.mark.parametrize("narrow", [False, True])
def test_fake_quantization_is_that_of_tensorflow(narrow: bool) -> None:
    low, high = np.float32(-1.3), np.float32(2.2)
    native = tf.quantization.fake_quant_with_min_max_vars
    assert_equal_numbers(
        pulled("tensorflow", lambda x: E.fake_quantize(x, low, high, 4, narrow), X),
        pulled("tensorflow", lambda x: native(x, low, high, 4, narrow), X),
    )


def test_learned_ends_get_the_gradients_of_tensorflow() -> None:
    native = tf.quantization.fake_quant_with_min_max_vars_per_channel
    given = X, -STEPS * 1.7, STEPS * 2.1
    mine = pulled("tensorflow", lambda x, a, b: E.fake_quantize(x, a, b, 3), *given)
    other = pulled("tensorflow", lambda *tensors: native(*tensors, num_bits=3), *given)
    assert_equal_numbers(mine, other, rtol=1e-5)


def test_hard_gumbel_draws_are_as_frequent_as_torchs() -> None:
    logits = torch.tensor([[-1.0, 0.0, 1.5, 0.3]]).expand(20_000, 4)
    mine = E.gumbel_softmax.keyed(1)(logits, 0.7).mean(0)
    peer = torch.nn.functional.gumbel_softmax(logits, 0.7, hard=True).mean(0)
    np.testing.assert_allclose(mine, peer, atol=0.02)


# --- vector-quantize-pytorch ---------------------------------------------------------------------


def test_the_rotation_trick_is_that_of_vector_quantize_pytorch() -> None:
    peer = pytest.importorskip("vector_quantize_pytorch.vector_quantize_pytorch")
    q = generator.standard_normal(X.shape).astype(np.float32)
    rows: list[tuple[Any, Any, float]] = [
        (E.rotation_trick, peer.rotate_to, 1e-4),
        (E.straight_through, peer.straight_through, 2e-6),
    ]
    for ours, theirs, rtol in rows:
        found = [pulled("torch", lambda x, f=f: f(x, torch.tensor(q)), X) for f in (ours, theirs)]
        assert_equal_numbers(*found, rtol=rtol)


def test_the_nearest_code_is_that_of_vector_quantize_pytorch() -> None:
    package = pytest.importorskip("vector_quantize_pytorch")
    layer = package.VectorQuantize(dim=4, codebook_size=7).eval()
    found, index = E.vq(torch.tensor(X), layer.codebook, with_index=True)
    quantized, numbers, _ = layer(torch.tensor(X)[None])
    np.testing.assert_array_equal(index, numbers[0])
    np.testing.assert_allclose(found, quantized[0].detach(), rtol=1e-6, atol=1e-6)
