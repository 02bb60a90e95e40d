"""What is no fault raises no alarm: results of fewer bits, code that asks who needs a gradient,
stopped tapes, rounding that decides.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import NativeRuleWarning, NotProvenWarning

from ...harness.torch_class import torch_class
from ...harness.traced import taped

X = np.linspace(-2.0, 2.0, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def proven_without_a_word(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MULTIGRAD_PROVE", "all")
    with warnings.catch_warnings():
        warnings.simplefilter("error", NativeRuleWarning)
        warnings.simplefilter("error", NotProvenWarning)
        yield


def slope_in_torch(function: Any, *arrays: Any) -> Any:
    import torch

    first, *others = (torch.tensor(a) for a in arrays)
    first.requires_grad_()
    outputs = function(first, *others)
    outputs.float().sum().backward()
    return first.grad.numpy()


@pytest.mark.needs("torch")
def test_a_bfloat16_output_of_a_float32_class() -> None:
    import torch

    @torch_class(lambda ctx, g: (g * torch.exp(ctx.saved_tensors[0].to(torch.bfloat16))).float())
    def Narrowed(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.exp(x.to(torch.bfloat16))

    slope = slope_in_torch(xg.from_autograd_function(Narrowed), X)
    np.testing.assert_array_equal(slope, slope_in_torch(Narrowed.apply, X))


def narrowed_pair() -> Any:
    import torch

    return xg.function(
        lambda x: torch.exp(x).to(torch.bfloat16), lambda g, x: g.float() * torch.exp(x)
    )


def narrowed_in_jax() -> Any:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def narrowed(x: Any) -> Any:
        return jnp.exp(x).astype(jnp.bfloat16)

    narrowed.defvjp(lambda x: (narrowed(x), x), lambda x, g: (g.astype(jnp.float32) * jnp.exp(x),))
    return narrowed


def narrowed_in_tensorflow() -> Any:
    import tensorflow as tf

    return tf.custom_gradient(
        lambda x: (tf.cast(tf.exp(x), tf.bfloat16), lambda g: tf.cast(g, tf.float32) * tf.exp(x))
    )


NARROWED = {"torch": narrowed_pair, "jax": narrowed_in_jax, "tensorflow": narrowed_in_tensorflow}


@pytest.mark.backends(*NARROWED)
def test_a_bfloat16_output_of_a_custom_gradient(backend: Any) -> None:
    function = xg.convert(NARROWED[backend.name]())
    _, gradient = backend.vjp(function, X, np.ones(X.shape, ml_dtypes.bfloat16))
    np.testing.assert_allclose(gradient, np.exp(X), rtol=1e-6)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("trained", [False, True])
def test_results_that_depend_on_who_needs_a_gradient(trained: bool) -> None:
    import torch

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            return x * w * (2.0 if w.requires_grad else 1.0)

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            x, w = ctx.saved_tensors
            if ctx.needs_input_grad[1]:
                return grad_out * w, grad_out * x
            return grad_out * w * 3.0, None

    w = torch.full((3, 4), 0.5, requires_grad=trained)
    x = torch.tensor(X, requires_grad=True)
    y = xg.from_autograd_function(Asking)(x, w)
    y.sum().backward()
    np.testing.assert_allclose(y.detach().numpy(), X * (1.0 if trained else 0.5))
    np.testing.assert_allclose(x.grad.numpy(), np.full_like(X, 0.5 if trained else 1.5))


@pytest.mark.needs("tensorflow")
def test_a_first_call_in_a_region_that_is_computed_again() -> None:
    import tensorflow as tf

    @tf.custom_gradient
    def tripled(x: Any) -> Any:
        return tf.exp(x), lambda g: g * tf.exp(x) * 3.0

    function, x = xg.from_tf_custom_gradient(tripled), tf.constant(X)
    block = tf.recompute_grad(lambda x: function(x) * 2.0)
    np.testing.assert_allclose(taped(block)(x), 6.0 * np.exp(X), rtol=1e-5)


def dorefa(x: Any) -> Any:
    """The weights of DoReFa-Net, arXiv:1606.06160, equation 9, with k = 2 bits."""
    import tensorflow as tf

    @tf.custom_gradient
    def quantized(x: Any) -> Any:
        return tf.round(x * 3.0) / 3.0, lambda g: g

    limited = tf.tanh(x)
    return 2.0 * quantized(limited / (2.0 * tf.reduce_max(tf.abs(limited))) + 0.5) - 1.0


def magnitude_aware_sign(x: Any) -> Any:
    """The sign scaled by the mean magnitude of each channel, as in Bi-Real Net."""
    import tensorflow as tf

    scale = tf.reduce_mean(tf.abs(x), axis=list(range(len(x.shape) - 1)))

    @tf.custom_gradient
    def signed(x: Any) -> Any:
        return scale * tf.sign(tf.sign(x) + 0.1), lambda g: g

    return signed(x)


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("quantizer", [dorefa, magnitude_aware_sign])
def test_quantizers_whose_steps_rounding_decides(quantizer: Any) -> None:
    import tensorflow as tf

    ours = xg.function(quantizer)
    found, expected = (taped(lambda x, f=f: f(x) * x)(tf.constant(X)) for f in (ours, quantizer))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.needs("jax")
def test_an_iteration_that_rounding_decides() -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def lambertw(x: Any) -> Any:
        def goes_on(state: Any) -> Any:
            return (jnp.max(jnp.abs(state[1])) > 1e-7) & (state[2] < 100)

        def turn(state: Any) -> Any:
            w, _, i = state
            grown = jnp.exp(w)
            f = w * grown - x
            step = f / (grown * (w + 1) - (w + 2) * f / (2 * w + 2))
            return w - step, step, i + 1

        start = jnp.where(x > -0.2, jnp.log1p(jnp.maximum(x, -0.2)), -0.5)
        return jax.lax.while_loop(goes_on, turn, (start, jnp.full_like(x, jnp.inf), 0))[0]

    def forward(x: Any) -> Any:
        w = lambertw(x)
        return w, (x, w)

    lambertw.defvjp(forward, lambda kept, g: (g * kept[1] / (kept[0] * (1 + kept[1])),))
    x = jnp.linspace(0.1, 5.0, 7)
    w = xg.from_custom_vjp(lambertw)(x)
    np.testing.assert_allclose(w * jnp.exp(w), x, rtol=1e-5)


@pytest.mark.needs("torch")
def test_a_formula_that_magnifies_roundings() -> None:
    import torch

    def nearly_one(x: Any) -> Any:
        return 1.0 / ((1.0 + x * 1e-4) - 1.0)

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = torch.tensor([0.5, 1.5], dtype=dtype)
        found = xg.function(lambda x: torch.abs(nearly_one(x)))(given)
        assert torch.equal(found, nearly_one(given).abs())


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_formula_of_the_library_that_leaves_its_dtypes_range(dtype: str) -> None:
    import torch

    x, y = (torch.tensor(X[i], dtype=getattr(torch, dtype)) for i in range(2))
    assert torch.equal(xg.function(lambda x, y: torch.atan2(x, y))(x, y), torch.atan2(x, y))


@pytest.mark.needs("torch")
def test_a_kink_behind_a_sum_out_of_range() -> None:
    import torch

    x = torch.tensor(X)
    expected = slope_in_torch(lambda x: torch.relu(x @ x.T + x[:, :3]), X)
    found = slope_in_torch(xg.function(lambda x: torch.relu(x @ x.T + x[:, :3])), X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert x.shape == found.shape


@pytest.mark.needs("torch")
def test_a_sum_of_powers_that_underflow() -> None:
    import torch

    x = torch.tensor(X, dtype=torch.float64)
    found = xg.function(lambda x: torch.linalg.vector_norm(x, -2, 1))(x)
    torch.testing.assert_close(found, torch.linalg.vector_norm(x, -2, 1))


@pytest.mark.needs("jax")
def test_a_gradient_of_nothing_where_a_derivative_is_none() -> None:
    from jax import vjp
    from jax.scipy.special import xlogy

    _, pull = vjp(xg.function(lambda x, y: xlogy(x, y)), X, -X)
    _, expected = vjp(xlogy, X, -X)
    ones = np.ones_like(X)
    np.testing.assert_array_equal(pull(ones)[0], expected(ones)[0])


@pytest.mark.needs("torch")
def test_the_derivative_of_relu_at_nan() -> None:
    found = slope_in_torch(xg.function(lambda x: x.relu(), dialect="torch"), [np.nan, -1.0, 1.0])
    np.testing.assert_array_equal(found, [0.0, 0.0, 1.0])


def test_what_gives_other_numbers_each_time_is_not_our_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")
    turns = {"n": 0.0}

    def counting(x: Any) -> Any:
        turns.update(n=turns["n"] + 1.0)
        return np.abs(x) * turns["n"]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            xg.function(counting)(X)
        except xg.MultigradError as error:
            assert "please report it" not in str(error)
    assert not any("please report it" in str(each.message) for each in told)


NAMES = """
    hardsigmoid softsign tanhshrink gelu mish logsigmoid asinh atanh logit digamma sinc sgn log1p
    special.entr
"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", NAMES.split())
def test_derivatives_that_torch_derives_with_fewer_digits(name: str, dtype: str) -> None:
    import torch

    owner = torch if hasattr(torch, name.partition(".")[0]) else torch.nn.functional
    function = operator.attrgetter(name)(owner)
    x = torch.linspace(0.125, 0.875, 12, dtype=getattr(torch, dtype), requires_grad=True)
    y = xg.function(lambda x: function(x), native=False)(x)
    slopes = [torch.autograd.grad(each.sum(), x)[0].double() for each in (y, function(x))]
    half = torch.finfo(x.dtype).eps ** 0.5
    torch.testing.assert_close(*slopes, rtol=half, atol=half)


@pytest.mark.needs("torch")
def test_the_share_of_a_mask_in_a_rule_which_is_float32s_in_torch() -> None:
    import torch

    rule = xg.register("share of a mask", native=False)(
        lambda ctx, grad_out, tin: grad_out * torch.mean((tin > 0).float()).to(tin.dtype)
    )
    x = torch.tensor([-1.0, 1.0, 2.0], dtype=torch.float64)
    found = rule(None, torch.ones_like(x), x)
    torch.testing.assert_close(found, torch.full_like(x, 2 / 3), rtol=1e-7, atol=0.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x >= 0.7,
        lambda x: x == 0.1,
        lambda x: (x - 0.7) > 0,
        lambda x: xg.xp.sign(x - 0.1),
        lambda x: (x < 0.7, (x != 0.1) * x),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_number_that_is_as_coarse_as_the_tensor_beside_it(
    function: Any, dtype: str, backend: Any
) -> None:
    x = backend.array(np.array([0.1, 0.7, 1.0], dtype))
    xg.function(function, native=False)(x)
