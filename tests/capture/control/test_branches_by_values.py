"""A branch by values in somebody else's code: all ways are recorded, and values choose; torch runs
the original of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ...harness.own_library import assert_as_in
from ..values.test_asked_of_a_tensor import X, make

pytestmark = pytest.mark.needs("torch")
INPUTS = X, -X, 0.1 * X, 0 * X, np.abs(X)


def by_a_number(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x * 3 if x.max().item() > 0.5 else x.clone()


def by_several(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    if (x < 0).any() and x.sum() > 0:
        return x * 3
    if not x.abs().max():
        return x + 1
    return -x


def until_small(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    for _ in range(4):
        if x.abs().max() < 0.5:
            break
        x = x / 2
    return x + 0


def caught(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    try:
        if x.max() > 1:
            raise ValueError
    except ValueError:
        return x / x.max()
    return 2 * x


def as_forward_chose(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad * 3 if x.max().item() > 0.5 else grad


def by_the_cotangent(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    if grad.sum() > 5 and x.mean() > 0:
        return grad * x
    return grad / 2


def by_python_max(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad * max(x.min().abs(), x.max().abs())


@pytest.mark.parametrize("forward", [by_a_number, by_several, until_small, caught])
@pytest.mark.parametrize("backward", [as_forward_chose, by_the_cotangent, by_python_max])
def test_values_choose_the_way(forward: Any, backward: Any, backend: Any) -> None:
    function, cls = make(forward, backward)
    for x in INPUTS:
        for cotangent in (np.ones_like(x), None):
            assert_as_in(
                "torch", cls.apply, x, of=function, backend=backend, cotangent=cotangent, atol=0
            )


def test_a_way_that_divides_by_zero_is_not_seen_where_it_is_not_taken(backend: Any) -> None:
    def scaled(x: Any) -> Any:
        scale = x.abs().max()
        if scale == 0:
            scale = scale + 1
        return x / scale

    for x in (X, 0 * X):
        _, (gradient,) = pull(backend, xg.convert(scaled), (x,))
        assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient, np.ones_like(X))


def test_what_one_way_keeps_is_there_where_backward_takes_it(backend: Any) -> None:
    def keeps(ctx: Any, x: Any) -> Any:
        ctx.large = x.sum() > 0
        if ctx.large:
            ctx.factor = 4
        return 2 * x

    def uses(ctx: Any, grad: Any) -> Any:
        return grad * ctx.factor if ctx.large else grad

    function, cls = make(keeps, uses)
    for x in (X, -X):
        assert_as_in("torch", cls.apply, x, of=function, backend=backend)


def test_a_gradient_that_one_way_does_not_give_is_zero_there(backend: Any) -> None:
    def double(ctx: Any, x: Any) -> Any:
        return 2 * x

    def sometimes(ctx: Any, grad: Any) -> Any:
        return grad if grad.sum() > 10 else None

    function, _ = make(double, sometimes)
    if backend.name != "torch":  # which gives None
        assert (pull(backend, function, (X,))[1][0] == 0).all()


def of_several_shapes(ctx: Any, x: Any) -> Any:
    return x if x.sum() > 0 else x[0]


def until_values_end_it(ctx: Any, x: Any) -> Any:
    while x.abs().max() > 1e-9:
        x = x / 2
    return x


def that_draw(ctx: Any, x: Any) -> Any:
    return x * x.bernoulli() if x.sum() > 0 else x * 2


@pytest.mark.parametrize(
    ("forward", "ends"),
    [(of_several_shapes, "torch alone"), (until_values_end_it, "torch alone"), (that_draw, "")],
)
def test_such_ways_are_refused(forward: Any, ends: str) -> None:
    with pytest.raises(xg.TraceError, match=rf"py:\d+\) branches on a tensor value.*{ends}"):
        make(forward)[0](X)


@pytest.mark.needs("jax")
def test_a_function_of_jax_that_branches_is_compiled(jax: Any, jnp: Any) -> None:
    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * 3.0 if x.sum() > 0 else x / 2.0

    scaled.defvjp(lambda x: (scaled(x), x), lambda x, g: (g * 5.0 if x.max() > 0 else g,))
    function = xg.from_custom_vjp(scaled)
    for x, factor, slope in ((jnp.ones(3), 3.0, 5.0), (-jnp.ones(3), 0.5, 1.0)):
        y, back = jax.vjp(jax.jit(function), x)
        np.testing.assert_allclose(y, factor * x)
        np.testing.assert_allclose(back(jnp.ones(3))[0], slope * jnp.ones(3))


@pytest.mark.needs("jax")
def test_no_second_derivative_is_taken_of_several_ways(jax: Any) -> None:
    function, _ = make(by_a_number, by_the_cotangent)

    def of_gradient(x: Any) -> Any:
        return xg.vjp(function, x)[1](x)[0]

    with pytest.raises(xg.GradientError, match="cannot be differentiated again"):
        jax.vjp(of_gradient, jax.numpy.asarray(X))
