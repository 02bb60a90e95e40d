"""torch.jit.trace keeps what was in force when it traced, and says so."""

from __future__ import annotations

import io
import warnings
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
]

Tensor: TypeAlias = Any


def tripled(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * 3.0


@pytest.fixture
def native() -> Any:
    return xg.register("tripled as it is", native=True)(tripled)


def slope(f: Any) -> Any:
    x = torch.tensor([-2.0, 0.5], requires_grad=True)
    f(x).sum().backward()
    return x.grad.numpy()


@pytest.mark.parametrize("as_module", [False, True])
def test_the_rule_that_a_trace_keeps_is_named(as_module: bool, native: Any) -> None:
    for rule, kept in (("triangular", [0.0, 0.5]), ("tripled as it is", [3.0, 3.0])):
        act = xg.Activation("Heaviside") if as_module else xg.activation("Heaviside")
        x = torch.ones(2)
        with xg.use(rule), pytest.warns(torch.jit.TracerWarning, match=f"keeps .*{rule}.*compile"):
            traced = torch.jit.trace(act if as_module else lambda x, act=act: act(x), x)
        with xg.use("straight_through"):
            np.testing.assert_allclose(slope(traced), kept)
    # It is code, and cannot be stored as a graph.
    with pytest.raises(RuntimeError, match="Python"):
        torch.jit.save(traced, io.BytesIO())


@pytest.mark.parametrize("forward", ["ReLU", "Heaviside"])
def test_a_trace_that_no_rule_will_reach_says_so(forward: str) -> None:
    with pytest.warns(torch.jit.TracerWarning, match="whatever is in force where the trace runs"):
        traced = torch.jit.trace(xg.Activation(forward), torch.ones(2))
    with xg.use("straight_through"):
        assert slope(traced).tolist() == ([0.0, 1.0] if forward == "ReLU" else [0.0, 0.0])


def test_code_that_nobody_traces_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xg.use("triangular"):
            slope(xg.Activation("Heaviside"))
            torch.func.vmap(xg.Activation("Heaviside"))(torch.ones(2))
