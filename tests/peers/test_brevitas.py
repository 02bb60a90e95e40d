"""Rules of brevitas's names, and estimators, beside its autograd Functions."""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg

from .spikes import pulled

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]

X = torch.cat([torch.tensor([0.0, -0.0]), torch.arange(-3, 3.5, 0.5), torch.linspace(-3, 3, 101)])
G = torch.linspace(-1, 2, X.numel())

FUNCTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "round_ste": ("RoundSteFn", ()),
    "ceil_ste": ("CeilSteFn", ()),
    "floor_ste": ("FloorSteFn", ()),
    "round_to_zero_ste": ("RoundToZeroSteFn", ()),
    "dpu_round_ste": ("DPURoundSteFn", ()),
    "binary_sign_ste": ("BinarySignSteFn", ()),
    "ternary_sign_ste": ("TernarySignSteFn", ()),
    "tensor_clamp_ste": ("TensorClampSteFn", (torch.tensor(-0.5), torch.tensor(0.75))),
    "scalar_clamp_ste": ("ScalarClampSteFn", (-0.5, 0.75)),
    "scalar_clamp_min_ste": ("ScalarClampMinSteFn", (-0.5,)),
    "abs_binary_sign_grad": ("AbsBinarySignGradFn", ()),
}
ESTIMATORS: dict[str, Any] = {
    "round_ste": xg.estimators.ste_round,
    "ceil_ste": xg.estimators.ste_ceil,
    "floor_ste": xg.estimators.ste_floor,
    "round_to_zero_ste": xg.estimators.ste_trunc,
    "binary_sign_ste": lambda x: xg.estimators.ste_sign(x, None),
    "ternary_sign_ste": lambda x: xg.estimators.ste_ternary(x, 0.0, None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rule_and_an_estimator_have_the_gradient_of_brevitas(name: str) -> None:
    functions = pytest.importorskip("brevitas.ops.autograd_ste_ops")
    kind, more = FUNCTIONS[name]
    expected = pulled(lambda x: getattr(functions, kind).apply(x, *more), X)
    assert torch.equal(xg.get(f"brevitas.{name}")(None, G, X), expected[1])
    if name in ESTIMATORS:
        assert all(map(torch.equal, pulled(ESTIMATORS[name], X), expected))


def test_every_function_of_brevitas_has_a_rule() -> None:
    functions = pytest.importorskip("brevitas.ops.autograd_ste_ops")
    inplace = {"InplaceTensorClampSteFn"}  # that of `TensorClampSteFn`
    kinds = {name for name in dir(functions) if name.endswith("Fn")} - inplace
    assert kinds == {kind for kind, _ in FUNCTIONS.values()}


@pytest.mark.parametrize("alpha", [1.0, 0.25, 0.0])
def test_a_reversal_has_the_gradient_of_pytorch_revgrad(alpha: float) -> None:
    package = pytest.importorskip("pytorch_revgrad")
    _, expected = pulled(package.RevGrad(alpha=alpha), X)
    assert torch.equal(xg.get("pytorch_revgrad.RevGrad")(None, G, X, alpha=alpha), expected)
