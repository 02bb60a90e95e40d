"""`xg.convert`: whatever somebody has, as a Function; and the options of a capture, as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.trace.xp import all as xp

from ...harness.torch_class import torch_class

X, COTANGENT = np.array([5.0, 6.0]), np.array([-3.0, 0.5])
CLIPPED = np.array([-1.0, 0.5])


def in_torch() -> Any:
    @torch_class(lambda ctx, grad_out: grad_out.clamp(-1.0, 1.0))
    def Clipped(ctx: Any, x: Any) -> Any:
        return x.clone()

    return Clipped


def in_jax() -> Any:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1.0, 1.0),))
    return clipped


def in_tensorflow() -> Any:
    import tensorflow as tf

    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return tf.identity(x), lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)

    return clipped


def gradient(f: Any) -> Any:
    return xg.vjp(f, X)[1](COTANGENT)[0]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(made, id=name, marks=pytest.mark.needs(name))
        for name, made in {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}.items()
    ],
)
def test_a_frameworks_own_custom_gradient_is_told_by_what_it_is(made: Callable[[], Any]) -> None:
    original = made()
    np.testing.assert_array_equal(gradient(xg.convert(original)), CLIPPED)
    unproven = xg.convert(original, capture=xg.Capture(prove=False))
    np.testing.assert_array_equal(gradient(unproven), CLIPPED)
    call = getattr(original, "apply", original)
    around = xg.convert(lambda x: call(x) * 2.0)
    np.testing.assert_array_equal(gradient(around), np.clip(2 * COTANGENT, -1.0, 1.0))
    with pytest.raises(xg.errors.RuleTypeError, match=r"custom gradient of \w+.*prove and copies"):
        xg.convert(original, capture=xg.Capture(native=True))


def test_a_function_of_tensors_keeps_its_derivative() -> None:
    np.testing.assert_array_equal(gradient(xg.convert(lambda x: x * x)), 2 * X * COTANGENT)


def test_a_function_is_returned_as_it_is() -> None:
    function = xg.function(lambda x, a: x * a)
    bound = function.bind({"a": 2.0})
    assert xg.convert(function) is function
    assert xg.convert(bound) is bound


def test_what_is_no_function_is_refused_with_what_to_write() -> None:
    class Net:
        pass

    with pytest.raises(TypeError, match=r"class 'Net'.*give an object"):
        xg.convert(Net)
    with pytest.raises(TypeError, match=r"expected a function, got str 'relu'"):
        xg.convert("relu")
    with pytest.raises(TypeError, match=r"put it under an activation"):
        xg.convert(xg.get("triangular"))
    with pytest.raises(TypeError, match=r"capture is an xg.Capture\(...\), got str"):
        xg.convert(lambda x: x, capture="torch")  # type: ignore[call-overload]


def doubles(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * 2.0


DEFINED: dict[str, Callable[..., Any]] = {
    "custom_gradient": lambda **options: xg.custom_gradient(
        lambda x: (xp.exp(x), lambda upstream: upstream * 2.0), **options
    ),
    "decorated": lambda **options: xg.custom_gradient(**options)(
        lambda x: (xp.exp(x), lambda upstream: upstream * 2.0)
    ),
    "function": lambda **options: xg.function(xp.exp, lambda g, x: g * 2.0, **options),
    "register": lambda **options: xg.register("convert_any_doubles", override=True, **options)(
        doubles
    ).under("Linear"),
}


@pytest.mark.parametrize("name", DEFINED)
def test_options_of_a_capture_are_given_together_or_by_themselves(name: str) -> None:
    define = DEFINED[name]
    together = define(capture=xg.Capture(native=False, dialect="numpy", prove=False))
    alone = define(native=False, dialect="numpy", prove=False)
    np.testing.assert_array_equal(gradient(together), 2 * COTANGENT)
    np.testing.assert_array_equal(gradient(alone), 2 * COTANGENT)
    with pytest.raises(xg.errors.RuleTypeError, match=r"or without it, not both"):
        define(capture=xg.Capture(), native=True)


def test_an_option_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(xg.errors.RuleTypeError, match=r"native is None, True or False, got 'no'"):
        xg.Capture(native="no")  # type: ignore[arg-type]
    with pytest.raises(xg.errors.RuleTypeError, match=r"no dialect named 'trch'.*torch"):
        xg.Capture(dialect="trch")
    with pytest.warns(DeprecationWarning, match=r"rolls=True .* write xg.xp.scan"):
        assert xg.Capture(rolls=True) == xg.Capture(rolls=True, prove=True)


def test_what_runs_as_it_is_by_its_options_does() -> None:
    seen = []

    def noted(x: Any) -> Any:
        seen.append(x)
        return x * 2.0, lambda upstream: upstream

    as_it_is = xg.custom_gradient(noted, capture=xg.Capture(native=True))
    as_it_is(X), as_it_is(X)
    assert len(seen) == 2
