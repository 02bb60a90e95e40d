"""A proof judges in the dtype of the call, once for each dtype that is met, and on the code that
runs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node, make_node
from multigrad.core.passes.simplify import substitute
from multigrad.errors import NativeRuleWarning

from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")


@pytest.fixture(autouse=True)
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")


@contextmanager
def no_alarm() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NativeRuleWarning)
        yield


def rounding_constants(graph: Graph) -> Graph:
    def rounded(node: Node) -> Node:
        return make_node(ops.CONST, (), {"value": float(np.float32(node.attr("value")))}, node.type)

    return substitute(graph, {n: rounded(n) for n in graph.nodes if n.op is ops.CONST})


def without_casts(graph: Graph) -> Graph:
    while casts := [n for n in graph.nodes if n.op is ops.CAST]:
        graph = substitute(graph, {casts[0]: casts[0].operands[0]})
    return graph


def test_a_constant_of_float32_in_code_of_float64_is_found(capturing: Any) -> None:
    def scaled(x: Any) -> Any:
        return torch.sin(x) * math.pi

    capturing(rounding_constants)
    with pytest.warns(NativeRuleWarning, match="the result"):
        given = xg.function(scaled)(torch.tensor([0.5, 1.5], dtype=torch.float64))
    np.testing.assert_array_equal(given.numpy(), np.sin([0.5, 1.5]) * math.pi)


def test_a_constant_that_float32_does_not_tell_apart_is_found_at_the_first_call_in_float64(
    capturing: Any,
) -> None:
    def scaled(x: Any) -> Any:
        return torch.sin(x) * math.pi

    capturing(rounding_constants)
    f = xg.function(scaled)
    with no_alarm():
        f(torch.ones(2))
    with pytest.warns(NativeRuleWarning, match="the result"):
        given = f(torch.ones(2, dtype=torch.float64))
    np.testing.assert_array_equal(given.numpy(), np.sin([1.0, 1.0]) * math.pi)
    with no_alarm():
        f(torch.ones(3))


def test_a_rule_is_proven_in_each_dtype_that_it_is_applied_in(capturing: Any) -> None:
    @xg.register("proof of dtypes")
    def scaled(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * torch.sin(tin) * math.pi

    capturing(backward=rounding_constants)
    x = torch.tensor([0.5, 1.5])
    act = xg.activation("ReLU", "proof of dtypes")
    with no_alarm():
        scaled(None, x, x)
        act(x.clone().requires_grad_()).sum().backward()
    wide = x.double()
    with pytest.warns(NativeRuleWarning, match="the gradient of tin"):
        bare = scaled(None, wide, wide)
    leaf = wide.clone().requires_grad_()
    act(leaf).sum().backward()
    expected = np.sin(wide.numpy()) * math.pi
    np.testing.assert_array_equal(bare.numpy(), wide.numpy() * expected)
    np.testing.assert_array_equal(leaf.grad.numpy(), expected)


def test_an_output_in_another_dtype_is_no_proof(capturing: Any) -> None:
    @torch_class(lambda ctx, grad_out: grad_out.bfloat16() * 2.0)
    def Wide(ctx: Any, x: Any) -> Any:
        return x.float() * 2.0

    wide = xg.from_autograd_function(Wide)
    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    with no_alarm():
        assert wide(x).dtype is torch.float32
    capturing(without_casts)
    told = "the result is of float32 as written and of bfloat16 as a graph"
    with pytest.warns(NativeRuleWarning, match=told):
        assert xg.from_autograd_function(Wide)(x).dtype is torch.float32


def test_a_sum_in_a_wider_dtype_is_tried_where_the_narrow_one_overflows(capturing: Any) -> None:
    def energy(x: Any) -> Any:
        wide = x.float()
        return (wide * wide).mean(-1, keepdim=True).sqrt().to(x.dtype)

    x = torch.tensor([[1.0, 2.0]], dtype=torch.float16)
    with no_alarm():
        xg.function(energy)(x)

    def narrow(graph: Graph) -> Graph:
        x = graph.inputs[0]
        mean = next(n for n in graph.nodes if n.op is ops.MEAN)
        own = make_node(ops.MUL, (x, x), {}, x.type)
        total = make_node(
            ops.MEAN, (own,), dict(mean.attrs), mean.type._replace(dtype=x.type.dtype)
        )
        return replace(graph, outputs=(make_node(ops.SQRT, (total,), {}, total.type),))

    capturing(narrow)
    with pytest.warns(NativeRuleWarning, match="as written and inf as a graph"):
        xg.function(energy)(x)


def test_integers_are_tried_where_float32_does_not_hold_them(capturing: Any) -> None:
    def counted(x: Any, n: Any) -> Any:
        return x, torch.add(n, 1)

    def through_float32(graph: Graph) -> Graph:
        node = graph.outputs[1]
        wide = make_node(
            ops.CAST, (node,), {"dtype": "float32"}, node.type._replace(dtype="float32")
        )
        back = make_node(ops.CAST, (wide,), {"dtype": node.type.dtype}, node.type)
        return replace(graph, outputs=(graph.outputs[0], back))

    x, n = torch.ones(3), torch.tensor([1, 2, 3])
    with no_alarm():
        xg.function(counted)(x, n)
    capturing(through_float32)
    with pytest.warns(NativeRuleWarning, match="output_1"):
        assert xg.function(counted)(x, n)[1].tolist() == [2, 3, 4]


def test_what_is_lowered_is_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from multigrad.core.backend.discovery import load_backend

    rows = load_backend("torch").kernels.rows
    kernel = rows[ops.TANH]
    monkeypatch.setitem(rows, ops.TANH, lambda x: kernel(x) * 1.01)  # type: ignore[index]
    with pytest.warns(NativeRuleWarning, match="the result"):
        given = xg.function(lambda x: torch.tanh(x) * 2.0)(torch.ones(2))
    np.testing.assert_allclose(given.numpy(), np.tanh([1.0, 1.0]) * 2.0, rtol=1e-6)


def test_the_gradient_of_one_output_alone_is_compared_with_a_cotangent_that_is_not_there() -> None:
    @torch_class(lambda ctx, one, other: one * 2.0 if other is None else one * 2.0 + other * 3.0)
    def Asking(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2.0, x * 3.0

    asking = xg.from_autograd_function(Asking)
    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asking(x)[0].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0] * 3)


def test_second_derivatives_are_compared_where_the_original_has_them(capturing: Any) -> None:
    @torch_class(lambda ctx, grad_out: grad_out * 3.0 * ctx.saved_tensors[0] ** 2)
    def Cube(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    def cut(graph: Graph) -> Graph:
        x, grad_out = graph.input("x"), graph.input("grad_out")
        assert x is not None and grad_out is not None
        held = make_node(ops.STOP_GRADIENT, (x,), {}, x.type)
        node = grad_out
        for factor in (held, held):
            node = make_node(ops.MUL, (node, factor), {}, x.type)
        tripled = make_node(
            ops.ADD, (make_node(ops.ADD, (node, node), {}, x.type), node), {}, x.type
        )
        return replace(graph, outputs=(tripled,))

    x = torch.tensor([0.5, 1.5], requires_grad=True)
    with no_alarm():
        xg.from_autograd_function(Cube)(x)
    capturing(backward=cut)
    with pytest.warns(NativeRuleWarning, match="the second derivative by x"):
        y = xg.from_autograd_function(Cube)(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    np.testing.assert_allclose(torch.autograd.grad(first.sum(), x)[0].numpy(), [3.0, 9.0])


def test_a_capture_for_tensors_out_of_order_is_proven_on_such() -> None:
    def by_layout(x: Any) -> Any:
        return x * 2.0 if x.is_contiguous() else x * 3.0

    f = xg.function(by_layout)
    x = torch.arange(6.0).reshape(2, 3)
    with no_alarm():
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * 2)
        np.testing.assert_array_equal(f(x.T).numpy(), x.T.numpy() * 3)
        np.testing.assert_array_equal(f(x[:, 0]).numpy(), x[:, 0].numpy() * 3)
