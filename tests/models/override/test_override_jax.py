"""`xg.override` on jax: rules on the operations that a function calls, wherever jax keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleValueError

pytestmark = pytest.mark.needs("jax")
pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...harness.models.overridden import tenfold  # noqa: F401

X = jnp.array([-1.0, 0.5, 2.0])
WEIGHTS = jnp.array([1.0, 2.0, 3.0])
EXPECTED = np.array([0.0, 20.0, 30.0])  # ten times relu's


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("d",))


def plain(x):
    return (jax.nn.relu(x) * WEIGHTS).sum()


def under_jit(x):
    return jax.jit(plain)(x)


def under_scan(x):
    return jax.lax.scan(lambda a, _: (jax.nn.relu(a) * WEIGHTS, a), x, None, length=1)[0].sum()


def in_a_loop(x):
    return jax.lax.fori_loop(0, 1, lambda i, a: jax.nn.relu(a) * WEIGHTS, x).sum()


def in_a_branch(x):
    return jax.lax.cond(x[2] > 0, plain, lambda x: x.sum(), x)


def in_a_switch(x):
    return jax.lax.switch(1, [jnp.sum, plain, jnp.max], x)


def rematerialized(x):
    return jax.checkpoint(plain, policy=jax.checkpoint_policies.dots_saveable)(x)


def mapped(x):
    return (jax.vmap(jax.nn.relu)(x[None])[0] * WEIGHTS).sum()


def mapped_in_order(x):
    return (jax.lax.map(jax.nn.relu, x) * WEIGHTS).sum()


def on_shards(x):
    over_shards = jax.shard_map(
        lambda x: jax.lax.psum(jax.nn.relu(x) * WEIGHTS, "d"),
        mesh=mesh(), in_specs=P("d"), out_specs=P(),
    )  # fmt: skip
    return over_shards(x).sum()


def with_shardings(x):
    sharding = NamedSharding(mesh(), P())
    return jax.jit(plain, in_shardings=sharding, out_shardings=sharding)(x)


def with_a_callback(x):
    jax.debug.callback(lambda value: None, x)
    return plain(x)


PLACES = [
    plain, under_jit, under_scan, in_a_loop, in_a_branch, in_a_switch, rematerialized, mapped,
    mapped_in_order, on_shards, with_shardings, with_a_callback,
]  # fmt: skip


@pytest.mark.parametrize("function", PLACES, ids=lambda function: function.__name__)
def test_the_rule_acts_wherever_the_operation_is_called(function: Callable[..., Any]) -> None:
    overridden = xg.override(function, {"relu": "tenfold"})
    assert overridden(X) == function(X)
    np.testing.assert_array_equal(jax.grad(overridden)(X), EXPECTED)
    np.testing.assert_array_equal(jax.jit(jax.grad(overridden))(X), EXPECTED)


def test_the_result_is_mapped_rematerialized_and_scanned() -> None:
    gradient = jax.grad(xg.override(under_jit, {jax.nn.relu: "tenfold"}))
    np.testing.assert_array_equal(jax.vmap(gradient)(jnp.stack([X, -X]))[0], EXPECTED)
    again = jax.checkpoint(xg.override(plain, {jax.nn.relu: "tenfold"}))
    np.testing.assert_array_equal(jax.grad(again)(X), EXPECTED)
    _, rows = jax.lax.scan(lambda carry, x: (carry, gradient(x)), 0.0, X[None])
    np.testing.assert_array_equal(rows[0], EXPECTED)


@pytest.mark.parametrize(
    "selector", ["sign", jnp.sign, jax.lax.sign, jax.lax.sign_p, ("sign", "sign")]
)
def test_a_function_that_jax_inlines_is_found_by_its_primitive(selector: Any) -> None:
    overridden = xg.override(lambda x: jnp.sign(x).sum(), {selector: "tenfold"})
    np.testing.assert_array_equal(jax.grad(overridden)(X), [0.0, 10.0, 10.0])


@jax.jit
def relu(x):
    return jnp.maximum(x, 0.0)


def test_a_function_object_is_not_another_of_its_name() -> None:
    both = lambda x: (relu(x) + jax.nn.relu(x)).sum()
    own = jax.grad(xg.override(both, {relu: "tenfold"}))(X)
    np.testing.assert_array_equal(own, [0.0, 11.0, 11.0])
    by_name = jax.grad(xg.override(both, {"relu": "tenfold"}))(X)
    np.testing.assert_array_equal(by_name, [0.0, 20.0, 20.0])


def test_a_derivative_of_its_own_stays() -> None:
    @jax.custom_vjp
    def scaled(x):
        return jax.nn.relu(x) * 2

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, g: (7 * g,))
    function = lambda x: (scaled(x) + jax.nn.relu(x)).sum()
    gradient = jax.grad(xg.override(function, {"relu": "tenfold"}))(X)
    np.testing.assert_array_equal(gradient, [7.0, 17.0, 17.0])
    gradient = jax.grad(xg.override(function, {"scaled": "tenfold"}))(X)
    np.testing.assert_array_equal(gradient, [0.0, 11.0, 11.0])
    with pytest.raises(RuleValueError, match=r"inside 'scaled'.*derivative of its own"):
        xg.override(lambda x: scaled(x), {"relu": "tenfold"})(X)


def test_what_is_closed_over_keeps_its_gradient() -> None:
    def loss(weight, x):
        return xg.override(lambda x: jax.nn.relu(x * weight).sum(), {"relu": "tenfold"})(x)

    np.testing.assert_array_equal(jax.grad(loss)(WEIGHTS, X), [0.0, 5.0, 20.0])


def test_arguments_may_be_nested_static_and_keys() -> None:
    def function(tree, *, scale, key, mode):
        noise = jax.random.uniform(key, (3,))
        assert mode == "sum"
        return {"out": (jax.nn.relu(tree["x"]) * scale).sum(), "noise": noise, "mode": mode}

    overridden = xg.override(function, {"relu": "tenfold"})
    given = {"scale": 3, "key": jax.random.key(0), "mode": "sum"}
    result = overridden({"x": X, "y": None}, **given)
    assert result["mode"] == "sum"
    np.testing.assert_array_equal(result["noise"], jax.random.uniform(given["key"], (3,)))
    gradient = jax.grad(lambda x: overridden({"x": x, "y": None}, **given)["out"])(X)
    np.testing.assert_array_equal(gradient, [0.0, 30.0, 30.0])


def test_what_a_rule_reads_is_followed_inside_of_jit() -> None:
    class Held:
        scale = 1.0

    def held(ctx, grad_out, tin):
        return grad_out * Held.scale

    overridden = xg.override(lambda x: jax.jit(jnp.tanh)(x) + jax.nn.silu(x), {"logistic": held})
    plain = xg.override(lambda x: jnp.tanh(x) + x * jax.nn.sigmoid(x), {"logistic": held})
    x = jnp.array([0.5, 2.0])
    slopes = []
    for Held.scale in (1.0, 2.0, 3.0):
        slopes += [jax.grad(lambda x, f=f: f(x).sum())(x) for f in (overridden, plain)]
        np.testing.assert_allclose(slopes[-2], slopes[-1], rtol=1e-6)
    np.testing.assert_allclose(slopes[4] - slopes[0], 2 * x, rtol=1e-5)


def test_what_is_closed_over_is_read_at_each_call() -> None:
    factor = [jnp.array(1.0)]
    overridden = xg.override(lambda x: (factor[0] * jax.nn.relu(x)).sum(), {"relu": "tenfold"})
    assert overridden(X) == 2.5
    factor[0] = jnp.array(2.0)
    assert overridden(X) == 5.0


def test_integers_are_no_inputs_of_a_rule() -> None:
    overridden = xg.override(
        lambda x: (jnp.sign(jnp.arange(3)) * jnp.sign(x)).sum(), {"sign": "tenfold"}
    )
    np.testing.assert_array_equal(jax.grad(overridden)(X), [0.0, 10.0, 10.0])


def test_an_eager_call_compiles_what_is_under_jit_once(caplog: pytest.LogCaptureFixture) -> None:
    called = jax.jit(plain)
    gradient = jax.grad(xg.override(lambda x: called(x), {"relu": "tenfold"}))
    gradient(X)
    with jax.log_compiles():
        gradient(X)
    assert "Compiling" not in caplog.text


INLINED = {
    "gelu": jax.nn.gelu,
    jax.nn.gelu: lambda x: jax.nn.gelu(x, approximate=False),
    "softmax": jax.jit(jax.nn.softmax),
    "sigmoid": jax.nn.sigmoid,
    "swish": jax.nn.silu,
    "maximum": lambda x: jnp.maximum(x, 0),
    jax.nn.celu: jax.vmap(jax.nn.celu),
    "soft_sign": lambda x: jax.lax.map(jax.nn.soft_sign, x),
}


@pytest.mark.parametrize("selector", INLINED)
def test_a_function_that_jax_inlines_is_found_by_its_parts(selector: Any) -> None:
    function = INLINED[selector]
    overridden = xg.override(lambda x: function(x).sum(), {selector: "tenfold"})
    assert overridden(X) == function(X).sum()
    np.testing.assert_array_equal(jax.grad(overridden)(X), [0.0, 10.0, 10.0])


def test_calls_of_an_inlined_function_one_after_another_are_several() -> None:
    overridden = xg.override(lambda x: jax.nn.gelu(jax.nn.gelu(x)).sum(), {"gelu": "tenfold"})
    np.testing.assert_array_equal(jax.grad(overridden)(X), [0.0, 100.0, 100.0])


REFUSED = {
    "rellu": (lambda x: jax.nn.relu(x), "calls no operation 'rellu'; did you mean 'relu'"),
    "max": (lambda x: jax.nn.relu(x), "only inside 'relu'.*select 'relu'"),
    "add": (lambda x: x + jnp.sin(x), "2 inputs of shape"),
    "relu": (lambda x: jax.grad(lambda x: jax.nn.relu(x).sum())(x), "takes a gradient itself"),
    jnp.abs: (lambda x: jax.nn.relu(x), "calls no operation 'abs'"),
    "softmax": (lambda x: jax.nn.softmax(x[None], axis=0), "of another form.*jax.jit"),
}


@pytest.mark.parametrize("selector", REFUSED)
def test_what_cannot_be_changed_is_refused_with_its_reason(selector: Any) -> None:
    function, words = REFUSED[selector]
    with pytest.raises(RuleValueError, match=words):
        xg.override(function, {selector: "tenfold"})(X)


def test_arrays_of_numpy_are_data_of_jax() -> None:
    given = np.array(X)
    loss = lambda w: xg.override(lambda x: jax.nn.relu(w * x).sum(), {"relu": "tenfold"})(given)
    np.testing.assert_array_equal(jax.grad(loss)(WEIGHTS), [0.0, 5.0, 20.0])
