"""Modules of flax: parameters that nnx modules hold, and those that linen is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

jax: Any = pytest.importorskip("jax")

nnx: Any = pytest.importorskip("flax.nnx")
pytest.importorskip("flax")
pytestmark = pytest.mark.needs("jax", "flax")
X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def make_linear() -> Any:
    return nnx.Linear(4, 3, rngs=nnx.Rngs(0))


def make_mlp() -> Any:
    """Return a module with statistics, a number, a bare array and a list of modules."""

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 4, rngs=rngs)])
            self.norm = nnx.LayerNorm(5, rngs=rngs)
            self.statistics = nnx.BatchNorm(5, use_running_average=True, rngs=rngs)
            self.scale = nnx.Param(jax.numpy.float32(2.0))
            self.shift = jax.numpy.ones(4)

        def __call__(self, x: Any) -> Any:
            first, last = self.layers
            return last(nnx.gelu(self.statistics(self.norm(first(x))))) * self.scale + self.shift

    return Net(nnx.Rngs(0))


def make_reversible() -> Any:
    """Return two halves, each changed by a function of the other."""

    class Reversible(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.f, self.g = (nnx.Linear(2, 2, rngs=rngs) for _ in range(2))

        def __call__(self, x: Any) -> Any:
            a, b = jax.numpy.split(x, 2, axis=-1)
            a = a + nnx.tanh(self.f(b))
            return jax.numpy.concatenate([a, b + nnx.tanh(self.g(a))], axis=-1)

    return Reversible(nnx.Rngs(0))


MAKERS = (make_linear, make_mlp, make_reversible)


def by_nnx(module: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the gradients of half the sum of squares of the output, by the way to each."""
    found = nnx.grad(lambda module: 0.5 * (module(X) ** 2).sum())(module)
    ways = nnx.to_flat_state(found)
    return {".".join(map(str, way)): np.asarray(each[...]) for way, each in ways}


@pytest.mark.parametrize("make", MAKERS)
def test_an_nnx_module_apart_is_a_function_of_its_parameters(backend: Any, make: Any) -> None:
    module = make()
    expected, gradients = np.asarray(module(X)), by_nnx(module)
    apply, parameters = xg.convert(module, to=backend.name)
    nnx.update(module, jax.tree.map(lambda each: 3 * each, nnx.state(module)))  # its own alone
    assert parameters.keys() == gradients.keys()
    y, pull = xg.vjp(apply, parameters, backend.array(X))
    np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-4, atol=1e-5)
    of_parameters, of_x = pull(y)
    assert of_x.shape == X.shape
    for name, slope in gradients.items():
        np.testing.assert_allclose(
            backend.numpy(of_parameters[name]), slope, rtol=1e-4, atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("is_inside", [False, True])
def test_on_jax_parameters_of_an_nnx_module_get_their_gradients(make: Any, is_inside: bool) -> None:
    def loss(module: Any) -> Any:
        called = (lambda x: 1.0 * module(x)) if is_inside else module
        return 0.5 * (xg.function(called)(jax.numpy.asarray(X)) ** 2).sum()

    module = make()
    found = {
        ".".join(map(str, way)): each[...]
        for way, each in nnx.to_flat_state(nnx.grad(loss)(module))
    }
    for name, slope in by_nnx(module).items():
        np.testing.assert_allclose(np.asarray(found[name]), slope, rtol=1e-4, atol=1e-5)


def recomputing(split: Any) -> Any:
    """Return a checkpoint of a module that is split into its definition and its state."""
    definition, _ = split

    @jax.custom_vjp
    def call(state: Any, x: Any) -> Any:
        return nnx.merge(definition, state)(x)

    def forward(state: Any, x: Any) -> Any:
        return call(state, x), (state, x)

    def backward(kept: Any, grad_out: Any) -> Any:
        return jax.vjp(lambda state, x: nnx.merge(definition, state)(x), *kept)[1](grad_out)

    call.defvjp(forward, backward)
    return call


@pytest.mark.parametrize("is_on_arrays", [False, True])
def test_a_checkpoint_of_a_split_module_gives_its_state_gradients(is_on_arrays: bool) -> None:
    module = make_reversible()
    definition, state = nnx.split(module)
    gradients = by_nnx(module)
    y = np.asarray(module(X))
    given = jax.tree.map(np.asarray, state) if is_on_arrays else state
    x = X if is_on_arrays else jax.numpy.asarray(X)
    _, pull = xg.vjp(xg.convert(recomputing((definition, state))), given, x)
    of_state, _ = pull(y if is_on_arrays else jax.numpy.asarray(y))
    for found, slope in zip(jax.tree.leaves(of_state), gradients.values(), strict=True):
        np.testing.assert_allclose(np.asarray(found), slope, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_a_module_that_a_custom_gradient_reads_is_refused() -> None:
    def loss(module: Any) -> Any:
        called = xg.function(lambda x: module(x), lambda grad_out, x: grad_out)
        return called(jax.numpy.asarray(X)).sum()

    with pytest.raises(xg.GradientError, match="reads a value from around it"):
        nnx.grad(loss)(make_reversible())


def test_linen_s_apply_is_a_function_of_its_parameters_everywhere(backend: Any) -> None:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(nn.gelu(nn.LayerNorm()(nn.Dense(5)(x))))

    module: Any = Net()
    parameters = module.init(jax.random.key(0), X)
    gradients = jax.grad(lambda given: 0.5 * (module.apply(given, X) ** 2).sum())(parameters)
    given = jax.tree.map(lambda each: backend.array(np.asarray(each)), parameters)
    y, pull = xg.vjp(xg.convert(module.apply), given, backend.array(X))
    of_parameters, _ = pull(y)
    pairs = zip(jax.tree.leaves(of_parameters), jax.tree.leaves(gradients), strict=True)
    for found, slope in pairs:
        np.testing.assert_allclose(backend.numpy(found), np.asarray(slope), rtol=1e-3, atol=1e-5)
    with pytest.raises(xg.errors.RuleTypeError, match=r"xg\.convert\(module\.apply\)"):
        xg.convert(module, to=backend.name)
