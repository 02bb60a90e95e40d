"""Estimators beside functions of TensorFlow, torch and vector-quantize-pytorch of the same name.
Those of brevitas and larq stand beside the rules of their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

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


def in_torch(function: Callable[..., Any], *tensors: Any) -> list[Any]:
    """The output and the gradients of all tensors."""
    leaves = [torch.tensor(each, requires_grad=True) for each in tensors]
    y = function(*leaves)
    y.backward(torch.tensor(G.reshape(y.shape)))
    return [y.detach().numpy(), *(None if x.grad is None else x.grad.numpy() for x in leaves)]


def in_tensorflow(function: Callable[..., Any], x: Any) -> list[Any]:
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        y = function(tensor)
    return [y.numpy(), tape.gradient(y, tensor, tf.constant(G)).numpy()]


def assert_equal_numbers(mine: list[Any], other: list[Any], rtol: float = 2e-6) -> None:
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


# --- Keras, TensorFlow and torch -----------------------------------------------------------------


@pytest.mark.parametrize("narrow", [False, True])
def test_fake_quantization_is_that_of_tensorflow(narrow: bool) -> None:
    low, high = np.float32(-1.3), np.float32(2.2)
    native = tf.quantization.fake_quant_with_min_max_vars
    assert_equal_numbers(
        in_tensorflow(lambda x: E.fake_quantize(x, low, high, 4, narrow), X),
        in_tensorflow(lambda x: native(x, low, high, 4, narrow), X),
    )


def test_learned_ends_get_the_gradients_of_tensorflow() -> None:
    low, high = tf.constant(-STEPS * 1.7), tf.constant(STEPS * 2.1)
    native = tf.quantization.fake_quant_with_min_max_vars_per_channel
    found = []
    for function in (
        lambda x: E.fake_quantize(x, low, high, 3),
        lambda x: native(x, low, high, num_bits=3),
    ):
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch([x, low, high])
            y = function(x)
        found.append([y, *tape.gradient(y, [x, low, high], tf.constant(G))])
    assert_equal_numbers(*found, rtol=1e-5)


def test_hard_gumbel_draws_are_as_frequent_as_torchs() -> None:
    logits = torch.tensor([[-1.0, 0.0, 1.5, 0.3]]).expand(20_000, 4)
    mine = E.gumbel_softmax.keyed(1)(logits, 0.7).mean(0)
    peer = torch.nn.functional.gumbel_softmax(logits, 0.7, hard=True).mean(0)
    np.testing.assert_allclose(mine, peer, atol=0.02)


# --- vector-quantize-pytorch ---------------------------------------------------------------------


def test_the_rotation_trick_is_that_of_vector_quantize_pytorch() -> None:
    peer = pytest.importorskip("vector_quantize_pytorch.vector_quantize_pytorch")
    q = generator.standard_normal(X.shape).astype(np.float32)
    mine = in_torch(lambda x: E.rotation_trick(x, torch.tensor(q)), X)
    other = in_torch(lambda x: peer.rotate_to(x, torch.tensor(q)), X)
    assert_equal_numbers(mine, other, rtol=1e-4)
    straight = in_torch(lambda x: E.straight_through(x, torch.tensor(q)), X)
    assert_equal_numbers(straight, in_torch(lambda x: peer.straight_through(x, torch.tensor(q)), X))


def test_the_nearest_code_is_that_of_vector_quantize_pytorch() -> None:
    package = pytest.importorskip("vector_quantize_pytorch")
    layer = package.VectorQuantize(dim=4, codebook_size=7).eval()
    found, index = E.vq(torch.tensor(X), layer.codebook, with_index=True)
    quantized, numbers, _ = layer(torch.tensor(X)[None])
    np.testing.assert_array_equal(index, numbers[0])
    np.testing.assert_allclose(found, quantized[0].detach(), rtol=1e-6, atol=1e-6)
