"""A class or a function that cannot be imported is itself on its own framework, and elsewhere an
error that says why.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.backend import importers
from multigrad_conformance.under_test import pull

from ..harness.own_library import assert_as_in
from ..harness.torch_class import torch_class

X = np.array([0.3, -1.2, 0.6], np.float32)


def make_classes() -> dict[str, Any]:
    """Return classes by what they do that symbolic values do not."""
    import torch

    class Base(torch.autograd.Function):
        @classmethod
        def scale(cls, x: Any) -> Any:
            return x * 3.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * grad

    doubling = torch_class(Base.backward)

    class BySuper(Base):
        @classmethod
        def scale(cls, x: Any) -> Any:
            return super().scale(x)

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return BySuper.scale(x)

    @doubling
    def SetsAnAttribute(ctx: Any, x: Any) -> Any:
        y = x * 3.0
        y.history = "noted"
        return y

    class AppliesItself(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 3.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return AppliesItself.apply(grad) * (2.0 / 3.0)

    @torch_class(lambda ctx, grad: grad * 2 + 0 * ctx.saved_variables[0])
    def OldNames(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 3.0

    def asks_its_node(ctx: Any, grad: Any) -> Any:
        assert "AsksItsNode" in ctx.name()
        return grad * 2

    @torch_class(asks_its_node)
    def AsksItsNode(ctx: Any, x: Any) -> Any:
        return x * 3.0

    @torch_class(lambda ctx, grad: None if grad is None else grad * 2)
    def WantsNoGradient(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        if ctx.needs_input_grad[0] is not x.requires_grad:
            raise RuntimeError("the engine knows better")
        return x * 3.0

    @doubling
    def ByIndex(ctx: Any, x: Any) -> Any:
        sizes = {1: 3.0}
        return x * sizes[int((x > -9).all())]

    @doubling
    def BySort(ctx: Any, x: Any) -> Any:
        return x[torch.argsort(x)].clone() * 0 + 3 * x

    @doubling
    def ByNumpy(ctx: Any, x: Any) -> Any:
        return torch.from_numpy(np.asarray(x.detach()) * np.float32(3))

    @doubling
    def ByFormat(ctx: Any, x: Any) -> Any:
        return x * float(f"{x.new_tensor(3.0).item():.1f}")

    local = locals().items()
    return {name: each for name, each in local if isinstance(each, type) and name != "Base"}


CASES = (
    "BySuper", "SetsAnAttribute", "AppliesItself", "OldNames", "AsksItsNode", "WantsNoGradient",
    "ByIndex", "BySort", "ByNumpy", "ByFormat",
)  # fmt: skip


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", CASES)
def test_a_class_is_itself_on_torch_whatever_its_code_does(case: str) -> None:
    import torch

    function = xg.from_autograd_function(make_classes()[case])
    x = torch.from_numpy(X.copy()).requires_grad_()
    y = function(x)
    y.sum().backward()
    np.testing.assert_array_equal(y.detach().numpy(), 3 * X)
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(X, 2.0))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", CASES)
def test_elsewhere_a_class_is_right_or_an_error_in_our_words(backend: Any, case: str) -> None:
    if backend.name == "torch":
        pytest.skip("its own framework")
    function = xg.from_autograd_function(make_classes()[case])
    try:
        _, (found,) = pull(backend, function, (X,))
        np.testing.assert_array_equal(found, np.full_like(X, 2.0))
    except xg.errors.TraceError as error:
        said = str(error)
        assert case in said
        assert "torch alone" in said
        assert "xg.xp" not in said
        assert "native=True" not in said
        assert "run as written on" not in said


@pytest.mark.needs("torch")
def test_an_error_of_a_class_on_tensors_is_its_own() -> None:
    import torch

    @torch_class(lambda ctx, grad: grad)
    def Picky(ctx: Any, x: Any) -> Any:
        if x.shape[0] > 2:
            raise LookupError("too long for me")
        return x

    with pytest.raises(LookupError, match="too long for me"):
        xg.from_autograd_function(Picky)(torch.ones(3))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_class_asks_for_the_limits_of_its_dtype(backend: Any, dtype: Any) -> None:
    import torch

    @torch_class(lambda ctx, grad: grad * torch.finfo(grad.dtype).eps)
    def Tiny(ctx: Any, x: Any) -> Any:
        return x * torch.finfo(x.dtype).eps

    x = X.astype(dtype)
    eps = np.finfo(dtype).eps
    y, (gradient,) = pull(backend, xg.from_autograd_function(Tiny), (x,))
    np.testing.assert_array_equal(y, x * eps)
    np.testing.assert_array_equal(gradient, np.full_like(x, eps))


@pytest.mark.needs("jax")
def test_a_function_of_jax_elsewhere_fails_in_our_words() -> None:
    import jax
    import jax.numpy as jnp

    def spectrum(x: Any) -> Any:
        return jnp.fft.hfft(x) ** 2

    function = xg.function(spectrum)
    x = jnp.asarray(X)
    expected = jax.grad(lambda x: spectrum(x).sum())(x)
    found = jax.grad(lambda x: function(x).sum())(x)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5)
    with pytest.raises(xg.errors.TraceError, match="spectrum"):
        function(X)


@pytest.mark.needs("jax", "torch")
def test_a_function_of_numpy_on_torch_fails_in_our_words() -> None:
    import torch

    def counts(x: Any) -> Any:
        return np.bincount(np.asarray(x).astype(int)) + x

    with pytest.raises(xg.errors.TraceError, match="counts"):
        xg.function(counts)(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize(
    ("library", "module"),
    [
        pytest.param(library, module, marks=pytest.mark.needs(library))
        for library, module in {
            "torch": "torch.nn.functional", "tensorflow": "tensorflow", "jax": "jax.nn"
        }.items()
    ],
)  # fmt: skip
def test_a_function_of_a_library_itself_is_a_function(
    backend: Any, library: str, module: str
) -> None:
    found = importlib.import_module(module)
    silu = getattr(found, "nn", found).silu
    assert_as_in(library, silu, X, backend=backend)


def doubled_after(effect: Any) -> Any:
    """A class whose forward has an effect on its second argument."""

    @torch_class(lambda ctx, grad: (2 * grad, None))
    def Doubled(ctx: Any, x: Any, held: Any) -> Any:
        return x * effect(x, held)

    return Doubled


@pytest.mark.needs("torch")
def test_a_generator_that_a_class_is_given_draws_as_it_does_there() -> None:
    import torch

    drawing = doubled_after(lambda x, held: torch.rand(2, generator=held))
    found = []
    for apply in (drawing.apply, xg.convert(drawing)):
        generator = torch.Generator().manual_seed(5)
        found += [[apply(torch.ones(2), generator).tolist() for _ in range(3)]]
    assert found[0] == found[1]


@pytest.mark.needs("torch")
def test_a_class_runs_as_it_is_on_complex_tensors() -> None:
    import torch

    converted = xg.convert(doubled_after(lambda x, held: held))
    z = torch.tensor([1.0 + 2.0j], requires_grad=True)
    y = converted(z, 3.0)
    y.abs().sum().backward()
    assert y.tolist() == [3.0 + 6.0j]
    assert z.grad is not None


def test_a_reader_of_a_backend_for_1_0_0_returns_the_function_itself() -> None:
    made = xg.function(lambda x: x * 2)
    assert importers.import_once(lambda _: made, "a custom gradient") is made
