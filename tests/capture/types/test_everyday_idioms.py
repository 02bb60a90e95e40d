"""A class for each idiom that is met in people's repositories, unchanged, gives on every backend
what it gives on torch: forward and gradient, under that backend's compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ...harness.own_library import OWN

pytestmark = pytest.mark.needs("torch")
X = np.linspace(-1.6, 1.7, 12, dtype=np.float32).reshape(3, 4)
X[1, 1], X[2, 0] = 0.0, 0.45
Y = X[::-1].copy()
ROW = np.array([0.6, -0.2, 0.0, 1.1], np.float32)
STEP = np.array([0.3], np.float32)
SCALES = np.array(0.3, np.float32), np.array(0.6, np.float32)


@dataclass(frozen=True)
class Constant:
    """A tensor that needs no gradient."""

    array: Any


@dataclass(frozen=True)
class Call:
    """How a class is called.

    Attributes:
        args: arrays that need a gradient, `Constant` ones, and other values.
        draws: its forward draws, so that the gradients alone are compared.
    """

    args: tuple[Any, ...] = (X,)
    draws: bool = False


ONE = Call()
QUANTIZERS = {
    "FunLSQ": Call((X, STEP, 0.5, -4, 3)), "RoundHalfUp": ONE,
    "ALSQPlus": Call((X, STEP, 0.5, -4, 3, STEP / 3)),
    "WLSQPerChannel": Call((X, np.array([0.3, 0.5, 0.2], np.float32), 0.5, -4, 3)),
    "BinarizeF": ONE, "PACT": Call((X, STEP * 3, 3)), "DoReFa": ONE, "BinActive": ONE,
    "IRNet": Call((X, Constant(STEP * 10), Constant(STEP * 5))), "ApproxSign": ONE,
    "Ternarize": ONE, "TrainedTernary": Call((X, *SCALES, 0.05)),
    "UniformQuantize": Call((X, 4)), "UniformQuantize stochastic": Call((X, 4, True), draws=True),
    "EWGS": Call((X, 4, 0.2)), "PowerOfTwo": ONE, "HalfWave": ONE, "PerChannelMax": Call((X, 4)),
    "Float16": ONE, "AccumulatesInDouble": ONE, "AssertsRange": Call((X, 8)),
    "ClampPartial": Call((X, -1.0, 0.5)), "ScaleOfDtype": ONE, "AdaRound": Call((X, Y)),
    "HardTanhSign": ONE, "PiScaled": ONE,
}  # fmt: skip
SPIKING = {
    "SuperSpike": ONE, "ATan": Call((X, 2.0)), "ActFun": ONE, "ActFunAdp": ONE,
    "NearestLevel": ONE, "LIFStep": Call((X, Y)),
    "NorseHeaviside": Call((X, 100.0)), "Triangle": ONE, "LeakyIntegrator": Call((X, 0.9)),
    "BernoulliSpike": Call(draws=True), "EscapeSpike": Call((X, 2.0), draws=True),
    "LeakySpike": ONE, "ScriptedSurrogate": Call((X, 3.0)),
    "LearnableThreshold": Call((X, STEP)),
    "LearnableThreshold that is fixed": Call((X, Constant(STEP))), "SpikeByReset": ONE,
    "PiecewiseExp": Call((X, 2.0)), "AnnealedSurrogate": Call((X, np.float64(0.75))),
    "OnItsDevice": ONE,
}  # fmt: skip
GRADIENTS = {
    "GradReverse": Call((X, 0.5)), "GradReverse by a NumPy number": Call((X, np.float64(0.25))),
    "RevGrad": Call((X, Constant(STEP))), "ReversalByNewTensor": Call((X, 0.5)),
    "ClipGradByNorm": Call((X, 0.5)), "SetsAttributes": ONE, "MemoryEfficientSwish": ONE,
    "MishJit": ONE, "GELU": ONE, "LinearFunction": Call((X, X[:2].copy(), STEP.repeat(2))),
    "LinearFunction without a bias": Call((X, X[:2].copy())),
    "LinearFunction with None": Call((X, X[:2].copy(), None)),
    "LayerNormByHand": Call((X, ROW + 2, ROW)), "Normalized": ONE, "PairwiseSquare": ONE,
    "InvolutiveFlip": ONE, "FusedLeakyReLU": Call((X, ROW, 0.2)),
    "BisectBase": ONE, "SparsemaxBisect": ONE, "HardArgmax": Call((X, 0.5)),
    "GumbelSoftmaxSTE": Call(draws=True), "FocalLoss": Call((X, Constant(np.float32(X > 0)))),
    "CReLU": ONE, "SaturatesInPlace": ONE,
    "AppliesACallable": Call((X, {"slope": 0.5})),
    "OnlyTheNeeded": Call((X, Y)),
    "OnlyTheNeeded of one": Call((X, Constant(Y))), "ExpSavesItsResult": ONE,
    "WithSetupContext": Call((X, ROW)), "RowByRow": ONE, "LowerTriangle": ONE,
}  # fmt: skip
ASKING = {
    "IsCuda": ONE, "IsContiguous": ONE, "RequiresGrad": Call((X, ROW)),
    "RequiresGrad of one": Call((X, Constant(ROW))), "DeviceOfAll": ONE, "DtypeAndDevice": ONE,
    "DrawsLikeIt": Call(draws=True), "DeviceType": ONE, "ToDeviceAndDtype": ONE, "Layout": ONE,
    "ElementSize": ONE, "Limits": ONE, "NewOfSizes": ONE, "OldTensors": ONE, "TypeOfFloat": ONE,
    "ItemInArithmetic": ONE, "ItemOfOneElement": Call((X, Constant(STEP))), "SqueezesNothing": ONE,
    "FlattensSome": ONE, "ExpandsKeeping": ONE, "IsATensor": Call((X, 2.0)), "DefaultTensor": ONE,
    "NumelOfShape": ONE, "SameDtype": Call((X, Constant(ROW))),
    "NumpyNumbers": Call((X, np.float32(0.5), np.float64(2.0))), "Grandchild": ONE,
}  # fmt: skip
INDICES = {
    "SparsemaxFunction": ONE, "ArgmaxSTE": ONE, "TopKMask": Call((X, 2)), 
    "NearestCode": Call((X, np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4))),
    "LongScale": ONE, "LevelsByIndex": ONE,
    "SoftmaxCrossEntropy": Call((X, Constant(np.array([0, 3, 1])))), "ChunkGLU": ONE,
    "SplitAndStack": ONE, "Unbound": ONE, "LinearByName": Call((X, Y)),
    "DiagonalScale": Call((X, ROW)), "LayerNormByName": ONE,
    "GatherRows": Call((X, Constant(np.array([[0], [2], [1]])))), "SortedByValue": ONE,
    "SoftTargetLoss": Call((X, Constant(Y))),
}  # fmt: skip
MODULES = {
    "quantizers": QUANTIZERS, "spiking": SPIKING, "gradients": GRADIENTS, "asking": ASKING,
    "indices": INDICES,
}  # fmt: skip
CASES = [(module, name) for module, calls in MODULES.items() for name in calls]


def find_class(module: str, name: str) -> Any:
    classes = import_module(f"...idioms.{module}", __package__)
    return getattr(classes, name.partition(" ")[0])


def fill(call: Call, make: Callable[[Any], Any], given: Any) -> list[Any]:
    """Return a call's arguments, of those that need a gradient these."""
    rest = iter(given)
    made = []
    for arg in call.args:
        if isinstance(arg, np.ndarray):
            made.append(next(rest))
        else:
            made.append(make(arg.array) if isinstance(arg, Constant) else arg)
    return made


def leaves(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def arrays_of(call: Call) -> list[Any]:
    return [arg for arg in call.args if isinstance(arg, np.ndarray)]


def run_in_torch(f: Any, call: Call) -> tuple[list[Any], Any, Any]:
    """Return outputs, gradients and the cotangent of the first output."""
    from_numpy = import_module("torch").from_numpy
    outputs, pull_own = OWN["torch"](
        lambda *given: f(*fill(call, from_numpy, given)), *arrays_of(call)
    )
    first, *others = leaves(outputs)
    cotangent = np.linspace(-1.25, 1.5, first.size, dtype=np.float32).reshape(first.shape)
    return leaves(outputs), pull_own([cotangent, *(None for _ in others)]), cotangent


def run(backend: Any, f: Any, call: Call, cotangent: Any) -> tuple[list[Any], list[Any]]:
    """Run on NumPy as it is, elsewhere compiled."""

    def make(array: Any) -> Any:
        is_wide = backend.name == "jax" and array.dtype == np.int64  # which it has not unless asked
        return backend.array(array.astype(np.int32) if is_wide else array)

    arrays = arrays_of(call)
    if backend.name == "numpy":
        outputs, slopes = pull(backend, f, fill(call, make, arrays), cotangent)
        asked = [isinstance(arg, np.ndarray) for arg in call.args]
        gradients = [g for g, is_asked in zip(slopes, asked, strict=True) if is_asked]
    else:
        compiled = xg.jit(lambda *given: f(*fill(call, make, given)), backend.name)
        outputs, gradients = pull(backend, compiled, arrays, cotangent)
    zeros = map(np.zeros_like, arrays)
    return leaves(outputs), [z if g is None else g for g, z in zip(gradients, zeros, strict=True)]


@pytest.mark.parametrize(("module", "name"), CASES)
def test_a_class_is_converted_unchanged(backend: Any, module: str, name: str) -> None:
    cls, call = find_class(module, name), MODULES[module][name]
    expected, wanted, cotangent = run_in_torch(cls.apply, call)
    function = xg.from_autograd_function(cls)
    function = function.keyed(0) if call.draws else function  # jax has no generator of its own
    if backend.name == "torch":
        found, gradients, _ = run_in_torch(function, call)
    else:
        found, gradients = run(backend, function, call, cotangent)
    for ours, own in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (own.shape, own.dtype)
        if not call.draws:
            np.testing.assert_allclose(ours, own, rtol=1e-5, atol=1e-6)
    for ours, own in zip(gradients, wanted, strict=True):
        assert ours.dtype == own.dtype
        np.testing.assert_allclose(ours, own, rtol=2e-5, atol=1e-6)
