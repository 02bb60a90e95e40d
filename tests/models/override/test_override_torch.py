"""`xg.override` on torch: rules on the operations that a function calls, by whatever name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleTypeError, RuleValueError

pytestmark = pytest.mark.needs("torch")
pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from ...harness.models.overridden import scaled_by, tenfold  # noqa: F401

X = torch.tensor([-1.0, 0.5, 2.0])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0])
EXPECTED = np.array([0.0, 20.0, 30.0])  # ten times relu's


CALLS: dict[str, Callable[..., Any]] = {
    "function": lambda x: (torch.relu(x) * WEIGHTS).sum(),
    "functional": lambda x: (F.relu(x) * WEIGHTS).sum(),
    "method": lambda x: (x.relu() * WEIGHTS).sum(),
    "in_place": lambda x: (x.clone().relu_() * WEIGHTS).sum(),
    "module": lambda x: (torch.nn.ReLU()(x) * WEIGHTS).sum(),
}


@pytest.mark.parametrize("selector", ["relu", F.relu])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_the_operation_has_the_rule(call: str, selector: Any) -> None:
    overridden = xg.override(CALLS[call], {selector: "tenfold"})
    x = X.clone().requires_grad_()
    y = overridden(x)
    assert y == CALLS[call](x)
    np.testing.assert_array_equal(torch.autograd.grad(y, x)[0], EXPECTED)


def test_transforms_of_torch_take_the_result() -> None:
    overridden = xg.override(CALLS["function"], {"relu": "tenfold"})
    np.testing.assert_array_equal(torch.func.grad(overridden)(X), EXPECTED)
    rows = torch.func.vmap(torch.func.grad(overridden))(torch.stack([X, -X]))
    np.testing.assert_array_equal(rows, [EXPECTED, [10.0, 0.0, 0.0]])
    signs = xg.override(lambda x: torch.sign(x) * WEIGHTS, {torch.sign: "tenfold"})
    np.testing.assert_array_equal(torch.func.jacrev(signs)(X), np.diag(EXPECTED))


def test_torch_compiles_the_result_whole() -> None:
    torch.compiler.reset()
    overridden = xg.override(CALLS["functional"], {F.relu: "tenfold"})
    compiled = torch.compile(overridden, backend="aot_eager", fullgraph=True)
    x = X.clone().requires_grad_()
    np.testing.assert_array_equal(torch.autograd.grad(compiled(x), x)[0], EXPECTED)


REFUSED = {
    "rellu": "no operation 'rellu'; did you mean 'relu'",
    "tanh": "calls no operation 'tanh'.*it calls: mul, relu, sum",
}


@pytest.mark.parametrize("selector", REFUSED)
def test_what_is_not_called_is_refused_with_what_is(selector: str) -> None:
    with pytest.raises(RuleValueError, match=REFUSED[selector]):
        xg.override(CALLS["function"], {selector: "tenfold"})(X)


def test_a_module_is_refused_and_attach_named() -> None:
    with pytest.raises(RuleTypeError, match=r"xg\.attach"):
        xg.override(torch.nn.ReLU(), {"relu": "tenfold"})
    with pytest.raises(
        RuleTypeError, match=r"selects nothing: expected a name or a function of torch"
    ):
        xg.override(CALLS["function"], {len: "tenfold"})(X)
