"""What a converted class copies is a copy, and what it shares is shared: its results lie in memory
as the class lays them out on torch, and on NumPy each has memory of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.functions.recording import record
from multigrad.errors import NativeRuleWarning

from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
Tensor = Any
F = torch.nn.functional


def with_column_zero(x: Tensor) -> Tensor:
    copy = x.clone()
    copy[:, 0] = 0
    return copy


def beside(view: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """Return a forward of two outputs, the second made of the first."""

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, view(y)

    return forward


FORWARDS: dict[str, Callable[[Tensor], Any]] = {
    "clone": lambda x: x.clone(),
    "clone of a transposed": lambda x: x.t().clone(),
    "clone in order": lambda x: x.t().clone(memory_format=torch.contiguous_format),
    "part in order": lambda x: x[:, :2].contiguous(),
    "rows in order": lambda x: x[:2].contiguous(),
    "transposed in order": lambda x: x.transpose(0, 1).contiguous(),
    "expanded in order": lambda x: x[:1].expand(3, 4).contiguous(),
    "permuted in order": lambda x: x.permute(1, 0).contiguous(),
    "narrowed in order": lambda x: x.narrow(1, 1, 2).contiguous(),
    "diagonal in order": lambda x: x.diagonal().contiguous(),
    "unfolded": lambda x: x.unfold(1, 2, 1),
    "unfolded in order": lambda x: x.unfold(1, 2, 1).contiguous(),
    "heads": lambda x: x.view(3, 2, 2).transpose(0, 1).contiguous(),
    "heads merged": lambda x: x.view(3, 2, 2).transpose(0, 1).reshape(2, -1),
    "reshaped by a copy": lambda x: x.t().reshape(-1),
    "reshaped": lambda x: x.reshape(-1),
    "to its dtype": lambda x: x.to(torch.float32),
    "to its dtype by a copy": lambda x: x.to(torch.float32, copy=True),
    "to another dtype": lambda x: x.to(torch.float64),
    "flattened": lambda x: x.flatten(),
    "raveled": lambda x: x.ravel(),
    "transposed and raveled": lambda x: x.t().ravel(),
    "index of a list": lambda x: x[[0, 1]],
    "index of a mask": lambda x: x[torch.tensor([True, False, True])],
    "slice": lambda x: x[:2],
    "every second": lambda x: x[::2],
    "chunks": lambda x: x.chunk(2, 1),
    "chunks in order": lambda x: tuple(each.contiguous() for each in x.chunk(2, 1)),
    "unbound": lambda x: x.unbind(0),
    "transposed": lambda x: x.T,
    "expanded": lambda x: x[:1].expand(3, 4),
    "squeezed": lambda x: x[:1].squeeze(0),
    "unsqueezed": lambda x: x.unsqueeze(0),
    "detached": lambda x: x.detach(),
    "times one": lambda x: x * 1,
    "plus zero": lambda x: x + 0,
    "transposed times one": lambda x: x.t() * 1,
    "filled by a copy": lambda x: torch.empty_like(x).copy_(x),
    "stacked": lambda x: torch.stack([x]),
    "one to concatenate": lambda x: torch.cat([x]),
    "padded by none": lambda x: F.pad(x, (0, 0)),
    "rolled by none": lambda x: x.roll(0, 0),
    "flipped": lambda x: x.flip(0),
    "masked by none": lambda x: x.masked_fill(x > 100, 0.0),
    "one of two alike": lambda x: torch.where(x > 0, x, x),
    "diag": lambda x: x[:, :3].diag(),
    "in order, seen transposed": lambda x: x.t().contiguous().t(),
    "in order, one row of it": lambda x: x.t().contiguous()[0],
    "in order, seen flat": lambda x: x[:, :2].contiguous().view(-1),
    "computed and in order": lambda x: (x.t() * 2).contiguous(),
    "itself in order": lambda x: x.contiguous(),
    "in channels last": lambda x: (
        x[None, None].expand(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    ),
    "a copy that was written to": with_column_zero,
    "the largest": lambda x: x.max(1)[0],
    "the middle": lambda x: x.median(1).values,
    "the third": lambda x: x.kthvalue(3, 1).values,
    "normalized in groups": lambda x: F.group_norm(x[None], 1),
    "the largest, twice": lambda x: (x.max(1)[0], x.max(1)[0]),
    "two alike": lambda x: (x * 2, x * 2),
    "two copies": lambda x: (x.clone(), x.clone()),
    "itself and a copy": lambda x: (x, x.clone()),
    "beside it, transposed in order": beside(lambda y: y.t().contiguous()),
    "beside it, transposed": beside(lambda y: y.t()),
    "beside it, a copy": beside(lambda y: y.clone()),
    "beside it, itself": beside(lambda y: y.view_as(y)),
    "beside it, a part": beside(lambda y: y[:2]),
    "beside it, a copy of a part": beside(lambda y: y[:2].clone()),
}
IN_ORDER, TRANSPOSED = (4, 1), (1, 3)
ORDERED_OTHERWISE = ("masked by none", "a copy that was written to")  # of a transposed argument


def make_class(forward: Callable[[Tensor], Any]) -> Any:
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.ones(3, 4) * sum(g.sum().float() for g in gradients if g is not None)

    return torch_class(backward)(lambda ctx, x: forward(x))


def call(apply: Callable[[Tensor], Any], strides: tuple[int, int], asks: bool) -> list[Tensor]:
    """Return an argument in this layout, and the outputs for it."""
    leaf = torch.empty_strided((3, 4), strides).copy_(torch.arange(12.0).reshape(3, 4))
    x = leaf.requires_grad_(asks) * 1
    outputs = apply(x)
    return [x, *(outputs if isinstance(outputs, tuple) else (outputs,))]


def attempt(act: Callable[[], Any]) -> str:
    try:
        act()
    except RuntimeError as error:
        return " is a view" if " is a view" in str(error) else str(error)
    return ""


def observe(apply: Callable[[Tensor], Any], strides: tuple[int, int], asks: bool) -> list[Any]:
    """Return where outputs lie, and what a write to each tensor does to all."""
    tensors = call(apply, strides, asks)
    seen: list[Any] = [each.is_contiguous() for each in tensors]
    addresses = [each.untyped_storage().data_ptr() for each in tensors]
    seen += [a == b for a, b in itertools.combinations(addresses, 2)]
    for i in range(len(tensors)):
        tensors = call(apply, strides, asks)
        error = attempt(lambda each=tensors[i]: each.add_(100))
        seen.append([error, *([] if error else [each.tolist() for each in tensors])])
    return seen


@pytest.mark.parametrize("name", FORWARDS)
def test_a_result_is_a_copy_or_shares_memory_as_in_its_class(name: str) -> None:
    cls = make_class(FORWARDS[name])
    converted = xg.convert(cls)
    for strides, asks in itertools.product((IN_ORDER, TRANSPOSED), (False, True)):
        own = attempt(lambda at=strides, ask=asks: observe(cls.apply, at, ask))
        if own:  # `view` of what is not in order
            continue
        expected = observe(cls.apply, strides, asks)
        found = observe(converted, strides, asks)
        if strides == TRANSPOSED and name in ORDERED_OTHERWISE:
            expected[1] = found[1]
        assert found == expected, (strides, asks)
    assert converted.captures.variants, "it was captured"


@pytest.mark.parametrize("name", ["part in order", "heads", "beside it, transposed in order"])
def test_compiled_code_copies_too(name: str) -> None:
    cls = make_class(FORWARDS[name])
    converted = xg.convert(cls)
    compiled = torch.compile(lambda x: converted(x), fullgraph=True, backend="aot_eager")
    assert observe(compiled, IN_ORDER, True) == observe(cls.apply, IN_ORDER, True)


GRADIENTS: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda g: (g, g),
    "a copy": lambda g: (g.clone(), g),
    "times one": lambda g: (g * 1, g),
    "two alike": lambda g: (g * 2, g * 2),
    "a view": lambda g: (g.t().t(), 2 * g),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_share_memory_as_those_of_the_class(name: str) -> None:
    cls = torch_class(lambda ctx, g: GRADIENTS[name](g))(lambda ctx, x, y: x + y)
    seen = []
    for apply in (cls.apply, xg.convert(cls)):
        x, y = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
        cotangent = torch.ones(2, 2)
        gradients = torch.autograd.grad(apply(x, y), (x, y), cotangent)
        gradients[0].add_(1)
        seen.append([each.tolist() for each in (*gradients, cotangent)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "cotangent",
    [
        torch.ones(3, 4),
        torch.ones(4, 3).t(),
        torch.ones(1).expand(3, 4),
        torch.empty_strided((3, 4), (8, 2)).fill_(1.0),
    ],
    ids=["in order", "transposed", "expanded", "with gaps"],
)
def test_a_cotangent_in_order_is_itself_or_a_copy_as_in_the_class(cotangent: Tensor) -> None:
    cls = torch_class(lambda ctx, g: g.contiguous())(lambda ctx, x: x * 2)
    seen = []
    for apply in (cls.apply, xg.convert(cls)):
        x = torch.ones(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(apply(x), x, cotangent)
        seen.append((gradient.is_contiguous(), gradient.data_ptr() == cotangent.data_ptr()))
    assert seen[0] == seen[1]


def test_a_graph_that_copies_what_its_code_shares_is_not_used_on_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from multigrad.core import ops
    from multigrad_torch import backend

    monkeypatch.setitem(backend.kernels.rows, ops.SWAPAXES, lambda x, **axes: x.mT.clone())
    cls = make_class(lambda x: x.transpose(0, 1))
    x, y = call(xg.convert(cls), IN_ORDER, False)
    y.add_(1)
    assert x[0, 0] == 1


@pytest.mark.parametrize("name", ["times one", "transposed times one"])
def test_what_a_capture_misses_of_copies_the_proof_adds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "told_apart", lambda graph, values, arguments: graph)
    cls = make_class(FORWARDS[name])
    converted = xg.convert(cls)
    assert observe(converted, IN_ORDER, True) == observe(cls.apply, IN_ORDER, True)
    assert "memory" in str(xg.show(converted))


# --- NumPy ----------------------------------------------------------------------------------------
ON_NUMPY: dict[str, Any] = {
    "a clone": lambda: xg.convert(torch_class(lambda ctx, g: g)(lambda ctx, x: x.clone())),
    "times one": lambda: xg.convert(torch_class(lambda ctx, g: g.clone())(lambda ctx, x: x * 1.0)),
    "a view": lambda: xg.function(lambda x: x.T, lambda g, x: g.T),
    "itself": lambda: xg.custom_gradient(lambda x: (x, lambda g: g)),
    "derived": lambda: xg.function(lambda x: x.reshape(-1)),
}


@pytest.mark.parametrize("name", ON_NUMPY)
def test_results_and_gradients_on_numpy_own_their_memory(name: str) -> None:
    x = np.arange(6.0).reshape(2, 3)
    y, pull = xg.vjp(ON_NUMPY[name](), x)
    cotangent = np.ones_like(y)
    (gradient,) = pull(cotangent)
    pairs = itertools.combinations((x, y, cotangent, gradient), 2)
    assert not any(np.shares_memory(a, b) for a, b in pairs)


@pytest.mark.filterwarnings("error", category=NativeRuleWarning)
def test_a_function_of_a_function_that_copies_copies_too() -> None:
    inner = xg.convert(make_class(lambda x: x[:, :2].contiguous()))
    outer = xg.function(lambda x: inner(x), lambda g, x: torch.cat([g, g], 1))
    x, y = call(outer, IN_ORDER, False)
    y.add_(1)
    assert x[0, 0] == 0
    assert y.is_contiguous()


TABLE = torch.tensor([5.0, 6.0])
CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "an array": lambda g: torch.tensor([5.0, 6.0]),
    "a part of one": lambda g: torch.tensor([4.0, 5.0, 6.0])[1:],
    "one from outside": lambda g: TABLE,
    "one in its dtype": lambda g: TABLE.to(g.dtype),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_write_to_a_gradient_that_is_a_constant_does_not_reach_later_calls(name: str) -> None:
    constant = CONSTANTS[name]
    rule = xg.activation("Linear", lambda ctx, g, x: constant(g))
    cls = torch_class(lambda ctx, g: constant(g))(lambda ctx, x: x * 2)
    for f in (xg.convert(cls), xg.function(lambda x: x * 2, lambda g, x: constant(g)), rule):
        for _ in range(3):
            x = torch.ones(2, requires_grad=True)
            (gradient,) = torch.autograd.grad(f(x).sum(), x)
            assert gradient.tolist() == [5, 6]
            gradient.add_(1)
    assert TABLE.tolist() == [5, 6]


def test_a_gradient_that_is_a_constant_can_be_written_to_on_numpy() -> None:
    f = xg.custom_gradient(lambda x: (x * 2, lambda g: np.array([5.0, 6.0])))
    _, pull = xg.vjp(f, np.ones(2))
    for _ in range(3):
        (gradient,) = pull(np.ones(2))
        assert gradient.tolist() == [5, 6]
        gradient += 1
