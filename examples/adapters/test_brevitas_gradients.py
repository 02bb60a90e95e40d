"""A test of each straight-through estimator of brevitas 0.13.4, and of four quantizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from brevitas.core.function_wrapper import Identity
from brevitas.core.quant import BinaryQuant, ClampedBinaryQuant, IntQuant, TernaryQuant
from brevitas.core.scaling import ConstScaling
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


HALF = ConstScaling(0.5)
INTEGERS = IntQuant(narrow_range=False, signed=True, input_view_impl=Identity())
QUANTIZERS: dict[str, tuple[Any, Any]] = {
    "three bits": (
        lambda x: INTEGERS(HALF(x), torch.tensor(0.0), torch.tensor(3.0), x),
        lambda x: x.clamp(-2.0, 1.5),
    ),
    "binary": (lambda x: BinaryQuant(HALF)(x)[0], lambda x: x / 2),
    "clamped": (lambda x: ClampedBinaryQuant(HALF)(x)[0], lambda x: x.clamp(-0.5, 0.5) / 2),
    # What becomes 0 gets no gradient.
    "ternary": (
        lambda x: TernaryQuant(HALF, 0.5)(x)[0],
        lambda x: torch.nn.functional.softshrink(x, 0.25) / 2,
    ),
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_quantizer_has_the_gradient_of_its_range(name: str) -> None:
    quantize, meant = QUANTIZERS[name]
    assert_gradient(quantize, X, surrogate=meant)
