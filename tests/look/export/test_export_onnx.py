"""Functions in ONNX: forward and backward run where neither multigrad nor a framework is, and give
what NumPy's reference gives.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import BackendNotFound, RuleTypeError, UnsupportedOp

pytestmark = pytest.mark.needs("torch", "onnx", "onnxruntime", "onnxscript")
Array: TypeAlias = Any
RANDOM = np.random.default_rng(3)


@xg.custom_gradient
def quantized(x: Array, step: float) -> Any:
    """Straight-through where the quantizer does not clip."""

    def grad(upstream: Array) -> Any:
        return upstream * (xp.abs(x) <= 7.0 * step), None

    return xp.clip(xp.round(x / step), -7.0, 7.0) * step, grad


@xg.custom_gradient
def normalized(x: Array, weight: Array, bias: Array) -> Any:
    """A layer norm with parameters, which returns what it normalized, too."""
    centered = x - xp.mean(x, axis=-1, keepdims=True)
    scale = 1.0 / xp.sqrt(xp.mean(centered * centered, axis=-1, keepdims=True) + 1e-5)
    normal = centered * scale

    def grad(upstream: Any) -> Any:
        grad_out, grad_normal = upstream
        inner = grad_out * weight + grad_normal
        mean = xp.mean(inner, axis=-1, keepdims=True)
        mean = mean + normal * xp.mean(inner * normal, axis=-1, keepdims=True)
        return scale * (inner - mean), xp.sum(grad_out * normal, axis=0), xp.sum(grad_out, axis=0)

    return (normal * weight + bias, normal), grad


class Pair(NamedTuple):
    """A Function, its arguments for a larger batch than it was exported with, and its models."""

    function: Any
    args: tuple[Any, ...]
    forward: Any
    backward: Any

    def run(self, *tensors: Array) -> dict[str, Array]:
        """Return what forward is given and gives, by name."""
        return run(self.forward, dict(zip(names(self.forward), tensors, strict=True)))


def names(session: Any) -> list[str]:
    return [each.name for each in session.get_inputs()]


def run(session: Any, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values with those that a model gives, which takes what it names."""
    outputs = session.run(None, {name: values[name] for name in names(session)})
    named = zip((each.name for each in session.get_outputs()), outputs, strict=True)
    return {**values, **dict(named)}


CASES = {
    "surrogate": (
        xg.activation("Heaviside", "triangular", {"width": 2.0}),
        (RANDOM.standard_normal((5, 3)).astype(np.float32),),
        ({0: "batch"},),
    ),
    "quantizer": (quantized, (RANDOM.standard_normal((5, 3)), 0.25), ({0: "batch"}, None)),
    "layer norm": (
        normalized,
        (
            RANDOM.standard_normal((5, 3)).astype(np.float32),
            np.array([0.5, -1.0, 2.0], np.float32),
            np.array([0.0, 1.0, -0.5], np.float32),
        ),
        ({0: "batch"}, None, None),
    ),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: Any) -> dict[str, Pair]:
    import onnxruntime

    folder, found = tmp_path_factory.mktemp("onnx"), {}
    for name, (function, args, axes) in CASES.items():
        first, *rest = args
        paths = xg.export(function, folder / f"{name}.onnx", first[:2], *rest, dynamic_shapes=axes)
        sessions = map(onnxruntime.InferenceSession, paths)
        found[name] = Pair(function, args, *sessions)
    return found


def close(found: Array, expected: Array, largest: float) -> None:
    """Hold what ONNX gives against the reference: four roundings of what is met on the way."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    atol = 4 * np.finfo(expected.dtype).eps * largest
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward_give_what_the_reference_gives(
    case: str, pairs: dict[str, Pair]
) -> None:
    pair = pairs[case]
    expected, pull = xg.vjp(pair.function, *pair.args)
    outputs = expected if isinstance(expected, tuple) else (expected,)
    cotangents = [RANDOM.standard_normal(y.shape).astype(y.dtype) for y in outputs]
    found = pair.run(*(x for x in pair.args if isinstance(x, np.ndarray)))
    own = [found[each.name] for each in pair.forward.get_outputs()]
    for y, want in zip(own, outputs, strict=False):  # what is kept comes after them
        close(y, want, np.abs(want).max())
    single = len(cotangents) == 1
    seeds = {"grad_out" if single else f"grad_out_{i}": c for i, c in enumerate(cotangents)}
    found = run(pair.backward, {**found, **seeds})
    wanted = pull(cotangents[0] if single else tuple(cotangents))
    largest = max(np.abs(g).max() for g in [*wanted, *cotangents] if isinstance(g, np.ndarray))
    inputs = [each for each in names(pair.forward)]
    for name, want in zip(inputs, wanted, strict=False):
        close(found[f"grad_{name}"], want, largest * len(pair.args[0]))


def test_the_axes_that_were_left_open_are_named(pairs: dict[str, Pair]) -> None:
    pair = pairs["layer norm"]
    shapes = {each.name: each.shape for each in pair.backward.get_inputs()}
    assert shapes["grad_out_0"] == shapes["kept"] == ["batch", 3]
    assert shapes["weight"] == [3]


def test_two_functions_are_trained_by_their_sessions(pairs: dict[str, Pair]) -> None:
    """Gradients of a chain, as somebody writes them who has the models alone."""
    norm, spike = pairs["layer norm"], pairs["surrogate"]
    x, weight, bias = norm.args
    first = norm.run(x, weight, bias)
    second = spike.run(first["output_0"])
    error = second["output"] - 0.5
    (inner,) = spike.backward.run(
        None, {name: {**second, "grad_out": error}[name] for name in names(spike.backward)}
    )
    none = np.zeros_like(inner)
    found = run(norm.backward, {**first, "grad_out_0": inner, "grad_out_1": none})

    def loss(weight: Array, bias: Array) -> Array:
        y, _ = normalized(x, weight, bias)
        return 0.5 * xp.sum(xp.square(spike.function(y) - 0.5))

    _, pull = xg.vjp(loss, weight, bias)
    wanted = pull(np.float32(1.0))
    largest = max(np.abs(g).max() for g in wanted) * len(x)
    for name, want in zip(("grad_weight", "grad_bias"), wanted, strict=True):
        close(found[name], want, largest)


# --- what is refused ------------------------------------------------------------------------------


def test_what_onnx_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    x, path = np.ones(3, np.float32), tmp_path / "f.onnx"
    with pytest.raises(UnsupportedOp, match="rule 'noise' draws random numbers"):
        xg.export(xg.activation("Tanh", "noise"), path, x)
    with pytest.raises(
        UnsupportedOp, match=r"'tanh' runs as written, so it cannot be exported to 'f\.onnx'"
    ):
        xg.export(xg.opaque(np.tanh, lambda g, x: g, result="x"), path, x)
    with pytest.raises(RuleTypeError, match=r"ONNX holds a forward and a backward of each"):
        xg.export(np.tanh, path, x)
    with pytest.raises(RuleTypeError, match="needs no standalone="):
        xg.export(quantized, path, x, 1.0, standalone=tmp_path / "f.py")


def test_a_graph_for_fixed_lengths_is_not_exported_for_others(tmp_path: Path) -> None:
    @xg.custom_gradient
    def long_or_short(x: Array) -> Any:
        scale = 2.0 if x.shape[0] > 2 else 1.0
        return xp.tanh(x), lambda upstream: scale * upstream

    with pytest.raises(UnsupportedOp, match="'long_or_short' asks for the lengths of its arg"):
        x = np.ones(3, np.float32)
        xg.export(long_or_short, tmp_path / "f.onnx", x, dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize("axes", [({0: "n"}, None, None), ({0: 3},), ["n"], {"x": {0: "n"}}])
def test_axes_that_no_input_has_are_refused(axes: Any, tmp_path: Path) -> None:
    with pytest.raises(RuleTypeError, match="dynamic_shapes= "):
        xg.export(quantized, tmp_path / "f.onnx", np.ones(3), 1.0, dynamic_shapes=axes)


def test_an_axis_of_length_one_is_not_left_open(tmp_path: Path) -> None:
    x = np.ones((1, 3), np.float32)
    with pytest.raises(RuleTypeError, match=r"axis 0 of input 0 .* has length 1"):
        xg.export(quantized, tmp_path / "f.onnx", x, 1.0, dynamic_shapes=({0: "batch"},))


def test_what_is_missing_is_told_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    missing = {"onnxscript"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in missing else found(name, *a)
    )
    with pytest.raises(BackendNotFound, match="pip install onnx onnxscript"):
        xg.export(quantized, tmp_path / "f.onnx", np.ones(3, np.float32), 1.0)


def test_a_model_that_computes_something_else_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import onnx.reference

    def run_otherwise(self: Any, names: Any, given: Mapping[str, Array]) -> list[Array]:
        return [x + 1 for x in given.values()]

    monkeypatch.setattr(onnx.reference.ReferenceEvaluator, "run", run_otherwise)
    path = tmp_path / "f.onnx"
    with pytest.raises(UnsupportedOp, match="'quantized' as ONNX that computes something else"):
        xg.export(quantized, path, np.ones(3, np.float32), 1.0)
    assert not path.exists()
