"""Rules of larq's names, and estimators, beside larq's quantizers, which are run as they are.

`import larq` of 0.14.0 fails with Keras 3, at layers; its quantizers work when they are imported
without the package's own beginning.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import multigrad as xg

from ..harness.own_library import in_tensorflow

tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.peers, pytest.mark.needs("tensorflow", "keras")]


def find_quantizers() -> Any:
    spec = importlib.util.find_spec("larq")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("larq is not installed", allow_module_level=True)
    package: Any = types.ModuleType("larq")
    package.__path__ = list(spec.submodule_search_locations)
    with patch.dict(sys.modules, larq=package):
        return importlib.import_module("larq.quantizers")


E = xg.estimators
quantizers = find_quantizers()
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0]
X = np.concatenate([EDGES, np.linspace(-3, 3, 104)]).astype(np.float32).reshape(14, 8)
G = np.linspace(-1, 2, X.size, dtype=np.float32).reshape(X.shape)


def pulled(quantizer: Any, x: Any = X, g: Any = G) -> tuple[Any, Any]:
    y, pull = in_tensorflow(quantizer, x)
    return y.numpy(), pull(g)[0].numpy()


def assert_equal_numbers(mine: tuple[Any, Any], expected: tuple[Any, Any], rtol: float) -> None:
    for given, wanted in zip(mine, expected, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=rtol, atol=rtol / 4)


def ours(name: str, x: Any = X, g: Any = G, **params: Any) -> Any:
    return xg.get(name)(None, tf.constant(g), tf.constant(x), **params).numpy()


ESTIMATORS = {
    "ste_sign": E.ste_sign,
    "ste_tern": lambda x, clip: E.ste_ternary(x, 0.05, clip),
    "ste_heaviside": E.ste_heaviside,
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("clip", [None, 1.0, 0.5])
def test_a_straight_through_estimator_has_larqs_gradient(name: str, clip: float | None) -> None:
    function = getattr(quantizers, name)
    expected = pulled(lambda x: function(x, clip_value=clip))
    given = ours(f"larq.{name}", clip_value=np.inf if clip is None else clip)
    np.testing.assert_array_equal(given, expected[1])
    np.testing.assert_array_equal(pulled(lambda x: ESTIMATORS[name](x, clip)), expected)


@pytest.mark.parametrize("beta", [5.0, 0.5])
def test_smooth_signs_have_larqs_gradients(beta: float) -> None:
    expected = pulled(lambda x: quantizers.swish_sign(x, beta=beta))
    for name in ("larq.swish_sign", "swish_sign"):
        np.testing.assert_allclose(ours(name, beta=beta), expected[1], rtol=2e-5, atol=2e-6)
    assert_equal_numbers(pulled(lambda x: E.swish_sign(x, beta)), expected, 2e-5)
    expected = pulled(quantizers.approx_sign)
    for name in ("larq.approx_sign", "approx_sign"):
        np.testing.assert_array_equal(ours(name), expected[1])
    np.testing.assert_array_equal(pulled(E.approx_sign), expected)


@pytest.mark.parametrize("shape", [(14, 8), (2, 7, 8), (112,)])
def test_a_magnitude_aware_sign_has_larqs_gradient(shape: tuple[int, ...]) -> None:
    x, g = X.reshape(shape), G.reshape(shape)
    expected = pulled(quantizers.MagnitudeAwareSign(clip_value=1.5), x, g)
    given = ours("larq.MagnitudeAwareSign", x, g, clip_value=1.5)
    np.testing.assert_allclose(given, expected[1], rtol=2e-6, atol=1e-7)
    assert_equal_numbers(pulled(lambda x: E.magnitude_aware_sign(x, 1.5), x, g), expected, 4e-6)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("mode", ["activations", "weights"])
def test_dorefa_has_larqs_gradient(mode: str, bits: int) -> None:
    # In one bit its sign of a weight of 0, which the first row has, is another tie.
    rows = slice(1 if (mode, bits) == ("weights", 1) else 0, None)
    x, g, estimator = X[rows], G[rows], getattr(E, f"dorefa_{mode}")
    expected = pulled(quantizers.DoReFa(bits, mode), x, g)
    given = ours("larq.DoReFa", x, g, mode=mode)
    np.testing.assert_allclose(given, expected[1], rtol=4e-6, atol=1e-6)
    assert_equal_numbers(pulled(lambda x: estimator(x, bits), x, g), expected, 4e-6)
