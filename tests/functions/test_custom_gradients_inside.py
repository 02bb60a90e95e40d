"""A function that applies somebody's custom gradient has that gradient, wherever in its calls it is
applied.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.capture.user_code.libraries import is_library_file
from multigrad_conformance.under_test import pull

from ..harness.own_library import assert_as_in
from ..harness.torch_class import torch_class

X = np.array([0.3, -1.2, 0.6], np.float32)
TORCH = """
    import torch

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.round(x)

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, slope):
            ctx.save_for_backward(x)
            ctx.slope = slope
            return (x > 0).to(x)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad / (ctx.slope * x.abs() + 1) ** 2, None

    class Named(Round):
        @classmethod
        def apply(cls, x):
            return super().apply(x)

    class Flattened(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.rank = len(x.shape)
            return x.view(-1)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.rank

    class Sorted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if float(x.sum()) > 1e9:
                return x
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad

    alias = Round.apply

    def round_ste(x):
        return Round.apply(x)

    def spiking(slope):
        def apply(x):
            return Spike.apply(x, slope)

        return apply

    def make():
        class Made(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

            @staticmethod
            def backward(ctx, grad):
                return grad * 5

        return Made

    class Rounding(torch.nn.Module):
        def forward(self, x):
            return Round.apply(x)

    class Reversal(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            return x

        @staticmethod
        def backward(ctx, grad):
            return -grad, None

    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, least, most):
            return torch.where(x > most, most.type_as(x), torch.maximum(x, least))

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad, None, None
"""
JAX = """
    import functools
    import jax
    import jax.numpy as jnp

    def superspike(slope):
        @jax.custom_gradient
        def spike(x):
            def pull(g):
                return g / (slope * jnp.abs(x) + 1) ** 2
            return jnp.where(x > 0, 1.0, 0.0), pull
        return jax.jit(spike)

    @jax.custom_vjp
    def doubled(x):
        return jnp.round(x)

    doubled.defvjp(lambda x: (jnp.round(x), None), lambda kept, g: (2 * g,))
    twice_jitted = jax.jit(jax.jit(doubled))

    @jax.custom_jvp
    def tripled(x):
        return jnp.round(x)

    @tripled.defjvp
    def push(primals, tangents):
        return tripled(*primals), 3 * tangents[0]

    def helper(x):
        return jax.jit(doubled)(x) + jnp.zeros(())

    class Layer:
        def __call__(self, x):
            return superspike(25.0)(x)
"""
TENSORFLOW = """
    import tensorflow as tf

    @tf.custom_gradient
    def rounded(x):
        return tf.round(x), lambda dy: 2 * dy

    def helper(x):
        return rounded(x)

    class Rounding:
        def __init__(self):
            self.round = rounded

        def __call__(self, x):
            return self.round(x)
"""


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Write somebody's package where installers put one, and import it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    names: list[str] = []

    def make(source: str) -> Any:
        name = f"somebodys_{len(names)}_{tmp_path.name.replace('-', '_')}"
        names.append(name)
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        assert is_library_file(module.__file__)
        return module

    yield make
    sys.path.remove(str(folder))
    for name in names:
        del sys.modules[name]


def gradient_in_torch(f: Callable[[Any], Any]) -> list[float]:
    import torch

    x = torch.from_numpy(X.copy()).requires_grad_()
    f(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def of_torch(somebodys: Any) -> dict[str, Callable[[Any], Any]]:
    import torch

    layers = torch.nn.Sequential(somebodys.Rounding(), torch.nn.Identity())
    spike = somebodys.spiking(25.0)
    apply = somebodys.Round.apply

    def makes_a_class(x: Any) -> Any:
        @torch_class(lambda ctx, grad: grad * 4)
        def Made(ctx: Any, x: Any) -> Any:
            return x.round()

        return Made.apply(x)

    return {
        "a class of the package": lambda x: somebodys.Round.apply(x),
        "its helper": lambda x: somebodys.round_ste(x),
        "its alias of apply": lambda x: somebodys.alias(x),
        "an alias of ours": lambda x: apply(x),
        "a closure": lambda x: spike(x),
        "modules in modules": lambda x: layers(x),
        "a class made inside": makes_a_class,
        "a factory": lambda x: somebodys.make().apply(x),
        "an own apply": lambda x: somebodys.Named.apply(x),
        "one that looks at the number of axes": lambda x: somebodys.Flattened.apply(x),
    }


CASES = (
    "a class of the package", "its helper", "its alias of apply", "an alias of ours", "a closure",
    "modules in modules", "a class made inside", "a factory", "an own apply",
    "one that looks at the number of axes",
)  # fmt: skip


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", CASES)
def test_a_class_applied_inside_keeps_its_backward(backend: Any, package: Any, case: str) -> None:
    assert_as_in("torch", of_torch(package(TORCH))[case], X, backend=backend, rtol=0, atol=0)


@pytest.mark.needs("torch")
def test_a_class_inside_that_is_not_captured_makes_the_function_run_as_it_is(package: Any) -> None:
    somebodys = package(TORCH)
    function = xg.function(lambda x: somebodys.Sorted.apply(x))
    assert gradient_in_torch(function) == [3.0, 3.0, 3.0]
    with pytest.raises(xg.errors.TraceError, match=r"'Sorted' \(.*float\(x.sum"):
        xg.vjp(function, X)


@pytest.mark.needs("torch", "jax")
@pytest.mark.parametrize("native", [None, True])
def test_a_class_inside_of_what_is_not_captured_loses_no_gradient_elsewhere(
    package: Any, native: bool | None
) -> None:
    import jax
    import jax.numpy as jnp
    import torch

    somebodys, alpha = package(TORCH), torch.tensor(1.0)
    reverse = somebodys.Reversal.apply
    several = xg.function(lambda x: reverse(x, [alpha][0]), native=native)
    if native:
        with pytest.raises(xg.errors.MultigradError):
            jax.grad(lambda x: several(x).sum())(jnp.asarray(X))
    else:
        found = jax.grad(lambda x: several(x).sum())(jnp.asarray(X))
        assert found.tolist() == [-1.0] * 3

    def branching(x: Any) -> Any:
        return somebodys.round_ste(x) if x.shape[0] > len(str(id(x))) - 99 else x

    alone = xg.function(branching, native=native)
    found = jax.grad(lambda x: alone(x).sum())(jnp.asarray(X))
    assert found.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.needs("torch")
def test_a_constant_without_axes_is_a_tensor_to_the_class_applied_inside(package: Any) -> None:
    import torch

    somebodys = package(TORCH)

    def f(x: Any) -> Any:
        return somebodys.Clamp.apply(x, torch.tensor(-0.5), torch.as_tensor(0.4))

    function = xg.function(f, native=False)
    assert gradient_in_torch(function) == gradient_in_torch(f) == [3.0, 3.0, 3.0]
    x = torch.from_numpy(X)
    np.testing.assert_array_equal(function(x), f(x))


@pytest.mark.needs("torch")
def test_a_class_applied_in_a_rules_helper_keeps_its_backward_for_second_derivatives(
    package: Any,
) -> None:
    import torch

    somebodys = package(TORCH)
    act = xg.activation("Linear", rule=lambda ctx, g, t: g * somebodys.round_ste(t))
    x = torch.tensor([0.6], requires_grad=True)
    (first,) = torch.autograd.grad(act(x).sum(), x, create_graph=True)
    assert first.tolist() == [1.0]
    with pytest.raises(xg.errors.GradientError):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.needs("torch")
def test_nothing_of_the_interception_is_left_after_a_capture(package: Any) -> None:
    import torch

    somebodys = package(TORCH)
    classes = torch.autograd.Function.__mro__
    before = [dict(vars(each)) for each in classes]
    xg.function(lambda x: somebodys.round_ste(x))(torch.ones(3))
    xg.function(lambda x: somebodys.Sorted.apply(x))(torch.ones(3))
    assert [dict(vars(each)) for each in classes] == before


@pytest.mark.needs("torch")
def test_classes_are_applied_to_tensors_as_ever_while_another_thread_captures(package: Any) -> None:
    import threading

    import torch

    somebodys = package(TORCH)
    captures, applied = threading.Event(), threading.Event()

    def waits(x: Any) -> Any:
        captures.set()
        assert applied.wait(60)
        return somebodys.round_ste(x)

    function = xg.function(waits)
    thread = threading.Thread(target=lambda: function(torch.ones(3)))
    thread.start()
    assert captures.wait(60)
    meanwhile = gradient_in_torch(somebodys.alias)
    applied.set()
    thread.join()
    assert meanwhile == [2.0, 2.0, 2.0]


@pytest.mark.needs("torch")
def test_a_class_applied_inside_keeps_its_backward_under_a_transform(package: Any) -> None:
    import torch

    somebodys = package(TORCH)
    function = xg.function(lambda x: somebodys.round_ste(x).sum(), native=False)
    gradient = torch.func.vmap(torch.func.grad(function))(torch.ones(2, 3))
    assert gradient.tolist() == [[2.0, 2.0, 2.0]] * 2


@pytest.mark.needs("jax")
@pytest.mark.parametrize(
    "case", ["superspike", "doubled", "twice_jitted", "tripled", "helper", "Layer"]
)
def test_a_custom_function_of_jax_inside_keeps_its_gradient(
    backend: Any, package: Any, case: str
) -> None:
    somebodys = package(JAX)
    made = {"superspike": lambda: somebodys.superspike(25.0), "Layer": lambda: somebodys.Layer()}
    inner = made.get(case, lambda: getattr(somebodys, case))()
    assert_as_in("jax", lambda x: inner(x) * 1.0, X, backend=backend, rtol=1e-6, atol=0)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("case", ["twice_jitted", "looped", "differentiated"])
def test_code_that_is_read_by_its_jaxpr_keeps_the_custom_gradients_inside(
    package: Any, case: str
) -> None:
    import jax
    import jax.numpy as jnp

    somebodys = package(JAX)

    def looped(x: Any) -> Any:  # for loops of jax, which substitution does not see through
        return somebodys.helper(jax.checkpoint(somebodys.doubled)(jnp.sinc(x) * x))

    def differentiated(x: Any) -> Any:
        return jax.jvp(somebodys.tripled, (x,), (x,))[1] * x

    cases: Any = {"looped": looped, "differentiated": differentiated}
    inner, x = cases.get(case, somebodys.twice_jitted), jnp.asarray(X)
    expected = jax.grad(lambda x: inner(x).sum())(x)
    assert_as_in("jax", inner, X, atol=0)
    again = jax.grad(lambda x: inner(x).sum())(x)  # what jax keeps of a trace is its own still
    np.testing.assert_array_equal(np.asarray(again), np.asarray(expected))
    assert "multigrad" not in str(jax.make_jaxpr(inner)(x))


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("case", ["rounded", "helper", "Rounding"])
def test_a_decorated_function_of_tensorflow_inside_keeps_its_gradient(
    backend: Any, package: Any, case: str
) -> None:
    inner = getattr(package(TENSORFLOW), case)
    inner = inner() if isinstance(inner, type) else inner
    assert_as_in("tensorflow", lambda x: inner(x) * 1.0, X, backend=backend, rtol=0, atol=0)


# Functions inside of Functions and rules: gradients pass by the inner one's own backward, and
# nothing is lost in silence.


xp = xg.xp
X_NESTED = np.array([-1.5, 0.25, 2.0], np.float32)
ONES = np.ones(3, np.float32)


@xg.custom_gradient
def reversed_tanh(x: Any) -> Any:
    y = xp.tanh(x)
    return y, lambda upstream: -upstream * (1 - y * y)


def outer(x: Any) -> Any:
    y = reversed_tanh(x * 2.0)
    return xp.exp(y) * y


def test_the_inner_gradient_counts_in_the_outer_derivative(backend: Any) -> None:
    _, (gradient,) = pull(backend, xg.function(outer, native=False), (X_NESTED,))
    y = np.tanh(2 * X_NESTED.astype(np.float64))
    expected = -np.exp(y) * (1 + y) * (1 - y * y) * 2
    assert np.allclose(gradient, expected, rtol=1e-5, atol=2e-6)


def test_a_rule_may_call_a_function(backend: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * reversed_tanh(tin)

    result = xg.register("calls_a_function", override=True, native=False)(rule)
    found = result(None, backend.array(ONES), backend.array(X_NESTED))
    assert np.allclose(backend.numpy(found), np.tanh(X_NESTED), rtol=1e-6)
    _, (gradient,) = pull(backend, xg.activation("ReLU", rule=result), (X_NESTED,))
    assert np.allclose(gradient, np.tanh(X_NESTED), rtol=1e-6)


def test_a_second_derivative_that_would_lose_the_inner_gradient_is_refused(backend: Any) -> None:
    if backend.name == "numpy":
        pytest.skip("NumPy's pullback computes numbers: it has no second derivative to take")
    function = xg.function(outer, native=False)
    rule = xg.register("calls_a_function", override=True)(lambda ctx, g, t: g * reversed_tanh(t))
    ones = backend.array(ONES)

    def slope(x: Any) -> Any:
        _, pullback = xg.vjp(function, x)
        return pullback(ones)[0]

    for each in (slope, lambda x: rule(None, ones, x)):
        with pytest.raises(xg.GradientError, match="' uses 'reversed_tanh', with a gradient of"):
            _, pullback = xg.vjp(each, backend.array(X_NESTED))
            pullback(ones)


def test_the_refusal_survives_saving(tmp_path: Any) -> None:
    function = xg.function(outer, native=False)
    function(X_NESTED)
    xg.save(function, tmp_path / "outer.json")
    again = xg.load(tmp_path / "outer.json")
    again(X_NESTED)
    assert not next(iter(again.captures.variants.values())).graphs.second_order
