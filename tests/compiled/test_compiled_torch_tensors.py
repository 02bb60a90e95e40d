"""Params that are tensors, in code that torch.compile has made: their values are followed, as eager
code follows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
X = np.array([-1.5, -0.5, 0.25, 0.75], np.float32)


def triangle(width: float) -> Any:
    return np.maximum(0.0, 1.0 - np.abs(X) / width)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    import torch

    torch._dynamo.reset()


def slope(f: Any) -> Any:
    import torch

    x = torch.tensor(X, requires_grad=True)
    f(x).sum().backward()
    return x.grad.numpy()


def compiled(f: Any, backend: str = "aot_eager") -> Any:
    import torch

    return torch.compile(f, backend=backend, fullgraph=True)


def as_it_is(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 1.0) -> Tensor:
    return grad_out * (1.0 - tin.abs() / width).clamp(min=0.0)


@pytest.fixture(params=["triangular", "as it is"])
def rule(request: Any) -> Iterator[str]:
    if request.param == "triangular":
        yield request.param
    else:
        xg.register(request.param, native=True)(as_it_is)
        yield request.param
        xg.unregister(request.param)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_a_layers_own_param_is_followed_in_place_and_by_load_state_dict(compiler: str) -> None:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("width", torch.tensor(2.0))
            self.act = xg.Activation("Heaviside", "triangular", {"width": self.width})

        def forward(self, x: Tensor) -> Tensor:
            return self.act(x)

    net = Net()
    f = compiled(net, compiler)
    np.testing.assert_allclose(slope(f), triangle(2.0), rtol=1e-6)
    net.width.fill_(1.0)
    np.testing.assert_allclose(slope(f), triangle(1.0), rtol=1e-6)
    net.load_state_dict({"width": torch.tensor(3.0)})
    np.testing.assert_allclose(slope(f), triangle(3.0), rtol=1e-6)


@pytest.mark.parametrize("wrap", [compiled, xg.jit])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_param_in_force_is_followed_within_one_use(rule: Any, wrap: Any, dtype: str) -> None:
    import torch

    act = xg.activation("Heaviside")
    f = wrap(lambda x: act(x))
    width = torch.tensor(2.0, dtype=getattr(torch, dtype))
    with xg.use(rule, {"width": width}):
        for number in (2.0, 1.0, 3.0):
            width.fill_(number)
            np.testing.assert_allclose(slope(f), triangle(number), rtol=1e-6)


def test_two_tensors_that_were_equal_are_told_apart(rule: Any) -> None:
    import torch

    act = xg.activation("Heaviside")
    f = compiled(lambda x: act(x))
    first, second = torch.tensor(2.0), torch.tensor(2.0)
    with xg.use(rule, {"width": first}):
        np.testing.assert_allclose(slope(f), triangle(2.0), rtol=1e-6)
    with xg.use(rule, {"width": second}):
        second.fill_(1.0)
        np.testing.assert_allclose(slope(f), triangle(1.0), rtol=1e-6)
        with xg.use(rule, {"width": 3.0}):
            np.testing.assert_allclose(slope(f), triangle(3.0), rtol=1e-6)
        np.testing.assert_allclose(slope(f), triangle(1.0), rtol=1e-6)


def test_numbers_and_tensors_stand_beside_each_other() -> None:
    import torch

    def window(ctx: Any, grad_out: Tensor, tin: Tensor, a: float, b: float, c: float) -> Tensor:
        return grad_out * (a + 10.0 * b + 100.0 * c)

    act = xg.activation("Linear")
    own = xg.activation("Linear", window, {"a": 1.0, "b": torch.tensor(2.0), "c": 3})
    f, g = compiled(lambda x: act(x)), compiled(lambda x: own(x))
    a, c = torch.tensor(1.0), torch.tensor(3.0)
    with xg.use(window, {"a": a, "b": 2.0, "c": c}):
        np.testing.assert_allclose(slope(f), 321.0)
        np.testing.assert_allclose(slope(g), 321.0)
        a.fill_(5.0)
        c.fill_(7.0)
        np.testing.assert_allclose(slope(f), 725.0)
        np.testing.assert_allclose(slope(g), 321.0)


def test_a_rule_that_branches_on_a_tensor_says_so_as_in_eager_code() -> None:
    import torch

    def steep(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 1.0) -> Tensor:
        return grad_out * 2.0 if width > 1.5 else grad_out

    act = xg.activation("Linear")
    f = torch.compile(lambda x: act(x), backend="aot_eager")
    for run in (act, f):
        with (
            xg.use(steep, {"width": torch.tensor(2.0)}),
            pytest.raises(xg.TraceError, match="width"),
        ):
            slope(run)


@pytest.mark.usefixtures("torch_compiles")
def test_as_many_graphs_as_torch_keeps_are_warned_of_with_the_way_out() -> None:
    import torch

    act = xg.activation("Heaviside")
    f = compiled(lambda x: act(x))
    limit = torch._dynamo.config.recompile_limit
    for i in range(limit - 1):
        with xg.use("triangular", {"width": 1.0 + i}):
            slope(f)
    with xg.use("triangular", {"width": 0.5}), pytest.warns(UserWarning, match=r"xg\.jit"):
        slope(f)


@pytest.mark.parametrize("jit", [False, True], ids=["torch.compile", "xg.jit"])
def test_a_rule_that_looks_at_lengths_gets_a_graph_for_each_shape(jit: bool) -> None:
    import torch

    def by_rows(ctx: Any, grad_out: Any, tin: Any) -> Any:
        rows = 0.0
        for _ in range(tin.shape[0]):
            rows += 1.0
        return grad_out * rows

    act = xg.activation("ReLU", by_rows)
    run = xg.jit(act) if jit else torch.compile(act, fullgraph=True, backend="aot_eager")
    for shape in ((3, 2), (4, 2), (5,), (3, 2)):
        x = torch.ones(shape, requires_grad=True)
        run(x).sum().backward()
        assert torch.equal(x.grad, torch.full(shape, float(shape[0])))


def test_a_rule_that_branches_on_a_tensor_says_so_in_compiled_code_too() -> None:
    import torch

    def doubled_when_wide(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out * 2.0 if width > 1.5 else grad_out

    act, x, width = xg.activation("ReLU", doubled_when_wide), torch.ones(3), torch.tensor(2.0)
    run = torch.compile(lambda x: act.call_with(x, (width,)), backend="aot_eager")
    with pytest.raises(xg.MultigradError, match="value of param 'width' in Python"):
        run(x.requires_grad_())


def squared(x: Tensor) -> Tensor:
    return x * x, lambda upstream: upstream * 2.0 * x


def exponential(x: Tensor) -> Tensor:
    y = xg.xp.exp(x)
    return y, lambda upstream: upstream * y


@pytest.mark.parametrize("function", [squared, exponential])
@pytest.mark.parametrize("compiler", ["eager", "inductor"])
def test_what_is_kept_is_what_it_was_before_the_caller_wrote_into_it(
    function: Any, compiler: str
) -> None:
    """Eager torch raises an error; compiled code of torch's own classes is silently wrong."""
    act = xg.custom_gradient(function)

    def written(x: Tensor) -> Tensor:
        hidden = x * 2.0
        y = act(hidden)
        result = y * 3.0
        hidden.add_(1.0)
        y.add_(1.0)
        return result

    expected = 6.0 * np.exp(2.0 * X) if function is exponential else 24.0 * X
    np.testing.assert_allclose(slope(compiled(written, compiler)), expected, rtol=1e-6)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        slope(written)
