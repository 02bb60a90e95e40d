"""An output of a converted class lies in the memory that the class itself gives it on torch: its
argument's own, that of a view, or memory of its own. So an update in place reaches what it reaches
there, or is the same error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")
Tensor = Any
FORWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "another name": lambda x: x.view_as(x),
    "whole slice": lambda x: x[:],
    "a view of a view": lambda x: x.view(x.shape).view_as(x),
    "transposed twice": lambda x: x.t().t(),
    "a part": lambda x: x[:1],
    "detached": lambda x: x.detach(),
    "cast to its dtype": lambda x: x.float(),
    "contiguous": lambda x: x.contiguous(),
    "copied": lambda x: x.clone(),
    "a copy of a view": lambda x: x.view_as(x).clone(),
    "detached and copied": lambda x: x.detach().clone(),
    "copied and detached": lambda x: x.clone().detach(),
    "multiplied by one": lambda x: x * 1,
}


def make_class(forward: Callable[[Tensor], Tensor], keeps: bool) -> Any:
    import torch

    class Passing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = forward(x)
            if keeps:
                ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad if grad.shape == (2, 2) else torch.cat([grad, 0 * grad])

    return Passing


def observe(apply: Callable[[Tensor], Tensor], is_asked: bool, is_on: bool) -> dict[str, Any]:
    """Return what is seen of an output, and what an update of it does."""
    import torch

    leaf = torch.ones(2, 2, requires_grad=is_asked)
    x = leaf * 2
    with torch.set_grad_enabled(is_on):
        y = apply(x)
    seen = {
        "shares memory": y.data_ptr() == x.data_ptr(),
        "is the argument": y is x,
        "is a view": y._is_view(),
        "asks for a gradient": y.requires_grad,
    }
    try:
        y.mul_(3)
    except RuntimeError as error:
        return {**seen, "error": str(error).partition(" and is being modified")[0]}
    return {**seen, "the argument": x.tolist(), "the output": y.tolist()}


@pytest.mark.parametrize("keeps", [False, True], ids=["plain", "kept"])
@pytest.mark.parametrize("name", FORWARDS)
def test_an_output_has_the_memory_that_its_class_gives_it(name: str, keeps: bool) -> None:
    cls = make_class(FORWARDS[name], keeps)
    converted = xg.convert(cls)
    for is_asked in (False, True):
        for is_on in (True, False):
            own = observe(cls.apply, is_asked, is_on)
            assert observe(converted, is_asked, is_on) == own, (is_asked, is_on)
    assert converted.variants, "it was captured"


def test_what_a_class_returns_twice_is_one_tensor_with_the_gradient_of_its_class() -> None:
    import torch

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            y = 2 * x
            return y, y

        @staticmethod
        def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
            return 2 * first + 5 * second

    def run(apply: Callable[[Tensor], Any]) -> tuple[bool, list[list[float]]]:
        x = torch.ones(2, requires_grad=True)
        first, second = apply(x)
        loss = (first + 10 * second).sum()
        gradients = torch.autograd.grad(loss, x)
        return first is second, [each.tolist() for each in gradients]

    assert run(xg.convert(Twice)) == run(Twice.apply)


def test_a_queued_callback_of_torchs_engine_runs_once_for_each_backward() -> None:
    import torch

    calls: list[str] = []

    class Queuing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: calls.append("called"))
            return 2 * grad

    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            with torch.enable_grad():  # where the first call is made in a backward that runs
                inner = grad.detach().requires_grad_()
                xg.convert(Queuing)(inner).sum().backward()
            return grad

    Outer.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert calls == ["called"]
    with pytest.raises(xg.TraceError, match=r"'Queuing' .*queues a callback of torch's engine"):
        xg.vjp(xg.convert(Queuing), torch.ones(2).numpy())
