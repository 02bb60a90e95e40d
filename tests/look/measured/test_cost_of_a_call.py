"""What an eager call costs in Python, counted by opcodes, which do not depend on the load.

The bounds are loose. They catch a lookup or a check that creeps into every call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.torch_class import torch_class

WARM = 3  # calls, after which nothing is captured or compiled any more
# Of a class of torch in forward, where `apply` is Python. It is C++ since 2.14, and no faster: a
# call of a rule takes 0.7 to 0.9 times as long as one of the class there, too.
OF_APPLY = 122


def count_opcodes(call: Callable[[], Any]) -> int:
    """Return how many opcodes of Python a call takes, after calls that prepare it."""
    for _ in range(WARM):
        call()
    count = 0

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def make_rule() -> Any:
    """Return a rule that no test before has captured, and had proven at each call."""

    def triangle(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out * xg.xp.clip(1 - abs(tin) / width, 0.0, None)

    return triangle


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("unproven")
def test_an_eager_call_takes_few_more_opcodes_than_a_class_of_torch() -> None:
    import torch

    def triangle(ctx: Any, grad_out: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad_out * (1 - x.abs() / ctx.width).clamp(min=0), None

    @torch_class(triangle)
    def Plain(ctx: Any, x: Any, width: float) -> Any:
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    x, grad_out = torch.linspace(-2, 2, 5, requires_grad=True), torch.ones(5)

    def cost(act: Callable[[Any], Any]) -> tuple[int, int]:
        def both() -> None:
            torch.autograd.grad(act(x), x, grad_out)

        forward = count_opcodes(lambda: act(x))
        return forward, count_opcodes(both) - forward

    plain = cost(lambda x: Plain.apply(x, 1.0))
    bound = cost(xg.activation("Heaviside", rule=make_rule()))
    with xg.use(make_rule()):
        in_force = cost(xg.Activation("Heaviside"))
    for forward, backward in (bound, in_force):
        assert forward <= 3 * max(plain[0], OF_APPLY)
        assert backward <= 1.5 * plain[1]


@pytest.mark.usefixtures("unproven")
def test_a_pullback_in_numpy_takes_few_opcodes() -> None:
    act, x = xg.activation("Heaviside", rule=make_rule()), np.linspace(-2, 2, 5)
    grad_out = np.ones(5)
    _, pull = xg.vjp(act, x)
    assert count_opcodes(lambda: xg.vjp(act, x)) <= 1200  # 544 when it was written, Python 3.11
    assert count_opcodes(lambda: pull(grad_out)) <= 600  # 238
