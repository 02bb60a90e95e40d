"""What `xg.audit` takes beside functions: pairs of plain functions, objects with parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.torch_class import torch_class

X, Y = np.array([0.3, -1.2, 2.0]), np.array([1.5, 0.4, -0.7])
LAWS = ("type", "derivative", "linear", "backward twice", "written")


def broken(subject: Any, *inputs: Any, laws: tuple[str, ...] = LAWS) -> list[tuple[str, str]]:
    report = xg.audit(subject, *inputs, laws=laws)
    assert not report.problem
    return [(finding.law, finding.reason) for finding in report.findings]


def weighted(x: Any, y: Any) -> Any:
    return np.sin(x) * y


def test_a_forward_and_a_vjp_in_numpy_are_a_pair() -> None:
    def vjp(grad_out: Any, x: Any, y: Any) -> Any:
        return grad_out * np.cos(x) * y, grad_out * np.sin(x)

    def halved(grad_out: Any, x: Any, y: Any) -> Any:
        return grad_out * np.cos(x) * y, grad_out * np.sin(x) * 0.5

    assert broken((weighted, vjp), X, Y) == []
    ((law, reason),) = broken((weighted, halved), X, Y)
    assert law == "derivative" and reason.startswith("y[")


def test_a_pair_runs_as_it_is_and_no_graph_of_it() -> None:
    def vjp(grad_out: Any, x: Any, y: Any) -> Any:
        gradient = grad_out * np.sin(x)
        grad_out *= np.cos(x) * y
        return grad_out, gradient

    assert [law for law, _ in broken((weighted, vjp), X, Y)] == ["written"]


def test_a_pair_says_what_it_keeps_by_a_third_function() -> None:
    pair = (np.exp, lambda grad_out, kept: grad_out * kept, lambda y, x: y)
    assert broken(pair, X) == []


@pytest.mark.needs("torch")
def test_the_gradients_of_a_module_s_parameters_are_audited_by_name() -> None:
    import torch

    def backward(ctx: Any, grad_out: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grad_out @ weight, 0.5 * grad_out.T @ x

    @torch_class(backward)
    def Product(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.3, 0.1]]))

        def forward(self, x: Any) -> Any:
            return Product.apply(x, self.weight)

    layer, x = Layer(), np.float32([X, Y])
    for subject in (layer, Layer):  # a class stands for what it makes without arguments
        ((law, reason),) = broken(subject, x)
        assert law == "derivative" and reason.startswith("weight[0][0] = ")
    assert "float32[2, 3], weight float32[2, 3]" in str(xg.audit(layer, x, laws=["zero"]))
    assert layer.weight.grad is None and layer.weight.dtype is torch.float32


@pytest.mark.needs("torch")
def test_what_a_module_holds_beside_its_parameters_has_the_dtype_of_its_inputs() -> None:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).eval()
    assert broken(layer, np.float32([X, Y, X + Y]), laws=("derivative", "second derivative")) == []


@pytest.mark.needs("torch")
def test_an_empty_batch_leaves_parameters_as_they_are() -> None:
    import torch

    layer = torch.nn.Conv1d(3, 2, 2)  # torch takes no weights without rows
    report = xg.audit(layer, np.ones((2, 3, 4), np.float32), laws=["empty"])
    assert [law.state for law in report.laws] == ["kept"]


def test_an_empty_batch_leaves_steps_and_tables_as_they_are() -> None:
    matmul = (lambda x, w: x @ w, lambda g, x, w: (g @ w.T, x.T @ g))
    step = np.array([0.5])
    for target, inputs in (
        (xg.estimators.lsq, (np.ones((2, 3)), step)),
        (xg.estimators.lsq, (np.ones((1, 3)), step)),
        (matmul, (np.eye(3), np.eye(3))),
    ):
        report = xg.audit(target, *inputs, laws=["empty"])
        assert [law.state for law in report.laws] == ["kept"]


@pytest.mark.needs("torch")
def test_a_sparse_gradient_is_compared_with_its_zeros() -> None:
    import torch

    def rows(factor: float) -> type:
        class Rows(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, weight: Any, index: Any) -> Any:
                ctx.save_for_backward(index)
                ctx.shape = weight.shape
                return weight[index]

            @staticmethod
            def backward(ctx: Any, grad_out: Any) -> Any:
                (index,) = ctx.saved_tensors
                return torch.sparse_coo_tensor(index[None], factor * grad_out, ctx.shape), None

        return Rows

    given = torch.ones(4, 2), torch.tensor([1, 1, 3])
    assert broken(rows(1.0), *given) == []
    assert [law for law, _ in broken(rows(0.5), *given)] == ["derivative"]


@pytest.mark.needs("torch", "jax")
def test_a_module_is_audited_on_the_framework_of_its_parameters_alone() -> None:
    import jax.numpy as jnp
    import torch

    @torch_class(lambda ctx, grad_out: (2.0 * grad_out, 2.0 * grad_out))
    def Doubled(ctx: Any, x: Any, weight: Any) -> Any:
        return x * weight * 1.0

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            return Doubled.apply(x, self.weight)

    for x in (np.float32(X), jnp.asarray(X)):
        report = xg.audit(Layer(), x, laws=["derivative"])
        assert report.home == "torch" and not report.ok


@pytest.mark.needs("torch", "jax")
def test_code_that_names_no_library_is_audited_on_the_framework_of_its_inputs() -> None:
    import jax.numpy as jnp
    import torch

    def double(x: Any) -> Any:
        return x * 2.0

    for home, x in {"torch": torch.ones(3), "jax": jnp.ones(3)}.items():
        assert xg.audit(double, x, laws=["derivative"]).home == home


@pytest.mark.needs("torch")
def test_a_parameter_that_is_never_trained_is_named_and_one_behind_zeros_is_not() -> None:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3, bias=False)
            torch.nn.init.zeros_(self.up.weight)
            self.scale, self.unused = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))

        def forward(self, x: Any) -> Any:
            return x * self.scale.detach() + self.up(self.down(x))

    ((law, reason),) = broken(Model(), torch.ones(2, 3), laws=("each parameter",))
    assert law == "each parameter" and reason == "none, or zeros, for scale, unused"


@pytest.mark.needs("torch")
def test_a_number_that_compiled_code_keeps_from_its_first_call_is_found() -> None:
    import torch

    first: list[Any] = []

    def f(x: Any, weight: Any) -> Any:
        if torch.compiler.is_compiling():
            return x * first[0] + 0 * weight
        first[:] = first or [weight.detach().clone()]
        return x * weight.detach() + 0 * weight

    x, weight = torch.tensor([0.5, -2.0]), torch.tensor([3.0, 0.25])
    ((law, reason),) = broken(f, x, weight, laws=("compiled",))
    assert law == "compiled" and reason.startswith("called again, with 3/4 of the inputs")


@pytest.mark.needs("torch")
def test_the_error_of_16_bits_is_a_number() -> None:
    import torch

    report = xg.audit(torch.tanh, torch.linspace(-2, 2, 9), laws=("float16", "bfloat16"))
    assert report.ok
    reasons = [law.reason for law in report.laws]
    assert all(reason.endswith("ulps of the largest number") for reason in reasons)
    assert 0 < float(reasons[0].split()[4]) < 8
