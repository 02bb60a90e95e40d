"""MLX beside other frameworks: as host and as guest, and what its own custom functions become."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.rules.opaque import call_function
from multigrad.errors import GradientError, UnsupportedOp

from ..written.hosts_and_guests import bridged

pytestmark = pytest.mark.needs("mlx")
X = np.array([-1.0, 0.25, 0.375, 2.0], np.float32)
TRIANGULAR = [0.0, 0.75, 0.625, 0.0]


@pytest.fixture
def mx() -> Any:
    return pytest.importorskip("mlx.core")


# --- as host -------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_guest_gives_output_and_gradient_in_every_dtype(mx: Any, dtype: str) -> None:
    f, kind = bridged("numpy", "ReLU", "triangular"), getattr(mx, dtype)
    with mx.stream(mx.cpu):
        x = mx.array(X).astype(kind)
        y, (gradient,) = mx.vjp(f, [x], [mx.ones_like(x)])
        plain = f(x)  # nothing is kept where no gradient is taken
        assert y[0].dtype == gradient.dtype == plain.dtype == kind
        np.testing.assert_array_equal(np.array(gradient.astype(mx.float32)), TRIANGULAR)
        for each in (y[0], plain):
            np.testing.assert_array_equal(np.array(each.astype(mx.float32)), np.maximum(X, 0))


def test_a_gradient_goes_through_a_guest_among_mlxs_own_operations(mx: Any) -> None:
    f, own = bridged("numpy", "ReLU", "triangular"), xg.activation("ReLU", "triangular")
    found, expected = (
        np.array(mx.grad(lambda x, f=f: (f(x) * f(x) * x).sum())(mx.array(X))) for f in (f, own)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_runs_as_it_is_runs_in_its_own_framework(mx: Any) -> None:
    @xg.custom_gradient
    def halved(x: Any) -> Any:
        return (x if np.sum(x) > 100 else np.maximum(x, 0)), lambda grad_out: grad_out * 3

    def run(x: Any) -> Any:
        return call_function(halved, (x,), {}, "numpy").sum()

    np.testing.assert_array_equal(np.array(mx.grad(run)(mx.array(X))), [3.0] * 4)


def test_what_a_guest_cannot_follow_is_refused(mx: Any) -> None:
    f, x = bridged("numpy", "ReLU", "triangular"), mx.array(X)

    def first(x: Any) -> Any:
        return mx.grad(lambda x: f(x).sum())(x)

    for transform in (mx.compile(f), mx.vmap(f), mx.compile(first), mx.vmap(first)):
        with pytest.raises(UnsupportedOp, match=r"numpy, which mx\.compile and mx\.vmap cannot"):
            transform(x)
    with pytest.raises(GradientError, match="no second derivative"):
        mx.grad(lambda x: first(x).sum())(x)
    with pytest.raises(GradientError, match=r"mx\.jvp"):
        mx.jvp(f, [x], [x])


# --- as guest ------------------------------------------------------------------------------------
@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rule", ["triangular", "clip_norm", None])
def test_in_torch_mlx_gives_torchs_numbers(dtype: str, rule: str | None) -> None:
    import torch

    found = []
    for f in (bridged("mlx", "ReLU", rule), xg.activation("ReLU", rule)):
        x = torch.tensor(X, dtype=getattr(torch, dtype), requires_grad=True)
        y = f(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        found.append((y, gradient))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0)


@pytest.mark.needs("torch")
def test_in_torch_a_draw_is_that_of_torchs_seed() -> None:
    import torch

    found = []
    for f in (bridged("mlx", "Linear", "noise"), xg.activation("Linear", "noise")):
        torch.manual_seed(3)
        x = torch.ones(5, requires_grad=True)
        found.append(torch.autograd.grad(f(x).sum(), x)[0])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.needs("torch", "keras")
@pytest.mark.parametrize(
    ("forward", "rule"), [("Heaviside", "triangular"), ("Linear", "clip_norm")]
)
def test_in_keras_a_layer_in_mlx_trains_as_keras_own(forward: Any, rule: str) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    import multigrad.keras

    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    losses = []
    for backend in ("mlx", None):
        keras.utils.set_random_seed(0)
        layer = multigrad.keras.Activation(forward, rule, backend=backend)
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.Dense(8), layer, keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        losses.append(model.fit(x, x.sum(1), epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


# --- its own custom functions --------------------------------------------------------------------
def make_rectifier(mx: Any) -> Any:
    """Return a ReLU with three times the gradient, as MLX has it written."""

    @mx.custom_function
    def rectifier(x: Any) -> Any:
        return mx.maximum(x, 0)

    @rectifier.vjp
    def pull(primals: Any, cotangent: Any, output: Any) -> Any:
        return cotangent * 3

    return rectifier


def make_pair(mx: Any) -> Any:
    """Return a function of two arrays and a number, whose vjp reads its outputs."""

    @mx.custom_function
    def pair(x: Any, w: Any, scale: float = 2.0) -> Any:
        return {"raised": mx.exp(x) * w, "scaled": [w * scale]}

    @pair.vjp
    def pull(primals: Any, cotangents: Any, outputs: Any, scale: float = 2.0) -> Any:
        return cotangents["raised"] * outputs["raised"], cotangents["scaled"][0] * scale * 5

    return pair


def test_a_custom_function_of_mlx_runs_on_numpy_with_its_own_gradient(mx: Any) -> None:
    function = xg.from_custom_vjp(make_rectifier(mx))
    y, pullback = xg.vjp(function, X)
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    np.testing.assert_array_equal(pullback(np.ones_like(X))[0], [3.0] * 4)
    again = xg.from_dict(function.to_dict())
    np.testing.assert_array_equal(xg.vjp(again, X)[1](np.ones_like(X))[0], [3.0] * 4)


def test_trees_keywords_and_second_derivatives_are_those_of_mlx(mx: Any) -> None:
    pair, w = make_pair(mx), mx.array(X + 3)
    own = xg.from_custom_vjp(pair)

    def first(f: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            outputs = f(x, w, scale=4.0)
            return (outputs["raised"] + outputs["scaled"][0]).sum()

        return mx.grad(loss, argnums=(0, 1))

    def second(f: Any) -> Any:
        return mx.grad(lambda x: first(f)(x, w)[0].sum())

    for found, expected in zip(
        first(own)(mx.array(X), w), first(pair)(mx.array(X), w), strict=True
    ):
        np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-6)
    found, expected = (np.array(second(f)(mx.array(X))) for f in (own, pair))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_custom_function_inside_of_another_keeps_its_gradient(mx: Any) -> None:
    rectifier = make_rectifier(mx)
    around = xg.function(lambda x: rectifier(x) * 2)
    np.testing.assert_array_equal(xg.vjp(around, X)[1](np.ones_like(X))[0], [6.0] * 4)
    np.testing.assert_array_equal(np.array(around(mx.array(X))), 2 * np.maximum(X, 0))


def test_what_is_no_vjp_is_never_taken_for_one(mx: Any) -> None:
    forward_alone = mx.custom_function(abs)
    forward_mode = mx.custom_function(abs)
    forward_mode.jvp(lambda primals, tangents: tangents)
    for function in (forward_alone, forward_mode):
        with pytest.raises(TypeError, match="has no vjp"):
            xg.from_custom_vjp(function)
    any_number = mx.custom_function(abs)
    any_number.vjp(lambda *values: values[1])
    with pytest.raises(TypeError, match="name the three"):
        xg.from_custom_vjp(any_number)
    too_few = mx.custom_function(lambda x, w: x * w)
    too_few.vjp(lambda primals, cotangent, output: cotangent)
    with pytest.raises(GradientError, match="1 arrays for 2"):
        xg.vjp(xg.from_custom_vjp(too_few), X, X)[1](X)


def test_captures_and_proofs_leave_the_generator_of_mlx_as_it_is(mx: Any) -> None:
    @xg.custom_gradient
    def squared(x: Any) -> Any:
        return mx.square(x), lambda grad_out: grad_out * 3 * x

    @xg.custom_gradient
    def drawn(x: Any) -> Any:
        return x * mx.random.uniform(shape=x.shape), lambda grad_out: grad_out

    mx.random.seed(2)
    squared(mx.array(X))
    assert mx.random.state[0].tolist() == [0, 2]
    found = np.array(drawn(mx.array(X)))
    mx.random.seed(2)
    np.testing.assert_array_equal(found, X * np.array(mx.random.uniform(shape=(4,))))
