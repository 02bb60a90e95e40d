"""What a class asks of a tensor is answered as the tensor itself would: by what is known of the
call, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

from ...idioms.gradients import InvolutiveFlip, OnlyTheNeeded
from ...idioms.quantizers import FunLSQ

pytestmark = pytest.mark.needs("torch")
X = np.array([[0.3, -1.2, 0.6], [1.5, 0.25, -0.75]], np.float32)
ONES = np.ones_like(X)


def make(forward: Any, backward: Any = lambda ctx, grad: 2 * grad) -> Any:
    """Return the Function of a class with this forward, and the class."""
    cls = torch_class(backward)(forward)
    return xg.from_autograd_function(cls), cls


def test_on_torch_it_is_told_the_truth_of_each_call() -> None:
    kept: list[int] = []

    def backward(ctx: Any, grad: Any) -> Any:
        kept.append(len(ctx.saved_tensors))
        return OnlyTheNeeded.backward(ctx, grad)

    function, _ = make(OnlyTheNeeded.forward, backward)
    for needed in (False, True, False):
        a = torch.tensor(X, requires_grad=True)
        b = torch.tensor(X + 1, requires_grad=needed)
        function(a, b).sum().backward()
        torch.testing.assert_close(a.grad, b.detach())
        assert (b.grad is not None) is needed
        if needed:
            torch.testing.assert_close(b.grad, a.detach())
    assert set(kept) >= {1, 2}  # captured for both


def test_a_saved_class_has_the_gradients_of_all(backend: Any) -> None:
    function, cls = make(OnlyTheNeeded.forward, OnlyTheNeeded.backward)
    function(torch.tensor(X, requires_grad=True), torch.tensor(X))  # which needs one alone
    again = xg.from_dict(function.to_dict())
    assert_as_in("torch", cls.apply, X, X + 1, of=again, backend=backend)


def test_an_assertion_on_values_acts_where_they_are_known(backend: Any) -> None:
    function = xg.from_autograd_function(FunLSQ)
    step = np.array([-0.5], np.float32)
    own = r"alpha = tensor\(\[-0.5"
    said = own if backend.name == "torch" else r"py:\d+\) asserts what.*alpha > 0"
    calls = [function, lambda *args: xg.vjp(function, *args)]
    for call in calls[:1] if backend.name == "jax" else calls:  # in jax.vjp they are traced
        with pytest.raises(AssertionError, match=said):
            call(backend.array(X), backend.array(step), 1.0, -4, 3)
    good = function(backend.array(X), backend.array(-step), 1.0, -4, 3)
    np.testing.assert_array_equal(backend.numpy(good), np.clip(np.round(X / 0.5), -4, 3) * 0.5)


def test_an_assertion_on_a_shape_acts_everywhere(backend: Any) -> None:
    def shaped(ctx: Any, x: Any) -> Any:
        assert x.dim() == 2, "a matrix, please"
        return x * 3

    function, _ = make(shaped)
    np.testing.assert_array_equal(pull(backend, function, (X,))[1][0], 2 * ONES)
    with pytest.raises((AssertionError, xg.TraceError), match="a matrix, please"):
        function(backend.array(X[0]))


def test_of_two_conditions_one_of_which_must_hold_nothing_is_assumed() -> None:
    def either(ctx: Any, x: Any) -> Any:
        assert (x > 0).all() or (x < 0).all()
        return x * 3

    with pytest.raises(xg.TraceError, match=r"branches on a tensor value.*torch alone"):
        make(either)[0](X)


def test_the_number_of_a_tensor_is_a_float_in_python(backend: Any) -> None:
    def scaled(ctx: Any, x: Any) -> Any:
        scale = x.abs().max().item()
        assert isinstance(scale, float)
        assert not torch.is_tensor(scale)
        scale /= 2
        return torch.round(x / max(scale, 1e-3)) * scale + x.new_tensor(1.0)

    for dtype in (np.float32, np.float16):
        x = X.astype(dtype)
        y, (gradient,) = pull(backend, make(scaled)[0], (x,))
        assert (y.dtype, gradient.dtype) == (dtype, dtype)
        np.testing.assert_allclose(y, np.round(x / 0.75) * 0.75 + 1, rtol=2e-3)


def test_the_number_of_a_tensor_decides_a_branch(backend: Any) -> None:
    def branches(ctx: Any, x: Any) -> Any:
        return x * 3 if x.max().item() > 0.5 else x.clone()

    function, _ = make(branches)
    assert pull(backend, function, (X,))[0].tolist() == (X * np.float32(3)).tolist()
    assert pull(backend, function, (-X * 0.1,))[0].tolist() == (-X * np.float32(0.1)).tolist()


def test_a_tensor_of_several_numbers_has_no_item(backend: Any) -> None:
    def whole(ctx: Any, x: Any) -> Any:
        return x * x.item()

    with pytest.raises((RuntimeError, xg.TraceError)):
        make(whole)[0](backend.array(X))


def test_an_axis_is_squeezed_where_it_is_one_long(backend: Any) -> None:
    def squeezed(ctx: Any, x: Any) -> Any:
        return x.squeeze(0).expand(2, *[-1] * x.squeeze(0).dim())

    def summed(ctx: Any, grad: Any) -> Any:
        return 2 * grad[:1]

    function, _ = make(squeezed, summed)
    for shape in ((1, 3), (2, 3), (1, 1, 3)):
        y = function(backend.array(np.ones(shape, np.float32)))
        inner = shape[1:] if shape[0] == 1 else shape
        assert tuple(y.shape) == (2, *inner)


CONSTANT = None


def test_a_tensor_of_the_module_is_followed(backend: Any, monkeypatch: Any) -> None:
    def shifted(ctx: Any, x: Any) -> Any:
        return x + CONSTANT

    monkeypatch.setitem(globals(), "CONSTANT", torch.tensor([1.0, 2.0, 3.0]))
    function, _ = make(shifted)
    x = backend.array(X)
    np.testing.assert_array_equal(backend.numpy(function(x)), X + np.float32([1, 2, 3]))
    assert CONSTANT is not None
    CONSTANT[0] = 5.0
    np.testing.assert_array_equal(backend.numpy(function(x)), X + np.float32([5, 2, 3]))
    monkeypatch.setitem(globals(), "CONSTANT", torch.tensor([0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(backend.numpy(function(x)), X + np.float32([0, 0, 1]))


def test_a_large_tensor_of_the_module_is_no_constant(monkeypatch: Any) -> None:
    def shifted(ctx: Any, x: Any) -> Any:
        return x + CONSTANT[:3]  # type: ignore[index]

    monkeypatch.setitem(globals(), "CONSTANT", torch.ones(10_000))
    with pytest.raises(xg.TraceError, match=r"py:\d+\) reads a tensor from outside"):
        make(shifted)[0](X)


def test_a_class_that_is_its_own_backward_is_so_at_every_order_on_torch() -> None:
    x = torch.tensor(X, requires_grad=True)
    function = xg.from_autograd_function(InvolutiveFlip)
    orders = []
    for apply in (InvolutiveFlip.apply, function):
        (first,) = torch.autograd.grad(
            (apply(x) * torch.tensor(X) ** 2).sum() + (apply(x) ** 3).sum(), x, create_graph=True
        )
        orders.append((first, *torch.autograd.grad(first.sum(), x)))
    for own, ours in zip(*orders, strict=True):
        torch.testing.assert_close(ours, own)


def test_what_depends_on_how_a_tensor_lies_in_memory_is_not_captured(backend: Any) -> None:
    def ordered(ctx: Any, x: Any) -> Any:
        return x if x.is_contiguous() else x * 3

    function, _ = make(ordered)
    if backend.name == "torch":
        assert function(backend.array(X).t()).tolist() == (X.T * np.float32(3)).tolist()
        assert function(backend.array(X)).tolist() == X.tolist()
    else:
        with pytest.raises(xg.TraceError, match="not contiguous"):
            function(backend.array(X))


def test_what_another_memory_order_leads_to_may_itself_not_be_captured() -> None:
    def through_numpy(ctx: Any, x: Any) -> Any:
        return x * 2 if x.is_contiguous() else torch.from_numpy(x.detach().numpy() * 5)

    function, _ = make(through_numpy)
    for given, factor in ((X, 2), (X.T, 5)):
        tensor = torch.tensor(X) if given is X else torch.tensor(X).t()
        assert function(tensor).tolist() == (given * np.float32(factor)).tolist()


def test_a_sparse_tensor_says_that_it_is_one() -> None:
    def dense_only(ctx: Any, x: Any) -> Any:
        return x * (1 if x.is_sparse or x.layout is not torch.strided else 3)

    function, _ = make(dense_only)
    x = torch.tensor(X)
    for given in (x, x.to_sparse(), x):
        expected = X if given.is_sparse else X * np.float32(3)
        np.testing.assert_array_equal(function(given).to_dense().numpy(), expected)


def test_a_cast_of_what_autocast_would_do_is_none_without_it(backend: Any) -> None:
    from torch.amp import custom_bwd, custom_fwd

    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def truncated(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.exp(x)

    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * torch.exp(x.clamp(-1, 1))

    function, cls = make(truncated, backward)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)
    if backend.name == "torch":
        with torch.autocast("cpu", torch.bfloat16):
            x = backend.array(X).to(torch.bfloat16)
            assert function(x).dtype == cls.apply(x).dtype == torch.float32


def test_a_backward_computes_under_the_autocast_of_its_forward(backend: Any) -> None:
    from torch.amp import custom_bwd, custom_fwd

    @custom_fwd(device_type="cpu")
    def product(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x @ x.t()

    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return (grad + grad.t()) @ x

    function, cls = make(product, backward)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)
    results = []
    for each in (function, cls.apply):
        x = torch.tensor(X, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            output = each(x)
        output.float().sum().backward()
        results.append((output, x.grad))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_draws_of_known_lengths_follow_the_key(backend: Any) -> None:
    def noisy(ctx: Any, x: Any) -> Any:
        return x + torch.rand(2, 3) + 0 * torch.randn(x.size(0), 1)

    function, _ = make(noisy)
    drawn = backend.numpy(function.keyed(3)(backend.array(X))) - X
    assert (drawn.min() >= 0) & (drawn.max() <= 1)
    again = backend.numpy(function.keyed(3)(backend.array(X))) - X
    np.testing.assert_array_equal(drawn, again)
    expected = function.keyed(3)(X) - X
    np.testing.assert_allclose(drawn, expected, atol=1e-6)


# Tensors of other classes, and tensors that a mode records: they take the plain kernels.


Tensor: TypeAlias = Any


def gradient(act: Callable[[Tensor], Tensor], x: Tensor, rule: str | None) -> Tensor:
    if rule is None:
        y = act(x)
    else:
        with xg.use(rule, key=3):
            y = act(x)
    return torch.autograd.grad(y, x, torch.ones_like(y))[0]


@pytest.mark.parametrize("rule", [None, "triangular", "rectangular", "full_jam", "noise"])
@pytest.mark.parametrize("forward", ["Heaviside", "ReLU", "Softplus"])
def test_jagged_tensors_get_what_their_values_would(rule: str | None, forward: str) -> None:
    rows = [torch.tensor([-0.5, 0.25, 2.0]), torch.tensor([-2.0, 0.75])]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    values = torch.cat(rows).requires_grad_()
    found = gradient(xg.activation(forward), x, rule)
    expected = gradient(xg.activation(forward), values, rule)
    np.testing.assert_allclose(found.values(), expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("forward", ["Heaviside", "Linear"])
@pytest.mark.parametrize("rule", ["triangular", "arctan", "clip_norm"])
def test_a_recorded_gradient_is_a_graph_that_may_be_differentiated(
    mode: str, forward: str, rule: str
) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    act, values = xg.activation(forward), torch.linspace(-1.2, 1.3, 7)
    with xg.use(rule):
        recorded = make_fx(torch.func.grad(lambda x: act(x).sum()), tracing_mode=mode)(values)
        traced = make_fx(lambda x: torch.autograd.grad(act(x).sum(), x)[0], tracing_mode=mode)(
            values.clone().requires_grad_()
        )
    expected = gradient(act, values.clone().requires_grad_(), rule)
    for graph in (recorded, traced):
        x = values.clone().requires_grad_()
        np.testing.assert_allclose(graph(x).detach(), expected, rtol=1e-6)
        assert not [node for node in graph.graph.nodes if "_out" in str(node.target)]


@pytest.mark.parametrize("kind", ["rule", "function"])
def test_what_is_new_is_captured_and_proven_where_lengths_are_symbols(kind: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def slope(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * torch.clamp(1 - tin.abs(), min=0)

    if kind == "rule":
        f = xg.activation("Heaviside", rule=slope)
    else:
        f = xg.function(lambda x: x * 1.0, lambda upstream, x: slope(None, upstream, x))
    values = torch.linspace(-1.2, 1.3, 7)
    recorded = make_fx(torch.func.grad(lambda x: f(x).sum()), tracing_mode="symbolic")(values)
    np.testing.assert_allclose(recorded(values), torch.clamp(1 - values.abs(), min=0), rtol=1e-6)
