"""What `torch.func` makes of an inner function, of captured tensors: its gradient, its pullback,
its rows each by themselves. What `torch.compile` makes of one computes what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in
from ..values.test_asked_of_a_tensor import X, make

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
Tensor = Any
FUNC = torch.func


def energy(a: Tensor, b: Tensor, scale: float = 1.0) -> tuple[Tensor, Any]:
    inner = torch.sin(a) * b
    return (inner * inner).sum() * scale, (inner, {"mean": inner.mean()})


def slopes_and_more(x: Tensor) -> Tensor:
    scaled = partial(energy, scale=0.5)
    slopes, (value, (inner, rest)) = FUNC.grad_and_value(scaled, argnums=(1, 0), has_aux=True)(
        x, 2 * x
    )
    return slopes[0] * value + slopes[1] * inner + rest["mean"]


def of_the_last(x: Tensor) -> Tensor:
    slope, (inner, _) = FUNC.grad(energy, argnums=-1, has_aux=True)(x, x * x)
    return slope + inner


def pulled_with_more(x: Tensor) -> Tensor:
    value, pull, more = FUNC.vjp(lambda y: (torch.cos(y) * y, y * y), x, has_aux=True)
    return pull(value)[0] * more


def where_none_passes(x: Tensor) -> Tensor:
    with torch.no_grad():
        slope, value = FUNC.grad_and_value(lambda y: (y**3).sum())(x)
        direction = FUNC.jvp(torch.sin, (x,), (x,))[1]
        (other,) = FUNC.vjp(torch.sin, x)[1](x)
    return x * slope + value + direction * other * x


def pauses_inside(x: Tensor) -> Tensor:
    def paused(y: Tensor) -> Tensor:
        with torch.no_grad():
            weight = y * y
        return (weight * y).sum()

    return FUNC.grad(paused)(x) * x


def by_rows(x: Tensor) -> Tensor:
    def score(row: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(row * weight).sum() * row

    return torch.vmap(score, in_dims=(0, None), out_dims=1)(x, x[0]).T


def by_columns_of_a_tree(x: Tensor) -> Tensor:
    def both(given: Any) -> Any:
        return {"a": given["a"] * given["b"].sum(), "b": given["b"] + given["a"]}

    found = FUNC.vmap(both, in_dims=({"a": 1, "b": None},), out_dims={"a": 1, "b": 1})(
        {"a": x, "b": x[:, 0]}
    )
    return found["a"] + found["b"]


def of_each_example(x: Tensor) -> Tensor:
    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return ((row * weight) ** 2).sum()

    return FUNC.vmap(FUNC.grad(loss), in_dims=(None, 0))(x[0], x)


def compiled(x: Tensor) -> Tensor:
    total = torch.zeros(())

    @torch.compile(fullgraph=True)
    def add(y: Tensor) -> Tensor:
        total.add_(y.sum())
        return y * 2

    double = torch.compile(add)
    return double(x) + total


CASES: list[Callable[[Tensor], Tensor]] = [
    slopes_and_more, of_the_last, pulled_with_more, where_none_passes, pauses_inside,
    by_rows, by_columns_of_a_tree, of_each_example,
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_a_transform_taken_inside_is_torch_s(function: Callable[[Tensor], Tensor]) -> None:
    assert_as_in("torch", function, X)


def test_what_is_to_be_compiled_inside_runs_as_it_is_written() -> None:
    y, pull = xg.vjp(xg.function(compiled, native=False), X)
    np.testing.assert_allclose(y, X * 2 + X.sum(), rtol=1e-6)
    np.testing.assert_allclose(pull(np.ones_like(X))[0], np.full_like(X, 2 + X.size), rtol=1e-6)


# --- in classes, which run where no gradient passes -----------------------------------------------


class Weighs:
    """Gives its own helpers, which `super()` and the class's name lead to."""

    @staticmethod
    def total(x: Tensor, weight: Tensor) -> Tensor:
        return (torch.sin(x) * weight).sum()


def keep_slopes(ctx: Any, x: Tensor) -> Tensor:
    slopes, value = FUNC.grad_and_value(Weighs.total, argnums=(0, 1))(x, x * x)
    ctx.save_for_backward(slopes[0] + 2 * x * slopes[1])
    return value


def give_slopes(ctx: Any, grad: Tensor) -> Tensor:
    return grad * ctx.saved_tensors[0]


def keep_x(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x)
    return Weighs.total(x, x * x)


def pull_rows(ctx: Any, grad: Tensor) -> Tensor:
    def one(row: Tensor) -> Tensor:
        return FUNC.vjp(lambda y: Weighs.total(y, y * y), row)[1](torch.ones(()))[0]

    return FUNC.vmap(one)(ctx.saved_tensors[0]) * grad


@pytest.mark.parametrize("pair", [(keep_slopes, give_slopes), (keep_x, pull_rows)])
def test_a_class_that_transforms_is_a_graph(pair: Any, backend: Any) -> None:
    function, cls = make(*pair)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)


def marks(ctx: Any, x: Tensor) -> Tensor:
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_static(x)
    y = x * 3
    torch._dynamo.maybe_mark_dynamic(y, 1)
    return y


def test_hints_for_a_compiler_mean_nothing_to_a_graph(backend: Any) -> None:
    function, cls = make(marks)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)


class Base(torch.autograd.Function):
    @classmethod
    def forward(cls: Any, ctx: Any, x: Tensor) -> Tensor:
        total = torch.zeros((), device=x.device)
        for part in torch.chunk(x, max(1, len(x))):
            total.add_(cls.part_of(part))
        ctx.save_for_backward(x)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise NotImplementedError


class Derived(Base):
    @staticmethod
    def part_of(part: Tensor) -> Tensor:
        return (part * part).sum()

    @classmethod
    def forward(cls: Any, ctx: Any, x: Tensor) -> Tensor:
        return super().forward(ctx, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


def test_helpers_of_a_class_and_of_its_base_are_captured(backend: Any) -> None:
    assert_as_in("torch", Derived.apply, X, of=xg.convert(Derived), backend=backend)


def defines_others(x: Tensor) -> Tensor:
    class Halves(Derived):
        @classmethod
        def forward(cls: Any, ctx: Any, x: Tensor) -> Tensor:
            return super().forward(ctx, x) / 2

    class Doubles(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    is_derived = issubclass(Halves, Derived) and Derived.__name__ == "Derived"
    return Doubles()(Halves.apply(x)) * x if is_derived else x


def test_classes_defined_inside_of_such_ones_are_captured() -> None:
    assert_as_in("torch", defines_others, X)


# --- what is refused ------------------------------------------------------------------------------


def draws_by_rows(x: Tensor) -> Tensor:
    return FUNC.vmap(lambda row: row * torch.rand_like(row), randomness="different")(x)


def maps_many(x: Tensor) -> Tensor:
    return FUNC.vmap(torch.sin)(x.repeat(200, 1))


@pytest.mark.parametrize(
    ("function", "said"),
    [(draws_by_rows, "draws random numbers in torch.func.vmap"), (maps_many, "over 400 rows")],
)
def test_what_rows_cannot_do_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(xg.TraceError, match=said):
        xg.function(function, native=False)(X)
