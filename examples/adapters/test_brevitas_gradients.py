"""A test of each straight-through estimator of brevitas 0.13.4; `pytest` runs this file."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from brevitas.ops import autograd_ste_ops as ste

from multigrad.testing import assert_gradient

X = torch.tensor([-2.3, -1.1, -0.3, 0.2, 0.6, 1.4], dtype=torch.float64)
LOW, HIGH = (torch.tensor(bound, dtype=torch.float64) for bound in (-0.5, 0.75))
ESTIMATORS: dict[str, tuple[Any, ...]] = {
    "RoundSteFn": (),
    "CeilSteFn": (),
    "FloorSteFn": (),
    "RoundToZeroSteFn": (),
    "DPURoundSteFn": (),
    "BinarySignSteFn": (),
    "TernarySignSteFn": (),
    "ScalarClampSteFn": (-0.5, 0.75),
    "ScalarClampMinSteFn": (-0.5,),
    "TensorClampSteFn": (LOW, HIGH),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_passes_the_gradient_straight_through(name: str) -> None:
    assert_gradient(getattr(ste, name), X, *ESTIMATORS[name], surrogate=lambda x, *_: x)


def test_the_sign_of_abs_has_zero_mapped_to_plus_one() -> None:
    assert_gradient(ste.AbsBinarySignGradFn, X)
