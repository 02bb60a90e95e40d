"""A Function of one framework inside of another, whatever its arguments and outputs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.functions.function import Function
from multigrad.engine.rules.opaque import call_function
from multigrad.errors import GradientError, TraceError

from ...conftest import BACKENDS
from ...written.hosts_and_guests import both_modes, every_host, every_pair, hosts_of_torch, pull

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]


def bridged(guest: str, function: Function, *rest: Any, **options: Any) -> Callable[[Tensor], Any]:
    """Give a Function of one tensor that runs in a guest."""
    return lambda x: call_function(function, (x, *rest), options, guest)


def data(*shape: int) -> Array:
    """Give numbers."""
    return np.random.default_rng(0).normal(size=shape or (4, 3)).astype(np.float32)


@xg.custom_gradient
def layer(x: Tensor, ids: Tensor, mode: str, *, scale: float, weights: dict[str, Tensor]) -> Any:
    """Nested arguments, a static one, a number, an integer; two outputs, one of integers."""
    factor = scale if mode == "scaled" else 1.0
    outputs = {"y": (x @ weights["kernel"]) * factor, "ids": ids + 1}

    def grad(upstream: Any) -> Any:
        gradient = upstream["y"] @ weights["kernel"].T * 7.0
        return (gradient, None, None), {"scale": None, "weights": {"kernel": x.T @ upstream["y"]}}

    return outputs, grad


@every_pair
@both_modes
def test_nested_arguments_and_outputs_cross(host: str, guest: str, compiled: bool) -> None:
    x, kernel, ids = data(4, 3), data(3, 2), np.arange(4, dtype=np.int32)
    array = BACKENDS[host].array
    cotangent = data(4, 2)
    seen: list[Any] = []

    def f(x: Tensor) -> Tensor:
        weights = {"kernel": array(kernel)}
        outputs = call_function(
            layer, (x, array(ids), "scaled"), {"scale": 2.0, "weights": weights}, guest
        )
        seen.append(outputs["ids"])
        return outputs["y"]

    y, gradient = pull(host, f, x, cotangent, compiled)
    np.testing.assert_allclose(y, x @ kernel * 2, rtol=1e-5)
    np.testing.assert_allclose(gradient, cotangent @ kernel.T * 7, rtol=1e-5)
    assert "int32" in str(seen[0].dtype)
    if not compiled and host != "jax":  # there it is a tracer
        np.testing.assert_array_equal(BACKENDS[host].numpy(seen[0]), ids + 1)


@every_pair
@both_modes
def test_each_argument_gets_its_own_gradient(host: str, guest: str, compiled: bool) -> None:
    product = xg.function(lambda a, b: a * b, lambda g, a, b: (g * b * 10, g * a * 100))
    a, b = data(), data() + 1
    other = BACKENDS[host].array(b)
    first = pull(host, lambda x: call_function(product, (x, other), {}, guest), a, a, compiled)
    second = pull(host, lambda x: call_function(product, (other, x), {}, guest), a, a, compiled)
    np.testing.assert_allclose(first[1], a * b * 10, rtol=1e-6)
    np.testing.assert_allclose(second[1], a * b * 100, rtol=1e-6)


@every_pair
@both_modes
def test_an_argument_without_a_gradient_gets_zeros_or_none(
    host: str, guest: str, compiled: bool
) -> None:
    half = xg.function(lambda a, b: a * b, lambda g, a, b: (g, None))
    x = data()

    def f(x: Tensor) -> Tensor:
        return call_function(half, (x * 2, x), {}, guest)

    np.testing.assert_allclose(pull(host, f, x, x, compiled)[1], x * 2, rtol=1e-6)


@every_pair
@both_modes
def test_an_output_may_have_another_shape(host: str, guest: str, compiled: bool) -> None:
    row_sums = xg.function(lambda x: x.sum(-1), lambda g, x: g[..., None] + x * 0)
    x = data(4, 3)
    y, gradient = pull(host, bridged(guest, row_sums), x, x[:, 0], compiled)
    np.testing.assert_allclose(y, x.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(gradient, np.repeat(x[:, :1], 3, 1), rtol=1e-6)


@every_pair
@both_modes
def test_draws_are_those_of_the_key(host: str, guest: str, compiled: bool) -> None:
    noisy = xg.function(lambda x: x, lambda g, x: g * xg.xp.rand_like(x))
    x = data()
    _, pullback = xg.vjp(noisy.keyed(9), x)
    found = pull(host, bridged(guest, noisy.keyed(9)), x, x, compiled)[1]
    np.testing.assert_array_equal(found, pullback(x)[0])


@every_pair
def test_64_bits_stay_64_bits(host: str, guest: str) -> None:
    plain = xg.function(lambda x, i: (x * 3, i + 1), lambda g, x, i: (g[0] * 5, None))
    x, ids = data().astype(np.float64), np.array([2**40], np.int64)
    with BACKENDS[host].precision(np.float64):
        array = BACKENDS[host].array
        y, i = call_function(plain, (array(x), array(ids)), {}, guest)
        np.testing.assert_array_equal(BACKENDS[host].numpy(i), ids + 1)
        np.testing.assert_array_equal(BACKENDS[host].numpy(y), x * 3)
        f = bridged(guest, xg.function(lambda x: x * 3, lambda g, x: g * 5))
        np.testing.assert_array_equal(pull(host, f, x, x, compiled=False)[1], x * 5)


# --- as it is -------------------------------------------------------------------------------------


def clamp_with_grad() -> Function:
    """Give torch's own custom gradient, which cannot be captured: it branches on a value."""
    import torch

    class ClampWithGrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.low, ctx.high = low, high
            if float(x.detach().abs().max() if x.numel() else 0) > 1e6:
                raise ValueError("too large to clamp")
            return x.clamp(low, high)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            (g,) = grad_outputs
            return g * (g * (x - x.clamp(ctx.low, ctx.high)) >= 0), None, None

    return xg.from_autograd_function(ClampWithGrad)


@hosts_of_torch
@both_modes
def test_a_function_that_only_torch_can_run_trains_elsewhere(host: str, compiled: bool) -> None:
    function = clamp_with_grad()
    x = np.linspace(-2, 2, 8, dtype=np.float32)
    cotangent = np.array([1, -1] * 4, np.float32)
    y, gradient = pull(host, bridged("torch", function, -1.0, 1.0), x, cotangent, compiled)
    outside = x - x.clip(-1, 1)
    np.testing.assert_array_equal(y, x.clip(-1, 1))
    np.testing.assert_array_equal(gradient, cotangent * (cotangent * outside >= 0))


@hosts_of_torch
def test_what_a_function_raises_is_said_with_its_name_and_place(host: str) -> None:
    f = bridged("torch", clamp_with_grad(), -1.0, 1.0)
    x = np.full(3, 1e7, np.float32)
    for compiled in (False, True):
        with pytest.raises(Exception, match="too large to clamp") as caught:
            pull(host, f, x, x, compiled)
        assert "function 'ClampWithGrad' failed in torch" in str(caught.value)


@every_pair
@both_modes
def test_a_native_function_runs_in_the_guest(host: str, guest: str, compiled: bool) -> None:
    owners: set[str] = set()

    def run(x: Tensor) -> Any:
        owners.add(type(x).__module__.partition(".")[0])

        def grad(upstream: Tensor) -> Tensor:
            return upstream * 4 + x

        return x * 2, grad

    function = xg.custom_gradient(run, native=True)
    x = data()
    y, gradient = pull(host, bridged(guest, function), x, x, compiled)
    np.testing.assert_allclose(y, x * 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, x * 5, rtol=1e-6)
    assert owners <= {guest, f"{guest}lib"}, owners


@hosts_of_torch
def test_a_function_of_another_framework_than_the_guest_is_refused(host: str) -> None:
    with pytest.raises(TraceError, match="ClampWithGrad"):
        xg_function = clamp_with_grad()
        call_function(xg_function, (BACKENDS[host].array(data()), -1.0, 1.0), {}, "numpy")


@every_pair
def test_a_gradient_that_does_not_fit_is_refused(host: str, guest: str) -> None:
    function = xg.function(lambda x: x * 2, lambda g, x: g[:1])
    with pytest.raises(GradientError, match=r"shape \(1, 3\)"):
        pull(host, bridged(guest, function), data(), data(), compiled=False)


@every_host
def test_the_hosts_own_framework_is_no_bridge(host: str) -> None:
    function = xg.function(lambda x: x * 2, lambda g, x: g * 3)
    x = data()
    np.testing.assert_array_equal(
        pull(host, bridged(host, function), x, x, compiled=False)[1], x * 3
    )
